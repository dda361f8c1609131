"""A tiny, randomly initialised MoE of transformers: gradient checkpointing under FSDP2, on the CPU.

    python examples/transformers_sac.py             # one process, or under torchrun
    python examples/transformers_sac.py --no-shim   # torch 2.13 and newer: the crash

`gradient_checkpointing_kwargs` takes a context_fn, so that matrix products are kept and the
rest is recomputed. Each layer's experts and its shared expert are FSDP units of their own, and
the replay dies without the shim `sac_profiler`.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

import torchcompat

if "--no-shim" not in sys.argv:
    torchcompat.apply_all()

alone = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}
dist.init_process_group("gloo", **({} if "RANK" in os.environ else alone))
torch.manual_seed(0)
config = Qwen2MoeConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_experts=4,
    num_experts_per_tok=2,
    use_cache=False,
)
model = Qwen2MoeForCausalLM(config).train()
matmuls = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
model.gradient_checkpointing_enable(
    {
        "use_reentrant": False,
        "context_fn": partial(create_selective_checkpoint_contexts, matmuls),
    }
)
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model.model.layers:
    fully_shard(layer.mlp.experts, mesh=mesh)
    fully_shard(layer.mlp.shared_expert, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokens = torch.arange(8 * 16).view(8, 16) * 3 % config.vocab_size
for step in range(10):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}  loss {loss.item():.4f}")
dist.destroy_process_group()

"""An Accelerate training loop: FSDP2 through its plugin, selective checkpointing, on the CPU.

    python examples/accelerate_sac.py             # one process, or under torchrun
    python examples/accelerate_sac.py --no-shim   # torch 2.13 and newer: the crash

The plugin wraps each block's experts as an FSDP unit of their own, inside a checkpointed
block, and the replay dies without the shim `sac_profiler`.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import torchcompat

WIDTH, VOCABULARY, EXPERTS = 32, 64, 4
save_matmuls = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


class Experts(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(super().forward(x)).unflatten(-1, (EXPERTS, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS), Experts(WIDTH, EXPERTS * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.router(x).softmax(-1).unsqueeze(-1) * self.experts(x)).sum(-2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, context_fn=save_matmuls)
        return self.head(x)


if "--no-shim" not in sys.argv:
    torchcompat.apply_all()
os.environ.update({"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"} | os.environ)
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["Experts"],
    cpu_ram_efficient_loading=False,
)
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
# Accelerate keeps FSDP from the CPU and would train with DDP; its FSDP2 code runs there all the same.
accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)
tokens = torch.arange(8 * 17).view(8, 17) * 3 % VOCABULARY
for step in range(10):
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"step {step}  loss {loss.item():.4f}")
accelerator.end_training()

"""NeMo Automodel's selective activation checkpointing with FSDP2, on the CPU.

    python examples/nemo_automodel_sac.py             # one process, or under torchrun
    python examples/nemo_automodel_sac.py --no-shim   # torch 2.13 and newer: the crash

Automodel patches SAC_IGNORED_OPS itself; here its two patches are taken out, as they can be
once `torchcompat.apply_all()` is called in their place.
"""

from __future__ import annotations

import os
import sys

import nemo_automodel.components.distributed.activation_checkpointing as automodel
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchcompat

automodel.ensure_profiler_ops_sac_ignored = automodel.ensure_fsdp_ops_sac_ignored = lambda: None
if "--no-shim" not in sys.argv:
    torchcompat.apply_all()

WIDTH, VOCABULARY, EXPERTS = 32, 64, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, EXPERTS * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.silu(self.experts(x)).unflatten(-1, (EXPERTS, WIDTH))
        return x + (self.router(x).softmax(-1).unsqueeze(-1) * out).sum(-2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


alone = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}
dist.init_process_group("gloo", **({} if "RANK" in os.environ else alone))
torch.manual_seed(0)
model = Model()
automodel.apply_selective_checkpointing_to_layers(model, list(model.layers), False)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model.layers:
    fully_shard(automodel.unwrap_checkpoint_wrapper(layer).experts, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokens = torch.arange(8 * 17).view(8, 17) * 3 % VOCABULARY
for step in range(10):
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}  loss {loss.item():.4f}")
dist.destroy_process_group()

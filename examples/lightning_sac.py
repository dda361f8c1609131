"""Lightning Fabric's ModelParallelStrategy: FSDP2 with selective checkpointing, on the CPU.

    python examples/lightning_sac.py             # one process; --ranks 2 for two
    python examples/lightning_sac.py --no-shim   # torch 2.13 and newer: the crash

Each block's experts are an FSDP unit of their own inside a checkpointed block, and the
replay dies without the shim `sac_profiler`.
"""

from __future__ import annotations

import argparse
from functools import partial

import lightning as L
import torch
import torch.nn.functional as F
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import torchcompat

WIDTH, VOCABULARY, EXPERTS = 32, 64, 4
save_matmuls = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


class Block(nn.Module):
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
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, context_fn=save_matmuls)
        return self.head(x)


def parallelize(model: Model, mesh: DeviceMesh) -> Model:
    for block in model.blocks:
        fully_shard(block.experts, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])


def train(fabric: L.Fabric) -> None:
    fabric.seed_everything(0)
    model = fabric.setup(Model())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))
    tokens = torch.arange(8 * 17).view(8, 17) * 3 % VOCABULARY
    for step in range(10):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        fabric.print(f"step {step}  loss {loss.item():.4f}")


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--no-shim", action="store_true", help="train without torchcompat")
parser.add_argument("--ranks", type=int, default=1)
options = parser.parse_args()
if not options.no_shim:
    torchcompat.apply_all()
strategy = ModelParallelStrategy(parallelize, options.ranks, 1)
L.Fabric(accelerator="cpu", devices=options.ranks, strategy=strategy).launch(train)

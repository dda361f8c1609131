"""Gradient accumulation in bfloat16 over a routed MoE, FSDP2 and selective checkpointing, two ranks.

    python examples/train_moe_accumulate.py             # starts its two ranks itself (gloo, CPU)
    python examples/train_moe_accumulate.py --no-shim   # fails on every torch from 2.7 on

Each rank's tokens reach other experts, some reach none: what real MoE training looks like.
On the way lie, depending on the torch: no way to say that ranks use different parameters
(to 2.12), mixed dtypes in the reduce-scatter (to 2.14), gloo's wrong average (to 2.8), and
the replay of selective activation checkpointing (from 2.13 on).
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import torchcompat

WIDTH, EXPERTS, BLOCKS, RANKS = 16, 4, 3, 2


class Experts(nn.Module):
    """Linear experts; each token goes to one, and an expert without tokens is not run."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.all):
            mine = (chosen == number).nonzero().flatten()
            if len(mine):
                out = out.index_copy(0, mine, expert(x[mine]))
        return out


class Block(nn.Module):
    """A linear layer, then the experts, around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.experts = Experts()

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return torch.sin(x + self.experts(torch.relu(self.dense(x)), chosen))


def policy(ctx, op, *args, **kwargs):
    """Keep matrix products, recompute the rest."""
    saved = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE


class Model(nn.Module):
    """Checkpointed blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        context = functools.partial(create_selective_checkpoint_contexts, policy)
        for block in self.blocks:
            x = checkpoint(block, x, chosen, use_reentrant=False, context_fn=context)
        return x


def train(rank: int, store: str, shim: bool, steps: int) -> None:
    if shim:
        torchcompat.apply_all()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = Model()
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    experts = [block.experts for block in model.blocks]
    for module in (*experts, model):
        fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)), mp_policy=precision)
    model.set_modules_to_forward_prefetch(experts)
    model.set_reduce_scatter_unused_params(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    torch.manual_seed(rank)
    inputs = torch.randn(2, 8, WIDTH)
    # Rank 0 never reaches the last expert, rank 1 only in the second micro-batch.
    chosen = torch.stack([torch.arange(8) % 3, torch.arange(8) % (3 + rank)])
    for step in range(steps):
        total = 0.0
        for number, (x, route) in enumerate(zip(inputs, chosen)):
            model.set_requires_gradient_sync(number == len(inputs) - 1)
            loss = (model(x, route) ** 2).mean() / len(inputs)
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            print(f"step {step + 1} loss {total:.4f}", flush=True)
        elif hasattr(norm, "full_tensor"):
            norm.full_tensor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-shim", action="store_true", help="train on torch as it is")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.spawn(train, (store, not options.no_shim, options.steps), nprocs=RANKS)


if __name__ == "__main__":
    main()

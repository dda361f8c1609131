"""Train a small MoE decoder with FSDP2 and selective activation checkpointing.

    python examples/train_moe_sac.py                  # one process
    torchrun --nproc-per-node 2 examples/train_moe_sac.py
    python examples/train_moe_sac.py --no-shim        # torch 2.13 and newer: the crash

The experts are sharded on their own, inside a checkpointed block. From torch 2.13 on
that is enough to kill the backward pass; torchcompat's shim `sac_profiler` cures it.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import torchcompat

VOCABULARY, WIDTH, HEADS, EXPERTS, BLOCKS, LENGTH = 32, 32, 4, 4, 3, 16


class Experts(nn.Module):
    """Two-layer experts, mixed with the router's weights; (tokens, width) in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH) / (2 * WIDTH) ** 0.5)

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        tokens = x.unsqueeze(0).expand(EXPERTS, -1, -1)
        out = torch.bmm(F.silu(torch.bmm(tokens, self.up)), self.down)
        return (out * weights.t().unsqueeze(-1)).sum(0)


class Block(nn.Module):
    """Causal attention, then a mixture of the two best experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        tokens = self.norm2(x).reshape(-1, width)
        best, index = self.router(tokens).topk(2, dim=-1)
        weights = torch.zeros_like(tokens[:, :EXPERTS]).scatter(1, index, best.softmax(-1))
        return x + self.norm3(self.experts(tokens, weights)).view_as(x)


class Decoder(nn.Module):
    """Embedding, checkpointed blocks, and a linear head; (batch, length) to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        context = functools.partial(create_selective_checkpoint_contexts, save_matmuls)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, context_fn=context)
        return self.head(x)


def save_matmuls(ctx, op, *args, **kwargs) -> CheckpointPolicy:
    """Keep the results of matrix products, recompute everything else."""
    matmuls = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
    return CheckpointPolicy.MUST_SAVE if op in matmuls else CheckpointPolicy.PREFER_RECOMPUTE


def shard(model: Decoder) -> None:
    """FSDP2: each block's experts are a unit of their own, the rest is the root."""
    from torch.distributed.fsdp import fully_shard

    experts = [block.experts for block in model.blocks]
    for module in (*experts, model):
        fully_shard(module)
    model.set_modules_to_forward_prefetch(experts)


def train(steps: int) -> None:
    """Learn the sequence t -> 3 t + 1 modulo the vocabulary."""
    cuda = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu"
    torch.manual_seed(0)
    torch.set_default_device(device)
    model = Decoder()
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    for step in range(steps):
        columns = [torch.randint(VOCABULARY, (8,), generator=generator)]
        while len(columns) <= LENGTH:
            columns.append((3 * columns[-1] + 1) % VOCABULARY)
        tokens = torch.stack(columns, dim=1)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step:2d}  loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-shim", action="store_true", help="train without torchcompat")
    arguments = parser.parse_args()

    if not arguments.no_shim:
        report = torchcompat.apply_all()
        if os.environ.get("RANK", "0") == "0":
            print(
                f"torch {torch.__version__}, shims applied: {', '.join(report.applied) or 'none needed'}"
            )

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ:  # torchrun
        dist.init_process_group(backend)
        train(arguments.steps)
    else:
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
            train(arguments.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

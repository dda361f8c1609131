"""Small models and comparisons that reproducers share. Imports torch only when called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = [
    "assert_same_training",
    "batches",
    "cpu_mesh",
    "moe_blocks",
    "quick_inductor",
    "train",
    "whole",
]


def moe_blocks(width: int = 8, blocks: int = 3, seed: int = 0) -> torch.nn.Module:
    """Build a stack of residual blocks: a linear, then an ``experts`` linear.

    The same seed gives the same parameters. Input and output are ``(batch, width)``.
    """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(width, width)
            self.experts = nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = torch.relu(self.router(x))
            return torch.sin(x + self.experts(hidden))

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(blocks))
            self.run_block: Callable[[nn.Module, torch.Tensor], torch.Tensor] = _plain

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = self.run_block(block, x)
            return x

    torch.manual_seed(seed)
    return Stack()


def _plain(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = block(x)
    return out


def batches(count: int = 5, shape: tuple[int, ...] = (4, 8), seed: int = 1) -> list[torch.Tensor]:
    """Return the same random batches on every rank."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for _ in range(count)]


def cpu_mesh() -> Any:
    """Return a one-dimensional device mesh over all ranks, on the CPU."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


def train(
    model: torch.nn.Module, batches: Iterable[torch.Tensor], *, lr: float = 0.1
) -> tuple[list[float], list[torch.Tensor]]:
    """Train with plain SGD on ``mean(model(x) ** 2)``; return losses and last gradients.

    Gradients of DTensor parameters come back whole.
    """
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses: list[float] = []
    for batch in batches:
        optimizer.zero_grad()
        loss = (model(batch) ** 2).mean()
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    return losses, [whole(p.grad) for p in model.parameters() if p.grad is not None]


def whole(tensor: Any) -> torch.Tensor:
    """Return a copy of a tensor, a sharded one gathered."""
    gathered: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.detach().clone()


def assert_same_training(
    got: tuple[Sequence[float], Sequence[torch.Tensor]],
    want: tuple[Sequence[float], Sequence[torch.Tensor]],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Compare losses and gradients of two runs; raise AssertionError where they differ."""
    import torch

    for step, (a, b) in enumerate(zip(got[0], want[0])):
        if abs(a - b) > atol + rtol * abs(b):
            raise AssertionError(f"loss at step {step}: got {a}, want {b}")
    if len(got[0]) != len(want[0]) or len(got[1]) != len(want[1]):
        raise AssertionError("the two runs differ in their number of steps or gradients")
    for grad, reference in zip(got[1], want[1]):
        torch.testing.assert_close(grad, reference, rtol=rtol, atol=atol)


def quick_inductor() -> None:
    """Have inductor compile plain C++ loops, and nothing else first.

    To try the vector units and to precompile torch's headers takes longer than the code of a
    reproducer, and the headers would stay in the user's cache, some hundred megabytes.
    """
    from torch._inductor import config

    settings: Any = config
    settings.cpp.vec_isa_ok = False
    if hasattr(settings, "cpp_cache_precompile_headers"):
        settings.cpp_cache_precompile_headers = False

"""Small models and comparisons that reproducers share. Imports torch only when called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .gate import Affected
from .shim import Reproducer
from .targets import lookup

if TYPE_CHECKING:
    import torch

__all__ = [
    "beside",
    "functional",
    "assert_same_sharded",
    "assert_same_training",
    "batches",
    "cpu_mesh",
    "fake_world",
    "moe_blocks",
    "on_two_ranks",
    "quick_inductor",
    "replicated_linear",
    "tcp_store",
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


def tcp_store() -> tuple[Any, Any]:
    """Return a TCPStore that serves on a free port of this machine, and a client of it.

    A name server that does not answer costs 5 seconds each, so they are patient.
    """
    from datetime import timedelta

    make: Any = lookup("torch.distributed:TCPStore")
    patience = timedelta(seconds=60)
    server = make("127.0.0.1", 0, 1, True, timeout=patience)
    return server, make("127.0.0.1", server.port, None, False, timeout=patience)


@contextlib.contextmanager
def fake_world(rank: int, size: int) -> Iterator[None]:
    """Be one rank of a process group whose collectives do nothing, for meshes of any size."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def on_two_ranks(
    run: Callable[[], None],
    expect: str = r"AssertionError: .*output \d+ differs",
    *,
    since: str = "2.5.0",
    needs: str = "the public torch.distributed.tensor",
    affected: Affected | None = None,
) -> Reproducer:
    """Declare the reproducer that is a function about DTensors, run on two ranks under its own name.

    Args:
        run: see :class:`~torchcompat.shim.Reproducer`, also for ``expect`` and ``affected``.
        expect: by default what :func:`assert_same_sharded` says of a wrong output.
        since: the first release that can run it, and not by fault of what it is about.
        needs: what is there from then on.
        affected: the builds where it fails, if they differ from the shim's.
    """
    return Reproducer(
        name=run.__name__,
        run=run,
        expect=expect,
        ranks=2,
        affected=affected,
        runnable=Affected(since=since),
        needs=needs,
        preload=("torch.distributed.tensor", "torch._dynamo"),
    )


def functional() -> Any:
    """Return ``torch.nn.functional``, for modules that must not import torch."""
    import torch

    return torch.nn.functional


def beside(like: Any, tensor: Any, placement: Any = None) -> Any:
    """Put a plain tensor where another one is, which may be a DTensor on a mesh of one dimension.

    Args:
        like: a DTensor, or a plain tensor; the result is then the tensor itself.
        tensor: the plain tensor, the same on all ranks.
        placement: how it is placed; ``Replicate()`` by default.
    """
    from torch.distributed.tensor import Replicate, distribute_tensor

    if not hasattr(like, "placements"):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, [placement or Replicate()])


def replicated_linear() -> tuple[Any, Any]:
    """Return a replicated weight whose gradient is a sum over a sharded batch, and a plain one.

    Both are of shape (3, 6), and so are their gradients.
    """
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.manual_seed(0)
    plain, batch = torch.nn.Linear(6, 3).weight, torch.randn(4, 6)
    mesh = cpu_mesh()
    weight: Any = torch.nn.Parameter(distribute_tensor(plain.detach(), mesh, [Replicate()]))
    (distribute_tensor(batch, mesh, [Shard(0)]) @ weight.t()).sum().backward()
    (batch @ plain.t()).sum().backward()
    return weight, plain


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


def assert_same_sharded(
    function: Callable[[Any, Callable[[Any], Any]], Any],
    *,
    shape: tuple[int, ...] = (4, 6),
    placements: Iterable[Any] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Call a function with a plain tensor and with DTensors of it; all numbers must agree.

    Args:
        function: called as ``function(x, place)``; returns a tensor, or a list or tuple of
            tensors. ``place`` puts another tensor where ``x`` is: sharded like ``x``, or
            replicated where it has no such dimension; a plain one stays as it is.
        shape: of ``x``, a float32 tensor of normal random numbers, the same on all ranks.
        placements: each tried on its own, on a mesh over all ranks; by default
            ``Replicate()`` and ``Shard(d)`` for every dimension ``d``.
        rtol: relative tolerance, for values and for the gradients of ``x``.
        atol: absolute tolerance.

    Raises:
        AssertionError: an output or the gradient differs; names the placement.
    """
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = cpu_mesh()
    plain = torch.randn(*shape, generator=torch.Generator().manual_seed(0))

    def run(placement: Any) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        def place(tensor: Any) -> Any:
            if placement is None:
                return tensor
            fits = isinstance(placement, Shard) and placement.dim < tensor.ndim
            return distribute_tensor(tensor, mesh, [placement if fits else Replicate()])

        x = place(plain.clone()).requires_grad_()
        outputs = function(x, place)
        listed = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        found = [out.full_tensor() if hasattr(out, "full_tensor") else out for out in listed]
        weights = torch.Generator().manual_seed(1)
        loss = sum(
            (out * torch.randn(out.shape, generator=weights)).sum() for out in found if out.requires_grad
        )
        if isinstance(loss, torch.Tensor):
            loss.backward()
        return [out.detach() for out in found], None if x.grad is None else whole(x.grad)

    if placements is None:
        placements = [Replicate(), *map(Shard, range(len(shape)))]
    values, gradient = run(None)
    for placement in placements:
        got, got_gradient = run(placement)
        if len(got) != len(values):
            raise AssertionError(f"{placement}: {len(got)} outputs, not {len(values)}")
        compare = {f"output {i}": pair for i, pair in enumerate(zip(got, values))}
        if (got_gradient is None) is not (gradient is None):
            raise AssertionError(f"{placement}: only one of the two runs has a gradient")
        if got_gradient is not None and gradient is not None:
            compare["the gradient"] = (got_gradient, gradient)
        for what, (mine, reference) in compare.items():
            try:
                torch.testing.assert_close(mine, reference, rtol=rtol, atol=atol)
            except AssertionError as error:
                raise AssertionError(f"{placement}: {what} differs: {error}") from None

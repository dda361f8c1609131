"""What shims of learning-rate schedulers share: which hold others, and rates to compare.

Imports torch only when called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["assert_rates", "holds_others", "leaves", "own_tensors", "refill", "still"]


def holds_others(scheduler: Any) -> bool:
    """Whether a scheduler is one of torch's two that are made of others.

    A subclass, whose steps may be its own, counts as one that is not.
    """
    from torch.optim import lr_scheduler

    return type(scheduler) in (lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler)


def leaves(scheduler: Any) -> Iterator[Any]:
    """Yield the schedulers that one is made of, however deep; itself where it holds none."""
    if not holds_others(scheduler):
        yield scheduler
        return
    for one in scheduler._schedulers:
        yield from leaves(one)


def refill(group: dict[str, Any], rate: Any) -> None:
    """Set a group's rate, by filling the tensor where it is one."""
    import torch

    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(float(rate))
    else:
        group["lr"] = rate


@contextlib.contextmanager
def own_tensors(scheduler: Any, optimizer: Any) -> Iterator[None]:
    """Put back the tensors that hold an optimizer's rates, where the initial ones took their place.

    Args:
        scheduler: a SequentialLR that is made meanwhile.
        optimizer: its optimizer.
    """
    import torch

    kept = [
        (group, group["lr"], group["initial_lr"], group["initial_lr"].clone())
        for group in optimizer.param_groups
        if isinstance(group["lr"], torch.Tensor) and isinstance(group.get("initial_lr"), torch.Tensor)
    ]
    try:
        yield
    finally:
        moved = {}
        for group, mine, initial, value in kept:
            if group["lr"] is initial and mine is not initial:
                mine.copy_(initial)
                initial.copy_(value)
                group["lr"] = moved[id(initial)] = mine
        if moved:
            for one in (scheduler, *scheduler._schedulers):
                one._last_lr = [moved.get(id(rate), rate) for rate in one.get_last_lr()]


def still(*rates: Any) -> Any:
    """Return an optimizer with a group for each rate, whose step does nothing.

    No optimizer's constructor is run: that would import dynamo, for seconds.
    """
    import torch

    optimizer: Any = torch.optim.Optimizer

    class Still(optimizer):
        def __init__(self) -> None:
            self.defaults: Any = {"lr": rates[0]}
            self.state: Any = {}
            self.param_groups: list[dict[str, Any]] = [{"lr": rate, "params": []} for rate in rates]

        def step(self, closure: Any = None) -> None:
            pass

    return Still()


def assert_rates(
    make: Callable[[Any], Any], want: Sequence[float], *, optimizer: Any = None, every: int = 0
) -> None:
    """Compare the rates of a schedule, epoch by epoch; raise AssertionError where they differ.

    Args:
        make: gets an optimizer and returns the scheduler.
        want: the rates of a group that begins with 0.1, the first before any step.
        optimizer: one of :func:`still`'s; by default of one group with the rate 0.1.
        every: which of the groups is looked at.
    """
    optimizer = still(0.1) if optimizer is None else optimizer
    scheduler, group = make(optimizer), optimizer.param_groups[every]
    mine, got, last = group["lr"], [], []
    for _ in want:
        got.append(float(group["lr"]))
        last.append(float(scheduler.get_last_lr()[every]))
        optimizer.step()
        scheduler.step()
    for found in (got, last):
        if any(abs(a - b) > 1e-6 * abs(b) for a, b in zip(found, want)):
            shown = [[float(f"{rate:.4g}") for rate in rates] for rates in (found, want)]
            raise AssertionError(f"the rates are {shown[0]}, not {shown[1]}")
    if hasattr(mine, "fill_") and group["lr"] is not mine:
        raise AssertionError("the tensor that the optimizer holds was put aside")

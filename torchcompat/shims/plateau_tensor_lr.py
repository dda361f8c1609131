"""ReduceLROnPlateau reduces a rate in a tensor once per group, or puts a float in its place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import schedules
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_REDUCE = "torch.optim.lr_scheduler:ReduceLROnPlateau._reduce_lr"


def probe() -> Probe:
    """Look whether the rates are written group by group, whatever they are."""
    if is_replaced(_REDUCE):
        return absent("tensors are filled once, by this shim", cured=True)
    function = lookup(_REDUCE, None)
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None:
        return drifted("ReduceLROnPlateau._reduce_lr is not where it was")
    missing = {"param_groups", "factor", "min_lrs", "eps"} - {*code.co_names}
    if missing:
        return drifted(f"_reduce_lr is written differently: it does not use {sorted(missing)}")
    return present("_reduce_lr reads and writes the rate of each group in turn")


def edits() -> Sequence[Edit]:
    """Have torch reduce floats, and fill the tensors with what came out."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original, updated=())
        def _reduce_lr(self: Any, *args: Any, **named: Any) -> None:
            import torch

            kept = [
                (group, group["lr"], float(group["lr"]))
                for group in self.optimizer.param_groups
                if isinstance(group["lr"], torch.Tensor)
            ]
            for group, _, rate in kept:
                group["lr"] = rate
            try:
                original(self, *args, **named)
            finally:
                reduced = [float(group["lr"]) for group, _, _ in kept]
                for group, tensor, _ in kept:
                    group["lr"] = tensor
            for (group, _, before), after in zip(kept, reduced):
                if after != before:
                    schedules.refill(group, after)

        return _reduce_lr

    return [ReplaceAttr(_REDUCE, make)]


def shared() -> None:
    """One tensor as the rate of two groups, as an optimizer gives it to all groups without one."""
    import torch

    rate = torch.tensor(0.1)
    _assert_halved(schedules.still(rate, rate))


def kept() -> None:
    """A tensor of its own for each group, which compiled optimizers read."""
    import torch

    optimizer = schedules.still(torch.tensor(0.1), torch.tensor(0.1))
    mine = [group["lr"] for group in optimizer.param_groups]
    _assert_halved(optimizer)
    if any(group["lr"] is not rate for group, rate in zip(optimizer.param_groups, mine)):
        raise AssertionError("the tensor that the optimizer holds was put aside")


def _assert_halved(optimizer: Any) -> None:
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for loss in (1.0, 2.0):
        scheduler.step(loss)
    for group in optimizer.param_groups:
        rate = float(group["lr"])
        if abs(rate - 0.05) > 1e-6:
            raise AssertionError(f"half of 0.1 is 0.05, not {rate:.4g}")


SHIM = Shim(
    key="plateau_tensor_lr",
    summary="ReduceLROnPlateau reduces a tensor that groups share too often, or replaces it",
    symptom=(
        "No error: with lr=torch.tensor(...) and several parameter groups ReduceLROnPlateau reduces "
        "the rate once per group, from 2.10 on; before, it puts a float where the tensor was, and a "
        "compiled optimizer step compiles again, or goes on with the tensor's rate"
    ),
    cause=(
        "The rate of each group is read, reduced and written in turn. Groups that have no rate of "
        "their own share the tensor. Until 2.9 what is written is a float."
    ),
    cure="torch reduces floats, and each tensor is filled with what came out; it stays the same one.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/163093",
        "https://github.com/pytorch/pytorch/pull/163098",
        "https://github.com/pytorch/pytorch/issues/196286",
    ),
    affected=Affected(since=None),
    modules=("torch.optim.lr_scheduler",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="shared",
            run=shared,
            expect=r"AssertionError: half of 0\.1 is 0\.05, not 0\.025",
            affected=Affected(since="2.10.0"),
        ),
        Reproducer(
            name="kept",
            run=kept,
            expect=r"AssertionError: the tensor that the optimizer holds was put aside",
            affected=Affected(since=None, fixed_in=("2.10.0",)),
        ),
    ),
    removable_when="your rates are floats, or each group has a tensor of its own and torch is 2.10",
    notes="If groups that share a tensor have different min_lr, the last group's counts, as before.",
)

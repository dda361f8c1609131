"""An operator in place on a DTensor that must be reduced or moved first changes a copy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import before_redistribution, redistribution, takes_call_and_schema
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..targets import lookup

_DISPATCH = "torch.distributed.tensor._dispatch:OpDispatcher.dispatch"
_KEY = "dtensor_inplace_lost"


def probe() -> Probe:
    """Look whether the dispatcher compares an in-place operator's placement with its result's."""
    move, wrapped_for = redistribution()
    if _KEY in wrapped_for:
        return absent("an in-place operator on a copy is refused, by this shim", cured=True)
    dispatch = lookup(_DISPATCH, None)
    if not inspect.isfunction(dispatch) or move is None:
        return drifted("DTensor's dispatcher is written differently")
    if "redistribute_local_args" not in dispatch.__code__.co_names:
        return absent("another function dispatches")
    if not takes_call_and_schema(move):
        return drifted("redistribute_local_args has other parameters")
    return present("what an in-place operator changes may be a copy")


def edits() -> Sequence[Edit]:
    """Raise where the tensor to be changed would be redistributed, as newer builds do."""
    return [before_redistribution(_KEY, _refuse_copy)]


def _refuse_copy(op_info: Any, suggested_input_schema: Any) -> None:
    schema = op_info.schema
    written = schema.op._schema.arguments[0].alias_info
    if written is None or not written.is_write:
        return
    mine, wanted = schema.args_schema[0], suggested_input_schema.args_schema[0]
    before, after = getattr(mine, "placements", None), getattr(wanted, "placements", None)
    if before != after:
        raise RuntimeError(
            f"{schema.op} changes its tensor in place, and would change a copy: the tensor has the "
            f"placements {before}, the operator needs {after}; use the operator that returns a new "
            f"tensor, or redistribute the tensor first"
        )


def _written(change: Callable[[Any], Any], want: float) -> None:
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    total: Any = distribute_tensor(torch.ones(4, 6), reproduce.cpu_mesh(), [Shard(1)]).sum(1)
    try:
        change(total)
    except RuntimeError as error:
        if "place" not in str(error):
            raise
        return
    got = reproduce.whole(total)
    if not torch.allclose(got, torch.full((4,), want)):
        raise AssertionError(f"written in place: {got.tolist()}, not {want}")


def divided() -> None:
    """``div_`` of a pending sum: the right numbers, or an error."""
    _written(lambda total: total.div_(2), 3.0)


def root() -> None:
    """``sqrt_`` of a pending sum: the right numbers, or an error."""
    _written(lambda total: total.sqrt_(), 6.0**0.5)


def allowed() -> None:
    """What keeps its placement goes on working in place."""
    import torch

    def changed(x: Any, place: Any) -> Any:
        y = x.detach().clone()
        y.add_(place(torch.ones(6, 4)).t()).mul_(2).sqrt_().add_(1)
        return y.nan_to_num()

    reproduce.assert_same_sharded(changed)
    divided()


SHIM = Shim(
    key=_KEY,
    summary="an in-place operator on a DTensor that is a pending reduction changes nothing",
    symptom=(
        "No error: loss.div_(steps) of a sum over shards, or norm.sqrt_(), leaves the tensor as it was"
    ),
    cause=(
        "Where an operator needs another placement, its inputs are redistributed. The tensor to be "
        "changed is then a copy, and what was written to it is dropped."
    ),
    cure=(
        "Such a call raises a RuntimeError that names the placements and the way out, as 2.10 and newer "
        "do for the same calls."
    ),
    upstream=("https://github.com/pytorch/pytorch/blob/v2.9.1/torch/distributed/tensor/_dispatch.py",),
    affected=Affected(since="2.5.0", fixed_in=("2.10.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        reproduce.on_two_ranks(run, expect=r"AssertionError: written in place: ")
        for run in (divided, root, allowed)
    ),
    after=("dtensor_cached_scalars",),
    removable_when="the oldest torch you support is 2.10",
    notes="Writes to a slice of a sharded dimension, x[1:3].zero_(), are dtensor_slice_writes.",
)

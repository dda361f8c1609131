"""Filling a DTensor that is a pending sum fills every rank's part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import HANDLERS
from ..edits import AddEntries, Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import overload_of
from ..targets import lookup

_FILLS = ("fill_.Scalar", "fill_.Tensor")


def probe() -> Probe:
    """Look whether anybody handles the operators: no build's strategy knows of pending sums."""
    handlers = lookup(HANDLERS, None)
    if not isinstance(handlers, dict):
        return drifted("DTensor keeps its handlers elsewhere")
    if all(overload_of(name) in handlers for name in _FILLS):
        return absent("filling has a handler", cured=True)
    return present("every rank fills its own part, whatever it waits for")


def _fill(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fill every rank's part with its share of the value."""
    tensor, value = args
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    if not _holds_the_value(tensor, operator):
        value = value.new_zeros(()) if hasattr(value, "new_zeros") else 0
    operator(tensor._local_tensor, value)
    return tensor


def _holds_the_value(tensor: Any, operator: Any) -> bool:
    """Whether this rank's part of a tensor is the value: of pending sums only the first rank's is."""
    from torch.distributed.tensor import Partial

    coordinate = tensor.device_mesh.get_coordinate()
    for at, placement in enumerate(tensor.placements):
        if not placement.is_partial():
            continue
        if type(placement) is not Partial or placement.reduce_op not in ("sum", "avg", "max", "min"):
            raise RuntimeError(
                f"{operator} in place on a DTensor that waits for a reduction of another kind "
                f"({tensor.placements}): redistribute it to Replicate() first"
            )
        if placement.reduce_op == "sum" and coordinate is not None and coordinate[at] != 0:
            return False
    return True


def edits() -> Sequence[Edit]:
    """Handle the operators: the placement of a tensor says what each rank's part is."""

    def entries() -> Mapping[Any, Any]:
        return {overload_of(name): _fill for name in _FILLS}

    return [AddEntries(HANDLERS, entries)]


def filled() -> None:
    """``fill_`` of pending sums and of maxima, of shards and of replicas."""

    def numbers(x: Any, _: Any) -> Any:
        y = x.detach()
        total, part, most = y.sum(1), y.sum(0), y.max()
        total.fill_(2.0)
        part.fill_(5)
        most.fill_(7.0)
        y.fill_(1.5)
        return total, part, most, y

    reproduce.assert_same_sharded(numbers)


def assigned() -> None:
    """A number assigned to all, and ``fill_`` by a tensor of one number."""
    import torch

    def numbers(x: Any, place: Any) -> Any:
        y, three = x.detach(), torch.tensor(3.0)
        total, most = y.sum(1), y.max()
        y[:] = 4.0
        total.fill_(three)
        most.fill_(place(three))
        return y, total, most

    reproduce.assert_same_sharded(numbers)


def initialized() -> None:
    """``nn.init.constant_`` of a whole tensor and of a part that no rank's border cuts."""
    import torch
    from torch.distributed.tensor import Shard

    def initialize(x: Any, _: Any) -> Any:
        y = x.detach().clone()
        torch.nn.init.constant_(y, 0.25)
        with torch.no_grad():
            y[:, 1:3] = 7.0
            y[:, 4] = 8.0
        total = y.sum(0)
        torch.nn.init.ones_(total)
        return y, total

    reproduce.assert_same_sharded(initialize, placements=[Shard(0)])


_DIFFERS = r"AssertionError: .*output \d+ differs"
_MISSING = r"Error: .*aten\.fill_\.Tensor does not have a sharding strategy registered"

SHIM = Shim(
    key="dtensor_fill",
    summary="fill_ of a DTensor that is a pending sum gives as many times the value as there are ranks",
    symptom=(
        "No error: x.sum(0).fill_(2) of a tensor sharded over n ranks is 2 n. Up to 2.14, x[1:3] = 7.0 "
        "raises NotImplementedError: Operator aten.fill_.Tensor does not have a sharding strategy "
        "registered"
    ),
    cause=(
        "Every rank fills its part, as it would a shard's, and the parts are then added up. For a value "
        "that is a tensor, as that of an assignment is, there was no strategy at all."
    ),
    cure=(
        "The first rank's part of a pending sum is filled with the value, and the others' with zero. A "
        "pending norm, or lookup in a sharded table, raises an error that names the way out."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/tensor/_ops/_tensor_ops.py",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        reproduce.on_two_ranks(run, expect=expect, since=since, needs=needs)
        for run, expect, since, needs in (
            (filled, _DIFFERS, "2.5.0", "the public torch.distributed.tensor"),
            (assigned, _MISSING, "2.5.0", "the public torch.distributed.tensor"),
            (initialized, f"({_DIFFERS}|{_MISSING})", "2.8.0", "a strategy for aten.select"),
        )
    ),
    removable_when="torch fills pending sums once",
)

"""A number added to a DTensor that is a pending sum is added once on every rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SCHEMA_INFO, STRATEGIES, redistribution
from ..edits import AddEntries, Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import norm_pending, overridden, override, pending, tensors
from ..targets import lookup


def _pairs() -> dict[Any, Any]:
    """Operators that keep sums pending, and one of each kind that does not."""
    import torch

    aten = torch.ops.aten
    plain, listed = aten.atan2.default, aten._foreach_div_.Scalar
    return {
        aten.add.Tensor: plain,
        aten.add_.Tensor: plain,
        aten.mul.Tensor: plain,
        aten.mul_.Tensor: plain,
        aten._foreach_add.Scalar: listed,
        aten._foreach_add_.Scalar: listed,
        aten._foreach_add_.ScalarList: listed,
        aten._foreach_add.List: listed,
        aten._foreach_add_.List: listed,
    }


def probe() -> Probe:
    """Look whether additions have a strategy of their own that knows no numbers."""
    strategies = lookup(STRATEGIES, None)
    if not isinstance(strategies, dict):
        return drifted("DTensor keeps its strategies elsewhere")
    pairs = _pairs()
    found = [strategies.get(overload) for overload in pairs]
    if overridden(pairs, _reducing):
        return absent("a pending sum is reduced before a number is added, by this shim", cured=True)
    if not all(map(callable, (*found, *map(strategies.get, pairs.values())))):
        return drifted("DTensor's additions are registered differently")
    names = getattr(found[0], "__globals__", {})
    if not callable(names.get("linear_pointwise_strategy")):
        return drifted("DTensor's linear operators are written differently")
    if "norm_partial_avoidable_redistribute_ops" in names or "binary_additive_ops" in names:
        return absent("DTensor knows which operators keep which sums pending")
    return present("a number is added to a pending sum on every rank")


def _must_reduce(op_schema: Any) -> bool:
    """Whether a pending reduction cannot stay pending through this call."""
    from torch.distributed.tensor.placement_types import Partial

    given = [tensors(argument) for argument in op_schema.args_schema]
    inputs = [tensor for listed in given for tensor in listed]
    # A norm's partial results add up as powers; those of a lookup in a sharded table do add up.
    if any(map(norm_pending, inputs)):
        return True
    if "add" not in str(op_schema.op) or all(given[:2]):
        return False
    return any(
        type(placement) is not Partial or placement.reduce_op not in ("avg", "max", "min")
        for tensor in inputs
        for placement in pending(tensor)
    )


def _reducing(*mesh_and_schema: Any) -> Any:
    op_schema = mesh_and_schema[-1]
    if not _must_reduce(op_schema):
        return None
    name = str(op_schema.op)
    if name.partition(".")[2].partition(".")[0].endswith("_"):
        raise RuntimeError(
            f"{name} in place on a DTensor whose reduction is pending cannot keep its placement; "
            f"use the operator that returns a new tensor, or redistribute to Replicate() first"
        )
    return lookup(STRATEGIES)[_pairs()[op_schema.op]](*mesh_and_schema)


def edits() -> Sequence[Edit]:
    """Ask the strategy that reduces, where the pending reduction cannot wait."""

    def keys() -> Mapping[Any, Any]:
        from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

        known = lookup(SCHEMA_INFO)
        return {
            overload: dataclasses.replace(known.get(overload, RuntimeSchemaInfo()), static_argnum=1)
            for overload in _pairs()
        }

    changes = [override(dict.fromkeys(_pairs(), _reducing))]
    function, _ = redistribution()
    if function is None or "use_val_from_redistribute_schema" not in function.__code__.co_varnames:
        # Up to 2.8 what is reduced first runs with the number that the cache was made with: see
        # dtensor_cached_scalars. With the number in its key, this holds without that shim too.
        changes.insert(0, AddEntries(SCHEMA_INFO, keys, replace=True))
    return changes


def added_number() -> None:
    """A number added to sums and norms over a sharded dimension, and the quotient of such."""
    import torch

    def numbers(x: Any, _: Any) -> Any:
        total, y = x.sum(1), x.detach()  # norms have no backward on older builds
        return (
            *(total + 1, 2 + total, total.add(3, alpha=2), x.sum() / (x.square().sum() + 1e-1)),
            *(y.norm(1, dim=0) + 1, y.norm() + 0.5, -1 * y.norm(dim=1)),
            torch._foreach_add([total], 1.0)[0],
        )

    reproduce.assert_same_sharded(numbers)


def kept_pending() -> None:
    """What may stay pending stays so, and what is added to a norm is added once."""
    import torch

    def tensors(x: Any, place: Any) -> Any:
        total, norm = x.sum(1), x.detach().norm(dim=1)
        ones = place(torch.ones(4))
        added = torch._foreach_add([total, norm], [total, ones])
        return total + total, total * 3, total + ones, norm + ones, *added

    reproduce.assert_same_sharded(tensors)


def in_place() -> None:
    """``add_`` of a number on a pending sum: an error, as newer builds raise, or the right sum."""
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    x: Any = distribute_tensor(torch.ones(4, 6), reproduce.cpu_mesh(), [Shard(1)])
    try:
        got = x.sum(1).add_(1).full_tensor()
    except RuntimeError as error:
        said = f"{error} {error.__cause__}"  # 2.9 puts an error of its own before it
        if "in-place" not in said and "in place" not in said:
            raise
        return
    torch.testing.assert_close(got, torch.full((4,), 7.0), msg="output 0 differs")


SHIM = Shim(
    key="dtensor_partial_scalar",
    summary="a number added to a sum or a norm of a sharded DTensor counts once for every rank",
    symptom=(
        "No error: x.sum() + 1 of a tensor sharded over n ranks is x.sum() + n, so that a loss divided "
        "by (weights.sum() + eps) is wrong; -x.norm() is positive, x.norm() + y is not their sum"
    ),
    cause=(
        "Additions, and from 2.9 on multiplications, leave a pending reduction pending. That is right "
        "for a sum of two tensors; a number is added on every rank, and norms add up as powers."
    ),
    cure=(
        "The reduction is done first where a number is added to a pending sum, and wherever a pending "
        "norm is added or multiplied. In place, where the result has no room, an error says so."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/163193",
        "https://github.com/pytorch/pytorch/issues/149768",
        "https://github.com/pytorch/pytorch/pull/167813",
        "https://github.com/pytorch/pytorch/pull/170035",
    ),
    affected=Affected(since="2.5.0", fixed_in=("2.11.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(reproduce.on_two_ranks(run) for run in (added_number, kept_pending, in_place)),
    removable_when="the oldest torch you support is 2.11",
    notes="Costs an all-reduce of the pending tensor, mostly of one number.",
)

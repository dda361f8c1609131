"""Reductions over a sharded dimension that cannot be put together from the shards' results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import HANDLERS, STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import along, arguments, norm_pending, overridden, override, whole_along
from ..targets import lookup


def _faulty() -> list[Any] | None:
    """What this build puts together wrongly; None for unknown code."""
    import torch

    aten = torch.ops.aten
    strategies, handlers = lookup(STRATEGIES, None), lookup(HANDLERS, None)
    if not isinstance(strategies, dict) or not isinstance(handlers, dict):
        return None
    found = strategies.get(aten.all.default)
    # torch's own table, beside its strategy, of how the shards' results are put together.
    table = getattr(_unwrapped(found), "__globals__", {}).get("LINEAR_REDUCTION_OP_MAP")
    if not isinstance(table, dict):
        return None
    faulty = []
    if table.get(aten.all.default) == "sum":  # which is any(); means were mended with it
        faulty += [aten.all.default, aten.all.dim, aten.mean.default, aten.mean.dim]
    if aten.max.dim not in handlers:
        faulty += [aten.max.dim, aten.min.dim]
    return faulty if all(map(callable, map(strategies.get, faulty))) else None


def probe() -> Probe:
    """Look at torch's table of linear reductions, and who handles ``max(dim)``."""
    faulty = _faulty()
    if faulty is None:
        return drifted("DTensor's reductions are written differently")
    if not faulty:
        return absent("all() is no sum, and the indices of max(dim) have a handler")
    if overridden(faulty, _whole):
        return absent("what is not linear sees whole dimensions, by this shim", cured=True)
    return present(f"put together from the shards' results: {', '.join(map(str, faulty))}")


def _unwrapped(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


def _uneven(tensor: Any, dims: Sequence[int]) -> bool:
    """Whether the ranks hold different numbers of what is reduced."""
    spec = tensor.strategies[0].output_spec
    for dim in dims:
        shards = [
            spec.mesh.size(at) for at, placement in enumerate(spec.placements) if placement.is_shard(dim)
        ]
        if spec.shape[dim] % math.prod(shards):
            return True
    return False


def _whole(*mesh_and_schema: Any) -> Any:
    op_schema = mesh_and_schema[-1]
    tensor = op_schema.args_schema[0]
    dims = along(arguments(op_schema), len(tensor.shape))
    is_mean = "mean" in str(op_schema.op)
    if is_mean and not _uneven(tensor, dims) and not norm_pending(tensor):
        return None
    return whole_along(op_schema)


def edits() -> Sequence[Edit]:
    """Replace the strategies by some that gather what is reduced, where that is needed."""
    return [override(dict.fromkeys(_faulty() or (), _whole))]


def all_of_them() -> None:
    """``isfinite(x).all()``, where the shards differ."""

    def finite(x: Any, _: Any) -> Any:
        bounded = x < 1.5  # of the random numbers, some on either rank are above
        return bounded.all(), bounded.all(0), bounded.all(1), bounded.all(1, keepdim=True)

    reproduce.assert_same_sharded(finite, shape=(6, 4))


def mean_of_uneven_shards() -> None:
    """The mean of 5 rows over two ranks, and the loss made of it; then one of even shards."""
    from torch.nn import functional as f

    def means(x: Any, _: Any) -> Any:
        return (
            x.mean(),
            x.mean(0),
            x.mean(1, keepdim=True),
            x.mean((0, 1)),
            f.l1_loss(x, x.detach() * 2),
        )

    reproduce.assert_same_sharded(means, shape=(5, 7))
    reproduce.assert_same_sharded(means, shape=(6, 8))


def indices() -> None:
    """The indices of ``max(dim)`` and ``min(dim)`` count from the tensor's begin."""

    def extremes(x: Any, _: Any) -> Any:
        x = x.detach()
        return (*x.max(0), *x.max(1), *x.min(0, keepdim=True), *x.min(-1))

    reproduce.assert_same_sharded(extremes, shape=(5, 6))


_PUBLIC = "the public torch.distributed.tensor"

SHIM = Shim(
    key="dtensor_reductions",
    summary="all(), max(dim) and means over a sharded dimension are put together wrongly",
    symptom=(
        "No error: torch.isfinite(x).all() of a DTensor is True as soon as one rank's shard is finite; "
        "x.mean() weighs uneven shards alike; the indices of x.max(dim) count from the begin of a shard"
    ),
    cause=(
        "The results of the shards are put together as a sum of booleans, as a mean of means, and as "
        "a maximum of indices."
    ),
    cure=(
        "all, max(dim) and min(dim) of a sharded dimension, and means where shards are uneven, are "
        "computed from whole dimensions; other dimensions stay sharded."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/162692",
        "https://github.com/pytorch/pytorch/pull/163241",
    ),
    affected=Affected(since="2.5.0", fixed_in=("2.11.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        reproduce.on_two_ranks(
            run, affected=Affected(since="2.5.0", fixed_in=(fixed_in,)), since=since, needs=needs
        )
        for run, fixed_in, since, needs in (
            (all_of_them, "2.10.0", "2.5.0", _PUBLIC),
            (mean_of_uneven_shards, "2.10.0", "2.8.0", "a gloo that averages"),
            (indices, "2.11.0", "2.5.0", _PUBLIC),
        )
    ),
    removable_when="the oldest torch you support is 2.11",
    notes=(
        "Costs an all-gather where a wrong number cost an all-reduce. On 2.10 only the indices of "
        "max(dim) and min(dim) are wrong."
    ),
)

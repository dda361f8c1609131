"""``gather`` by a smaller index pairs the shards of the index with others of the input."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM, STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..rules import ask, leaving_out
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import (
    arguments,
    held,
    input_specs,
    outcome,
    overload_of,
    overridden,
    override,
    override_rule,
    place,
)

_NAME = "gather.default"


def probe() -> Probe:
    """Ask a rule, a pure function, for an index of one column; look whether a strategy loops."""
    rule, strategy = held(SINGLE_DIM, _NAME), held(STRATEGIES, _NAME)
    if overridden([overload_of(_NAME)], _whole, _only_of_one_size):
        return absent("only dimensions of one size are sharded, by this shim", cured=True)
    if rule is not None:
        rows = ask(_NAME, (2, 2), 0, (2, 1))
        if rows is None:
            return drifted("DTensor keeps its rules differently")
        if any(_dim_of_all(row) == 1 for row in rows):
            return present("input and index are sharded along a dimension of different sizes")
        return absent("only dimensions of one size are sharded")
    names = getattr(getattr(inspect.unwrap(strategy or probe), "__code__", None), "co_names", ())
    if strategy is None or "index_shape" not in inspect.unwrap(strategy).__code__.co_varnames:
        return drifted("the strategy of gather is written differently")
    if "range" in names:
        return present("input and index are sharded along every other dimension, whatever their sizes")
    return absent("nothing is sharded along another dimension")


def _dim_of_all(row: Sequence[Any]) -> int | None:
    """Along which dimension a rule shards output, input and index alike."""
    return getattr(row[0], "dim", None) if row[0] == row[1] == row[2] else None


def _differing(x: Any, dim: int, index: Any) -> set[int]:
    """The dimensions that are not gathered along, and are not of one size."""
    ndim = len(x.shape)
    if ndim != len(index.shape):
        return set()
    return {d for d in range(ndim) if d != dim % ndim and x.shape[d] != index.shape[d]}


def _whole(*mesh_and_schema: Any) -> Any:
    """Build a strategy where sizes differ: other dimensions stay sharded as the input is."""
    schema = mesh_and_schema[-1]
    dim = arguments(schema)["dim"]
    (_, x), (_, index) = input_specs(schema)
    differing = _differing(x, dim, index)
    if not differing:
        return None
    gone = {*differing, dim % len(x.shape)}
    kept = place(x.placements, lambda d: None if d in gone else d)
    return outcome(schema, [kept, kept], [kept])


def _other_size(op: Any, args: Any, row: Sequence[Any]) -> bool:
    return _dim_of_all(row) in _differing(*args[:3])


_only_of_one_size = leaving_out(_other_size)


def edits() -> Sequence[Edit]:
    """Shard input and index alike only along dimensions of one size."""
    if held(SINGLE_DIM, _NAME) is None:
        return [override({overload_of(_NAME): _whole})]
    return [override_rule({overload_of(_NAME): _only_of_one_size})]


def picked() -> None:
    """Values by an index that has fewer rows, or fewer columns, than the tensor."""
    import torch

    def values(x: Any, place: Any) -> Any:
        columns, rows = (
            torch.tensor([[0, 2], [4, 1], [3, 3]]),
            torch.tensor([[5, 0, 6, 1], [2, 3, 4, 0]]),
        )
        y = x.detach()
        return [y.gather(0, place(columns)), y.gather(1, place(rows)), y.gather(-2, place(columns))]

    for shape in ((6, 8), (5, 7)):
        reproduce.assert_same_sharded(values, shape=shape)


SHIM = Shim(
    key="dtensor_gather_sizes",
    summary="gather by an index smaller than the sharded DTensor takes values of other rows",
    symptom=(
        "No error: x.gather(0, index) of a DTensor sharded along dim 1, with an index of fewer columns "
        "than x, returns values of other columns"
    ),
    cause=(
        "Input and index are both sharded along a dimension that is not gathered along. Where the index "
        "is smaller there, its shards begin at other rows or columns than those of the input."
    ),
    cure="Only dimensions of which input and index have the same size are sharded.",
    # No issue of it was found.
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/tensor/_ops/_tensor_ops.py",
    ),
    affected=Affected(since="2.9.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        reproduce.on_two_ranks(
            picked,
            # Up to 2.8 gather comes in for dtensor_cached_scalars.
            since="2.9.0",
            needs="a gather that is not cached without its dimension",
        ),
    ),
    removable_when="torch compares the sizes of input and index of a sharded gather",
    notes=(
        "Such a gather costs an all-gather of the input. Up to 2.8 gather(1, ...) after gather(0, ...) "
        "ran along dimension 0, which dtensor_cached_scalars cures."
    ),
)

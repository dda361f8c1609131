"""A quotient by a pending sum stays pending where the divisor has more dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import held, overload_of, overridden, pending, reduced, reword, tensors, with_arguments
from ..targets import lookup

_OPS = "torch.distributed.tensor._ops._pointwise_ops"
_DIV = "div.Tensor"


def probe() -> Probe:
    """Look which functions decide what a quotient leaves pending."""
    if overridden([overload_of(_DIV)], _with_whole_divisor):
        return absent("a pending divisor is reduced first, by this shim", cured=True)
    strategy = held(STRATEGIES, _DIV)
    if strategy is None:
        return absent("quotients have rules for one mesh dimension")
    if strategy is lookup(f"{_OPS}:pointwise_strategy", None):
        return absent("no quotient keeps a reduction pending")
    decide = lookup(f"{_OPS}:common_pointwise_strategy", None)
    linear = lookup(f"{_OPS}:linear_pointwise_ops", None)
    if strategy is not lookup(f"{_OPS}:linear_pointwise_strategy", None) or not isinstance(linear, dict):
        return drifted("quotients of DTensors have another strategy")
    # From 2.11 on it knows which of the arguments is followed; before, none but a first one kept
    # its reduction.
    names = getattr(getattr(decide, "__code__", None), "co_varnames", ())
    if "preserve_partial" not in names or "followed_strategy_index" not in names:
        return absent("only a dividend keeps its reduction pending")
    return present("the argument that is followed keeps its reduction pending, divisor or not")


def _with_whole_divisor(op_schema: Any) -> Any:
    divisor = op_schema.args_schema[1]
    if not any(map(pending, tensors(divisor))):
        return op_schema
    return with_arguments(op_schema, {1: reduced(divisor)})


def edits() -> Sequence[Edit]:
    """Reduce a pending divisor first."""
    return [reword({overload_of(_DIV): _with_whole_divisor})]


def quotients() -> None:
    """Numbers and tensors divided by sums over a sharded dimension."""
    import torch

    def quotient(x: Any, place: Any) -> Any:
        one, two = place(torch.ones(())), place(torch.full((4,), 2.0))
        total, keep = (x * x).sum(0), (x * x).sum(1, keepdim=True)
        return one / total, one / keep, two / total, total / keep.sum(), keep.sum() / keep, x / keep

    reproduce.assert_same_sharded(quotient, shape=(6, 4))


SHIM = Shim(
    key="dtensor_pending_divisor",
    summary="a number over a sum along a sharded dimension of a DTensor is wrong",
    symptom=(
        "No error: torch.tensor(1.0) as a replicated DTensor over x.sum(0), of an x sharded along "
        "dim 0, is the sum of the ranks' quotients"
    ),
    cause=(
        "A quotient keeps its dividend's reduction pending. The dividend is taken to be the argument "
        "whose sharding is followed, which is the divisor where it has more dimensions."
    ),
    cure="A pending divisor is reduced before anything is divided by it.",
    # No issue of it was found.
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.11.0/torch/distributed/tensor/_ops/_pointwise_ops.py",
    ),
    affected=Affected(since="2.11.0", fixed_in=("2.12.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(reproduce.on_two_ranks(quotients),),
    removable_when="the oldest torch you support is 2.12",
)

"""Integers and truth values of a DTensor that is a pending sum are made of every rank's part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import STRATEGIES, registered
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import held, overload_of, overridden, pending, reduced, reword, with_arguments
from ..targets import lookup

_CAST = "_to_copy.default"


def probe() -> Probe:
    """Look which table has casts: with the rules of the newer one came that for integers."""
    if not isinstance(lookup(STRATEGIES, None), dict):
        return drifted("DTensor keeps its strategies elsewhere")
    if overridden([overload_of(_CAST)], _with_whole):
        return absent(
            "what is pending is reduced before it is made an integer, by this shim", cured=True
        )
    if callable(held(STRATEGIES, _CAST)):
        return present("a cast leaves everything pending that is pending")
    if registered(overload_of(_CAST)):
        return absent("casts are registered with rules for one mesh dimension")
    return drifted("DTensor registers casts differently")


def _with_whole(schema: Any) -> Any:
    """Return the schema with replicas in place of what is pending, where a part cannot be cast."""
    tensor, dtype = schema.args_schema[0], schema.kwargs_schema.get("dtype")
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        return schema  # every rank rounds its own part, as newer builds let it
    return with_arguments(schema, {0: reduced(tensor)}) if pending(tensor) else schema


def edits() -> Sequence[Edit]:
    """Tell torch's strategy of such an input as if it had been reduced."""
    return [reword({overload_of(_CAST): _with_whole})]


def integers() -> None:
    """``int()``, ``to(int64)`` and ``bool()`` of pending sums, norms and maxima."""
    import torch

    def numbers(x: Any, _: Any) -> Any:
        y = x.detach()
        total = y.sum(1)
        return (
            *(total.int(), (total * 3).to(torch.int64), total.long(), y.norm(dim=1).int()),
            *((total - total).bool(), y.max().int(), (y * 7).int().sum(0).int()),
            *(total.double(), total.to(torch.float64, copy=True), x.sum(0).double()),
        )

    reproduce.assert_same_sharded(numbers)


SHIM = Shim(
    key="dtensor_pending_cast",
    summary="integers made of a DTensor that is a pending sum are too small",
    symptom=(
        "No error: x.sum().int() of a tensor sharded over n ranks is a sum of n truncated numbers, and "
        "x.sum().bool() may be True for a sum of zero"
    ),
    cause=(
        "A cast leaves a pending sum pending: every rank truncates its own part, and the integers are "
        "then added up."
    ),
    cure="What is pending is reduced first, where it is cast to integers or truth values.",
    upstream=("https://github.com/pytorch/pytorch/pull/172696",),
    affected=Affected(since="2.5.0", fixed_in=("2.12.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(reproduce.on_two_ranks(integers),),
    removable_when="the oldest torch you support is 2.12",
    notes="Integers of smaller types are reduced first too, where sums of parts would do.",
)

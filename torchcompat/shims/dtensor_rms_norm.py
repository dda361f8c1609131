"""``rms_norm`` of a dimension that is sharded: its mean of squares is pending when eps is added."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM, STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import held, input_specs, outcome, overload_of, overridden, override, override_rule

_ADD = "add_.Scalar"
# Adding one number on every rank adds it once to a mean, a maximum or a minimum of the ranks.
_KEPT = ("avg", "max", "min")


def probe() -> Probe:
    """Look which table has the addition in place, and whether it was taught."""
    strategy, rules = held(STRATEGIES, _ADD), held(SINGLE_DIM, _ADD)
    if overridden([overload_of(_ADD)], _kept, _taught):
        return absent("a number is added to a pending mean where it is, by this shim", cured=True)
    if callable(strategy) and rules is None:
        name = getattr(strategy, "__name__", "")
        if name == "pointwise_strategy":
            return present("to add a number in place, a pending mean has to be reduced elsewhere")
        return drifted(f"add_ of a number has the strategy {name}")
    if strategy is None and dataclasses.is_dataclass(rules):
        pending = _rules(getattr(rules, "func", None))
        if pending is not None and ["avg", "avg"] in pending:
            return absent("the rules for adding a number in place keep a mean pending")
        if pending is not None:
            return present("the rules for adding a number in place know no pending mean")
    return drifted("DTensor registers add_ of a number differently")


def _rules(function: Any) -> list[list[Any]] | None:
    """Return how pending reductions go in and out by torch's rules; None for unknown code."""
    for each in (function, *(getattr(function, "__defaults__", None) or ())):
        code, cells = getattr(each, "__code__", None), getattr(each, "__closure__", None) or ()
        found = dict(zip(getattr(code, "co_freevars", ()), cells))
        if "partial_extra_rules" in found:
            rules = found["partial_extra_rules"].cell_contents or ()
            return [[getattr(placement, "reduce_op", None) for placement in rule] for rule in rules]
    return None


def _pending(placement: Any) -> bool:
    from torch.distributed.tensor.placement_types import Partial

    return type(placement) is Partial and placement.reduce_op in _KEPT


def _kept(*mesh_and_schema: Any) -> Any:
    """Leave pending what may be so; anything else is torch's."""
    op_schema = mesh_and_schema[-1]
    ((_, spec),) = input_specs(op_schema)
    partial = [placement for placement in spec.placements if placement.is_partial()]
    if not partial or not all(map(_pending, partial)):
        return None
    return outcome(op_schema, [spec.placements], [spec.placements])


def _taught(original: Callable[..., Any]) -> Callable[..., Any]:
    def rules(*given: Any, **named: Any) -> Any:
        from torch.distributed.tensor import Partial

        return [*original(*given, **named), *([Partial(how), Partial(how)] for how in _KEPT)]

    return rules


def edits() -> Sequence[Edit]:
    """Let the addition keep a pending mean, maximum or minimum pending."""
    if held(SINGLE_DIM, _ADD) is None:
        return [override({overload_of(_ADD): _kept})]
    return [override_rule({overload_of(_ADD): _taught})]


def last_dimension() -> None:
    """Values and gradients, with an eps that shows, with weights and without."""
    import torch
    from torch.nn import functional as f

    def norms(x: Any, _: Any) -> Any:
        weight = reproduce.beside(x, torch.linspace(0.5, 2, x.shape[-1]))
        size = tuple(x.shape[-1:])
        return (
            f.rms_norm(x, size, eps=0.5),
            f.rms_norm(x, size, weight),
            f.rms_norm(x, size, weight, 0.1),
        )

    reproduce.assert_same_sharded(norms, shape=(4, 6))
    reproduce.assert_same_sharded(norms, shape=(2, 3, 4))


def pending_maximum() -> None:
    """A number added in place to a maximum and to a minimum, as rms_norm adds eps."""
    import torch

    def extremes(x: Any, _: Any) -> Any:
        y = x.detach()
        return [torch.ops.aten.add_.Scalar(pending, 0.5) for pending in (y.max(), y.min())]

    reproduce.assert_same_sharded(extremes)


SHIM = Shim(
    key="dtensor_rms_norm",
    summary="rms_norm over a sharded dimension of a DTensor raises, or leaves out eps",
    symptom=(
        "RuntimeError: aten.add_.Scalar: in-place operations that require placement changes are not "
        "supported, from F.rms_norm on the CPU; up to 2.9 no error, and eps is not added"
    ),
    cause=(
        "rms_norm adds eps in place to a mean of squares, whose reduction over the ranks is pending; "
        "DTensor knows no way to add a number to it where it is."
    ),
    cure=(
        "A number added in place to a pending mean, maximum or minimum is added on every rank, which "
        "adds it once; the reduction stays pending."
    ),
    upstream=("https://github.com/pytorch/pytorch/pull/197501",),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        reproduce.on_two_ranks(
            run,
            expect=(
                r"aten\.add_\.Scalar: in-place operations that require placement changes are not "
                r"supported|AssertionError: .*(output \d+|the gradient) differs"
            ),
            since=since,
            needs=needs,
        )
        for run, since, needs in (
            (last_dimension, "2.8.0", "a gloo that averages"),
            (pending_maximum, "2.5.0", "the public torch.distributed.tensor"),
        )
    ),
    removable_when="torch adds numbers to pending means in place",
    notes=(
        "Builds that run rms_norm on CUDA as one operator have a strategy for that. "
        "Up to 2.9 uneven shards need dtensor_reductions, too."
    ),
)

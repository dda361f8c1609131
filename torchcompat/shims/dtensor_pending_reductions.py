"""A norm, maximum or product of a DTensor that is a pending sum is put together from the ranks' own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import held, overload_of, overridden, pending, reduced, reword, tensors, with_arguments
from ..targets import lookup

_SUMS = ("sum", "avg")
#: Overloads of aten, and the pending reductions that may wait until after them.
_MAY_WAIT: dict[str, tuple[str, ...]] = {
    "sum.default": _SUMS,
    "sum.dim_IntList": _SUMS,
    "mean.default": _SUMS,
    "mean.dim": _SUMS,
    "max.default": ("max",),
    "amax.default": ("max",),
    "min.default": ("min",),
    "amin.default": ("min",),
    "max.dim": (),
    "min.dim": (),
    "prod.default": (),
    "prod.dim_int": (),
    "any.default": (),
    "any.dim": (),
    "linalg_vector_norm.default": (),
    "_foreach_norm.Scalar": (),
}


def _overloads() -> list[Any]:
    """What this build has strategies for: up to 2.5 it knows no amax and no amin."""
    return [overload_of(name) for name in _MAY_WAIT if held(STRATEGIES, name) is not None]


def probe() -> Probe:
    """Look whether the strategy of sums looks at how its input is to be reduced."""
    if not isinstance(lookup(STRATEGIES, None), dict):
        return drifted("DTensor keeps its strategies elsewhere")
    own = inspect.unwrap(held(STRATEGIES, "sum.default") or probe)
    if own is probe:
        return absent("sums are registered with rules for one mesh dimension")
    if overridden(_overloads(), _with_whole):
        return absent("what a reduction is made of is reduced first, by this shim", cured=True)
    common = own.__globals__.get("common_reduction_strategy")
    if not inspect.isfunction(common):
        return drifted("DTensor's reductions are written differently")
    if "reduce_op" in common.__code__.co_names:
        return absent("reductions look at the reduction that their input waits for")
    return present("what a reduction is made of may be a pending sum")


def _with_whole(schema: Any) -> Any:
    """Return the schema with replicas in place of what cannot stay pending."""
    from torch.distributed.tensor import Partial

    may_wait = _MAY_WAIT[str(schema.op).partition(".")[2]]
    argument = schema.args_schema[0]
    # The kinds of a norm and of a lookup in a sharded table are subclasses, with rules of their own.
    cannot_wait = any(
        type(placement) is not Partial or placement.reduce_op not in may_wait
        for tensor in tensors(argument)
        for placement in pending(tensor)
    )
    return with_arguments(schema, {0: reduced(argument)}) if cannot_wait else schema


def edits() -> Sequence[Edit]:
    """Tell torch's strategies of such inputs as if they had been reduced."""
    return [reword(dict.fromkeys(_overloads(), _with_whole))]


# -- reproducers ---------------------------------------------------------------------


def norms() -> None:
    """Norms of pending sums, alone and of several at once; and the norm of a norm."""
    import torch

    def numbers(x: Any, _: Any) -> Any:
        y = x.detach()  # norms have no backward on older builds
        total = y.sum(1)
        return (
            *(total.norm(), total.norm(1), y.sum().norm(), y.norm()),
            torch.linalg.vector_norm(total, 3, dim=0, keepdim=True),
            *torch._foreach_norm([total, y.sum(0), y]),
            y.norm(dim=0).norm(1),
        )

    reproduce.assert_same_sharded(numbers)


def gradient_norm() -> None:
    """The norm by which the gradient of a replicated weight, a sum over a sharded batch, is clipped."""
    import torch

    norms = [
        reproduce.whole(torch.nn.utils.clip_grad_norm_([parameter], 0.5))
        for parameter in reproduce.replicated_linear()
    ]
    torch.testing.assert_close(norms[0], norms[1], msg="output 0 differs")


def extremes() -> None:
    """Maximum, minimum, product and ``any`` of pending sums; and sums, which may wait."""

    def numbers(x: Any, _: Any) -> Any:
        y = x.detach()  # nor has prod
        total, norm = y.sum(1), y.norm(dim=0)
        return (
            *(total.max(), total.min(), total.prod(), norm.max(), norm.min(), norm.prod()),
            *((total - total).any(), y.sum(0, keepdim=True).max(1).values),
            *(x.sum(1).sum(), x.sum(0).sum(0, keepdim=True)),
        )

    reproduce.assert_same_sharded(numbers)


def of_means() -> None:
    """Norm, maximum and product of pending means, the mean of maxima; means of means may wait."""

    def numbers(x: Any, _: Any) -> Any:
        y = x.detach()
        mean = y.mean(1)
        return (
            *(mean.norm(), mean.max(), mean.min(), mean.prod(), y.amax(1).mean()),
            *(mean.sum(), mean.mean(), x.mean(0).sum()),
        )

    reproduce.assert_same_sharded(numbers)


def of_maxima() -> None:
    """Sum and norm of pending maxima; the maximum of maxima may wait."""

    def numbers(x: Any, _: Any) -> Any:
        y = x.detach()
        most, least = y.amax(1), y.amin(0, keepdim=True)
        return (
            *(most.sum(), most.norm(), most.min(), most.max(), most.amax()),
            *(least.sum(1), least.norm(), least.max(), least.min()),
        )

    reproduce.assert_same_sharded(numbers)


SHIM = Shim(
    key="dtensor_pending_reductions",
    summary="the norm, maximum or product of a DTensor that is a pending sum is wrong",
    symptom=(
        "No error: x.sum(1).norm(), x.mean(0).max() or x.amax(1).sum() of a tensor sharded along that "
        "dimension is wrong, and clip_grad_norm_ of gradients that are pending sums clips by a norm "
        "that is too large"
    ),
    cause=(
        "A sum over a sharded dimension waits for its reduction. A reduction of it leaves it waiting: "
        "every rank takes the norm or the maximum of its own part, and the ranks' results are then "
        "added up."
    ),
    cure=(
        "What a reduction is made of is reduced first, where the two do not fit together; sums of sums "
        "and maxima of maxima wait on."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/pull/165962",
        "https://github.com/pytorch/pytorch/pull/159856",
    ),
    affected=Affected(since="2.5.0", fixed_in=("2.10.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        reproduce.on_two_ranks(run, since=since, needs=needs)
        for run, since, needs in (
            (norms, "2.5.0", "the public torch.distributed.tensor"),
            (gradient_norm, "2.5.0", "the public torch.distributed.tensor"),
            (extremes, "2.5.0", "the public torch.distributed.tensor"),
            (of_means, "2.8.0", "averages over ranks on gloo"),
            (of_maxima, "2.7.0", "a strategy for aten.amax"),
        )
    ),
    after=("dtensor_norm_sum", "dtensor_reductions"),
    removable_when="the oldest torch you support is 2.10",
    notes="Costs one all-reduce of what is reduced, as on newer builds.",
)

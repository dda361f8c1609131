"""DTensor has no sharding strategy for operators that work along some dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM
from ..edits import Edit
from ..gate import Affected
from ..missing_ops import Groups, probe_missing, register_missing
from ..shim import Probe, Reproducer, Shim
from ..strategies import (
    along,
    arguments,
    decomposes,
    gathered,
    held,
    input_specs,
    movable,
    outcome,
    place,
)

# The overloads, by the release from which torch does without us. Outputs of KEEP have the
# dimensions of the input; those of DROP lose the dimensions worked along, unless keepdim is set;
# those of WHOLE take sizes of the whole input as an argument, so that nothing may be sharded.
_KEEP_UNTIL_211 = (
    *("cumsum.default", "sort.default", "sort.stable"),
    *("index_copy.default", "index_fill.int_Tensor"),
)
_DROP_UNTIL_211 = (
    *("select.int", "unbind.int", "amax.default", "amin.default", "aminmax.default"),
    *("argmax.default", "argmin.default", "logsumexp.default", "std.correction"),
    *("count_nonzero.default", "count_nonzero.dim_IntList"),
    *("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype"),
)
_WHOLE_UNTIL_211 = ("select_backward.default",)
_KEEP_UNTIL_212 = (
    *("flip.default", "roll.default", "glu.default", "glu_backward.default"),
    *("cumprod.default", "cummax.default", "cummin.default", "logcumsumexp.default"),
    "index_fill.int_Scalar",
)
_DROP_UNTIL_212 = (
    *("kthvalue.default", "mode.default", "median.dim", "nanmedian.dim"),
    *("median.default", "nanmedian.default", "nansum.default"),
    *("std_mean.correction", "var_mean.correction"),
)
_KEEP = ("unfold.default",)
_WHOLE = ("unfold_backward.default",)


def _groups() -> Groups:
    if held(SINGLE_DIM, "cos.default") is not None:  # 2.12 and later
        return ((_keep, _KEEP), (_whole, _WHOLE))
    keep, drop = _KEEP_UNTIL_212 + _KEEP, _DROP_UNTIL_212
    if decomposes():
        return ((_keep, keep), (_drop, drop), (_whole, _WHOLE))
    return (
        (_keep, keep + _KEEP_UNTIL_211),
        (_drop, drop + _DROP_UNTIL_211),
        (_whole, _WHOLE + _WHOLE_UNTIL_211),
    )


def _keep(*given: Any) -> Any:
    return _strategy(given[-1], drops=False)


def _drop(*given: Any) -> Any:
    return _strategy(given[-1], drops=True)


def _whole(*given: Any) -> Any:
    return gathered(given[-1])


def _strategy(schema: Any, *, drops: bool) -> Any:
    """Let all dimensions stay sharded that the operator does not work along."""
    named = arguments(schema)
    specs = [spec for _, spec in input_specs(schema)]
    shape = specs[0].shape
    dims = along(named, len(shape))
    # whatever has as many dimensions goes with the first input, and has to have its sizes there
    fellows = [spec for spec in specs if len(spec.shape) == len(shape)]

    def stays(dim: int) -> int | None:
        same = all(spec.shape[dim] == shape[dim] for spec in fellows)
        return dim if dim not in dims and same else None

    def shifted(dim: int) -> int:
        return dim - sum(worked < dim for worked in dims)

    kept = place(specs[0].placements, stays)
    if drops and not named.get("keepdim", False):
        kept = movable(kept, shifted)
        placed = place(kept, shifted)
    else:
        placed = kept
    nowhere = place(kept, lambda dim: None)
    inputs = [kept if len(spec.shape) == len(shape) else nowhere for spec in specs]
    returns = schema.op._schema.returns
    count = shape[dims[0]] if str(returns[0].type) == "List[Tensor]" else len(returns)
    return outcome(schema, inputs, [placed] * count)


def probe() -> Probe:
    """Look for the operators in the propagator's tables."""
    return probe_missing(name for _, names in _groups() for name in names)


def edits() -> Sequence[Edit]:
    """Register one strategy per kind of output."""
    return register_missing(_groups())


def windows() -> None:
    """``unfold``, a sliding window."""
    reproduce.assert_same_sharded(lambda x, _: x.unfold(1, 3, 2), shape=(5, 6))
    reproduce.assert_same_sharded(lambda x, _: x.unfold(-2, 2, 1).exp(), shape=(5, 6))


def reordered() -> None:
    """``flip``, ``roll`` and ``glu``; the gradient of ``cumsum`` flips, too."""
    _same(
        lambda x, _: [x.cumsum(0), x.cumsum(1)],
        lambda x, _: x.flip(0) * x.flip([1]),
        lambda x, _: [x.roll(2, 1), x.roll((1, 1), (0, 1)), x.roll(3)],
        lambda x, _: reproduce.functional().glu(x, -1),
    )


def scanned() -> None:
    """``cumprod``, ``cummax``, ``cummin`` and ``logcumsumexp``."""
    _same(
        lambda x, _: [x.detach().cumprod(dim) for dim in (0, 1)],
        lambda x, _: [*x.detach().cummax(0), *x.detach().cummin(1)],
        lambda x, _: [x.detach().logcumsumexp(dim) for dim in (0, 1)],
    )


def ranked() -> None:
    """``kthvalue``, ``median`` and their kin, and the moments that come in pairs."""
    import torch

    _same(
        lambda x, _: [*x.detach().kthvalue(2, 1), *x.detach().kthvalue(3, 0, keepdim=True)],
        lambda x, _: [*x.detach().median(1), *x.detach().nanmedian(0), x.detach().median()],
        lambda x, _: x.nansum(1),
        lambda x, _: [*torch.std_mean(x.detach(), 1), *torch.var_mean(x.detach(), 0, keepdim=True)],
    )


def counted() -> None:
    """``count_nonzero`` and ``Tensor.norm`` over a dimension, and ``aminmax``."""
    import torch

    _same(
        lambda x, _: [x.round().detach().count_nonzero(), x.round().detach().count_nonzero(1)],
        lambda x, _: [*x.detach().aminmax(dim=0), torch.ops.aten.norm.ScalarOpt_dim(x.detach(), 2, [1])],
    )


def reduced() -> None:
    """``logsumexp``, ``argmax``, ``std``, and ``unbind`` of a dimension that is not sharded."""
    import torch
    from torch.distributed.tensor import Replicate, Shard

    _same(
        lambda x, _: [torch.logsumexp(x, dim) for dim in (0, 1)],
        lambda x, _: [x.argmax(1), x.argmax(0, keepdim=True), x.argmin(-1)],
        lambda x, _: [x.detach().std(1), x.detach().std(0, keepdim=True), x.detach().std()],
    )
    for dim in (0, 1):
        _on(lambda x, dim: x.unbind(dim), dim, Replicate(), Shard(1 - dim))


def sorted_values() -> None:
    """``sort`` and ``argsort``."""
    _same(
        lambda x, _: [*x.detach().sort(0), *x.detach().sort(-1, descending=True)],
        lambda x, _: [x.argsort(1), *x.detach().sort(stable=True)],
    )


def summed() -> None:
    """``cumsum``, and ``select``, which on 2.8 and 2.9 spoils a replicated input."""
    from torch.distributed.tensor import Shard

    _same(lambda x, _: [x.detach().cumsum(0), x.detach().cumsum(1)])
    for dim in (0, 1):
        _on(lambda x, dim: x.select(dim, 1), dim, Shard(0), Shard(1))


def _same(*functions: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
    for function in functions:
        reproduce.assert_same_sharded(function, shape=(5, 6))


def _on(function: Callable[[Any, int], Any], dim: int, *placements: Any) -> None:
    reproduce.assert_same_sharded(lambda x, _: function(x, dim), shape=(5, 6), placements=placements)


_PUBLIC = Affected(since="2.5.0")
_REPRODUCERS: tuple[tuple[Callable[[], None], Affected | None], ...] = (
    (windows, None),
    (reordered, Affected(since="2.5.0", fixed_in=("2.12.0",))),
    (scanned, Affected(since="2.5.0", fixed_in=("2.12.0",))),
    (ranked, Affected(since="2.5.0", fixed_in=("2.12.0",))),
    (counted, Affected(since="2.5.0", fixed_in=("2.11.0",))),
    (reduced, Affected(since="2.5.0", fixed_in=("2.10.0",))),
    (sorted_values, Affected(since="2.5.0", fixed_in=("2.9.0",))),
    (summed, Affected(since="2.5.0", fixed_in=("2.8.0",))),
)

SHIM = Shim(
    key="dtensor_dim_ops",
    summary="operators along a dimension (argmax, logsumexp, std, flip, ...) find no sharding strategy",
    symptom=(
        "NotImplementedError: Operator aten.logsumexp.default does not have a sharding strategy "
        "registered. So for argmax, std, unbind, flip, roll, cumsum, cumprod, cummax, sort, median, "
        "kthvalue, count_nonzero, glu, unfold and others, each on its own range of builds."
    ),
    cause="DTensor registers nothing for these operators.",
    cure=(
        "They get a strategy: what is sharded along a dimension that the operator leaves alone stays "
        "so, and everything else is gathered first."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/147724",
        "https://github.com/pytorch/pytorch/pull/163879",
        "https://github.com/pytorch/pytorch/pull/168906",
        "https://github.com/pytorch/pytorch/pull/169171",
        "https://github.com/pytorch/pytorch/pull/177407",
    ),
    affected=_PUBLIC,
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=f"{run.__name__}_{ranks}rank{'s' * (ranks > 1)}",
            run=run,
            expect=r"Operator aten\.\w+\.\w+ does not have a sharding strategy registered",
            affected=affected,
            ranks=ranks,
            runnable=_PUBLIC,
            needs="the public torch.distributed.tensor",
            preload=("torch.distributed.tensor", "torch._dynamo"),
        )
        for run, affected in _REPRODUCERS
        for ranks in ((1, 2) if affected is None else (2,))
    ),
    removable_when="torch registers a strategy for unfold",
    notes=(
        "An input that is sharded along the dimension worked on is gathered, which costs memory and "
        "time. Only operators that a build cannot do otherwise are registered."
    ),
)

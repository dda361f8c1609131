"""Reductions of sharded tensors take an empty list of dimensions for none, and not for all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import forget_shardings
from ..edits import Call, Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Presence, Probe, Shim, absent, drifted, present
from ..targets import lookup
from . import dtensor_pending_divisor

_READ_DIMS = "torch.distributed.tensor._ops._math_ops:_infer_reduction_dims"


def probe() -> Probe:
    """Ask torch's own helper, a pure function, which dimensions an empty list names."""
    read_dims = lookup(_READ_DIMS, None)
    if not callable(read_dims) or read_dims([1], 2) != [1] or read_dims(None, 2) is not None:
        return drifted("DTensor reads the dimensions of a reduction elsewhere")
    if read_dims([], 2) == []:
        return present("an empty list of dimensions is taken for none")
    return absent("an empty list of dimensions names all", cured=is_replaced(_READ_DIMS))


def _reading_empty(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def read_dims(dims_arg: Any, ndim: int) -> Any:
        dims = original(dims_arg, ndim)
        return list(range(ndim)) if dims == [] else dims

    return read_dims


def edits() -> Sequence[Edit]:
    """Name all dimensions in place of none; forget what was propagated before."""
    return [
        ReplaceAttr(_READ_DIMS, _reading_empty),
        Call("DTensor's caches of shardings, for empty dims", forget_shardings, forget_shardings),
    ]


def of_extrema() -> None:
    """The gradient of the largest and the smallest element, also where several are equal."""
    _compare(
        lambda x, _: [x.amax(), x.amin(), x.max(), x.min()],
        lambda x, _: [x.clamp(-0.5, 0.5).amax(), x.amax(1), x.amin(0, keepdim=True)],
    )


def of_norms() -> None:
    """The gradient of norms that are the largest or the smallest element."""
    import torch

    inf = float("inf")
    _compare(
        lambda x, _: [torch.linalg.vector_norm(x, inf), torch.linalg.vector_norm(x, -inf), x.norm(inf)],
        lambda x, _: [x.clamp(-0.5, 0.5).norm(inf), torch.linalg.vector_norm(x, inf, dim=1)],
    )


def _compare(*functions: Callable[[Any, Any], Any]) -> None:
    # On 2.11 what is divided by the count of equals is wrong too, for a reason of its own.
    if dtensor_pending_divisor.probe().presence is Presence.PRESENT:
        for edit in dtensor_pending_divisor.edits():
            edit.prepare().commit()
    for function in functions:
        for shape in ((6, 4), (5, 7)):
            reproduce.assert_same_sharded(function, shape=shape)


SHIM = Shim(
    key="dtensor_empty_dims",
    summary="the gradient of amax(), amin() and of an inf-norm of a sharded DTensor is wrong or nan",
    symptom=(
        "No error: after x.amax().backward() of a sharded x the gradient is nan on every rank that does "
        "not hold the largest element, and too large where several are equal; so for amin() and "
        "vector_norm(x, inf). x.sum(dim=[]) is a DTensor that cannot be gathered"
    ),
    cause=(
        "The gradient counts the equals with sum(dim=[]), which is the sum over all dimensions. DTensor "
        "takes the empty list for no dimension at all, and leaves out the reduction over the ranks."
    ),
    cure="DTensor takes an empty list of dimensions for all of them, as the operators do.",
    # No issue of it was found.
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/tensor/_ops/_math_ops.py",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        reproduce.on_two_ranks(
            run, expect=r"AssertionError: .*the gradient differs", since=since, needs=needs
        )
        for run, since, needs in (
            (of_norms, "2.5.0", "the public torch.distributed.tensor"),
            (of_extrema, "2.7.0", "a sharding strategy for amax"),
        )
    ),
    removable_when="_infer_reduction_dims([], ndim) names all dimensions in every torch you support",
    notes=(
        "Costs an all-reduce of the count of equals, where a wrong number cost none. On 2.11.0 the "
        "gradient is right only together with dtensor_pending_divisor."
    ),
)

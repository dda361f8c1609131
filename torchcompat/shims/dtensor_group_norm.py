"""Group norm of a DTensor has no sharding strategy, forward or backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import HANDLERS, registered
from ..edits import AddEntries, Edit
from ..gate import Affected
from ..handlers import handler, is_ours, kept, moved, with_other_arguments, wrapped
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import overload_of
from ..targets import lookup

_FORWARD, _BACKWARD = "native_group_norm.default", "native_group_norm_backward.default"
_ARGUMENTS = {
    _FORWARD: ("input", "weight", "bias", "N", "C", "HxW", "group", "eps"),
    _BACKWARD: (
        *("grad_out", "input", "mean", "rstd", "weight"),
        *("N", "C", "HxW", "group", "output_mask"),
    ),
}


def probe() -> Probe:
    """Look for strategies and handlers of both operators."""
    handlers = lookup(HANDLERS, None)
    if not isinstance(handlers, dict):
        return drifted("DTensor keeps its handlers elsewhere")
    overloads = [overload_of(name) for name in (_FORWARD, _BACKWARD)]
    found = [handlers.get(overload) for overload in overloads]
    if all(map(is_ours, found, (_forward, _backward))):
        return absent("group norm has handlers, by this shim", cured=True)
    if any(found):
        return absent("group norm has handlers")
    changed = with_other_arguments(_ARGUMENTS)
    if changed is not None:
        return drifted(f"{changed} has other arguments")
    missing = [overload for overload in overloads if not registered(overload)]
    if not missing:
        return absent("group norm has strategies")
    return present(f"no strategy for {missing[0]} is registered")


def _forward(operator: Any, named: Mapping[str, Any]) -> Any:
    """Normalize the samples that every rank has; all of its channels and pixels make a group."""
    x, mesh = named["input"], named["input"].device_mesh
    samples, nowhere = kept(x, _is_batch), [None] * mesh.ndim
    # what was gathered from shards of different sizes need not be contiguous; the kernels need it
    local = moved(x, samples).contiguous()
    whole = {name: moved(named[name], nowhere) for name in ("weight", "bias")}
    out, mean, rstd = operator(**{**named, **whole, "input": local, "N": local.shape[0]})
    moments = (x.shape[0], named["group"])
    return (
        wrapped(out, mesh, samples, x.shape),
        *(wrapped(one, mesh, samples, moments) for one in (mean, rstd)),
    )


def _backward(operator: Any, named: Mapping[str, Any]) -> Any:
    """Differentiate as :func:`_forward` did; gradients of weight and bias are sums over the parts."""
    x, mesh = named["input"], named["input"].device_mesh
    samples, nowhere = kept(x, _is_batch), [None] * mesh.ndim
    local = {
        name: moved(named[name], samples).contiguous() for name in ("grad_out", "input", "mean", "rstd")
    }
    weight = moved(named["weight"], nowhere)
    of_input, of_weight, of_bias = operator(
        **{**named, **local, "weight": weight, "N": local["input"].shape[0]}
    )
    return (
        wrapped(of_input, mesh, samples, x.shape),
        *(wrapped(one, mesh, samples, (named["C"],), summed=True) for one in (of_weight, of_bias)),
    )


def _is_batch(dim: int) -> bool:
    return dim == 0


def edits() -> Sequence[Edit]:
    """Handle both operators."""

    def entries() -> Mapping[Any, Any]:
        return {
            overload_of(_FORWARD): handler(_forward, 1),
            overload_of(_BACKWARD): handler(_backward, 2),
        }

    return [AddEntries(HANDLERS, entries)]


# -- reproducers ---------------------------------------------------------------------


def of_input() -> None:
    """Output, and gradient of the input, with weight and bias and without, of two layouts."""
    import torch

    def plain(x: Any, _: Any) -> Any:
        return torch.nn.functional.group_norm(x, 2)

    def weighted(x: Any, place: Any) -> Any:
        weight, bias = (place(torch.arange(4.0) + n).requires_grad_() for n in (1, 2))
        return torch.nn.functional.group_norm(x, 2, weight, bias)

    for shape in ((4, 4, 3, 2), (3, 4)):
        for function in (plain, weighted):
            reproduce.assert_same_sharded(function, shape=shape, rtol=1e-4, atol=1e-5)


def of_weight() -> None:
    """Gradients of weight and bias, replicated and sharded, of a batch that is sharded or not."""
    import torch
    from torch.distributed.tensor import Replicate, Shard

    batch = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(2))

    for placement in (Replicate(), Shard(0), Shard(2)):

        def of_both(x: Any, _: Any, placement: Any = placement) -> Any:
            return torch.nn.functional.group_norm(reproduce.beside(x, batch, placement), 2, x, x)

        reproduce.assert_same_sharded(of_both, shape=(4,), rtol=1e-4, atol=1e-5)


_EXPECT = (
    r"Error: .*(native_group_norm(_backward)?\.default does not have a sharding strategy|"
    r"native_group_norm_backward, `output_specs`|Expected dY\.numel)"
)

SHIM = Shim(
    key="dtensor_group_norm",
    summary="group_norm of a DTensor finds no sharding strategy, or has no backward",
    symptom=(
        "NotImplementedError: Operator aten.native_group_norm.default does not have a sharding strategy "
        "registered; from 2.12 on the backward raises the same of aten.native_group_norm_backward, or "
        "RuntimeError: Expected dY.numel() == N * C * HxW to be true"
    ),
    cause="DTensor registers nothing for the operator; from 2.12 on nothing for its backward.",
    cure=(
        "Both get a handler: where the batch is sharded every rank normalizes its samples, and "
        "gradients of weight and bias wait as sums. Everything else is gathered first."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/pull/184825",
        "https://github.com/pytorch/pytorch/pull/176992",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(reproduce.on_two_ranks(run, _EXPECT) for run in (of_input, of_weight)),
    removable_when="torch registers a strategy for aten.native_group_norm_backward",
    notes="An input that is sharded along channels or pixels is gathered, which costs memory and time.",
)

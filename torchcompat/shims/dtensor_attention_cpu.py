"""Attention of DTensors on the CPU finds no sharding strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import HANDLERS, each_rank_has_some
from ..edits import AddEntries, Edit
from ..gate import Affected
from ..handlers import handler, is_ours, kept, moved, with_other_arguments, wrapped
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import missing, overload_of
from ..targets import lookup

_FORWARD = "_scaled_dot_product_flash_attention_for_cpu.default"
_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward.default"
_MODES = ("dropout_p", "is_causal", "attn_mask", "scale")
_ARGUMENTS = {
    _FORWARD: ("query", "key", "value", *_MODES),
    _BACKWARD: ("grad_out", "query", "key", "value", "out", "logsumexp", *_MODES),
}


def probe() -> Probe:
    """Look for both operators in the propagator's tables, and among the handlers."""
    handlers = lookup(HANDLERS, None)
    if not isinstance(handlers, dict):
        return drifted("DTensor keeps its handlers elsewhere")
    found = {name: handlers.get(overload_of(name)) for name in _ARGUMENTS}
    if all(is_ours(found[name], handle) for name, (handle, _) in _HANDLES.items()):
        return absent("attention on the CPU has handlers, by this shim", cured=True)
    if any(found.values()) or len(list(missing(_ARGUMENTS))) < len(_ARGUMENTS):
        return absent("DTensor knows attention on the CPU")
    changed = with_other_arguments(_ARGUMENTS)
    if changed is not None:
        return drifted(f"{changed} has other arguments")
    return present(f"no strategy for aten.{_FORWARD} is registered")


def edits() -> Sequence[Edit]:
    """Handle both operators.

    A strategy would not do: what stands among the named arguments, as the mask does, is handed to
    the kernel as it is.
    """

    def entries() -> Mapping[Any, Any]:
        return {
            overload_of(name): handler(handle, made_of) for name, (handle, made_of) in _HANDLES.items()
        }

    return [AddEntries(HANDLERS, entries)]


def _forward(operator: Any, named: Mapping[str, Any]) -> Any:
    """Attend where batch and heads are; the logarithm of sums is ``(batch, heads, tokens)``."""
    query, value = named["query"], named["value"]
    dims = _independent_dims(named)
    output, logsumexp = operator(**_parts(named, dims))
    mesh, shape = query.device_mesh, tuple(query.shape[:3])
    return wrapped(output, mesh, dims, (*shape, value.shape[3])), wrapped(logsumexp, mesh, dims, shape)


def _backward(operator: Any, named: Mapping[str, Any]) -> Any:
    """Compute gradients where the forward attended."""
    dims = _independent_dims(named)
    tensors = [named[name] for name in ("query", "key", "value")]
    gradients = operator(**_parts(named, dims))
    return tuple(
        wrapped(gradient, tensor.device_mesh, dims, tensor.shape)
        for gradient, tensor in zip(gradients, tensors)
    )


_HANDLES: dict[str, tuple[Callable[..., Any], int]] = {
    _FORWARD: (_forward, 3),
    _BACKWARD: (_backward, 6),
}


def _independent_dims(named: Mapping[str, Any]) -> list[int | None]:
    """Return for every dimension of the mesh the one that may stay sharded along it, or None."""
    query = named["query"]

    def independent(dim: int) -> bool:
        same = all(named[name].shape[dim] == query.shape[dim] for name in ("key", "value"))
        return dim < 2 and same and each_rank_has_some(query, dim)

    return kept(query, independent)


def _parts(named: Mapping[str, Any], dims: Sequence[int | None]) -> dict[str, Any]:
    """Move what is a DTensor; of a mask, which is broadcast, only what it has of its own."""
    mask = named.get("attn_mask")
    shape = getattr(mask, "shape", ())

    def of_mask(dim: int | None) -> int | None:
        return dim if dim is not None and len(shape) == 4 and shape[dim] > 1 else None

    return {
        name: moved(value, list(map(of_mask, dims)) if value is mask else dims)
        for name, value in named.items()
    }


def self_attention() -> None:
    """Causal attention and its gradients, of ``(batch, heads, tokens, features)``."""
    F = reproduce.functional()

    def attended(x: Any, _: Any) -> Any:
        return F.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True)

    for shape in ((4, 2, 6, 8), (3, 4, 2, 4), (1, 3, 4, 4)):
        reproduce.assert_same_sharded(attended, shape=shape, rtol=1e-4, atol=1e-5)


def masked() -> None:
    """Attention of other tokens under masks of all shapes."""
    import torch

    F = reproduce.functional()
    shapes = ((6, 5), (1, 1, 6, 5), (4, 1, 6, 5), (1, 2, 6, 5), (4, 2, 6, 5))

    def attended(x: Any, place: Any) -> Any:
        other = place(torch.linspace(-1, 1, 4 * 2 * 5 * 8).view(4, 2, 5, 8))
        masks = [torch.linspace(-3, 3, torch.Size(shape).numel()).view(shape) for shape in shapes]
        return [
            F.scaled_dot_product_attention(x, other, other * 2, attn_mask=reproduce.beside(x, mask))
            for mask in (*masks, masks[0] > 0)
        ]

    reproduce.assert_same_sharded(attended, shape=(4, 2, 6, 8), rtol=1e-4, atol=1e-5)


SHIM = Shim(
    key="dtensor_attention_cpu",
    summary="scaled_dot_product_attention of DTensors on the CPU finds no sharding strategy",
    symptom=(
        "NotImplementedError: Operator aten._scaled_dot_product_flash_attention_for_cpu.default does "
        "not have a sharding strategy registered, from F.scaled_dot_product_attention: a model with "
        "sharded heads that trains on GPUs cannot be tested on the CPU"
    ),
    cause="DTensor registers the attention kernels of CUDA, and not the one of the CPU.",
    cure=(
        "The kernel and its backward get handlers: batch and heads stay sharded, tokens and features "
        "are gathered."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/tensor/_ops/_matrix_ops.py",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        reproduce.on_two_ranks(
            run,
            r"Operator aten\._scaled_dot_product_flash_attention_for_cpu(_backward)?\.default does not "
            r"have a sharding strategy registered",
        )
        for run in (self_attention, masked)
    ),
    removable_when="torch registers a strategy for the kernel",
    notes=(
        "With dropout, or with a mask that asks for gradients, torch takes another way, which needs no "
        "strategy of its own. Shards along tokens are gathered: this is no ring attention."
    ),
)

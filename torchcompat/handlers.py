"""Handlers, which DTensor calls in place of an operator's propagation, and what they are made of.

A handler gets the overload and its arguments, below autograd. Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .strategies import overload_of
from .targets import lookup

__all__ = ["handler", "is_ours", "kept", "moved", "with_other_arguments", "wrapped"]

_HANDLE = "_torchcompat_handle"


def handler(
    handle: Callable[..., Any], made_of: int, original: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Make a handler that leaves it to torch to refuse what is not made of DTensors on one mesh.

    Args:
        handle: called as ``handle(overload, named)`` with the arguments by their names; at
            least the first ``made_of`` are DTensors, and all DTensors are on one mesh.
        made_of: the number of arguments that have to be DTensors.
        original: torch's own handler, if there is one.
    """

    def handling(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        from torch.distributed.tensor import DTensor

        dispatcher: Any = DTensor._op_dispatcher
        tensors = [one for one in (*args, *kwargs.values()) if hasattr(one, "device")]
        meshes = [tensor.device_mesh for tensor in tensors if isinstance(tensor, DTensor)]
        mixed = len(meshes) < len(tensors) and not dispatcher._allow_implicit_replication
        first = all(isinstance(one, DTensor) for one in args[:made_of])
        if not mixed and first and all(mesh == meshes[0] for mesh in meshes):
            return handle(operator, {**dict(zip(_names(operator), args)), **kwargs})
        if original is not None:
            return original(operator, args, kwargs)
        dispatcher.unwrap_to_op_info(operator, args, kwargs)  # raises, in its own words
        raise RuntimeError(f"{operator} needs DTensors on one mesh as its first {made_of} arguments")

    setattr(handling, _HANDLE, handle)
    return handling


def is_ours(found: Any, handle: Callable[..., Any]) -> bool:
    """Whether what a table of handlers holds is :func:`handler` of a function."""
    return getattr(found, _HANDLE, None) is handle


def with_other_arguments(expected: Mapping[str, tuple[str, ...]]) -> Any:
    """Return the first overload whose arguments have other names than these; None if none has."""
    for name, arguments in expected.items():
        overload = overload_of(name)
        if _names(overload) != arguments:
            return overload
    return None


def _names(overload: Any) -> tuple[str, ...]:
    return tuple(arg.name for arg in overload._schema.arguments)


def kept(tensor: Any, independent: Callable[[int], bool]) -> list[int | None]:
    """Return for every dimension of the mesh the tensor's one that stays sharded along it, or None.

    Args:
        tensor: a DTensor.
        independent: whether an operator may work on the parts along a dimension on their own.
    """
    from torch.distributed.tensor import Shard

    dims = [placement.dim if type(placement) is Shard else None for placement in tensor.placements]
    return [dim if dim is not None and independent(dim) else None for dim in dims]


def moved(tensor: Any, dims: Sequence[int | None]) -> Any:
    """Return this rank's part of a DTensor that is sharded along these dimensions only."""
    from torch.distributed.tensor import Replicate, Shard

    if not hasattr(tensor, "placements"):  # no bias, or one that everybody has
        return tensor
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    # Below autograd: what is moved must not ask for gradients, which up to 2.9 would be detached.
    return tensor.detach().redistribute(tensor.device_mesh, placements)._local_tensor


def wrapped(
    local: Any, mesh: Any, dims: Sequence[int | None], shape: Sequence[int], *, summed: bool = False
) -> Any:
    """Return the DTensor of a shape of which this rank has a part, or a summand."""
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    if local is None:
        return None
    make_spec: Any = lookup("torch.distributed.tensor._dtensor_spec:DTensorSpec")
    make_meta: Any = lookup("torch.distributed.tensor._dtensor_spec:TensorMeta")
    placements = [Replicate() if dim is None else Partial() if summed else Shard(dim) for dim in dims]
    meta = make_meta(torch.Size(shape), _strides(local, shape), local.dtype)
    return DTensor._op_dispatcher.wrap(local, make_spec(mesh, tuple(placements), tensor_meta=meta))


def _strides(local: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dimensions lie in memory as those of another."""
    strides, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda dim: (local.stride(dim), -dim)):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)

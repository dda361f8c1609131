"""Handlers, which DTensor calls in place of an operator's propagation, and what they are made of.

A handler gets the overload and its arguments, below autograd. Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .targets import lookup

__all__ = ["batched", "handler", "is_ours", "moved", "wrapped"]

_HANDLE = "_torchcompat_handle"


def handler(
    handle: Callable[..., Any], made_of: int, original: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Make a handler that leaves it to torch to refuse what is not made of DTensors on one mesh.

    Args:
        handle: called as ``handle(overload, args, kwargs)``; at least the first ``made_of``
            of the arguments are DTensors, and all DTensors are on one mesh.
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
            return handle(operator, args, kwargs)
        if original is not None:
            return original(operator, args, kwargs)
        dispatcher.unwrap_to_op_info(operator, args, kwargs)  # raises, in its own words
        raise RuntimeError(f"{operator} needs DTensors on one mesh as its first {made_of} arguments")

    setattr(handling, _HANDLE, handle)
    return handling


def is_ours(found: Any, handle: Callable[..., Any]) -> bool:
    """Whether what a table of handlers holds is :func:`handler` of a function."""
    return getattr(found, _HANDLE, None) is handle


def batched(tensor: Any) -> list[int | None]:
    """Return for every dimension of the mesh 0 where samples are sharded along it, else None."""
    from torch.distributed.tensor import Shard

    return [0 if type(one) is Shard and one.dim == 0 else None for one in tensor.placements]


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

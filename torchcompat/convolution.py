"""Convolutions of DTensors: what may stay sharded through one, and everything else gathered.

The functions stand in for an operator in DTensor's table of handlers, below autograd.
Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .targets import lookup

__all__ = ["BACKWARD_ARGUMENTS", "FORWARD_ARGUMENTS", "backward", "forward"]

#: The arguments of aten.convolution, in their order.
FORWARD_ARGUMENTS = (
    *("input", "weight", "bias", "stride", "padding", "dilation"),
    *("transposed", "output_padding", "groups"),
)
#: And those of aten.convolution_backward.
BACKWARD_ARGUMENTS = (
    *("grad_output", "input", "weight", "bias_sizes", "stride", "padding", "dilation"),
    *("transposed", "output_padding", "groups", "output_mask"),
)


def forward(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Convolve batches, or patches, where they are, and everything else whole."""
    named = {**dict(zip(FORWARD_ARGUMENTS, args)), **kwargs}
    x = named["input"]
    kept = _kept(named)
    local = operator(
        _moved(x, kept),
        *(_moved(named[name], [None] * len(kept)) for name in ("weight", "bias")),
        *(named[name] for name in FORWARD_ARGUMENTS[3:]),
    )
    shape = list(local.shape)
    for dim in (dim for dim in kept if dim is not None):
        shape[dim] = x.shape[0] if dim == 0 else x.shape[dim] // named["stride"][dim - 2]
    return _wrapped(local, x.device_mesh, kept, shape)


def backward(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Convolve gradients as the forward did; those of weight and bias are sums over the parts."""
    named = {**dict(zip(BACKWARD_ARGUMENTS, args)), **kwargs}
    x, weight = named["input"], named["weight"]
    kept = _kept(named)
    of_input, of_weight, of_bias = operator(
        _moved(named["grad_output"], kept),
        _moved(x, kept),
        _moved(weight, [None] * len(kept)),
        *(named[name] for name in BACKWARD_ARGUMENTS[3:]),
    )
    mesh = x.device_mesh
    return (
        _wrapped(of_input, mesh, kept, x.shape),
        _wrapped(of_weight, mesh, kept, weight.shape, summed=True),
        _wrapped(of_bias, mesh, kept, named["bias_sizes"], summed=True),
    )


def _kept(named: Mapping[str, Any]) -> list[int | None]:
    """Return for every dimension of the mesh the one that may stay sharded along it, or None.

    Samples are independent; and so are patches, of which each makes one pixel, where no
    rank's border cuts one.
    """
    from torch.distributed.tensor import Shard

    x, weight = named["input"], named["weight"]
    mesh = x.device_mesh
    dims = [placement.dim if type(placement) is Shard else None for placement in x.placements]

    def independent(dim: int) -> bool:
        if dim == 0:
            return True
        if dim == 1 or named["transposed"]:
            return False
        stride = named["stride"][dim - 2]
        ranks = 1
        for at, sharded in enumerate(dims):
            ranks *= mesh.size(at) if sharded == dim else 1
        return bool(
            named["padding"][dim - 2] == 0
            and named["dilation"][dim - 2] == 1
            and stride == weight.shape[dim]
            and x.shape[dim] % (stride * ranks) == 0
        )

    return [dim if dim is not None and independent(dim) else None for dim in dims]


def _moved(tensor: Any, dims: Sequence[int | None]) -> Any:
    """Return this rank's part of a DTensor that is sharded along these dimensions only."""
    from torch.distributed.tensor import Replicate, Shard

    if not hasattr(tensor, "placements"):  # no bias, or one that everybody has
        return tensor
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    # Below autograd: what is moved must not ask for gradients, which up to 2.9 would be detached.
    return tensor.detach().redistribute(tensor.device_mesh, placements)._local_tensor


def _wrapped(
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

"""Convolutions of DTensors: what may stay sharded through one, and everything else gathered.

The functions are handlers, see :mod:`torchcompat.handlers`. Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .handlers import moved, wrapped

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
        moved(x, kept),
        *(moved(named[name], [None] * len(kept)) for name in ("weight", "bias")),
        *(named[name] for name in FORWARD_ARGUMENTS[3:]),
    )
    shape = list(local.shape)
    for dim in (dim for dim in kept if dim is not None):
        shape[dim] = x.shape[0] if dim == 0 else x.shape[dim] // named["stride"][dim - 2]
    return wrapped(local, x.device_mesh, kept, shape)


def backward(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Convolve gradients as the forward did; those of weight and bias are sums over the parts."""
    named = {**dict(zip(BACKWARD_ARGUMENTS, args)), **kwargs}
    x, weight = named["input"], named["weight"]
    kept = _kept(named)
    of_input, of_weight, of_bias = operator(
        moved(named["grad_output"], kept),
        moved(x, kept),
        moved(weight, [None] * len(kept)),
        *(named[name] for name in BACKWARD_ARGUMENTS[3:]),
    )
    mesh = x.device_mesh
    return (
        wrapped(of_input, mesh, kept, x.shape),
        wrapped(of_weight, mesh, kept, weight.shape, summed=True),
        wrapped(of_bias, mesh, kept, named["bias_sizes"], summed=True),
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

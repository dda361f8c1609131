"""Convolutions of DTensors: what may stay sharded through one, and everything else gathered.

The functions are handlers, see :mod:`torchcompat.handlers`. Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .dtensor import ranks_along
from .handlers import kept, moved, wrapped

__all__ = ["backward", "forward"]


def forward(operator: Any, named: Mapping[str, Any]) -> Any:
    """Convolve batches, or patches, where they are, and everything else whole."""
    x, mesh = named["input"], named["input"].device_mesh
    dims, nowhere = _independent_dims(named), [None] * mesh.ndim
    whole = {name: moved(named[name], nowhere) for name in ("weight", "bias")}
    local = operator(**{**named, **whole, "input": moved(x, dims)})
    shape = list(local.shape)
    for dim in (dim for dim in dims if dim is not None):
        shape[dim] = x.shape[0] if dim == 0 else x.shape[dim] // named["stride"][dim - 2]
    return wrapped(local, mesh, dims, shape)


def backward(operator: Any, named: Mapping[str, Any]) -> Any:
    """Convolve gradients as the forward did; those of weight and bias are sums over the parts."""
    x, weight, mesh = named["input"], named["weight"], named["input"].device_mesh
    dims, nowhere = _independent_dims(named), [None] * mesh.ndim
    parts = {name: moved(named[name], dims) for name in ("grad_output", "input")}
    of_input, of_weight, of_bias = operator(**{**named, **parts, "weight": moved(weight, nowhere)})
    return (
        wrapped(of_input, mesh, dims, x.shape),
        wrapped(of_weight, mesh, dims, weight.shape, summed=True),
        wrapped(of_bias, mesh, dims, named["bias_sizes"], summed=True),
    )


def _independent_dims(named: Mapping[str, Any]) -> list[int | None]:
    """Return for every dimension of the mesh the one that may stay sharded along it, or None.

    Samples are independent; and so are patches, of which each makes one pixel, where no
    rank's border cuts one.
    """
    x, weight = named["input"], named["weight"]

    def independent(dim: int) -> bool:
        if dim == 0:
            return True
        if dim == 1 or named["transposed"]:
            return False
        stride = named["stride"][dim - 2]
        return bool(
            named["padding"][dim - 2] == 0
            and named["dilation"][dim - 2] == 1
            and stride == weight.shape[dim]
            and x.shape[dim] % (stride * ranks_along(x.device_mesh, x.placements, dim)) == 0
        )

    return kept(x, independent)

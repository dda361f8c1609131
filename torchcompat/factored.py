"""Determinants and solutions by factors of gathered matrices, in the order that autograd expects.

The functions are handlers, see :mod:`torchcompat.handlers`. Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .handlers import kept, moved, wrapped

__all__ = ["factored"]


def factored(operator: Any, named: Mapping[str, Any]) -> Any:
    """Call an operator that factors matrices ``A``, and may solve for right sides ``B``.

    Batches stay where they are, if A and B have the same; rows and columns are gathered.
    The kernel factors the transpose of a matrix that is contiguous, and the backward, which
    has the factors, asks the DTensor whether it was: so a gathered matrix is brought into the
    order in memory that the DTensor claims.

    Returns:
        All outputs, whose leading dimensions are those of the batch.
    """
    matrix, right = named["A"], named.get("B")
    batch = len(matrix.shape) - 2
    alike = right is None or (
        len(right.shape) == len(matrix.shape) and right.shape[:batch] == matrix.shape[:batch]
    )
    dims = kept(matrix, lambda dim: alike and dim < batch)
    local = moved(matrix, dims)
    if matrix.is_contiguous():
        local = local.contiguous()
    elif local.is_contiguous():
        local = local.mT.contiguous().mT
    rest = {} if right is None else {"B": moved(right, dims)}
    outputs = operator(**{**named, **rest, "A": local})

    def whole(output: Any) -> Any:
        shape = list(output.shape)
        for dim in (dim for dim in dims if dim is not None):
            shape[dim] = matrix.shape[dim]
        return wrapped(output, matrix.device_mesh, dims, shape)

    return tuple(map(whole, outputs))

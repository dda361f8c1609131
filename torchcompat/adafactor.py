"""Adafactor's update of one DTensor parameter, computed shard by shard.

Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["update"]


def _laid_out(tensor: Any, mesh: Any, placements: Any) -> Any:
    if tensor.device_mesh == mesh and tuple(tensor.placements) == tuple(placements):
        return tensor
    return tensor.redistribute(placements=placements)


def _along(placements: Any, dims: Sequence[int], instead: Any) -> list[Any]:
    return [instead if getattr(p, "dim", None) in dims else p for p in placements]


def _summed(part: Any, like: Any, dims: Sequence[int]) -> Any:
    """Add up over the ranks what each has summed of its shard, along dimensions now of size 1."""
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate

    shape = torch.Size(1 if dim in dims else size for dim, size in enumerate(like.shape))
    stride = torch.empty(shape, device="meta").stride()
    pending = DTensor.from_local(
        part,
        like.device_mesh,
        _along(like.placements, dims, Partial()),
        run_check=False,
        shape=shape,
        stride=stride,
    )
    return pending.redistribute(placements=_along(like.placements, dims, Replicate()))


def _squares(part: Any, like: Any, dims: Sequence[int]) -> Any:
    import torch

    if not dims:  # a scalar
        return _summed(part.square(), like, dims)
    return _summed(torch.linalg.vector_norm(part, dim=tuple(dims), keepdim=True).square_(), like, dims)


def _norm_of(part: Any, like: Any) -> float:
    total = _squares(part, like, range(part.dim()))
    return float(total.to_local().sqrt())


def update(columns: Sequence[Any], **options: Any) -> None:
    """Do one step for one parameter, in place.

    Args:
        columns: parameter, gradient, row and column statistics or variance, and step.
        options: as of the functional ``adafactor``; none may be None.
    """
    from torch.distributed.tensor import DTensor, Replicate

    param, grad, row, col, variance, step = columns
    mesh, placements = param.device_mesh, param.placements
    grad = _laid_out(grad, mesh, placements)
    part = grad.to_local()
    if options["maximize"]:
        part = -part
    lr, eps1 = float(options["lr"]), options["eps1"]
    step += 1
    count = step.item()
    weight = count ** options["beta2_decay"]
    size = param.numel() ** 0.5
    alpha = max(options["eps2"], _norm_of(param.to_local(), param) / size) * min(lr, count**-0.5)
    if options["weight_decay"] != 0:
        param.mul_(1 - lr * options["weight_decay"])
    if grad.dim() > 1:
        last, rows = grad.dim() - 1, grad.dim() - 2
        for state, dim in ((row, last), (col, rows)):
            mean = _squares(part, grad, (dim,)).div_(grad.size(dim))
            state.lerp_(_laid_out(mean, mesh, state.placements), weight)
        # Each rank takes of the statistics what belongs to its shard.
        row = _laid_out(row, mesh, _along(placements, (last,), Replicate()))
        col = _laid_out(col, mesh, _along(placements, (rows,), Replicate()))
        change = row.to_local() @ col.to_local()
        of_rows = _summed(row.to_local().sum(dim=rows, keepdim=True), row, (rows,))
        change.div_((of_rows.to_local() / grad.size(rows)).clamp_(min=eps1))
    else:
        mean = DTensor.from_local(
            part * part, mesh, placements, run_check=False, shape=grad.shape, stride=grad.stride()
        )
        variance.lerp_(_laid_out(mean, mesh, variance.placements), weight)
        change = _laid_out(variance, mesh, placements).to_local().clone()
    change.clamp_(min=eps1 * eps1).rsqrt_().mul_(part)
    denominator = max(1.0, _norm_of(change, grad) / (size * options["d"]))
    whole = DTensor.from_local(
        change, mesh, placements, run_check=False, shape=param.shape, stride=param.stride()
    )
    param.add_(whole, alpha=-alpha / denominator)

"""Pooling of an image without a batch is sharded along its rows as if they were channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM
from ..edits import Edit
from ..gate import Affected
from ..rules import ask, leaving_out
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import held, overload_of, overridden, override_rule

#: Overloads of aten, each with the number of dimensions of its first argument without a batch.
_UNBATCHED = {
    "_adaptive_avg_pool2d_backward.default": 3,
    "max_unpool2d.default": 3,
    "max_unpool3d.default": 4,
}
_ROWS = 1  # the dimension that is the channels' where there is a batch


def probe() -> Probe:
    """Ask a rule, a pure function, for the gradient of pooling one image."""
    overloads = [overload_of(name) for name in _UNBATCHED]
    if overridden(overloads, _only_channels):
        return absent("images without a batch are sharded along channels only, by this shim", cured=True)
    if not any(held(SINGLE_DIM, name) for name in _UNBATCHED):
        return absent("these operators have no rules")
    for name, ndim in _UNBATCHED.items():
        rows = ask(name, (2,) * ndim, (2,) * ndim)
        if rows is None:
            return drifted(f"DTensor registers aten.{name} differently")
        if any(map(_shards_rows, rows)):
            return present(f"aten.{name.partition('.')[0]} is sharded along the rows of one image")
    return absent("images without a batch are sharded along channels only")


def _shards_rows(row: Sequence[Any]) -> bool:
    return any(getattr(placement, "dim", None) == _ROWS for placement in row)


def _rows_of_one_image(op: Any, args: Any, row: Sequence[Any]) -> bool:
    return len(args[0].shape) == _UNBATCHED[str(op).partition(".")[2]] and _shards_rows(row)


_only_channels = leaving_out(_rows_of_one_image)


def edits() -> Sequence[Edit]:
    """Leave out of torch's rules what would shard rows."""
    return [override_rule({overload_of(name): _only_channels for name in _UNBATCHED})]


def average() -> None:
    """The gradient of ``adaptive_avg_pool2d``, with a batch and without."""
    F = reproduce.functional()
    for shape in ((4, 6, 6), (4, 4, 6, 6)):
        reproduce.assert_same_sharded(lambda x, _: F.adaptive_avg_pool2d(x, (3, 2)), shape=shape)


def unpooled() -> None:
    """``max_unpool2d`` and ``max_unpool3d``, with a batch and without."""
    import torch

    F = reproduce.functional()

    def planes(x: Any, place: Any) -> Any:
        columns = torch.arange(x.shape[-1]) * 2 + 1
        rows = torch.arange(x.shape[-2]) * 4 * x.shape[-1]
        where = (columns + rows[:, None]).expand(x.shape).contiguous()
        return F.max_unpool2d(x.detach(), place(where), 2)

    def volumes(x: Any, place: Any) -> Any:
        depth, height, width = x.shape[-3:]
        at = torch.arange(depth)[:, None, None] * 2 * height * 2
        at = (at + torch.arange(height)[:, None] * 2) * width * 2 + torch.arange(width) * 2
        return F.max_unpool3d(x.detach(), place(at.expand(x.shape).contiguous()), 2)

    for batch in ((), (2,)):
        reproduce.assert_same_sharded(planes, shape=(*batch, 2, 4, 2))
        reproduce.assert_same_sharded(volumes, shape=(*batch, 2, 4, 2, 2))


SHIM = Shim(
    key="dtensor_unbatched_pooling",
    summary="the gradient of adaptive_avg_pool2d of one image, sharded along its rows, is wrong",
    symptom=(
        "No error: the gradient of adaptive_avg_pool2d of a (C, H, W) DTensor sharded along H is wrong. "
        "What max_unpool2d and max_unpool3d return without a batch, so sharded, has parts of the wrong "
        "size: RuntimeError: narrow unexpectedly changed concrete size on dim 1, once it is gathered"
    ),
    cause=(
        "Dimension 1 is taken for the channels, which is right where there is a batch. Without one it "
        "is the height, or for volumes the depth."
    ),
    cure="Without a batch these operators stay sharded along the channels only.",
    # No issue of it was found.
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/tensor/_ops/_math_ops.py",
    ),
    affected=Affected(since="2.12.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        reproduce.on_two_ranks(run, expect, since="2.12.0", needs="rules for these operators")
        for run, expect in (
            (average, r"AssertionError: S\(1\): the gradient differs"),
            (
                unpooled,
                r"RuntimeError: narrow unexpectedly changed concrete size on dim 1",
            ),
        )
    ),
    removable_when="torch looks whether there is a batch, as it does for max_pool2d",
    notes="An image that is sharded along its rows is gathered for these operators.",
)

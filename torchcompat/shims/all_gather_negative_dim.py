"""The functional all-gather fails along a dimension that is counted from the end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..errors import TargetDriftError
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_COLLECTIVES = "torch.distributed._functional_collectives"
_JOIN = "_maybe_view_chunk_cat"
_JOINING = (
    "torch.distributed._functional_collectives:all_gather_tensor",
    "torch.distributed._functional_collectives:all_gather_tensor_autograd",
    "torch.distributed._functional_collectives:all_gather_single",
)


def _names(function: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(getattr(function, "__code__", None), "co_names", ())
    return names


def _faulty() -> list[str]:
    """The collectives that join the ranks' parts as views."""
    return [target for target in _JOINING if _JOIN in _names(lookup(target, None))]


def probe() -> Probe:
    """Look whether the joining of parts, or who asks for it, knows how many dimensions there are."""
    join = lookup(f"torch._utils:{_JOIN}", None)
    if join is None:
        return absent("the ranks' parts are joined by cat, which takes any dimension")
    if any(map(is_replaced, _JOINING)):
        return absent("dimensions are counted from the begin, by this shim", cured=True)
    if "view" not in _names(join):
        return drifted(f"torch._utils.{_JOIN} is written differently")
    if "dim" in _names(join):
        return absent("parts are joined along any dimension")
    if not _faulty():
        return drifted(f"nothing known calls torch._utils.{_JOIN}")
    return present("parts are viewed as a wrong shape along a negative dimension")


def _counting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def gather(self: Any, gather_dim: int, group: Any, tag: str = "") -> Any:
        from_begin = gather_dim + self.dim() if gather_dim < 0 else gather_dim
        return original(self, from_begin, group, tag)

    return gather


def edits() -> Sequence[Edit]:
    """Count dimensions from the begin where a collective is called.

    What joins the parts is left alone: from 2.13 on torch.compile knows it by its name.
    """
    faulty = _faulty()
    if not faulty:
        raise TargetDriftError(_JOINING[0], "no longer joins the ranks' parts as views, nor do its kin")
    return [ReplaceAttr(target, _counting) for target in faulty]


def gathered() -> None:
    """One row of each rank, put side by side and below each other."""
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as collectives

    everyone: Any = dist.group.WORLD

    rows = [torch.arange(3.0)[None] + 10 * rank for rank in range(dist.get_world_size())]
    for dim in (-1, -2, 0, 1):
        got = collectives.all_gather_tensor(rows[dist.get_rank()], dim, everyone)
        torch.testing.assert_close(got + 0, torch.cat(rows, dim))


def largest() -> None:
    """``argmax`` of a sharded tensor, whose dimension is counted from the end."""
    reproduce.assert_same_sharded(
        lambda x, _: [x.argmax(-2), x.argmin(-2, keepdim=True), x.argmax(-1)], shape=(6, 4)
    )


SHIM = Shim(
    key="all_gather_negative_dim",
    summary="all_gather_tensor(x, gather_dim=-1), and argmax(-2) of a sharded DTensor, fail",
    symptom=(
        "RuntimeError: shape '[1, 6, 2, 3]' is invalid for input of size 6, from "
        "torch.distributed._functional_collectives.all_gather_tensor with a negative gather_dim, or "
        "from argmax, argmin, max(dim) and min(dim) of a DTensor with a negative dim"
    ),
    cause=(
        "Where every rank holds one row, the parts are not concatenated but viewed, as a shape that is "
        "made of slices up to and from gather_dim + 1: with a negative one they overlap."
    ),
    cure="The collectives count a negative dimension from the begin first.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/194856",
        "https://github.com/pytorch/pytorch/pull/194865",
    ),
    affected=Affected(since="2.11.0", fixed_in=("2.15.0",)),
    modules=(_COLLECTIVES,),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=run.__name__,
            run=run,
            expect=r"RuntimeError: .*shape '\[[\d, ]+\]' is invalid for input of size \d+",
            ranks=2,
            runnable=runnable,
            needs=needs,
            preload=(_COLLECTIVES, "torch.distributed.tensor", "torch._dynamo"),
        )
        for run, runnable, needs in (
            (gathered, Affected(since="2.4.0"), "a functional all_gather_tensor"),
            (largest, Affected(since="2.10.0"), "an argmax of DTensors"),
        )
    ),
    removable_when="the oldest torch you support is 2.15",
)

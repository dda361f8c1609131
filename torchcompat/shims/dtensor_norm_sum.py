"""The sum of norms along a sharded dimension is a norm of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import STRATEGIES, registered
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import norm_pending, overridden, override, whole_along
from ..targets import lookup


def _sums() -> tuple[Any, Any]:
    import torch

    return torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList


def probe() -> Probe:
    """Look which table has sums: with the rules of the newer one came that for norms."""
    strategies = lookup(STRATEGIES, None)
    if not isinstance(strategies, dict):
        return drifted("DTensor keeps its strategies elsewhere")
    found = [strategies.get(overload) for overload in _sums()]
    if overridden(_sums(), _reducing):
        return absent("a pending norm is reduced before it is summed, by this shim", cured=True)
    if all(map(callable, found)):
        return present("a sum leaves a pending norm pending")
    if not any(found) and all(map(registered, _sums())):
        return absent("sums are registered with rules for one mesh dimension")
    return drifted("DTensor's sums are registered differently")


def _reducing(*mesh_and_schema: Any) -> Any:
    op_schema = mesh_and_schema[-1]
    return whole_along(op_schema) if norm_pending(op_schema.args_schema[0]) else None


def edits() -> Sequence[Edit]:
    """Reduce a pending norm first; every other sum takes torch's own strategy."""
    return [override(dict.fromkeys(_sums(), _reducing))]


def norms() -> None:
    """The norms of rows and columns, summed; and other sums."""
    import torch

    def sums(x: Any, _: Any) -> Any:
        y = x.detach()  # norms have no backward on older builds
        return (
            *(torch.linalg.vector_norm(y, 2, dim=dim).sum() for dim in (0, 1)),
            y.norm(dim=1, keepdim=True).sum(0),
            y.norm(dim=0, keepdim=True).sum(1, keepdim=True),
            torch.linalg.vector_norm(y, 3, dim=1).sum(),
            *(x.sum(), x.sum(1), y.norm()),
        )

    reproduce.assert_same_sharded(sums, shape=(5, 6))


SHIM = Shim(
    key="dtensor_norm_sum",
    summary="the sum of norms along a sharded dimension of a DTensor is wrong",
    symptom=(
        "No error: torch.linalg.vector_norm(x, dim=1).sum() of a tensor sharded along dim 1 is too small"
    ),
    cause=(
        "A norm along a sharded dimension waits for its reduction, in which the ranks' parts add up as "
        "squares. A sum leaves it waiting, and the ranks' sums are then put together so."
    ),
    cure="A pending norm is reduced before it is summed.",
    upstream=("https://github.com/pytorch/pytorch/pull/172288",),
    affected=Affected(since="2.5.0", fixed_in=("2.14.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(reproduce.on_two_ranks(norms),),
    removable_when="the oldest torch you support is 2.14",
    notes="Costs an all-reduce of the norms where they are summed before anything else.",
)

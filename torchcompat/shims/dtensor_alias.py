"""DTensor has no sharding strategy for ``aten.alias``, which indexing dispatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import STRATEGIES, forget_shardings, registered
from ..edits import AddEntries, Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup


def probe() -> Probe:
    """Look alias up in the propagator's tables, and detach, whose strategy fits it."""
    import torch

    if registered(torch.ops.aten.alias.default):
        return absent("a strategy for aten.alias is registered", cured=True)
    strategies = lookup(STRATEGIES, None)
    if not isinstance(strategies, dict) or torch.ops.aten.detach.default not in strategies:
        return drifted("DTensor no longer registers a strategy for aten.detach in op_strategy_funcs")
    return present("no strategy for aten.alias is registered")


def edits() -> Sequence[Edit]:
    """Register for alias what is registered for detach: both pass their input through."""

    def entries() -> Mapping[Any, Any]:
        import torch

        return {torch.ops.aten.alias.default: lookup(STRATEGIES)[torch.ops.aten.detach.default]}

    return [AddEntries(STRATEGIES, entries, settle=forget_shardings)]


def _same_as_plain(index: Any) -> None:
    reproduce.assert_same_sharded(lambda x, _: x[index], shape=(4, 8, 2))


def ellipsis() -> None:
    """``x[...]``."""
    _same_as_plain(...)


def whole_slice() -> None:
    """``x[:, 0:]``, a slice that takes everything."""
    _same_as_plain((slice(None), slice(0, None)))


_NO_STRATEGY = r"Operator aten\.alias\.default does not have a sharding strategy registered"
_PUBLIC = Affected(since="2.5.0")

SHIM = Shim(
    key="dtensor_alias",
    summary="indexing a DTensor with [...] or with whole slices finds no sharding strategy",
    symptom=(
        "NotImplementedError: Operator aten.alias.default does not have a sharding strategy registered."
    ),
    cause=(
        "Indexing that takes everything dispatches aten.alias, for which DTensor registers nothing: "
        "x[...] on every build before 2.10, and on 2.9 also slices such as x[:, 0:]."
    ),
    cure="aten.alias gets the sharding strategy of aten.detach: the input's placement is kept.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/170427",
        "https://github.com/pytorch/pytorch/issues/166867",
    ),
    affected=Affected(since="2.5.0", fixed_in=("2.10.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=name,
            run=run,
            expect=_NO_STRATEGY,
            affected=affected,
            ranks=ranks,
            runnable=_PUBLIC,
            needs="the public torch.distributed.tensor",
            preload=("torch.distributed.tensor", "torch._dynamo"),
        )
        for name, run, ranks, affected in (
            ("ellipsis_1rank", ellipsis, 1, None),
            ("ellipsis_2ranks", ellipsis, 2, None),
            ("whole_slice_1rank", whole_slice, 1, Affected(since="2.9.0", fixed_in=("2.10.0",))),
        )
    ),
    removable_when="the oldest torch you support is 2.10",
    carried_by=("NVIDIA-NeMo/RL#1728",),
    notes=(
        "torch 2.4 has the fault too, in the private torch.distributed._tensor of that time; it is not "
        "covered. The whole slices fail on 2.9.0 and on 2.9.1."
    ),
)

"""``register_op_strategy`` moved for one release."""

from __future__ import annotations

from collections.abc import Sequence

from ..edits import AddAttr, Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_OLD = "torch.distributed.tensor._ops.utils:register_op_strategy"
_NEW = "torch.distributed.tensor._ops.registration:register_op_strategy"


def probe() -> Probe:
    """Look for the name at its old place, then at its new one."""
    if lookup(_OLD, None) is not None:
        return absent("register_op_strategy is where it always was", cured=True)
    if lookup(_NEW, None) is None:
        return drifted("register_op_strategy is at neither of its known places")
    return present("register_op_strategy is in _ops.registration alone")


def edits() -> Sequence[Edit]:
    """Put the same function back under its old name."""
    return [AddAttr(_OLD, lambda: lookup(_NEW))]


def import_from_utils() -> None:
    """Register a strategy through the old name, as code written for the other releases does."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._ops.utils import register_op_strategy

    strategies = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    op = torch.ops.aten.cumprod.default
    before = dict(strategies)

    @register_op_strategy(op)  # type: ignore[untyped-decorator, unused-ignore]
    def strategy(*_: object) -> None:
        return None

    if strategies.get(op) is not strategy:
        raise AssertionError("register_op_strategy did not register")
    strategies.clear()
    strategies.update(before)


SHIM = Shim(
    key="register_op_strategy",
    summary="torch.distributed.tensor._ops.utils.register_op_strategy is missing in 2.10",
    symptom=(
        "ImportError: cannot import name 'register_op_strategy' "
        "from 'torch.distributed.tensor._ops.utils'"
    ),
    cause="2.10.0 moved the function to _ops.registration; 2.11 has it at its old place again.",
    cure="The function is put back under its old name, as the same object.",
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.10.0/torch/distributed/tensor/_ops/registration.py",
    ),
    affected=Affected(since="2.10.0", fixed_in=("2.11.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="import_from_utils",
            run=import_from_utils,
            expect="cannot import name 'register_op_strategy'",
            runnable=Affected(since="2.5.0"),
            needs="torch.distributed.tensor._ops, which came with it",
            preload=("torch.distributed.tensor",),
        ),
    ),
    removable_when="you no longer support 2.10",
)

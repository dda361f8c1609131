"""SequentialLR goes wrong where it begins with a tensor, at epoch 0, or with others inside."""

from __future__ import annotations

import contextlib
import functools
import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import schedules
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_INIT = "torch.optim.lr_scheduler:SequentialLR.__init__"
_STEP = "torch.optim.lr_scheduler:SequentialLR.step"


def probe() -> Probe:
    """Look whether the constructor and the step are those that are known."""
    if is_replaced(_STEP):
        return absent("schedulers are begun by this shim", cured=True)
    names = {"_initial_step", "_milestones", "last_epoch", "get_last_lr"}
    for target in (_INIT, _STEP):
        function = lookup(target, None)
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if code is None:
            return drifted(f"{target.partition(':')[2]} is not where it was")
        names -= {*code.co_names}
    if names:
        return drifted(
            f"SequentialLR is written differently: it does not use {', '.join(sorted(names))}"
        )
    return present("SequentialLR begins its schedulers by undoing a step of theirs")


def edits() -> Sequence[Edit]:
    """Keep the optimizer's own tensors, and begin schedulers that hold others from within."""
    return [ReplaceAttr(_INIT, _constructor), ReplaceAttr(_STEP, _stepper)]


def _constructor(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original, updated=())
    def __init__(self: Any, *args: Any, **named: Any) -> None:
        given = {**dict(zip(("optimizer", "schedulers", "milestones", "last_epoch"), args)), **named}
        if not {"optimizer", "schedulers", "milestones"} <= given.keys():
            original(self, *args, **named)  # which says what is missing
            return
        schedulers = [*given["schedulers"]]
        inner = [one for scheduler in schedulers for one in schedules.leaves(scheduler)]
        special = any(map(schedules.holds_others, schedulers)) or bisect_right(given["milestones"], 0)
        begins = given.get("last_epoch", -1) == -1 and all(
            hasattr(one, "_initial_step") and one.last_epoch <= 0 for one in inner
        )
        with schedules.own_tensors(self, given["optimizer"]):
            if not (special and begins):
                original(self, *args, **named)
                return
            with _unstepped(schedulers, inner):
                original(self, *args, **named)
        _set_back(self.optimizer)
        _begin_inside(self)

    return __init__


def _stepper(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original, updated=())
    def step(self: Any) -> None:
        epoch = self.last_epoch + 1
        at = bisect_right(self._milestones, epoch)
        if not (
            at and self._milestones[at - 1] == epoch and schedules.holds_others(self._schedulers[at])
        ):
            original(self)
            return
        self.last_epoch = epoch
        _set_back(self.optimizer)
        _begin_inside(self._schedulers[at])
        self._last_lr = self._schedulers[at].get_last_lr()

    return step


def _set_back(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        schedules.refill(group, group["initial_lr"])


def _begin_inside(scheduler: Any) -> None:
    """Begin what a scheduler holds at epoch 0: all of a chain, of a sequence the one that is due."""
    milestones = getattr(scheduler, "_milestones", None)
    due = scheduler._schedulers
    if milestones is not None:
        scheduler.last_epoch = 0
        due = [due[bisect_right(milestones, 0)]]
    for one in due:
        if schedules.holds_others(one):
            _begin_inside(one)
        else:
            one.last_epoch = -1
            one._initial_step()
    scheduler._last_lr = due[-1].get_last_lr()


@contextlib.contextmanager
def _unstepped(schedulers: Sequence[Any], inner: Sequence[Any]) -> Iterator[None]:
    """Keep torch from warning that the optimizer has had no step, and give chains the epoch it wants."""
    counts = [one._step_count for one in inner]
    chains = [one for one in schedulers if not hasattr(one, "last_epoch")]
    try:
        for one in inner:
            one._step_count = 0
        for chain in chains:
            chain.last_epoch = 0
        yield
    finally:
        for chain in chains:
            del chain.last_epoch
        for one, count in zip(inner, counts):
            one._step_count = count


def tensor_rate() -> None:
    """A rate in a tensor, as compiled optimizers want it: a warm-up, then a decay."""
    import torch

    for each in range(2):
        optimizer = schedules.still(torch.tensor(0.1), torch.tensor(0.1))
        schedules.assert_rates(_warm_and_decay, _RATES, optimizer=optimizer, every=each)


def milestone_zero() -> None:
    """A warm-up of no epochs, as a configuration may say."""
    from torch.optim import lr_scheduler

    def make(optimizer: Any) -> Any:
        none = lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=10)
        then = lr_scheduler.ExponentialLR(optimizer, 0.5)
        return lr_scheduler.SequentialLR(optimizer, [none, then], [0])

    schedules.assert_rates(make, [0.1, 0.05, 0.025, 0.0125])


def nested_first() -> None:
    """A sequence whose first scheduler is a sequence."""
    from torch.optim import lr_scheduler

    def make(optimizer: Any) -> Any:
        inner = _warm_and_decay(optimizer)
        last = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=10)
        return lr_scheduler.SequentialLR(optimizer, [inner, last], [5])

    schedules.assert_rates(make, [*_RATES, 0.01, 0.01])


def nested_later() -> None:
    """A sequence that begins at a milestone."""
    from torch.optim import lr_scheduler

    def make(optimizer: Any) -> Any:
        first = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=10)
        return lr_scheduler.SequentialLR(optimizer, [first, _warm_and_decay(optimizer)], [2])

    schedules.assert_rates(make, [0.01, 0.01, *_RATES])


def chained_refused() -> None:
    """A chain as the first scheduler, which older builds refuse."""
    from torch.optim import lr_scheduler

    optimizer = schedules.still(0.1)
    last = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=10)
    lr_scheduler.SequentialLR(optimizer, [_chain(optimizer), last], [3])


def chained_first() -> None:
    """A chain as the first scheduler."""
    from torch.optim import lr_scheduler

    def make(optimizer: Any) -> Any:
        last = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=10)
        return lr_scheduler.SequentialLR(optimizer, [_chain(optimizer), last], [3])

    schedules.assert_rates(make, [0.05, 0.025, 0.025, 0.01, 0.01])


def chained_later() -> None:
    """A chain that begins at a milestone."""
    from torch.optim import lr_scheduler

    def make(optimizer: Any) -> Any:
        first = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=10)
        return lr_scheduler.SequentialLR(optimizer, [first, _chain(optimizer)], [2])

    schedules.assert_rates(make, [0.01, 0.01, 0.05, 0.025, 0.025, 0.0125])


_RATES = [0.05, 0.075, 0.1, 0.05, 0.025]


def _warm_and_decay(optimizer: Any) -> Any:
    """Return a schedule that begins with these rates."""
    from torch.optim import lr_scheduler

    warm = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    then = lr_scheduler.ExponentialLR(optimizer, 0.5)
    return lr_scheduler.SequentialLR(optimizer, [warm, then], [2])


def _chain(optimizer: Any) -> Any:
    """Return a schedule with the rates 0.05, 0.025, 0.025, 0.0125 and so on."""
    from torch.optim import lr_scheduler

    warm = lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=2)
    return lr_scheduler.ChainedScheduler([warm, lr_scheduler.ExponentialLR(optimizer, 0.5)])


_WRONG = r"AssertionError: the rates are \["
_REFUSED = "AttributeError: 'ChainedScheduler' object has no attribute 'last_epoch'"
_NO_FIRST_STEP = (
    r"NotImplementedError|TypeError: .*step\(\) takes 1 positional argument but 2 were given"
)
SHIM = Shim(
    key="sequential_lr",
    summary="SequentialLR goes wrong with a tensor, a milestone of 0, or schedulers that hold others",
    symptom=(
        "No error: with lr=torch.tensor(...) the rate ends where the warm-up began, up to 2.9; a "
        "milestone of 0 is missed, up to 2.12; a SequentialLR, or from 2.8 on a ChainedScheduler, in "
        "front runs a step ahead. AttributeError: 'ChainedScheduler' object has no attribute "
        "'last_epoch', up to 2.5. NotImplementedError, or up to 2.8 TypeError: SequentialLR.step() "
        "takes 1 positional argument but 2 were given, where one of the two begins at a milestone."
    ),
    cause=(
        "The constructor undoes the first steps of its schedulers by counting one down, and makes the "
        "tensor that holds the initial rate the optimizer's; schedulers that hold others have no epoch "
        "that says where these are."
    ),
    cure=(
        "The optimizer keeps its tensor. Where a milestone is 0, and where schedulers hold others, the "
        "rates are set to initial_lr, and what is due begins at its epoch 0, from within."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/162359",
        "https://github.com/pytorch/pytorch/pull/162360",
        "https://github.com/pytorch/pytorch/issues/185872",
        "https://github.com/pytorch/pytorch/pull/185986",
        "https://github.com/pytorch/pytorch/issues/132745",
    ),
    affected=Affected(since=None),
    modules=("torch.optim.lr_scheduler",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="tensor_rate",
            run=tensor_rate,
            expect=_WRONG,
            affected=Affected(since=None, fixed_in=("2.10.0",)),
        ),
        Reproducer(
            name="milestone_zero",
            run=milestone_zero,
            expect=_WRONG,
            affected=Affected(since=None, fixed_in=("2.13.0",)),
        ),
        Reproducer(name="nested_first", run=nested_first, expect=_WRONG),
        Reproducer(name="nested_later", run=nested_later, expect=_NO_FIRST_STEP),
        Reproducer(
            name="chained_refused",
            run=chained_refused,
            expect=_REFUSED,
            affected=Affected(since=None, fixed_in=("2.6.0",)),
        ),
        Reproducer(
            name="chained_first",
            run=chained_first,
            expect=_WRONG,
            affected=Affected(since="2.8.0"),
            runnable=Affected(since="2.6.0"),
            needs="a SequentialLR that takes a ChainedScheduler",
        ),
        Reproducer(name="chained_later", run=chained_later, expect=f"{_REFUSED}|{_NO_FIRST_STEP}"),
    ),
    after=("lr_scheduler_verbose",),
    removable_when="your schedules have floats as rates, no milestone of 0, and nothing nested",
    notes=(
        "A schedule built with last_epoch, to go on from a checkpoint, is torch's affair, but for the "
        "tensor. MultiplicativeLR at a milestone takes its factor there from 2.8 on, and an epoch later "
        "before, with and without the shim."
    ),
)

"""Learning-rate schedules: the rates of each epoch, against those that its parts say."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import torchcompat
from torchcompat.builds import TorchBuild, detect

BUILD = detect() or TorchBuild.parse("Unknown")
torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    # Torch's own, where it begins a scheduler at a milestone, up to 2.8.
    pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning"),
]

BASE = 0.1
EPOCHS = 9


# A schedule, and the factor of each epoch by which it changes the rate that it begins with.
def constant(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=2)


def warm(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LinearLR(optimizer, 0.25, total_iters=3)


def decay(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def stepped(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)


FACTORS: dict[Any, Any] = {
    constant: lambda epoch: 0.5 if epoch < 2 else 1.0,
    warm: lambda epoch: min(1.0, 0.25 * (1 + epoch)),
    decay: lambda epoch: 0.5**epoch,
    stepped: lambda epoch: 0.1 ** (epoch // 2),
}
#: A sequence is (parts, milestones); a chain is a list of parts.
TREES: dict[str, Any] = {
    "two": ((warm, decay), (3,)),
    "three": ((constant, warm, stepped), (2, 5)),
    "begins_with_nothing": ((constant, decay), (0,)),
    "begins_with_two_nothings": ((constant, warm, decay), (0, 0)),
    "nothing_between": ((constant, warm, decay), (2, 2)),
    "sequence_first": ((((warm, decay), (2,)), constant), (4,)),
    "sequence_later": ((constant, ((warm, decay), (2,))), (2,)),
    "sequence_of_nothing_later": ((constant, ((warm, decay), (0,))), (2,)),
    "two_deep": ((((constant, ((warm, decay), (1,))), (2,)), stepped), (6,)),
    "chain_first": (([constant, decay], warm), (3,)),
    "chain_later": ((constant, [warm, decay]), (3,)),
    "chain_of_a_chain": ((constant, [warm, [decay, stepped]]), (3,)),
    "only_one": ((decay,), ()),
}


def build(tree: Any, optimizer: Any, **named: Any) -> Any:
    if isinstance(tree, list):
        parts = [build(part, optimizer) for part in tree]
        return torch.optim.lr_scheduler.ChainedScheduler(parts)
    if isinstance(tree, tuple):
        parts = [build(part, optimizer) for part in tree[0]]
        kind = named.pop("kind", torch.optim.lr_scheduler.SequentialLR)
        return kind(optimizer, parts, list(tree[1]), **named)
    return tree(optimizer)


def factor(tree: Any, epoch: int) -> float:
    if isinstance(tree, list):
        product = 1.0
        for part in tree:
            product *= factor(part, epoch)
        return product
    if isinstance(tree, tuple):
        parts, milestones = tree
        begun = [0, *milestones]
        at = max(index for index, milestone in enumerate(begun) if milestone <= epoch)
        return factor(parts[at], epoch - begun[at])
    return float(FACTORS[tree](epoch))


def wanted(tree: Any, base: float = BASE) -> list[float]:
    return [base * factor(tree, epoch) for epoch in range(EPOCHS)]


def optimizer_with(how: str) -> Any:
    """A real optimizer of two groups, so that what torch says of its steps is seen too."""
    rates: list[Any] = [BASE, BASE]
    if how != "float":
        rates = [torch.tensor(BASE)] * 2 if how == "shared" else [torch.tensor(BASE) for _ in range(2)]
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=rates[0], foreach=False)


def run(optimizer: Any, scheduler: Any, epochs: int) -> list[list[float]]:
    """The rates of each group, epoch by epoch, with a step of the optimizer in each."""
    rates = []
    for _ in range(epochs):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        assert [float(rate) for rate in scheduler.get_last_lr()] == rates[-1]
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("how", ["float", "tensor", "shared"])
@pytest.mark.parametrize("name", list(TREES))
def test_each_part_begins_at_its_epoch(name: str, how: str) -> None:
    tree = TREES[name]
    with torchcompat.applied("sequential_lr"):
        optimizer = optimizer_with(how)
        mine = [group["lr"] for group in optimizer.param_groups]
        got = run(optimizer, build(tree, optimizer), EPOCHS)
    want = wanted(tree)
    assert [rates[0] for rates in got] == pytest.approx(want)
    assert [rates[1] for rates in got] == pytest.approx(want)
    if how != "float":
        now = [group["lr"] for group in optimizer.param_groups]
        assert all(a is b for a, b in zip(mine, now)), "the tensors are the optimizer's own"
        assert [float(group["initial_lr"]) for group in optimizer.param_groups] == pytest.approx(
            [BASE] * 2
        )


@pytest.mark.parametrize("how", ["float", "tensor"])
@pytest.mark.parametrize(
    "name", ["three", "sequence_first", "sequence_later", "chain_later", "two_deep"]
)
def test_a_schedule_goes_on_from_its_state(name: str, how: str) -> None:
    tree = TREES[name]
    with torchcompat.applied("sequential_lr"):
        for interrupted in range(EPOCHS):
            optimizer = optimizer_with(how)
            scheduler = build(tree, optimizer)
            run(optimizer, scheduler, interrupted)
            states = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
            optimizer = optimizer_with(how)
            scheduler = build(tree, optimizer)
            optimizer.load_state_dict(states[0])
            scheduler.load_state_dict(states[1])
            got = run(optimizer, scheduler, EPOCHS - interrupted)
            assert [rates[0] for rates in got] == pytest.approx(wanted(tree)[interrupted:])


def test_rates_that_groups_have_of_their_own_are_kept_apart() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in (BASE, 10 * BASE)]
    with torchcompat.applied("sequential_lr"):
        optimizer = torch.optim.SGD(groups, lr=1.0)
        got = run(optimizer, build(TREES["two_deep"], optimizer), EPOCHS)
    assert [rates[0] for rates in got] == pytest.approx(wanted(TREES["two_deep"]))
    assert [rates[1] for rates in got] == pytest.approx(wanted(TREES["two_deep"], 10 * BASE))


def test_a_schedule_that_begins_late_is_left_to_torch() -> None:
    def rates() -> Any:
        optimizer = optimizer_with("float")
        for group in optimizer.param_groups:
            group["initial_lr"] = BASE
        parts = [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.25, total_iters=3, last_epoch=2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5, last_epoch=2),
        ]
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [3], last_epoch=2)
        found = []
        for _ in range(EPOCHS):
            optimizer.step()
            found.append([group["lr"] for group in optimizer.param_groups])
            scheduler.step()
        return found

    without = rates()
    with torchcompat.applied("sequential_lr"):
        assert rates() == without


def test_a_subclass_is_begun_as_its_own_methods_say() -> None:
    calls = []

    class Mine(torch.optim.lr_scheduler.SequentialLR):
        def step(self) -> None:
            calls.append(self.last_epoch)
            super().step()

    tree = TREES["begins_with_nothing"]
    with torchcompat.applied("sequential_lr"):
        optimizer = optimizer_with("tensor")
        got = run(optimizer, build(tree, optimizer, kind=Mine), EPOCHS)
    assert [rates[0] for rates in got] == pytest.approx(wanted(tree))
    assert calls == list(range(EPOCHS))


@pytest.mark.parametrize("how", ["float", "tensor"])
def test_a_refused_constructor_leaves_schedulers_as_they_were(how: str) -> None:
    with torchcompat.applied("sequential_lr"):
        optimizer = optimizer_with(how)
        chain = build([warm, decay], optimizer)
        mine = [group["lr"] for group in optimizer.param_groups]

        def state() -> Any:
            return [(one.last_epoch, one._step_count) for one in chain._schedulers], vars(chain).keys()

        before = copy.deepcopy([state()[0], sorted(state()[1])])
        with pytest.raises(ValueError, match="expects number of schedulers"):
            torch.optim.lr_scheduler.SequentialLR(optimizer, [chain, decay(optimizer)], [1, 2])
        with pytest.raises(TypeError):
            torch.optim.lr_scheduler.SequentialLR(optimizer, [chain, decay(optimizer)])
        assert [state()[0], sorted(state()[1])] == before
        assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, mine))


@pytest.mark.skipif(BUILD.known and BUILD.line < (2, 7, 0), reason="verbose was taken until 2.6")
@pytest.mark.filterwarnings("ignore:SequentialLR. the argument verbose is ignored")
def test_it_takes_verbose_with_the_shim_for_it() -> None:
    tree = TREES["sequence_first"]
    with torchcompat.applied("lr_scheduler_verbose"), torchcompat.applied("sequential_lr"):
        optimizer = optimizer_with("float")
        scheduler = build(tree, optimizer, verbose=False)
        got = run(optimizer, scheduler, EPOCHS)
        assert scheduler.verbose is False
    assert [rates[0] for rates in got] == pytest.approx(wanted(tree))


def test_what_was_begun_with_it_goes_on_without() -> None:
    tree = TREES["sequence_first"]
    optimizer = optimizer_with("float")
    with torchcompat.applied("sequential_lr"):
        scheduler = build(tree, optimizer)
    got = run(optimizer, scheduler, EPOCHS)
    assert [rates[0] for rates in got] == pytest.approx(wanted(tree))


@pytest.mark.parametrize("how", ["float", "tensor", "shared"])
def test_a_plateau_reduces_every_rate_once(how: str) -> None:
    losses = [1.0, 2.0, 2.0, 0.5, 2.0, 2.0, 2.0]

    def run_plateau(optimizer: Any, **named: Any) -> list[list[float]]:
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.5, patience=1, **named
        )
        rates = []
        for loss in losses:
            optimizer.step()
            scheduler.step(loss)
            rates.append([float(group["lr"]) for group in optimizer.param_groups])
            assert [float(rate) for rate in scheduler.get_last_lr()] == rates[-1]
        return rates

    for named in ({}, {"min_lr": 0.04}, {"min_lr": [0.03, 0.03]}, {"cooldown": 2}, {"eps": 1.0}):
        want = run_plateau(optimizer_with("float"), **named)
        optimizer = optimizer_with(how)
        mine = [group["lr"] for group in optimizer.param_groups]
        with torchcompat.applied("plateau_tensor_lr"):
            got = run_plateau(optimizer, **named)
        assert got == pytest.approx([pytest.approx(rates) for rates in want])
        now = [group["lr"] for group in optimizer.param_groups]
        assert how == "float" or all(a is b for a, b in zip(mine, now))


def test_a_plateau_that_raises_leaves_the_tensors() -> None:
    optimizer = optimizer_with("tensor")
    mine = [group["lr"] for group in optimizer.param_groups]
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=[0.01, 0.01], patience=0)
    scheduler.min_lrs = [0.01, "nothing to compare with"]
    with torchcompat.applied("plateau_tensor_lr"):
        scheduler.step(1.0)
        with pytest.raises(TypeError):
            scheduler.step(2.0)
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, mine))
    assert [float(rate) for rate in mine] == pytest.approx([BASE, BASE])

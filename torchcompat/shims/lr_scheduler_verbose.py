"""Learning-rate schedulers no longer take ``verbose``."""

from __future__ import annotations

from typing import Any

from .. import moved
from ..gate import Affected
from ..shim import Reproducer, Shim

_TARGETS = tuple(
    f"torch.optim.lr_scheduler:{name}.__init__"
    for name in (
        "LRScheduler",
        "LambdaLR",
        "MultiplicativeLR",
        "StepLR",
        "MultiStepLR",
        "ConstantLR",
        "LinearLR",
        "ExponentialLR",
        "SequentialLR",
        "PolynomialLR",
        "CosineAnnealingLR",
        "ReduceLROnPlateau",
        "CyclicLR",
        "CosineAnnealingWarmRestarts",
        "OneCycleLR",
    )
)

probe, edits = moved.ignored_argument(
    __name__,
    "lr_scheduler_verbose",
    "verbose",
    _TARGETS,
    "leave it out, and print scheduler.get_last_lr() where you want to see the rate",
)


def verbose_schedulers() -> None:
    """By keyword, by position, and from a subclass that hands it on; the rates are the same."""
    import torch

    ours: Any = torch.optim.lr_scheduler

    optimizer: Any = torch.optim.Optimizer

    class Still(optimizer):
        """No optimizer's constructor is run: that would import dynamo, for seconds."""

        def __init__(self) -> None:
            self.defaults: Any = {"lr": 0.1}
            self.state: Any = {}
            self.param_groups: list[dict[str, Any]] = [{"lr": 0.1, "params": []}]

        def step(self, closure: Any = None) -> None:
            pass

    class Halving(ours.LRScheduler):
        def __init__(self, optimizer: Any, verbose: bool = False) -> None:
            super().__init__(optimizer, -1, verbose)

        def get_lr(self) -> Any:
            return [rate / 2**self.last_epoch for rate in self.base_lrs]

    keyword: dict[str, bool] = {"verbose": True}
    position: tuple[float, int, bool] = (0.1, -1, True)
    for scheduler in (
        ours.StepLR(Still(), 1, **keyword),
        ours.StepLR(Still(), 1, *position),
    ):
        scheduler.optimizer.step()
        scheduler.step()
        if abs(scheduler.get_last_lr()[0] - 0.01) > 1e-12:
            raise AssertionError(f"the rate is {scheduler.get_last_lr()}")
    halving = Halving(Still(), verbose=True)
    halving.optimizer.step()
    halving.step()
    if abs(halving.get_last_lr()[0] - 0.05) > 1e-12:
        raise AssertionError(f"the rate is {halving.get_last_lr()}")
    plateau = ours.ReduceLROnPlateau(Still(), "min", 0.5, 0, **keyword)
    for loss in (1.0, 2.0):
        plateau.step(loss)
    if abs(plateau.optimizer.param_groups[0]["lr"] - 0.05) > 1e-12:
        raise AssertionError("the plateau was not seen")


SHIM = Shim(
    key="lr_scheduler_verbose",
    summary="learning-rate schedulers take verbose= again, and ignore it",
    symptom="TypeError: StepLR.__init__() got an unexpected keyword argument 'verbose'",
    cause="The argument was deprecated in 2.2, where it stopped printing, and went in 2.7.",
    cure=(
        "The constructors of the schedulers in torch.optim.lr_scheduler accept verbose, by keyword or "
        "in its old place, keep it as an attribute as they did, and ignore it, with one warning."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/pull/111302",
        "https://github.com/pytorch/pytorch/issues/100847",
    ),
    affected=Affected(since="2.7.0"),
    modules=("torch.optim.lr_scheduler",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="verbose_schedulers",
            run=verbose_schedulers,
            expect=r"TypeError: .*(unexpected keyword argument 'verbose'|positional arguments)",
        ),
    ),
    removable_when="none of your dependencies passes verbose to a scheduler",
    notes="From 2.2 on verbose printed nothing any more; with the shim it prints nothing either.",
)

"""The profilers no longer take ``use_cuda``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from .. import moved
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup, own_attr, owner_of

_OLD = "torch.autograd.profiler:profile.__init__"
_NEW = "torch.profiler.profiler:profile.__init__"


def probe() -> Probe:
    """Look for the argument."""
    functions = {target: lookup(target, None) for target in (_OLD, _NEW)}
    for target, function in functions.items():
        owner, name = (None, "") if function is None else owner_of(target)
        if not inspect.isfunction(function) or own_attr(owner, name) is not function:
            return drifted(f"{target} is not where it was")
    lacking = [
        target
        for target, function in functions.items()
        if not is_replaced(target) and "use_cuda" not in inspect.signature(function).parameters
    ]
    if not lacking:
        return absent("the profilers take use_cuda", cured=True)
    return present(f"{' and '.join(lacking)} takes no use_cuda")


def edits() -> Sequence[Edit]:
    """Turn use_cuda into what says the same today."""
    import torch

    cuda: Any = torch.profiler.ProfilerActivity.CUDA

    def make_old(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def __init__(self: Any, *args: Any, use_cuda: bool | None = None, **kwargs: Any) -> None:
            if use_cuda is not None:
                moved.warn_once(
                    "profiler_use_cuda", "the profiler's use_cuda is gone; write use_device='cuda'"
                )
            if use_cuda:
                kwargs["use_device"] = "cuda"
            original(self, *args, **kwargs)

        return __init__

    def make_new(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def __init__(self: Any, *args: Any, use_cuda: bool | None = None, **kwargs: Any) -> None:
            if use_cuda is not None:
                moved.warn_once(
                    "profiler_use_cuda",
                    "torch.profiler.profile's use_cuda is gone; name ProfilerActivity.CUDA in "
                    "activities",
                )
                given = kwargs.get("activities")
                chosen = list(torch.profiler.supported_activities() if given is None else given)
                chosen = [activity for activity in chosen if activity != cuda]
                kwargs["activities"] = [*chosen, cuda] if use_cuda else chosen
            original(self, *args, **kwargs)

        return __init__

    return [ReplaceAttr(_OLD, make_old), ReplaceAttr(_NEW, make_new)]


def profile_with_use_cuda() -> None:
    """Both profilers, with False and with True; the CPU's events are there."""
    import torch
    from torch.autograd import profiler

    for use_cuda in (False, True):
        given: dict[str, Any] = {"use_cuda": use_cuda}
        with profiler.profile(**given) as old:
            torch.ones(3).sin()
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=cpu, **given) as new:
            torch.ones(3).sin()
        for profile in (old, new):
            if not any(event.key == "aten::sin" for event in profile.key_averages()):
                raise AssertionError("the profile holds no event of sin")
        if not torch.cuda.is_available() and old.use_device is not None:
            raise AssertionError("a device is profiled that is not there")


SHIM = Shim(
    key="profiler_use_cuda",
    summary="the profilers take use_cuda again",
    symptom="TypeError: profile.__init__() got an unexpected keyword argument 'use_cuda'",
    cause="The argument was deprecated in favour of use_device and activities, and went in 2.14.",
    cure=(
        "torch.autograd.profiler.profile turns use_cuda=True into use_device='cuda', "
        "torch.profiler.profile into an activity, with one warning."
    ),
    upstream=("https://github.com/pytorch/pytorch/blob/v2.14.0/torch/autograd/profiler.py",),
    affected=Affected(since="2.14.0"),
    modules=("torch.autograd.profiler", "torch.profiler.profiler"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="profile_with_use_cuda",
            run=profile_with_use_cuda,
            expect="TypeError: .*unexpected keyword argument 'use_cuda'",
        ),
    ),
    removable_when="none of your dependencies passes use_cuda to a profiler",
)

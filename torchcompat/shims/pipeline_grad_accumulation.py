"""Gradient accumulation over several steps of a pipeline schedule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import pipelines
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_SINGLE = "torch.distributed.pipelining.schedules:PipelineScheduleSingle.step"
_MULTI = "torch.distributed.pipelining.schedules:PipelineScheduleMulti.step"
_SCALE = "torch.distributed.pipelining.stage:_PipelineStageBase.scale_grads"


def probe() -> Probe:
    """Look whether a stage divides all of what its parameters' gradients hold."""
    if is_replaced(_SINGLE):
        return absent("earlier gradients are kept apart, by this shim", cured=True)
    scale = getattr(lookup(_SCALE, None), "__code__", None)
    if scale is None:
        return absent("stages do not scale gradients")
    owners = [lookup(target.rpartition(".")[0], None) for target in (_SINGLE, _MULTI)]
    if not all(inspect.isclass(owner) and "step" in vars(owner) for owner in owners):
        return drifted("schedules do their steps differently")
    if "div_" not in scale.co_names or "grad" not in scale.co_names:
        return drifted("stages scale gradients differently")
    return present("a stage divides what its parameters' gradients hold, those of earlier steps too")


def edits() -> Sequence[Edit]:
    """Keep the gradients of earlier steps apart while a step runs, and add them after it."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(self, "scale_grads", False):
                return original(self, *args, **kwargs)
            stages = self._stages if hasattr(self, "_stages") else [self._stage]
            held = [
                (param, param.grad)
                for stage in stages
                for param in stage.submod.parameters()
                if param.grad is not None
            ]
            for param, _ in held:
                param.grad = None
            try:
                return original(self, *args, **kwargs)
            finally:
                for param, grad in held:
                    if param.grad is not None:
                        grad.add_(param.grad)
                    param.grad = grad

        return step

    return [ReplaceAttr(_SINGLE, make), ReplaceAttr(_MULTI, make)]


def _accumulate(schedule: str, stages_per_rank: int, microbatches: int = 3) -> None:
    """Accumulate over two batches; gradients equal those of the layers on one rank."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed import pipelining

    rank, world = dist.get_rank(), dist.get_world_size()
    pipe, plain = pipelines.linears(world * stages_per_rank)
    batches = [(torch.randn(2 * microbatches, 4), torch.randn(2 * microbatches, 4)) for _ in range(2)]
    mine = range(rank, len(pipe), world)
    stages = [pipelines.stage_of(pipe, index, 2) for index in mine]
    kind: Any = getattr(pipelining, schedule)
    runner = kind(
        stages if stages_per_rank > 1 else stages[0], microbatches, loss_fn=nn.functional.mse_loss
    )
    for x, y in batches:
        runner.step(*([x] if rank == 0 else []), **({"target": y} if rank == world - 1 else {}))
        nn.functional.mse_loss(nn.Sequential(*plain)(x), y).backward()

    # Up to 2.6 a step adds the sum over its microbatches.
    factor = 1 if hasattr(runner, "scale_grads") else microbatches
    for index in mine:
        for got, want in zip(pipe[index].parameters(), plain[index].parameters()):
            if got.grad is None or want.grad is None:
                raise AssertionError(f"no gradient in stage {index}")
            if not torch.allclose(got.grad, factor * want.grad, rtol=1e-5, atol=1e-6):
                ratio = float(got.grad.norm() / want.grad.norm()) / factor
                raise AssertionError(
                    f"accumulated gradients of stage {index} are {ratio:.3f} times what they should be"
                )


def gpipe() -> None:
    """One stage a rank."""
    _accumulate("ScheduleGPipe", 1)


def one_f_one_b() -> None:
    """One forward, one backward."""
    _accumulate("Schedule1F1B", 1)


def interleaved() -> None:
    """Two stages a rank."""
    _accumulate("ScheduleInterleaved1F1B", 2, 4)


SHIM = Shim(
    key="pipeline_grad_accumulation",
    summary="gradients accumulated over several steps of a pipeline schedule are wrong",
    symptom=(
        "silent: gradients after k calls of schedule.step() without zero_grad() are not the sum: what "
        "earlier calls left is divided by the number of microbatches again in each later one, so that "
        "losses and gradient norms differ from training without pipeline parallelism"
    ),
    cause=(
        "with scale_grads=True, the default, a stage divides its parameters' whole gradients by the "
        "number of microbatches at the end of each step, instead of what the step has added."
    ),
    cure=(
        "Gradients that are there before a step are put aside, and what the step has computed and "
        "scaled is added to them."
    ),
    upstream=(
        "https://github.com/pytorch/torchtitan/issues/1733",
        "https://github.com/pytorch/torchtitan/pull/1732",
        "https://github.com/pytorch/pytorch/pull/196641",
    ),
    affected=Affected(since="2.7.0"),
    modules=("torch.distributed.pipelining.schedules", "torch.distributed.pipelining.stage"),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=name,
            run=run,
            expect=r"AssertionError: accumulated gradients of stage \d are \d\.\d+ times",
            runnable=Affected(since=since),
            needs="schedules that wait for all of their messages on gloo",
            ranks=2,
            preload=pipelines.PRELOAD,
        )
        for name, run, since in (
            ("gpipe", gpipe, None),
            ("one_f_one_b", one_f_one_b, "2.8.0"),
            ("interleaved", interleaved, "2.8.0"),
        )
    ),
    removable_when="a step scales what it has added",
    notes=(
        "While a step runs, gradients that were there take their memory beside the new ones; "
        "zero_grad(), which sets them to None, avoids that. Up to 2.6 schedules do not scale "
        "gradients. With finalize_gradients=False (2.15, FSDP only) there is nothing to put aside."
    ),
)

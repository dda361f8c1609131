"""Pipeline schedules on backends that do not coalesce messages, such as gloo."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import pipelines
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_BATCH = "torch.distributed.pipelining.schedules:_batch_p2p"


class _All:
    """Several messages as one piece of work."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> bool:
        """Wait for every message."""
        for work in self._works:
            work.wait()
        return True


def probe() -> Probe:
    """Look whether one of the messages is taken for all."""
    if is_replaced(_BATCH):
        return absent("all messages of a batch are waited for, by this shim", cured=True)
    code = getattr(lookup(_BATCH, None), "__code__", None)
    if code is None or "batch_isend_irecv" not in code.co_names:
        return drifted("the messages of a schedule are sent differently")
    if "pop" not in code.co_names:
        return absent("all messages of a batch are returned")
    return present("the last message of a batch is taken for all")


def edits() -> Sequence[Edit]:
    """Return a piece of work that waits for every message."""
    import torch.distributed as dist

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _batch_p2p(p2p_ops: list[Any], desc: str | None = None) -> Any:
            if len(p2p_ops) < 2:
                return original(p2p_ops, desc)
            return _All(dist.batch_isend_irecv(p2p_ops))

        return _batch_p2p

    return [ReplaceAttr(_BATCH, make)]


def one_f_one_b() -> None:
    """1F1B with four microbatches; gradients equal those of the layers on one rank."""
    import datetime

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed import pipelining

    rank, microbatches = dist.get_rank(), 4
    group: Any = dist.new_group(timeout=datetime.timedelta(seconds=3))
    pipe, plain = pipelines.linears(2)
    x, y = torch.randn(8, 4), torch.randn(8, 4)
    stage = pipelines.stage_of(pipe, rank, 8 // microbatches, group=group)
    runner: Any = pipelining.Schedule1F1B(stage, microbatches, loss_fn=_summed)
    try:
        runner.step(*([x] if rank == 0 else []), **({"target": y} if rank == 1 else {}))
    except RuntimeError as error:
        # Which rank gives up first, and on what, differs from run to run.
        raise AssertionError(f"a message of the schedule never came: {error}") from error
    _summed(nn.Sequential(*plain)(x), y).backward()
    for got, want in zip(pipe[rank].parameters(), plain[rank].parameters()):
        # From 2.6 on the sum is divided by the number of microbatches.
        factor = microbatches if hasattr(runner, "scale_grads") else 1
        if got.grad is None or want.grad is None:
            raise AssertionError("no gradient")
        torch.testing.assert_close(got.grad * factor, want.grad, rtol=1e-4, atol=1e-5)


def _summed(output: Any, target: Any) -> Any:
    return (output - target).pow(2).sum()


SHIM = Shim(
    key="pipeline_gloo_messages",
    summary="pipeline schedules on gloo wait for one message of a batch instead of all",
    symptom=(
        "Schedule1F1B and others hang on gloo, or end in RuntimeError: Timed out waiting for recv "
        "operation to complete, or Connection reset by peer; activations may be read before they have "
        "arrived"
    ),
    cause=(
        "_batch_p2p returns the last piece of work of a batch, which is all of it on NCCL only; on gloo "
        "the others are dropped, and a send that is dropped may never be sent."
    ),
    cure="A batch of messages is done when every message is.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/132644",
        "https://github.com/pytorch/pytorch/pull/152938",
    ),
    affected=Affected(since=None, fixed_in=("2.8.0",)),
    modules=("torch.distributed.pipelining.schedules",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="one_f_one_b",
            run=one_f_one_b,
            expect=(
                r"AssertionError: (a message of the schedule never came: .*"
                r"(Timed out waiting|Connection (reset|closed) by peer)|Tensor-likes are not close)"
            ),
            ranks=2,
            preload=pipelines.PRELOAD,
        ),
    ),
    removable_when="torch 2.7 and older are no longer supported",
)

"""The first messages between the stages of a pipeline, whose sender and receiver disagree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import pipelines
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_OPS = "torch.distributed.pipelining.stage:_PipelineStageBase._get_init_p2p_neighbors_ops"


def probe() -> Probe:
    """Look whether the tensor to send gets the type of the one to receive."""
    if is_replaced(_OPS):
        return absent("what is sent has the type of what is received, by this shim", cured=True)
    code = getattr(lookup(_OPS, None), "__code__", None)
    if code is None:
        return absent("stages are not connected beforehand")
    if "P2POp" not in code.co_names:
        return drifted("stages are connected differently")
    if "tensor" not in code.co_names or "float32" in code.co_names:
        return absent("what is sent has the type of what is received")
    return present("an integer of 8 bytes is sent to a float of 4")


def edits() -> Sequence[Edit]:
    """Send a float32, as is received."""
    import torch
    import torch.distributed as dist

    def make(original: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
        @functools.wraps(original, updated=())
        def _get_init_p2p_neighbors_ops(self: Any) -> list[Any]:
            operations = original(self)
            for operation in operations:
                if operation.op is dist.isend:
                    operation.tensor = operation.tensor.to(torch.float32)
            return operations

        return _get_init_p2p_neighbors_ops

    return [ReplaceAttr(_OPS, make)]


def connect() -> None:
    """Each rank sends its neighbour as many bytes as that expects, and receives the stage's index."""
    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining

    rank = dist.get_rank()
    example: Any = (torch.zeros(1, 4),)
    stage: Any = pipelining.PipelineStage(
        torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"), input_args=example
    )
    if not hasattr(stage, "_get_init_p2p_neighbors_ops"):
        return  # 2.4
    # Gloo ends the process where they differ, so the bytes are compared before.
    own = {}
    for operation in stage._get_init_p2p_neighbors_ops():
        way = "sends" if operation.op is dist.isend else "expects"
        own[way] = operation.tensor.numel() * operation.tensor.element_size()
    every: list[Any] = [None, None]
    dist.all_gather_object(every, own)
    other = every[1 - rank]
    if own["expects"] != other["sends"]:
        raise AssertionError(f"the other stage sends {other['sends']} bytes to {own['expects']}")


def step() -> None:
    """A forward through two stages gives what the layers give on one rank."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed import pipelining

    rank = dist.get_rank()
    connect()
    layers, _ = pipelines.linears(2)
    x = torch.randn(4, 4)
    example: Any = (x[:2],)
    stage = pipelining.PipelineStage(layers[rank], rank, 2, torch.device("cpu"), input_args=example)
    runner: Any = pipelining.ScheduleGPipe(stage, 2)
    output = runner.step(*([x] if rank == 0 else []))
    if rank == 1:
        torch.testing.assert_close(output, nn.Sequential(*layers)(x))
    dist.barrier()


SHIM = Shim(
    key="pipeline_first_message",
    summary="pipeline schedules end the process on gloo: an int64 is sent to a float32",
    symptom=(
        "terminate called after throwing an instance of 'gloo::EnforceNotMet' ... Received data size "
        "doesn't match expected size, in the first step of a schedule of torch.distributed.pipelining; "
        "on the other ranks RuntimeError: Connection reset by peer"
    ),
    cause=(
        "to connect neighbours a stage sends its index, an int64 of 8 bytes, where a float32 of 4 bytes "
        "is received."
    ),
    cure="The index is sent as float32.",
    upstream=("https://github.com/pytorch/pytorch/blob/v2.10.0/torch/distributed/pipelining/stage.py",),
    affected=Affected(since="2.9.0", fixed_in=("2.10.0",)),
    modules=("torch.distributed.pipelining.stage",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="connect",
            run=connect,
            expect=r"AssertionError: the other stage sends 8 bytes to 4",
            ranks=2,
            preload=pipelines.PRELOAD,
        ),
        Reproducer(
            name="step",
            run=step,
            expect=r"AssertionError: the other stage sends 8 bytes to 4",
            ranks=2,
            preload=pipelines.PRELOAD,
        ),
    ),
    removable_when="torch 2.9 is no longer supported",
    notes=(
        "The reproducers compare the bytes before they send them, since gloo ends the process. On NCCL "
        "the sizes differ as well; nothing of that could be run here."
    ),
)

"""gloo's reduce-scatter with ReduceOp.AVG returns the sum."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..decorated import ReplaceDecorated, decorated, is_replaced_behind
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present

_REDUCE_SCATTER = "torch.distributed.distributed_c10d:reduce_scatter_tensor"


def probe() -> Probe:
    """Look whether the collective can be replaced.

    The fault is in C++, and nothing in Python shows it. So a pre-release of 2.9 that has
    the fix is cured too; that is exact there as well.
    """
    if is_replaced_behind(_REDUCE_SCATTER):
        return absent("gloo is asked for sums of scaled inputs, by this shim", cured=True)
    function = decorated(_REDUCE_SCATTER)
    if function is None:
        return drifted("reduce_scatter_tensor is not where it was")
    if list(inspect.signature(function).parameters) != ["output", "input", "op", "group", "async_op"]:
        return drifted("reduce_scatter_tensor takes other arguments")
    return present("reduce_scatter_tensor hands ReduceOp.AVG to gloo as it is")


def edits() -> Sequence[Edit]:
    """Scale the input and ask for the sum, behind the decorator that logs.

    The public function stays what it is: dynamo knows it by identity, in a table that may be
    made later (``torch.distributed._functional_collectives.traceable_collective_remaps``).
    """
    import functools

    import torch.distributed as dist

    def averages_on_gloo(tensor: Any, op: Any, group: Any) -> bool:
        if op != dist.ReduceOp.AVG:
            return False
        if tensor.device.type != "cpu" or not tensor.is_floating_point():
            return False
        return "gloo" in str(dist.get_backend_config(group))

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def reduce_scatter_tensor(
            output: Any,
            input: Any,
            op: Any = dist.ReduceOp.SUM,
            group: Any = None,
            async_op: bool = False,
        ) -> Any:
            if averages_on_gloo(input, op, group):
                input, op = input / dist.get_world_size(group), dist.ReduceOp.SUM
            return original(output, input, op, group, async_op)

        return reduce_scatter_tensor

    return [ReplaceDecorated(_REDUCE_SCATTER, make)]


def collective() -> None:
    """``reduce_scatter_tensor`` itself, waited for and not, in three dtypes."""
    import torch
    import torch.distributed as dist

    ranks, rank = dist.get_world_size(), dist.get_rank()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for async_op in (False, True):
            given = torch.arange(ranks * 3).to(dtype) * (rank + 1)
            kept = given.clone()
            got = torch.empty(3, dtype=dtype)
            work = dist.reduce_scatter_tensor(got, given, op=dist.ReduceOp.AVG, async_op=async_op)
            if work is not None:
                work.wait()
            mean = sum(range(1, ranks + 1)) / ranks
            want = (torch.arange(ranks * 3).double() * mean)[rank * 3 : rank * 3 + 3]
            if not torch.equal(got.double(), want):
                raise AssertionError(
                    f"the average over the ranks is {want.tolist()}, got {got.tolist()}"
                )
            if not torch.equal(given, kept):
                raise AssertionError("the input was changed")


def fsdp_gradients() -> None:
    """FSDP2's gradients over different batches on each rank equal the mean of all."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model: Any = reproduce.moe_blocks()
    reference: Any = reproduce.moe_blocks()
    fully_shard(model, mesh=reproduce.cpu_mesh())
    batches = reproduce.batches(dist.get_world_size())
    (model(batches[dist.get_rank()]) ** 2).mean().backward()
    (reference(torch.cat(batches)) ** 2).mean().backward()
    for got, want in zip(model.parameters(), reference.parameters()):
        if not torch.allclose(reproduce.whole(got.grad), want.grad, rtol=1e-5, atol=1e-7):
            times = (reproduce.whole(got.grad).norm() / want.grad.norm()).item()
            raise AssertionError(f"the average over the ranks is off by a factor of {times:.3f}")


SHIM = Shim(
    key="gloo_reduce_scatter_avg",
    summary="gloo's reduce-scatter averages to the sum, and FSDP2's gradients are too large",
    symptom=(
        "No error: gradients of FSDP2 on gloo are too large by the number of ranks, as is the result "
        "of reduce_scatter_tensor(..., op=ReduceOp.AVG)."
    ),
    cause=(
        "ProcessGroupGloo's reduce-scatter treats every op as a sum. FSDP2 asks for the average "
        "when it reduces in float32 or bfloat16."
    ),
    cure=(
        "torch.distributed.reduce_scatter_tensor divides the input by the number of ranks and asks "
        "gloo for the sum. Other backends and ops are handed on as they are."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.8.0/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
    ),
    affected=Affected(since="2.4.0", fixed_in=("2.9.0",)),
    modules=("torch.distributed.distributed_c10d",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="collective",
            run=collective,
            expect=r"AssertionError: the average over the ranks is",
            ranks=2,
        ),
        Reproducer(
            name="fsdp_gradients",
            run=fsdp_gradients,
            expect=r"AssertionError: the average over the ranks is off by a factor of 2\.000",
            ranks=2,
            runnable=Affected(since="2.7.0"),
            needs="FSDP2 on the CPU",
        ),
    ),
    removable_when="the oldest torch you support is 2.9",
    notes=(
        "Costs one scaled copy of the input of each averaging reduce-scatter on gloo. Functional "
        "collectives, and those that torch.compile traces, go past it and stay wrong on gloo."
    ),
)

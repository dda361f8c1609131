"""gloo's reduce-scatter sums, whatever it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..gloo import (
    NEEDED,
    flat_pieces,
    functional_kernels,
    goes_to_gloo,
    is_sum,
    options_for,
    reduce_scatter,
    spelled_out,
)
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_BASE = "torch.distributed.distributed_c10d:ProcessGroup._reduce_scatter_base"
_COALESCED = "torch.distributed.distributed_c10d:ProcessGroup.reduce_scatter_tensor_coalesced"
_LIST = "torch.distributed.distributed_c10d:ProcessGroup.reduce_scatter"
#: Which function of torch does to two ranks' inputs what an op does.
_OPERATIONS = {
    "SUM": "add",
    "AVG": "add",
    "MAX": "maximum",
    "MIN": "minimum",
    "PRODUCT": "mul",
    "BAND": "bitwise_and",
    "BOR": "bitwise_or",
    "BXOR": "bitwise_xor",
}
_OTHERS = ("MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR")


def probe() -> Probe:
    """Look whether what hands the op to gloo can be replaced.

    The fault is in C++, and nothing in Python shows it. So a pre-release of 2.9 that has
    the fix is cured too; that is exact there as well.
    """
    if is_replaced(_BASE):
        return absent("gloo is asked for all-reduces, by this shim", cured=True)
    for target in (_BASE, _COALESCED, _LIST, *NEEDED):
        if lookup(target, None) is None:
            return drifted(f"{target.partition(':')[2]} is not where it was")
    return present("ProcessGroup hands every op to gloo, which sums")


def edits() -> Sequence[Edit]:
    """Reduce on gloo by all-reduces, of which every rank keeps its own part.

    That is what gloo up to 2.8 does itself, but for the op. The methods of ProcessGroup are what
    the public collectives end in: single, coalesced, and with a list of inputs. The functional
    ones, and with them DTensor and what torch.compile traces, end in C++.
    """
    return [
        ReplaceAttr(_BASE, _single),
        ReplaceAttr(_COALESCED, _coalesced),
        ReplaceAttr(_LIST, _listed),
        functional_kernels(),
    ]


def _single(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def _reduce_scatter_base(self: Any, outputTensor: Any, inputTensor: Any, opts: Any = None) -> Any:
        opts = options_for() if opts is None else opts
        if is_sum(opts.reduceOp) or not goes_to_gloo(self, outputTensor, inputTensor):
            return original(self, outputTensor, inputTensor, opts)
        return reduce_scatter(self, [outputTensor], [flat_pieces(self, inputTensor)], opts)

    return _reduce_scatter_base


def _coalesced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def reduce_scatter_tensor_coalesced(self: Any, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = options_for() if opts is None else opts
        if is_sum(opts.reduceOp) or not goes_to_gloo(self, *outputs, *inputs):
            return original(self, outputs, inputs, opts)
        return reduce_scatter(self, outputs, [flat_pieces(self, one) for one in inputs], opts)

    return reduce_scatter_tensor_coalesced


def _listed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def reduce_scatter_list(self: Any, *args: Any, **named: Any) -> Any:
        outputs, inputs, opts = spelled_out(*args, **named)
        # sums too, which gloo refuses up to 2.7
        if len(outputs) == len(inputs) == 1 and goes_to_gloo(self, *outputs, *inputs[0]):
            return reduce_scatter(self, outputs, inputs, opts)
        return original(self, outputs, inputs, opts)

    return reduce_scatter_list


def collective() -> None:
    """``reduce_scatter_tensor`` itself, waited for and not, with every op that gloo has."""
    import torch
    import torch.distributed as dist

    def reduced(given: Any, op: Any, async_op: bool) -> Any:
        got = torch.empty(3, dtype=given.dtype)
        work = dist.reduce_scatter_tensor(got, given, op=op, async_op=async_op)
        if work is not None:
            work.wait()
        return got

    for async_op in (False, True):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            _compare("AVG", dtype, functools.partial(reduced, async_op=async_op))
        for name in _OTHERS:
            _compare(name, torch.int64, functools.partial(reduced, async_op=async_op))


def functional() -> None:
    """The functional collective, which DTensor and compiled programs call."""
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    group: Any = dist.group.WORLD

    def reduced(given: Any, op: Any) -> Any:
        name = str(op).rpartition(".")[2].lower()
        return functional.reduce_scatter_tensor(given, name, 0, group).clone()

    _compare("AVG", torch.float32, reduced)
    for name in _OTHERS:
        _compare(name, torch.int64, reduced)


def pending() -> None:
    """A DTensor that waits for a reduction, and is made a shard."""
    import torch
    from torch.distributed.tensor import DTensor, Partial, Shard

    mesh = reproduce.cpu_mesh()

    def redistributed(given: Any, op: Any) -> Any:
        name = str(op).rpartition(".")[2].lower()
        waiting = DTensor.from_local(given, mesh, [Partial(name)], run_check=False)
        return waiting.redistribute(mesh, [Shard(0)]).to_local()

    for dtype in (torch.float32, torch.bfloat16):
        _compare("AVG", dtype, redistributed)
    for name in ("MAX", "MIN"):
        _compare(name, torch.int64, redistributed)


def lists() -> None:
    """``reduce_scatter``, which gets a list with one tensor for every rank."""
    import torch
    import torch.distributed as dist

    def reduced(given: Any, op: Any) -> Any:
        got = torch.empty(3, dtype=given.dtype)
        dist.reduce_scatter(got, list(given.split(3)), op=op)
        return got

    _compare("AVG", torch.float32, reduced)
    for name in ("SUM", *_OTHERS):
        _compare(name, torch.int64, reduced)


def _compare(name: str, dtype: Any, reduced: Callable[[Any, Any], Any]) -> None:
    """Compare what a collective makes of ``(input, op)`` with this rank's part of all inputs."""
    import torch
    import torch.distributed as dist

    ranks, rank = dist.get_world_size(), dist.get_rank()
    inputs = [torch.arange(ranks * 3).to(dtype) * (other + 1) + 1 for other in range(ranks)]
    given = inputs[rank].clone()
    got = reduced(given, getattr(dist.ReduceOp, name))
    want = functools.reduce(getattr(torch, _OPERATIONS[name]), inputs)
    if name == "AVG":
        want = want / ranks
    want = want[rank * 3 : rank * 3 + 3]
    if not torch.equal(got, want):
        raise AssertionError(
            f"{name} over the ranks in {str(dtype)[6:]} is {want.tolist()}, got {got.tolist()}"
        )
    if not torch.equal(given, inputs[rank]):
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
    summary="gloo's reduce-scatter sums, whatever the op, and FSDP2's gradients are too large",
    symptom=(
        "No error: gradients of FSDP2 on gloo are too large by the number of ranks; the result of "
        "reduce_scatter_tensor with AVG, MAX, MIN, PRODUCT, BAND, BOR or BXOR is the sum, as is that "
        'of a functional collective, and of a DTensor with Partial("avg") that is made a shard. '
        "dist.reduce_scatter, with a list: the same on 2.8.0, and 'ProcessGroupGloo does not support "
        "reduce_scatter' up to 2.7.1."
    ),
    cause=(
        "ProcessGroupGloo's reduce-scatter is made of all-reduces, and hands them no op. FSDP2 asks "
        "for the average when it reduces in float32 or bfloat16."
    ),
    cure=(
        "What is not a sum is done by all-reduces of copies with that op, of which every rank keeps "
        "its part; an average by the sum of scaled copies. The methods of ProcessGroup are wrapped, "
        "and the functional collective gets kernels for the CPU. Other backends and devices, and "
        "sums, are handed on as they are; lists always go by an all-reduce."
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
            expect=r"AssertionError: AVG over the ranks in float32 is",
            ranks=2,
        ),
        Reproducer(
            name="functional",
            run=functional,
            expect=r"AssertionError: AVG over the ranks in float32 is",
            ranks=2,
        ),
        Reproducer(
            name="pending",
            run=pending,
            expect=r"AssertionError: AVG over the ranks in float32 is",
            ranks=2,
            runnable=Affected(since="2.5.0"),
            needs="torch.distributed.tensor",
        ),
        Reproducer(
            name="lists",
            run=lists,
            expect=(
                r"AssertionError: AVG over the ranks in float32 is"
                r"|RuntimeError: ProcessGroupGloo does not support reduce_scatter"
            ),
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
        "gloo's own reduce-scatter is an all-reduce on these builds too, so nothing gets slower but "
        "by the copy into the output, and by functional collectives that are not sums being waited "
        "for at once. An average of integers raises, as it does from 2.9 on."
    ),
)

"""gloo: the ways to a reduce-scatter, and to the end of a process group."""

from __future__ import annotations

import pytest

from torchcompat.builds import TorchBuild, detect

BUILD = detect() or TorchBuild.parse("Unknown")

pytestmark = pytest.mark.torch
on_two_ranks = pytest.mark.skipif(
    not BUILD.known or BUILD.line < (2, 5, 0), reason="no public torch.distributed.tensor"
)
reduces = pytest.mark.skipif(BUILD.known and BUILD.line >= (2, 9, 0), reason="gloo heeds the op")

APPLY = """
import torchcompat
applied = torchcompat.apply("gloo_reduce_scatter_avg").state == "applied"
rank = dist.get_rank()
AVG, MAX, SUM = dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.SUM

def mine():
    return torch.arange(4.0) * (rank + 1)

def check(got, factor, start=2 * rank):
    want = torch.arange(4.0)[start : start + got.numel()] * factor
    assert torch.equal(got, want.view_as(got)), (got, want)
"""


@on_two_ranks
@reduces
def test_every_way_to_a_reduce_scatter(two_ranks):
    """Shapes, views, inference mode, coalesced and several at a time."""
    two_ranks(
        APPLY
        + """
def scattered(out, given, op=AVG, **named):
    work = dist.reduce_scatter_tensor(out, given, op=op, **named)
    if work is not None:
        work.wait()
    return out

for async_op in (False, True):
    check(scattered(torch.empty(2), mine(), async_op=async_op), 1.5)
    check(scattered(torch.empty(2, 1), mine().view(4, 1), MAX, async_op=async_op), 2.0)
    columns = torch.stack([mine(), mine()], dim=1)[:, 0]
    check(scattered(torch.empty(2, 2)[:, 1], columns, async_op=async_op), 1.5)
    with torch.inference_mode():
        check(scattered(torch.empty(2), mine(), MAX, async_op=async_op), 2.0)

outs = [torch.empty(2) for _ in range(20)]
works = [dist.reduce_scatter_tensor(out, mine(), op=AVG, async_op=True) for out in outs]
for work, out in reversed(list(zip(works, outs))):
    work.wait()
    assert work.is_completed() or not applied
    check(out, 1.5)

outs = [torch.empty(2), torch.empty(2)]
with dist._coalescing_manager():
    for out in outs:
        dist.reduce_scatter_tensor(out, mine(), op=MAX)
for out in outs:
    check(out, 2.0)

uneven = [mine()[:1], mine()[1:]]
out = torch.empty(3 if rank else 1)
for op, factor in ((SUM, 3.0), (AVG, 1.5), (MAX, 2.0)):
    dist.reduce_scatter(out, uneven, op=op)
    check(out, factor, start=rank)
out = torch.empty(2)
dist.group.WORLD.reduce_scatter(out, list(mine().chunk(2)), MAX).wait()  # its shorthand
check(out, 2.0)

from torch.distributed import _functional_collectives as functional
def averaged(x):
    return functional.reduce_scatter_tensor(x, "avg", 0, dist.group.WORLD) + 0
check(averaged(mine()), 1.5)
once, twice = functional.reduce_scatter_tensor_coalesced(
    [mine(), 2 * mine()], "max", [0, 0], dist.group.WORLD
)
check(once + 0, 2.0)
check(twice + 0, 4.0)
"""
    )


@pytest.mark.slow
@on_two_ranks
@reduces
def test_a_compiled_average(two_ranks):
    two_ranks(
        APPLY
        + """
from torch.distributed import _functional_collectives as functional

@torch.compile(backend="aot_eager")
def averaged(x):
    return functional.reduce_scatter_tensor(x, "avg", 0, dist.group.WORLD) + 0

check(averaged(mine()), 1.5)
"""
    )


@on_two_ranks
@reduces
def test_what_does_not_fit_is_refused_on_every_rank(two_ranks):
    two_ranks(
        APPLY
        + """
def refused(error, words, out, given, op=AVG):
    try:
        dist.reduce_scatter_tensor(out, given, op=op)
    except error as raised:
        assert words in str(raised), raised
    else:
        raise SystemExit(f"not refused: {words}")

whole = torch.arange(4)
refused(RuntimeError, "result type Float can't be cast", torch.empty_like(whole[:2]), whole)
if applied:  # from 2.9 on torch ends the process
    refused(ValueError, "cannot fill an output of 3 elements from inputs of 4", torch.empty(3), mine())
    refused(ValueError, "dtypes differ", torch.empty(2, dtype=torch.float64), mine())
out = torch.empty(2)
dist.reduce_scatter_tensor(out, mine(), op=AVG)
check(out, 1.5)
"""
    )


@reduces
def test_other_groups_and_a_revert_leave_torchs_own(python):
    out = python(
        """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.distributed import _functional_collectives as functional
import torchcompat

group = torch._C._distributed_c10d.ProcessGroup
names = ("_reduce_scatter_base", "reduce_scatter", "reduce_scatter_tensor_coalesced")
own = [group.__dict__[name] for name in names]
dump = torch._C._dispatch_dump
before = dump("_c10d_functional::reduce_scatter_tensor")
torchcompat.apply("gloo_reduce_scatter_avg", force=True)
assert not any(group.__dict__[name] is mine for name, mine in zip(names, own))
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
out = torch.full((2,), 7.0)
dist.reduce_scatter_tensor(out, torch.arange(4.0), op=dist.ReduceOp.AVG)
kept = functional.reduce_scatter_tensor(torch.arange(4.0), "avg", 0, dist.group.WORLD)
assert kept.shape == (2,)
try:
    functional.reduce_scatter_tensor(torch.arange(4.0), "mean", 0, dist.group.WORLD)
except RuntimeError as error:
    assert "mean" in str(error).lower(), error
else:
    raise SystemExit("an unknown op was taken")
torchcompat.revert("gloo_reduce_scatter_avg")
assert all(group.__dict__[name] is mine for name, mine in zip(names, own))
assert "CPU:" not in dump("_c10d_functional::reduce_scatter_tensor")
torchcompat.apply("gloo_reduce_scatter_avg", force=True)
assert "CPU:" in dump("_c10d_functional::reduce_scatter_tensor")
print("own")
"""
    ).stdout
    assert out.split() == ["own"]


@pytest.mark.skipif(BUILD.known and BUILD.line >= (2, 8, 0), reason="the lock is given away")
@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_groups_that_others_hold_on_to_come_to_an_end(python, debug):
    """A group ends where its last holder lets go of it, long after it was destroyed."""
    out = python(
        """
import tempfile, weakref
import torch, torch.distributed as dist
import torchcompat

torchcompat.apply("gloo_destroy_hang", force=True)
cpu = torch.device("cpu")
for _ in range(30):
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        held = [dist.group.WORLD, dist.new_group([0])]
        ends = [weakref.ref(group) for group in held]
        for group in held[::-1]:
            dist.all_reduce(torch.ones(4), group=group)
            dist.destroy_process_group(group)
        assert not dist.is_initialized()
        group = None
        while held:
            # what was destroyed may still be asked what it is
            assert held[-1].size() == 1 and held[-1]._get_backend(cpu) is not None
            held.pop()
        assert not any(end() for end in ends), "something keeps the groups"
try:
    dist.destroy_process_group()
except (AssertionError, ValueError) as error:
    print("refused as ever")
own = dist.destroy_process_group.__wrapped__
torchcompat.revert("gloo_destroy_hang")
assert dist.destroy_process_group is own is dist.distributed_c10d.destroy_process_group
""",
        env={"TORCH_DISTRIBUTED_DEBUG": debug},
        timeout=60,
    ).stdout
    assert out.splitlines()[-1] == "refused as ever"

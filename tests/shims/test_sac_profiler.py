"""What is special to sac_profiler: the set, the profile, and builds that it must leave alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import ROOT

from torchcompat.builds import TorchBuild, detect
from torchcompat.shims.sac_profiler import SHIM

pytestmark = pytest.mark.torch

BUILD = detect() or TorchBuild.parse("Unknown")
AFFECTED = str(SHIM.affected.verdict(BUILD)) == "IN"
HAS_SAC = BUILD.line is not None and BUILD.line >= (2, 5, 0)
needs_fault = pytest.mark.skipif(not AFFECTED, reason=f"torch {BUILD} does not have the fault")
needs_sac = pytest.mark.skipif(not HAS_SAC, reason="selective checkpointing is public from 2.5 on")

RANGE = """
import torch, torchcompat, torch.utils.checkpoint as c
names = ("_record_function_enter", "_record_function_enter_new", "_record_function_exit")
packets = [getattr(torch.ops.profiler, name) for name in names]
ops = {getattr(p, o) for p in packets for o in p.overloads()}
"""


@needs_fault
def test_every_overload_goes_in_and_only_ours_comes_out(python):
    python(
        RANGE
        + """
held = c.SAC_IGNORED_OPS
before = set(held)
outcome = torchcompat.apply("sac_profiler")
assert outcome.state == "applied", outcome
assert c.SAC_IGNORED_OPS is held and held == before | ops and len(ops) >= 4
held.add("somebody else's")
torchcompat.revert("sac_profiler")
assert c.SAC_IGNORED_OPS is held and held == before | {"somebody else's"}
"""
    )


@needs_fault
def test_a_framework_has_done_it_already(python):
    python(
        RANGE
        + """
c.SAC_IGNORED_OPS.update(ops)
assert torchcompat.apply("sac_profiler").state == "already_fixed"
assert torchcompat.apply("sac_profiler", force=True).state == "already_fixed"
torchcompat.revert_all()
assert ops <= c.SAC_IGNORED_OPS
"""
    )


@needs_fault
def test_a_framework_has_done_half_of_it(python):
    python(
        RANGE
        + """
theirs = torch.ops.profiler._record_function_enter_new.default
c.SAC_IGNORED_OPS.add(theirs)
assert torchcompat.apply("sac_profiler").state == "applied"
assert ops <= c.SAC_IGNORED_OPS
torchcompat.revert_all()
assert c.SAC_IGNORED_OPS & ops == {theirs}
"""
    )


@needs_fault
@pytest.mark.parametrize(
    ("drift", "says"),
    [
        ("c.SAC_IGNORED_OPS = frozenset(c.SAC_IGNORED_OPS)", "is a frozenset, not a set"),
        ("c.SAC_IGNORED_OPS = dict.fromkeys(c.SAC_IGNORED_OPS)", "is a dict, not a set"),
        ("c._CachedTorchDispatchMode = object", "is written differently"),
    ],
)
def test_a_drifted_checkpoint_module(python, drift, says):
    out = python(
        RANGE
        + f"""
{drift}
before = dict(vars(c))
report = torchcompat.apply_all()
print(report["sac_profiler"].state, report["sac_profiler"].reason)
try:
    torchcompat.apply("sac_profiler")
except torchcompat.ApplyError as error:
    print(error)
assert dict(vars(c)) == before
"""
    )
    assert out.stdout.startswith("unsupported ")
    assert out.stdout.count(says) == 2


def test_without_the_set_or_the_namespace_there_is_nothing_to_do(python):
    python(
        """
        import torch, torchcompat, torch.utils.checkpoint as c
        from torchcompat.shims import sac_profiler
        c.__dict__.pop("SAC_IGNORED_OPS", None)
        assert torchcompat.apply("sac_profiler", force=True).state == "already_fixed"
        c.SAC_IGNORED_OPS = set()
        sac_profiler.range_ops = lambda: []
        assert torchcompat.apply("sac_profiler", force=True).state == "already_fixed"
        assert c.SAC_IGNORED_OPS == set()
        """
    )


@needs_sac
@pytest.mark.skipif(AFFECTED, reason="this build is in the gate")
def test_below_the_gate_it_is_a_no_op_that_can_be_forced(python):
    python(
        RANGE
        + """
before = set(c.SAC_IGNORED_OPS)
assert torchcompat.apply("sac_profiler").state == "not_affected"
assert torchcompat.apply_all()["sac_profiler"].state == "not_affected"
assert c.SAC_IGNORED_OPS == before
outcome = torchcompat.apply("sac_profiler", force=True)
assert outcome.state == "applied" and outcome.forced, outcome
assert c.SAC_IGNORED_OPS == before | ops
torchcompat.revert_all()
assert c.SAC_IGNORED_OPS == before
"""
    )


@needs_sac
def test_ranges_are_still_recorded_in_a_profile(python):
    out = python(
        RANGE
        + """
import functools
torchcompat.apply("sac_profiler", force=True)
def region(x):
    with torch.profiler.record_function("a range of ours"):
        return torch.sin(x @ x)
policy = lambda ctx, op, *a, **k: c.CheckpointPolicy.PREFER_RECOMPUTE
context = functools.partial(c.create_selective_checkpoint_contexts, policy)
x = torch.randn(4, 4, requires_grad=True)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    c.checkpoint(region, x, use_reentrant=False, context_fn=context).sum().backward()
(event,) = [e for e in profile.key_averages() if e.key == "a range of ours"]
print(event.count)
"""
    )
    assert out.stdout.strip() == "2", "once in the forward, once in the recompute"


@pytest.mark.slow
@pytest.mark.skipif(not BUILD.known or BUILD.line < (2, 7, 0), reason="FSDP2 on the CPU needs torch 2.7")
@pytest.mark.parametrize("shim", [True, False])
def test_the_example(shim):
    command = [sys.executable, str(ROOT / "examples" / "train_moe_sac.py"), "--steps", "8"]
    done = subprocess.run(
        command if shim else [*command, "--no-shim"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "GLOO_SOCKET_IFNAME": "lo"},
        timeout=300,
        check=False,
    )
    if shim or not AFFECTED:
        assert done.returncode == 0, done.stderr
        losses = [
            float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step")
        ]
        assert len(losses) == 8
        assert losses[-1] < losses[0] / 10
    else:
        assert done.returncode != 0
        assert "profiler._record_function_enter_new.default invocation index" in done.stderr
        assert "encountered during backward but not found in storage" in done.stderr

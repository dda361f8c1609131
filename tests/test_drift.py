"""A torch that is written otherwise: apply_all() never raises, and no shim edits what it does not know."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, child_environment
from figures import SCALE

pytestmark = [pytest.mark.torch, pytest.mark.slow]

#: What is no drift, or not one of the edit's target: by target, the kinds of change and why.
FITTING = {
    "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule.set_reduce_scatter_unused_params": (
        "renamed",  # the method that is missing is the fault, and the shim adds it
    ),
    "torch._inductor.codecache:FxGraphHashDetails.__init__": (
        "another signature",  # the salt passes on whatever it is called with
    ),
    # So do these, and do their part before or after that.
    "torch.autograd.grad_mode:set_grad_enabled.__enter__": ("another signature",),
    "torch.autograd.grad_mode:set_grad_enabled.__exit__": ("another signature",),
    "torch.backends.cudnn:m.flags": ("another signature",),
    "torch.compiler:is_exporting": (
        "renamed",  # the name that is missing is the fault
    ),
}


def test_no_shim_is_applied_to_what_it_does_not_know(figure):
    share = 0.08 if SCALE < 20 else 1.0
    env = child_environment(ROOT, *filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "drift_job.py"), str(share)],
        capture_output=True, text=True, env={**env, "OMP_NUM_THREADS": "1"}, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    untouched, *cases = lines
    assert "applied" in untouched["states"].values(), "on an unchanged torch they are applied"
    played = [case for case in cases if "skipped" not in case]
    assert len(played) > 240 * share
    assert len(cases) - len(played) < 0.05 * len(cases) + 4  # of a sample, some more may be
    for case in played:
        what = f"{case['target']} is {case['kind']}"
        assert case["raised"] == [], what
        if case["kind"] in FITTING.get(case["target"], ()):
            continue
        applied = [key for key in case["shims"] if case["states"][key] == "applied"]
        assert not applied, f"{what}, and it was applied all the same: {applied}"
    figure("changes made to torch that no shim falls for (drift)", len(played))

"""All shims that a build needs, together, in a training that meets their faults."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import ROOT

from torchcompat.builds import TorchBuild, detect

BUILD = detect() or TorchBuild.parse("Unknown")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not BUILD.known or BUILD.line < (2, 7, 0), reason="FSDP2 on the CPU needs 2.7"),
]

FAULTS = (
    "has no attribute 'set_reduce_scatter_unused_params'",
    "encountered during backward but not found in storage",
)


@pytest.mark.parametrize("shims", [True, False])
def test_accumulation_over_a_routed_moe(shims):
    command = [sys.executable, str(ROOT / "examples" / "train_moe_accumulate.py")]
    done = subprocess.run(
        command if shims else [*command, "--no-shim"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        timeout=600,
        check=False,
    )
    if not shims:
        assert done.returncode != 0
        assert any(fault in done.stderr for fault in FAULTS), done.stderr
        return
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert len(losses) == 8
    # The same on every build: 0.3018 to 0.2554 on 2.12.1, 2.14.1 and 2.15.0.
    assert losses[0] == pytest.approx(0.3018, abs=2e-3)
    assert losses[-1] == pytest.approx(0.2554, abs=2e-3)


@pytest.mark.slow
def test_compiled_blocks_train_as_eager_ones(python):
    """The hooks of FSDP2 run around and inside compiled, checkpointed, mixed-precision blocks."""
    out = python(
        """
        import functools, tempfile, warnings
        import torch, torch.distributed as dist
        import torchcompat
        from torchcompat import reproduce

        torchcompat.apply_all()
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.utils.checkpoint import checkpoint

        store = tempfile.mktemp()
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)

        def build(compiled):
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
            model = reproduce.moe_blocks()
            for block in model.blocks:
                fully_shard(block, mesh=reproduce.cpu_mesh(), mp_policy=policy)
                if compiled:
                    block.compile(backend="aot_eager")
            fully_shard(model, mesh=reproduce.cpu_mesh(), mp_policy=policy)
            model.run_block = functools.partial(checkpoint, use_reentrant=False)
            return model

        batches = reproduce.batches()
        got = reproduce.train(build(True), batches)
        reproduce.assert_same_training(got, reproduce.train(build(False), batches), rtol=1e-2, atol=1e-3)
        print("trained", len(got[0]))
        """,
        timeout=300,
    )
    assert out.stdout.splitlines()[-1] == "trained 5"

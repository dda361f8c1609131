"""gloo_reduce_scatter_avg and what torch knows the collective by."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

TABLE = """
import sys
import torch, torch.distributed as dist
import torchcompat

public = dist.reduce_scatter_tensor
assert "torch.distributed._functional_collectives" not in sys.modules
print(torchcompat.apply("gloo_reduce_scatter_avg", force=True).state)
from torch.distributed._functional_collectives import traceable_collective_remaps as table
assert dist.reduce_scatter_tensor is public
assert public in table, "torch.compile no longer knows the collective"
torchcompat.revert("gloo_reduce_scatter_avg")
assert dist.reduce_scatter_tensor is public
assert public in table
assert all(f.__module__.startswith("torch.") for f in table)
"""


def test_dynamos_table_of_collectives_is_made_as_ever(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TABLE], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["applied"]

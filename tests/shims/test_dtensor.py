"""What DTensor has cached before a strategy was changed is not used after it, and back."""

from __future__ import annotations

import pytest

from torchcompat.builds import TorchBuild, detect

BUILD = detect() or TorchBuild.parse("Unknown")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not BUILD.known or BUILD.line < (2, 5, 0), reason="torch.distributed.tensor is 2.5's"
    ),
]


def test_shardings_are_propagated_anew_after_apply_and_after_revert(python):
    out = python(
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard
        from torch.testing._internal.distributed.fake_pg import FakeStore
        import torchcompat

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        x = DTensor.from_local(
            torch.ones(3, 4), mesh, [Shard(0)], run_check=False, shape=(5, 4), stride=(4, 1)
        )

        def outcome():
            try:
                (placement,) = torch.nn.functional.mse_loss(x, x).placements
            except NotImplementedError:
                return "no strategy"
            return "whole" if placement.is_replicate() else "a mean of means"

        before = outcome()
        torchcompat.apply("dtensor_loss_mean")
        during = outcome()
        torchcompat.revert("dtensor_loss_mean")
        print(before, during, outcome(), sep=", ")
        dist.destroy_process_group()
        """
    ).stdout
    before = "no strategy" if BUILD.line < (2, 11, 0) else "a mean of means"
    assert out.splitlines()[-1] == f"{before}, whole, {before}"

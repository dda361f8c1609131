"""What stays sharded through group norm and pooling on two ranks, and what is gathered."""

from __future__ import annotations

import pytest

from torchcompat.builds import TorchBuild, detect

pytestmark = pytest.mark.torch
BUILD = detect() or TorchBuild.parse("Unknown")

if not BUILD.known or BUILD.line < (2, 5, 0):
    pytest.skip("needs the public torch.distributed.tensor", allow_module_level=True)

BEGIN = """
import torch.nn.functional as F
for key in ("dtensor_group_norm", "dtensor_gathered_ops"):
    torchcompat.apply(key)
seeded = torch.Generator().manual_seed(0)

def random(*shape):
    return torch.randn(*shape, generator=seeded)

def put(tensor, placement):
    return distribute_tensor(tensor, mesh, [placement])

def same(got, want, placement):
    assert got.placements == (placement,), got.placements
    torch.testing.assert_close(got.full_tensor(), want, rtol=1e-4, atol=1e-5)
"""


def test_group_norm_of_batches_of_all_sizes(two_ranks):
    two_ranks(
        BEGIN
        + """
weight = random(4)
for size in (1, 3, 4):
    x = random(size, 4, 3)
    got = F.group_norm(put(x, Shard(0)), 2, put(weight, Shard(0)), put(weight, Replicate()))
    same(got, F.group_norm(x, 2, weight, weight), Shard(0))
    same(F.group_norm(put(x, Shard(1)), 2), F.group_norm(x, 2), Replicate())
x = random(4, 4, 3)
try:
    F.group_norm(put(x, Shard(0)), 2, weight, weight)
except RuntimeError as error:
    assert "mixed torch.Tensor and DTensor" in str(error), error
else:
    raise AssertionError("mixed")
"""
    )


def test_samples_and_channels_stay_sharded_where_every_rank_has_some(two_ranks):
    two_ranks(
        BEGIN
        + """
x = random(2, 3, 6, 6)
for given, kept in ((x, Shard(0)), (x, Shard(1)), (x[:1], None), (x[0], Shard(0))):
    for placement in (Shard(0), Shard(1)) if kept is None else (kept,):
        got = F.pad(put(given, placement), (1, 1, 2, 0), mode="reflect")
        stays = placement if given.shape[placement.dim] > 1 else Replicate()
        same(got, F.pad(given, (1, 1, 2, 0), mode="reflect"), stays)
same(F.avg_pool2d(put(x, Shard(2)), 2), F.avg_pool2d(x, 2), Replicate())
same(torch.cdist(put(x, Shard(0)), put(x, Shard(1))), torch.cdist(x, x), Replicate())
"""
    )

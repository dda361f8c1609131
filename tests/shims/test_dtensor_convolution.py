"""Convolutions of DTensors on two ranks: what stays sharded, and what is refused."""

from __future__ import annotations

import pytest

from torchcompat.builds import TorchBuild, detect

pytestmark = pytest.mark.torch
BUILD = detect() or TorchBuild.parse("Unknown")

if not BUILD.known or BUILD.line < (2, 5, 0):
    pytest.skip("needs the public torch.distributed.tensor", allow_module_level=True)

BEGIN = """
torchcompat.apply("dtensor_convolution")
seeded = torch.Generator().manual_seed(0)

def random(*shape):
    return torch.randn(*shape, generator=seeded)

def put(tensor, *placements, on=mesh):
    return distribute_tensor(tensor, on, placements or [Replicate()] * on.ndim)

def same(got, want):
    torch.testing.assert_close(got.full_tensor(), want, rtol=1e-4, atol=1e-4)
"""


def test_batches_and_patches_stay_sharded(two_ranks):
    two_ranks(
        BEGIN
        + """
conv = torch.nn.functional.conv2d
x, weight, bias = random(5, 3, 4, 8), random(6, 3, 2, 2), random(6)
got = conv(put(x, Shard(0)), put(weight), put(bias))
assert got.placements == (Shard(0),)
same(got, conv(x, weight, bias))
for dim in (2, 3):
    got = conv(put(x, Shard(dim)), put(weight), stride=2)
    assert got.placements == (Shard(dim),), got.placements
    same(got, conv(x, weight, stride=2))
# a border within a patch, and a total that waits for its reduction
for given in (put(random(2, 3, 4, 6), Shard(3)), put(random(2, 2, 3, 4, 6), Shard(0)).sum(0)):
    got = conv(given, put(weight), stride=2)
    assert got.placements == (Replicate(),), got.placements
    same(got, conv(given.full_tensor(), weight, stride=2))
# one sample for two ranks
got = conv(put(x[:1], Shard(0)), put(weight, Shard(0)), put(bias, Shard(0)), padding=1)
assert got.placements == (Shard(0),)
same(got, conv(x[:1], weight, bias, padding=1))
"""
    )


def test_gradients_on_two_mesh_dimensions(two_ranks):
    two_ranks(
        BEGIN
        + """
conv = torch.nn.functional.conv2d
square = init_device_mesh("cpu", (2, 1))
plain = [t.requires_grad_() for t in (random(4, 3, 5, 8), random(6, 3, 3, 3), random(6))]
out = conv(*plain, padding=1)
out.square().sum().backward()
for placements in ((Shard(0), Shard(3)), (Shard(2), Replicate()), (Replicate(), Shard(0))):
    given = [
        put(tensor.detach(), *places, on=square).requires_grad_()
        for tensor, places in zip(plain, (placements, (Shard(0), Shard(1)), (Shard(0), Replicate())))
    ]
    got = conv(*given, padding=1)
    assert (got.shape, got.stride()) == (out.shape, out.stride())
    same(got, out.detach())
    got.square().sum().backward()
    for mine, reference in zip(given, plain):
        same(mine.grad, reference.grad)
"""
    )


def test_channels_last_stays_so(two_ranks):
    two_ranks(
        BEGIN
        + """
conv, last = torch.nn.functional.conv2d, torch.channels_last
x, weight = random(4, 3, 5, 8).to(memory_format=last), random(6, 3, 3, 3).to(memory_format=last)
out = conv(x, weight)
got = conv(type(put(x)).from_local(x, mesh, [Replicate()]), put(weight))
assert got.stride() == out.stride() == got.to_local().stride()
same(got, out)
"""
    )


def test_what_is_no_dtensor_is_refused_as_before(two_ranks):
    two_ranks(
        BEGIN
        + """
conv = torch.nn.functional.conv2d
x, weight = random(4, 3, 5, 8), random(6, 3, 3, 3)
for given in ((put(x), weight), (x, put(weight))):
    try:
        conv(*given)
    except RuntimeError as error:
        assert "mixed torch.Tensor and DTensor" in str(error), error
    else:
        raise AssertionError("mixed")
torchcompat.revert("dtensor_convolution")
handlers = type(put(x))._op_dispatcher._custom_op_handlers
assert handlers[torch.ops.aten.convolution.default].__module__.startswith("torch.")
"""
    )

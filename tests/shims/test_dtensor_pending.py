"""What the shims do to pending sums, on two ranks; and what they refuse to."""

from __future__ import annotations

import pytest

from torchcompat.builds import TorchBuild, detect

pytestmark = pytest.mark.torch
BUILD = detect() or TorchBuild.parse("Unknown")

if not BUILD.known or BUILD.line < (2, 5, 0):
    pytest.skip("needs the public torch.distributed.tensor", allow_module_level=True)

BEGIN = """
torchcompat.apply_all()
plain = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))

def sharded(dim):
    return distribute_tensor(plain.clone(), mesh, [Shard(dim)])

def same(got, want):
    torch.testing.assert_close(got.full_tensor(), want)

def refused(call, *words):
    try:
        call()
    except RuntimeError as error:
        said = f"{error} {error.__cause__}"
        assert any(word in said for word in words), said
    else:
        raise AssertionError("changed in place")
"""


def test_a_pending_sum_is_filled_once(two_ranks):
    two_ranks(
        BEGIN
        + """
for other in (mesh, init_device_mesh("cpu", (2, 1)), init_device_mesh("cpu", (1, 2))):
    total = distribute_tensor(plain, other, [Shard(1)] * other.ndim).sum(1)
    assert all(placement.is_partial() for placement in total.placements)
    assert total.fill_(3.0) is total
    same(total, torch.full((4,), 3.0))
    total.fill_(torch.tensor(float("inf")))
    same(total, torch.full((4,), float("inf")))

total = sharded(1).requires_grad_().sum(1)
total.fill_(1.0)
assert total.grad_fn is not None
refused(lambda: sharded(1).norm(dim=1).fill_(2.0), "waits for a reduction of another kind")
row = sharded(1)[1]
assert row.fill_(5.0) is row
"""
    )


def test_lists_are_changed_where_they_are_or_not_at_all(two_ranks):
    two_ranks(
        BEGIN
        + """
changes = (
    lambda listed: torch._foreach_mul_(listed, 3.0),
    lambda listed: torch._foreach_div_(listed, [2.0, 4.0]),
    torch._foreach_neg_,
)
for change in changes:
    for _ in range(2):  # the second finds the strategy in the cache
        listed, wanted = [sharded(1).sum(1), sharded(0)], [plain.sum(1), plain.clone()]
        change(listed)
        change(wanted)
        for got, want in zip(listed, wanted):
            same(got, want)
        assert listed[0].placements[0].is_partial(), "no communication is needed"

total = sharded(1).sum(1)
refused(lambda: torch._foreach_sqrt_([sharded(0), total]), "number 1", "in-place")
same(total, plain.sum(1))
"""
    )


def test_the_total_norm_over_pending_sums_and_what_is_clipped_by_it(two_ranks):
    # From 2.9 on a single pending sum may be multiplied in place; before, that is refused.
    ways = (True, False) if BUILD.line >= (2, 9, 0) else (True,)
    two_ranks(
        BEGIN
        + f"WAYS = {ways}"
        + """
weight = torch.nn.Parameter(distribute_tensor(torch.ones(3, 6), mesh, [Replicate()]))
reference = torch.nn.Parameter(torch.ones(3, 6))
for parameter, batch in ((weight, sharded(0)), (reference, plain)):
    (batch @ parameter.t()).sum().backward()
    (parameter * 0.5).sum().backward()
for foreach in WAYS:
    norms = [torch.nn.utils.clip_grad_norm_([p], 0.5, foreach=foreach) for p in (weight, reference)]
    same(norms[0], norms[1])
    same(weight.grad, reference.grad)
"""
    )

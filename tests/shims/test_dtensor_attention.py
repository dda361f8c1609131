"""dtensor_attention_cpu: what stays sharded, also with masks."""

from __future__ import annotations

import pytest

from torchcompat.builds import TorchBuild, detect

pytestmark = pytest.mark.torch
BUILD = detect() or TorchBuild.parse("Unknown")

if not BUILD.known or BUILD.line < (2, 5, 0):
    pytest.skip("needs the public torch.distributed.tensor", allow_module_level=True)

BEGIN = """
torchcompat.apply("dtensor_attention_cpu")
attend = torch.nn.functional.scaled_dot_product_attention
seeded = torch.Generator().manual_seed(0)
plain = [torch.randn(2, 4, 6, 8, generator=seeded) for _ in range(3)]
weights = torch.randn(2, 4, 6, 8, generator=seeded)

def compare(mesh, placements, **named):
    inputs = [one.clone().requires_grad_() for one in plain]
    attend(*inputs, **named).backward(weights)
    placed = [distribute_tensor(one, mesh, placements).requires_grad_() for one in plain]
    out = attend(*placed, **named)
    out.backward(distribute_tensor(weights, mesh, placements))
    for one, reference in zip(placed, inputs):
        torch.testing.assert_close(one.grad.full_tensor(), reference.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.full_tensor(), attend(*plain, **named), rtol=1e-4, atol=1e-5)
    return out
"""


def test_attention_of_batches_and_heads(two_ranks):
    """Also with masks; a plain mask is refused as ever, and a revert leaves nothing behind."""
    two_ranks(
        BEGIN
        + """
for dim, stays in ((0, True), (1, True), (2, False), (3, False)):
    out = compare(mesh, [Shard(dim)], is_causal=dim % 2 == 0)
    assert out.placements == ((Shard(dim),) if stays else (Replicate(),)), out.placements
    assert out.to_local().shape[dim] == (2, 4, 6, 8)[dim] // (2 if stays else 1)
compare(mesh, [Shard(1)], scale=0.3)

heads = [distribute_tensor(one, mesh, [Shard(1)]) for one in plain]
mask = torch.randn(1, 4, 6, 6, generator=seeded)
reference = attend(*plain, attn_mask=mask)
for placement in (Replicate(), Shard(1), Shard(2)):
    placed = distribute_tensor(mask, mesh, [placement])
    out = attend(*heads, attn_mask=placed)
    assert out.placements == (Shard(1),)
    torch.testing.assert_close(out.full_tensor(), reference, rtol=1e-4, atol=1e-5)
try:
    attend(*heads, attn_mask=mask)
except RuntimeError as error:
    assert "mixed torch.Tensor and DTensor" in str(error), error
else:
    raise SystemExit("a plain mask was taken")
handlers = type(heads[0])._op_dispatcher._custom_op_handlers
kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
assert kernel in handlers
torchcompat.revert("dtensor_attention_cpu")
assert kernel not in handlers
"""
    )

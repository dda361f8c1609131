"""What the shared reproducers do not reach: partial inputs, writes in place, cached numbers."""

from __future__ import annotations

import pytest

from torchcompat.builds import TorchBuild, detect
from torchcompat.shims import dtensor_dim_ops, dtensor_pointwise_ops

BUILD = detect() or TorchBuild.parse("Unknown")

needs_dtensor = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not BUILD.known or BUILD.line < (2, 5, 0), reason="no public torch.distributed.tensor"
    ),
]


def test_no_operator_is_listed_twice():
    names = [
        name
        for module in (dtensor_dim_ops, dtensor_pointwise_ops)
        for attribute, group in vars(module).items()
        if attribute.startswith(("_KEEP", "_DROP", "_WHOLE", "_UNTIL", "_ALWAYS", "_LOG_SIGMOID"))
        for name in group
    ]
    assert len(names) > 60
    assert len(names) == len(set(names))


@pytest.mark.torch
def test_every_name_of_the_tables_is_an_overload_of_some_build():
    """A name that no build knows would be skipped in silence."""
    import torch

    for module in (dtensor_dim_ops, dtensor_pointwise_ops):
        for attribute, group in vars(module).items():
            if attribute.startswith(("_KEEP", "_DROP", "_WHOLE", "_UNTIL", "_ALWAYS", "_LOG_SIGMOID")):
                for name in group:
                    packet, _, overload = name.partition(".")
                    assert overload in getattr(torch.ops.aten, packet).overloads(), name


class TestDTensors:
    pytestmark = needs_dtensor

    def test_a_strided_shard_stays_only_where_its_dimension_does(self):
        """FSDP over tensor parallel makes such; moved, it would be another tensor."""
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.placement_types import _StridedShard

        from torchcompat.strategies import movable, place

        given = (_StridedShard(1, split_factor=2), Shard(1))
        assert place(given, lambda dim: dim)[1] == Shard(1)
        assert movable(given, lambda dim: dim - 1) == (Replicate(), Shard(1))
        assert movable(given, lambda dim: None) == (Replicate(), Replicate())

    @pytest.mark.slow
    def test_partial_inputs_writes_and_cached_numbers(self, python):
        out = python(
            """
            import tempfile
            import torch, torch.distributed as dist
            import torchcompat
            from torchcompat import reproduce
            from torch.distributed.tensor import DTensor, Partial

            for key in ("dtensor_pointwise_ops", "dtensor_dim_ops"):
                torchcompat.apply(key)
            store = tempfile.mktemp()
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
            mesh = reproduce.cpu_mesh()
            x = torch.linspace(-2, 2, 30).reshape(5, 6)

            def waiting():
                return DTensor.from_local(x.clone(), mesh, [Partial()])

            aten = torch.ops.aten
            # the same placements, other numbers: a cached sharding must not bring back the first ones
            for width in (2, 3):
                assert torch.equal(waiting().unfold(1, width, 1).full_tensor(), x.unfold(1, width, 1))
            for bound in (0.5, 1.0):
                got = aten.hardtanh_backward(waiting(), waiting(), -bound, bound)
                assert torch.equal(got.full_tensor(), aten.hardtanh_backward(x, x, -bound, bound))
                got = aten.leaky_relu(waiting(), bound)
                assert torch.equal(got.full_tensor(), aten.leaky_relu(x, bound))
            for keepdim in (False, True):
                got = waiting().median(0, keepdim=keepdim).values.full_tensor()
                assert torch.equal(got, x.median(0, keepdim=keepdim).values)

            for write in (lambda t: aten.leaky_relu_(t, 0.2), lambda t: aten.threshold_(t, 0.1, 0.0)):
                target = waiting()
                try:
                    write(target)
                except RuntimeError as error:
                    print("refused", type(error).__name__)
                else:
                    raise AssertionError(f"written: {target}")
            dist.destroy_process_group()
            """
        )
        assert out.stdout.count("refused RuntimeError") == 2

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


def test_only_means_of_nll_loss_are_gathered_and_loss_parallel_keeps_its_own(python):
    out = python(
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        from torch.distributed.tensor.parallel import loss_parallel
        from torch.testing._internal.distributed.fake_pg import FakeStore
        import torchcompat

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        torchcompat.apply("dtensor_nll_loss_weight", force=%s)

        def place(tensor, dim):
            return DTensor.from_local(tensor, mesh, [Shard(dim)], run_check=False)

        x, y = place(torch.randn(3, 4), 0), place(torch.tensor([0, 1, 2]), 0)
        for reduction in ("none", "sum", "mean"):
            print(*torch.nn.functional.cross_entropy(x, y, reduction=reduction).placements)
        with loss_parallel():
            classes = place(torch.randn(3, 2), 1)
            whole = DTensor.from_local(torch.tensor([0, 1, 2]), mesh, run_check=False)
            print(*torch.nn.functional.cross_entropy(classes, whole).placements)
        dist.destroy_process_group()
        """
        % (BUILD.line < (2, 14, 0))
    ).stdout
    none, total, mean, parallel = out.splitlines()[-4:]
    assert (none, mean) == ("S(0)", "R")
    assert total in ("P", "P(sum)", "Partial(sum)")
    assert parallel == "R"


@pytest.mark.slow
def test_compiled_eager_and_plain_numbers_agree_with_all_shims(two_ranks):
    # On one rank alone, torch from 2.13 on compiles no DTensor's backward.
    two_ranks(
        """
        from torchcompat import reproduce

        torchcompat.apply_all()
        f, plain = torch.nn.functional, torch.linspace(-2, 2, 30).view(5, 6)
        for function in (
            lambda x: x.sum(1) + 1,
            lambda x: f.logsigmoid(x).logsumexp(1),
            lambda x: x[...] * (x.detach() < 1.5).all(0),
        ):
            found = []
            for made, run in (
                (plain.clone(), function),
                (distribute_tensor(plain.clone(), mesh, [Shard(1)]), function),
                (
                    distribute_tensor(plain.clone(), mesh, [Shard(1)]),
                    torch.compile(function, backend="aot_eager"),
                ),
            ):
                x = made.requires_grad_()
                out = run(x)
                whole = out.full_tensor() if hasattr(out, "full_tensor") else out
                whole.sum().backward()
                found.append((reproduce.whole(whole), reproduce.whole(x.grad)))
            for values in zip(*found):
                for other in values[1:]:
                    torch.testing.assert_close(other, values[0])
        """
    )

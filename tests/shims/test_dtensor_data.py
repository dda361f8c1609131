"""The data of a DTensor: what may be assigned, and what is refused."""

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
needs_fsdp2 = pytest.mark.skipif(BUILD.known and BUILD.line < (2, 9, 0), reason="FSDP2 on gloo is 2.9's")
REFUSED = """
    def refused(kind, words, run):
        try:
            run()
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"not refused: {words}")
"""


def test_a_plain_tensor_is_refused_and_nothing_is_changed(two_ranks):
    two_ranks(
        REFUSED
        + """
    from torch.distributed.tensor import DTensor

    p = torch.nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
    with torchcompat.applied("dtensor_data"):
        refused(TypeError, "distribute_tensor(value, p.device_mesh, p.placements)",
                lambda: setattr(p, "data", torch.zeros(4, 2)))
        assert torch.equal(p.full_tensor(), torch.ones(4, 2)) and p.shape == (4, 2)
        refused(TypeError, "not a NoneType", lambda: setattr(p, "data", None))
        # What torch refuses stays so, before anything was taken over.
        refused(RuntimeError, "", lambda: setattr(p, "data", p.data.to(torch.int64)))
        assert p.to_local().dtype == torch.float32
    assert "data" not in vars(DTensor)
    """
    )


def test_what_was_assigned_is_shared_and_a_gradient_flows(two_ranks):
    two_ranks(
        """
    torchcompat.apply("dtensor_data")
    p = torch.nn.Parameter(distribute_tensor(torch.ones(5, 2), mesh, [Shard(0)]))
    x = distribute_tensor(torch.full((5, 2), 2.0), mesh, [Shard(0)])
    p.data = x
    assert isinstance(p, torch.nn.Parameter) and p.requires_grad and p.is_leaf
    with torch.no_grad():
        x.add_(1)
    assert torch.equal(p.full_tensor(), torch.full((5, 2), 3.0)), "as plain tensors share it"
    assert not p.data.requires_grad and p.to_local().requires_grad
    p.data = p.data
    (p * p).sum().backward()
    assert torch.equal(p.grad.full_tensor(), torch.full((5, 2), 6.0))
    wide = distribute_tensor(torch.ones(3, 4), mesh, [Replicate()])
    q = torch.nn.Parameter(x.detach().clone())
    q.data = wide
    assert q.shape == (3, 4) and q.placements == (Replicate(),) and q.to_local().shape == (3, 4)
    """
    )


@needs_fsdp2
def test_fsdp2_refuses_what_its_parameters_cannot_become(two_ranks):
    two_ranks(
        REFUSED
        + """
    from torch.distributed.fsdp import fully_shard

    torchcompat.apply("dtensor_data")
    model = torch.nn.Linear(3, 5)
    fully_shard(model, mesh=mesh)
    p = model.weight
    before = p.full_tensor()

    def to(value):
        return lambda: setattr(p, "data", value)

    refused(ValueError, "a shape of (5, 4) for the parameter 'weight', which has (5, 3)",
            to(distribute_tensor(torch.ones(5, 4), mesh, [Shard(0)])))
    refused(ValueError, "placements of (Replicate(),)",
            to(distribute_tensor(torch.ones(5, 3), mesh, [Replicate()])))
    other = dist.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("other",))
    refused(ValueError, "a device mesh of", to(distribute_tensor(torch.ones(5, 3), other, [Shard(0)])))
    refused(ValueError, "call contiguous()",
            to(distribute_tensor(torch.ones(3, 5), mesh, [Shard(1)]).t()))
    model(torch.ones(2, 3)).sum().backward()
    refused(ValueError, "from torch.float32 to torch.bfloat16 after the first forward",
            to(p.data.to(torch.bfloat16)))
    model.unshard()
    refused(RuntimeError, "call reshard() of its module first", to(p.data * 2))
    model.reshard()
    assert torch.equal(p.full_tensor(), before) and p is model.weight
    p.data = p.data * 2
    assert torch.equal(p.full_tensor(), before * 2)
    want = (before * 2).t() + model.bias.full_tensor()
    torch.testing.assert_close(model(torch.eye(3)), want)
    """
    )


@needs_fsdp2
def test_fsdp2_gathers_from_another_part_of_the_same_memory(two_ranks):
    two_ranks(
        """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torchcompat.apply("dtensor_data")
    model = torch.nn.Linear(3, 4, bias=False)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 3)).sum().backward()
    # All parameters in one piece of memory, as fused optimizers lay them out.
    memory = torch.arange(12.0)
    for start in (0, 6, 0):
        local = memory[start : start + 6].view(2, 3)
        model.weight.data = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
        want = torch.cat([local, local]).t()
        assert torch.equal(model(torch.eye(3)), want), start
        model.reshard()
    """
    )


def test_reading_data_is_compiled_as_before(two_ranks):
    two_ranks(
        """
    def double(p):
        return p.data * 2

    p = torch.nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
    with torchcompat.applied("dtensor_data"):
        got = torch.compile(double, backend="aot_eager", fullgraph=True)(p)
        assert torch.equal(got.full_tensor(), torch.full((4, 2), 2.0)) and not got.requires_grad
    """
    )

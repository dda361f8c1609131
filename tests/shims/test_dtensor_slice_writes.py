"""A copy that brings back what is written to it, alone and as the local tensor of a DTensor's slice."""

from __future__ import annotations

import copy
import io

import pytest

from torchcompat.builds import TorchBuild, detect
from torchcompat.write_through import write_through

BUILD = detect() or TorchBuild.parse("Unknown")

pytestmark = pytest.mark.torch


@pytest.fixture
def written():
    """A copy of a tensor of six elements, the tensor, and the number of writes brought back."""
    import torch

    home, copied, counted = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3), []

    def put_back():
        counted.append(1)
        home.copy_(copied)

    return write_through(copied, put_back), home, counted


WRITES = {
    "zero_": (lambda x: x.zero_(), 1),
    "a row": (lambda x: x[0].mul_(2), 1),
    "a view of a view": (lambda x: x.view(-1)[1:4].t().add_(1), 1),
    "chunks": (lambda x: [part.add_(1) for part in x.chunk(2)], 2),
    "a list": (lambda x: __import__("torch")._foreach_add_(list(x.unbind(0)), 1), 2),
    "out=": (lambda x: __import__("torch").add(x[0].clone(), 1, out=x[1]), 1),
    "assignment": (lambda x: x.__setitem__((slice(None), 1), 7.0), 1),
    "reading": (lambda x: (x + 1, x[0] @ x[1], x.clone().zero_(), x.sum().zero_()), 0),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_is_brought_back(written, name):
    view, home, counted = written
    write, times = WRITES[name]
    want = home.clone()
    write(want)
    write(view)
    assert home.tolist() == want.tolist() == view.tolist()
    assert len(counted) == times


def test_an_operator_in_place_returns_its_tensor(written):
    view, _, _ = written
    assert view.add_(1) is view


def test_only_views_are_of_the_class(written):
    import torch

    view, _, _ = written
    assert type(view[0]) is type(view.t()) is type(view) is not torch.Tensor
    assert type(view + 1) is type(view.clone()) is type(view.sum()) is torch.Tensor


def test_copies_pickles_and_text_are_those_of_a_plain_tensor(written):
    import torch

    view, home, _ = written
    assert repr(view) == repr(home)
    assert view.tolist() == home.tolist()
    made = copy.deepcopy({"a": view, "b": view})
    assert type(made["a"]) is torch.Tensor
    assert made["a"] is made["b"]
    made["a"].zero_()
    assert view.tolist() == home.tolist() != made["a"].tolist()
    file = io.BytesIO()
    torch.save(view[1], file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is torch.Tensor
    assert loaded.tolist() == home[1].tolist()


def test_numpy_goes_on_to_refuse_what_has_a_gradient(written):
    np = pytest.importorskip("numpy")
    view, home, _ = written
    assert np.array_equal(view.numpy(), home.numpy())
    with pytest.raises(RuntimeError, match="requires grad"):
        view.detach().requires_grad_().numpy()


@pytest.mark.skipif(not BUILD.known or BUILD.line < (2, 8, 0), reason="aten.select has no strategy")
def test_slices_of_dtensors_on_two_ranks(two_ranks):
    two_ranks(
        """
        torchcompat.apply("dtensor_slice_writes")
        plain = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))

        def made(mesh, *placements):
            return distribute_tensor(plain.clone(), mesh, placements)

        def same(got, want):
            assert torch.equal(got.full_tensor(), want), (got, want)

        # every dimension of the mesh
        for shape, placements in (((2, 1), "00"), ((1, 2), "00"), ((2, 1), "01"), ((1, 2), "10")):
            x = made(init_device_mesh("cpu", shape), *(Shard(int(dim)) for dim in placements))
            want = plain.clone()
            for y in (x, want):
                y[1:4].mul_(2)
                y[3].zero_()
                y[:, 1:3].add_(1)
            same(x, want)

        # a gradient through a write: rows 1 and 2 no longer come from x
        x, want = made(mesh, Shard(0)).requires_grad_(), plain.clone().requires_grad_()
        for leaf in (x, want):
            y = leaf * 3
            y[1:3].mul_(0)
            y.square().sum().backward()
        same(x.grad, want.grad)

        # reading: gradients, and compiled
        x, want = made(mesh, Shard(0)).requires_grad_(), plain.clone().requires_grad_()
        local = x[1:4].to_local()
        (local**2).sum().backward()
        (want[1:4] ** 2).sum().backward()
        same(x.grad, want.grad)
        double = torch.compile(lambda part: part * 2, backend="aot_eager")
        same(double(x.detach()[1:4]), plain[1:4] * 2)

        # what is not moved is torch's own, as is everything after a revert
        assert type(made(mesh, Shard(0))[:, 1:3].to_local()) is torch.Tensor
        assert type(made(mesh, Replicate())[1:3].to_local()) is torch.Tensor
        torchcompat.revert("dtensor_slice_writes")
        assert type(made(mesh, Shard(0))[1:3].to_local()) is torch.Tensor
        """
    )

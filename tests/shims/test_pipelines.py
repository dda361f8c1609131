"""Pipeline schedules: what a step leaves in the gradients, and what a batch of messages waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import torchcompat
from torchcompat.shims.pipeline_gloo_messages import _All
from torchcompat.shims.pipeline_grad_accumulation import edits

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def _stepped(run: Any, *, scale: bool = True) -> Any:
    """Run a step of a schedule of one stage, whose parameter has the gradient 5 already."""
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.grad = torch.full((1, 1), 5.0)
    schedule = SimpleNamespace(scale_grads=scale, _stage=SimpleNamespace(submod=layer))
    edits()[0].make(lambda self: run(layer.weight))(schedule)  # type: ignore[attr-defined]
    return layer.weight.grad


def test_what_a_step_computes_is_added() -> None:
    def run(weight: Any) -> None:
        assert weight.grad is None
        weight.grad = torch.full((1, 1), 2.0)

    assert _stepped(run).item() == 7


def test_a_step_that_computes_nothing_keeps_the_gradients() -> None:
    assert _stepped(lambda weight: None).item() == 5


def test_without_scaling_gradients_stay_where_they_are() -> None:
    def run(weight: Any) -> None:
        assert weight.grad.item() == 5
        weight.grad.add_(2)

    assert _stepped(run, scale=False).item() == 7


def test_a_step_that_fails_keeps_the_gradients() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.grad = torch.full((1, 1), 5.0)
    schedule = SimpleNamespace(scale_grads=True, _stages=[SimpleNamespace(submod=layer)])

    def fail(self: Any) -> None:
        raise KeyError("a message")

    with pytest.raises(KeyError, match="a message"):
        edits()[0].make(fail)(schedule)  # type: ignore[attr-defined]
    assert layer.weight.grad.item() == 5


def test_every_message_is_waited_for() -> None:
    waited: list[int] = []
    works = [SimpleNamespace(wait=lambda n=n: waited.append(n)) for n in range(3)]
    assert _All(works).wait()
    assert waited == [0, 1, 2]


def test_a_single_message_is_left_to_torch() -> None:
    from torch.distributed.pipelining import schedules

    with torchcompat.applied("pipeline_gloo_messages"):
        assert not schedules._batch_p2p([])

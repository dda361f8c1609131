"""State dicts of optimizers: what goes on after loading equals what was not interrupted."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import torchcompat
from torchcompat import resume

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

KEYS = (
    "dcp_optimizer_init",
    "dcp_adamw_checkpoint",
    "dcp_empty_param_group",
    "dcp_stateless_optimizer",
    "dcp_full_flat_optimizer",
    "dcp_tied_optimizer",
    "dcp_missing_optimizer_state",
    "dcp_frozen_optimizer_state",
)
OPTIMIZERS = {
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "ASGD": {"t0": 1},
    "Rprop": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adadelta": {},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "SGD": {"lr": 0.01, "momentum": 0.9},
}


@pytest.fixture(autouse=True)
def _applied() -> Any:
    import torch.distributed.checkpoint.state_dict  # noqa: F401

    with contextlib.ExitStack() as stack:
        for key in KEYS:
            stack.enter_context(torchcompat.applied(key))
        yield


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_whose_state_was_asked_for_trains_as_any_other(name: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    plain, asked = resume.layers(), resume.layers()
    make = getattr(torch.optim, name)
    optimizers = [make(model.parameters(), **OPTIMIZERS[name]) for model in (plain, asked)]
    get_optimizer_state_dict(asked, optimizers[1])
    assert all(p.grad is None for p in asked.parameters())
    resume.train(plain, optimizers[:1], steps=3)
    resume.train(asked, optimizers[1:], steps=3)
    for a, b in zip(plain.parameters(), asked.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_unused_parameters_are_saved(name: str, flat: bool) -> None:
    make = getattr(torch.optim, name)
    resume.assert_same_resumed(
        lambda model: make(model.parameters(), **OPTIMIZERS[name]),
        used=(0, 1),
        flatten_optimizer_state_dict=flat,
    )


def test_gradients_of_others_are_kept() -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = resume.layers()
    optimizer = resume.adamw(model)
    resume.train(model, [optimizer], steps=1, used=(0,))
    model[0](torch.ones(1, 4)).sum().backward()
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    get_optimizer_state_dict(model, optimizer)
    for param, grad in zip(model.parameters(), grads):
        assert (param.grad is None) == (grad is None)
        assert grad is None or torch.equal(param.grad, grad)


def test_an_optimizer_of_another_package_gets_torchs_step() -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for param in group["params"]:
                    self.state[param]["calls"] = self.state[param].get("calls", 0) + 1

    model = resume.layers()
    state: Any = get_optimizer_state_dict(model, Counting(model.parameters(), lr=0.1))
    assert {one["calls"] for one in state["state"].values()} == {1}


def test_groups_without_parameters_that_cannot_be_told_apart_are_refused() -> None:
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    model = resume.layers()
    state: Any = get_optimizer_state_dict(model, resume.adamw(model))
    groups = [{"params": [*model.parameters()]}, {"params": [], "lr": 0.5}]
    with pytest.raises(ValueError, match="1 parameter groups of the optimizer have no parameters"):
        set_optimizer_state_dict(model, torch.optim.AdamW(groups), state)


@pytest.mark.parametrize("flat", [False, True])
def test_a_missing_state_is_refused_by_name(flat: bool) -> None:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    model = resume.layers()
    optimizer = resume.adamw(model)
    resume.train(model, [optimizer], steps=1)

    def options() -> Any:
        return StateDictOptions(flatten_optimizer_state_dict=flat)

    state: Any = get_optimizer_state_dict(model, optimizer, options=options())
    states = state if flat else state["state"]
    for name in [name for name in states if "1.bias" in name and "param_groups" not in name]:
        del states[name]
    fresh = resume.layers()
    with pytest.raises(RuntimeError, match=r"state for '1\.bias'.*strict=False"):
        set_optimizer_state_dict(fresh, resume.adamw(fresh), state, options=options())


def test_missing_states_of_an_optimizer_that_had_none_are_loaded_as_they_were() -> None:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    model = resume.layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True)
    )
    set_optimizer_state_dict(
        model, optimizer, state, options=StateDictOptions(flatten_optimizer_state_dict=True)
    )
    assert not any(optimizer.state.values())

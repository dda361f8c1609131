"""Distributed state dicts of optimizers without state, such as SGD without momentum."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import resume
from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..optimizer_states import changed_by, names_of, names_used, prepare
from ..shim import Probe, Reproducer, Shim, absent, drifted, present

_INIT = "torch.distributed.checkpoint.state_dict:_init_optim_state"
_SPLIT = "torch.distributed.checkpoint.state_dict:_split_optim_state_dict"
_LOAD = "torch.distributed.checkpoint.state_dict:_load_optim_state_dict"


def probe() -> Probe:
    """Look whether loading asks the states for a device."""
    if changed_by("_split_optim_state_dict", "dcp_stateless_optimizer"):
        return absent("optimizers without state are loaded by their groups, by this shim", cured=True)
    names, split = names_used("_load_optim_state_dict"), names_used("_split_optim_state_dict")
    if names is None or split is None or not {"_split_optim_state_dict", "full_state_dict"} <= names:
        return drifted("the state of optimizers is loaded differently")
    if "all" not in split:
        return absent("a state dict without states is split")
    return present("a state dict without states is taken for one without names")


def _tensors(value: Any) -> bool:
    """Whether there is a tensor with a dimension in nested dictionaries and lists."""
    if isinstance(value, dict):
        return any(_tensors(one) for one in value.values())
    if isinstance(value, (list, tuple)):
        return any(_tensors(one) for one in value)
    return bool(getattr(value, "ndim", 0))


def _stateless(optimizer: Any) -> bool:
    """Whether an optimizer whose state torch has initialised keeps no tensors."""
    if _tensors(list(optimizer.state.values())):
        return False
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if prepare(optimizer, [p for p in params if p.requires_grad]):
        return not _tensors(list(optimizer.state.values()))
    # Torch initialises nothing where there are gradients, and then nobody can tell.
    return all(p.grad is None for p in params)


def _without_tensors(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Keep the groups, and of the states those that have no tensors."""
    slim = {name: value for name, value in state_dict.items() if not _tensors(value)}
    if "state" in state_dict:
        slim["state"] = {n: s for n, s in state_dict["state"].items() if not _tensors(s)}
    return slim


def edits() -> Sequence[Edit]:
    """Split by the groups' names, and hand over what has no tensors without a device."""
    import torch.distributed as dist
    from torch.distributed.checkpoint import state_dict as module

    private: Any = module

    def make_init(original: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(original, updated=())
        def _init_optim_state(optim: Any) -> None:
            params = [p for group in optim.param_groups for p in group["params"]]
            # 2.4 refuses gradients here, and so an SGD that has been trained.
            if optim.state or all(p.grad is None for p in params):
                original(optim)

        return _init_optim_state

    def make_split(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _split_optim_state_dict(model: Any, optim: Any, optim_state_dict: Any, info: Any) -> Any:
            saved = optim_state_dict["param_groups"]
            by_name = {n: g for g in saved for n in g.get("params", ()) if isinstance(n, str)}
            if optim_state_dict["state"] or not by_name:
                return original(model, optim, optim_state_dict, info)
            groups = []
            for group in optim.param_groups:
                names = [name for name in names_of(info, group) if name in by_name]
                options = by_name[names[0]] if names else group
                groups.append({**options, "params": names})
            return {"state": {}, "param_groups": groups}

        return _split_optim_state_dict

    def make_load(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _load_optim_state_dict(model: Any, optimizers: Any, state_dict: Any, info: Any) -> Any:
            if not info.handle_optim or not info.full_state_dict or info.fsdp_modules:
                return original(model, optimizers, state_dict, info)
            with_state: list[Any] = []
            without: list[Any] = []
            for optim in optimizers:
                private._init_optim_state(optim)
                (without if _stateless(optim) else with_state).append(optim)
            if without:
                slim = [_without_tensors(state_dict) if state_dict else None]
                if info.broadcast_from_rank0:
                    dist.broadcast_object_list(slim, src=0)
                local = dataclasses.replace(info, full_state_dict=False, broadcast_from_rank0=False)
                original(model, tuple(without), slim[0], local)
            if with_state:
                original(model, tuple(with_state), state_dict, info)
            return None

        return _load_optim_state_dict

    replaced: list[Edit] = [ReplaceAttr(_SPLIT, make_split), ReplaceAttr(_LOAD, make_load)]
    texts = inspect.unwrap(private._init_optim_state).__code__.co_consts
    if any("gradients are not None" in str(text) for text in texts):  # the refusal of 2.4
        replaced.append(ReplaceAttr(_INIT, make_init))
    return replaced


def _sgd(model: Any) -> Any:
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.01)


def full() -> None:
    """A full state dict of SGD."""
    resume.assert_same_resumed(_sgd, full_state_dict=True)


def broadcast() -> None:
    """A full state dict that rank 0 has, with a different learning rate."""
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    model = resume.layers()
    optimizer = _sgd(model)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    saved: Any = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True)
    )
    for group in saved["param_groups"]:
        group["lr"] = 0.25
    new = torch.optim.SGD(model.parameters(), lr=0.5)
    set_optimizer_state_dict(model, new, saved if dist.get_rank() == 0 else {}, options=options)
    if new.param_groups[0]["lr"] != 0.25:
        raise AssertionError(f"the learning rate is {new.param_groups[0]['lr']}, want 0.25")


def several() -> None:
    """Two SGDs of one model."""
    import torch

    def make(model: Any) -> Any:
        rest = [*model[1].parameters(), *model[2].parameters()]
        return (torch.optim.SGD(model[0].parameters(), lr=0.01), torch.optim.SGD(rest, lr=0.03))

    resume.assert_same_resumed(make)


def trained() -> None:
    """The state of an SGD that has been trained."""
    resume.assert_same_resumed(_sgd)


SHIM = Shim(
    key="dcp_stateless_optimizer",
    summary="set_optimizer_state_dict of SGD without momentum: full state dicts, several optimizers",
    symptom=(
        "AssertionError: Expected device to be set (without a text up to 2.9) from "
        "set_optimizer_state_dict with full_state_dict; with several optimizers ValueError: loaded "
        "state dict has a different number of parameter groups; on 2.4 RuntimeError: state_dict can "
        "only be used if the optimizer states are initialized, from get_optimizer_state_dict too"
    ),
    cause=(
        "a state dict without states counts as one that has no names, and so is not split; for a full "
        "one the device is taken from the states; 2.4 takes no state for not initialised."
    ),
    cure=(
        "A state dict without states is split by the names in its groups. Optimizers that have no "
        "tensors get theirs without a device, from rank 0 as an object."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/133415",
        "https://github.com/pytorch/pytorch/pull/135535",
    ),
    affected=Affected(since=None),
    modules=("torch.distributed.checkpoint.state_dict", "torch.optim"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="full",
            run=full,
            expect=r"AssertionError: (Expected device to be set)?$|RuntimeError: state_dict can only be",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="broadcast",
            run=broadcast,
            expect=r"AssertionError: (Expected device to be set)?$",
            ranks=2,
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="several",
            run=several,
            expect=r"different number of parameter groups|RuntimeError: state_dict can only be used",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="trained",
            run=trained,
            expect=r"RuntimeError: state_dict can only be used if the optimizer states are initialized",
            affected=Affected(since=None, fixed_in=("2.5.0",)),
            preload=resume.PRELOAD,
        ),
    ),
    removable_when="optimizers without state are loaded as others are",
    after=("dcp_optimizer_init", "dcp_empty_param_group"),
    notes=(
        "With broadcast_from_rank0 the groups go through torch.distributed.broadcast_object_list, "
        "which pickles them."
    ),
)

"""The optimizer state of parameters that are frozen for a while."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import resume
from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..optimizer_states import changed_by, names_used, prepare
from ..shim import Probe, Reproducer, Shim, absent, drifted, present

_SPLIT = "torch.distributed.checkpoint.state_dict:_split_optim_state_dict"
_LOAD = "torch.distributed.checkpoint.state_dict:_load_optim_state_dict"
_UNFLATTEN = "torch.distributed.checkpoint.state_dict:_unflatten_optim_state_dict"


def probe() -> Probe:
    """Look whether states are loaded for parameters that need gradients only."""
    if changed_by("_split_optim_state_dict", "dcp_frozen_optimizer_state"):
        return absent("states of frozen parameters are loaded, by this shim", cured=True)
    names = names_used("_split_optim_state_dict")
    if names is None or names_used("_unflatten_optim_state_dict") is None:
        return drifted("the state of optimizers is loaded differently")
    if "requires_grad" not in names:
        return absent("states are loaded whether or not a parameter needs gradients")
    return present("states are loaded only for parameters that need gradients")


def edits() -> Sequence[Edit]:
    """Load the saved state of frozen parameters too."""
    import torch.distributed as dist
    from torch.distributed.checkpoint import state_dict as module

    private: Any = module

    def frozen(optim: Any) -> list[Any]:
        return [p for g in optim.param_groups for p in g["params"] if not p.requires_grad]

    def loadable(optim: Any, info: Any) -> Iterator[str]:
        for param in frozen(optim):
            # A full state dict is compared with the optimizer's own, which must have as much.
            if not info.full_state_dict or optim.state.get(param):
                yield from info.fqn_param_mapping[param]

    def saved_states(state_dict: dict[str, Any], names: Sequence[str]) -> list[str]:
        if "state" in state_dict:
            return [name for name in names if state_dict["state"].get(name)]
        return [n for n in names if any(key.startswith(f"state.{n}.") for key in state_dict)]

    def make_split(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _split_optim_state_dict(model: Any, optim: Any, optim_state_dict: Any, info: Any) -> Any:
            split = original(model, optim, optim_state_dict, info)
            saved = optim_state_dict["state"]
            kept = {name: saved[name] for name in loadable(optim, info) if name in saved}
            return {**split, "state": {**split["state"], **kept}}

        return _split_optim_state_dict

    def make_unflatten(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _unflatten_optim_state_dict(optim: Any, state_dict: dict[str, Any], info: Any) -> Any:
            nested = original(optim, state_dict, info)
            kept = {name: _under(f"state.{name}.", state_dict) for name in loadable(optim, info)}
            kept = {name: state for name, state in kept.items() if state}
            return {**nested, "state": {**nested["state"], **kept}}

        return _unflatten_optim_state_dict

    def make_load(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _load_optim_state_dict(model: Any, optimizers: Any, state_dict: Any, info: Any) -> Any:
            mapping = info.fqn_param_mapping
            bare = [(o, p) for o in optimizers for p in frozen(o) if not o.state.get(p)]
            if bare and info.handle_optim and info.full_state_dict and not info.fsdp_modules:
                there = saved_states(state_dict, [n for _, p in bare for n in mapping[p]])
                if info.broadcast_from_rank0:
                    box = [there]
                    dist.broadcast_object_list(box, src=0)
                    there = box[0]
                for optim in optimizers:
                    wanted = [p for o, p in bare if o is optim and set(mapping[p]) & set(there)]
                    if wanted:
                        private._init_optim_state(optim)
                        prepare(optim, wanted)
            return original(model, optimizers, state_dict, info)

        return _load_optim_state_dict

    return [
        ReplaceAttr(_SPLIT, make_split),
        ReplaceAttr(_UNFLATTEN, make_unflatten),
        ReplaceAttr(_LOAD, make_load),
    ]


def _under(prefix: str, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return what is saved under a prefix, nested by the dots in the rest of the name."""
    found: dict[str, Any] = {}
    for key, value in state_dict.items():
        if key.startswith(prefix):
            *way, last = key[len(prefix) :].split(".")
            inner = found
            for name in way:
                inner = inner.setdefault(name, {})
            inner[last] = value
    return found


def _thawed(**options: Any) -> None:
    """Train, freeze a layer, save and load, thaw the layer, train on; nothing may be lost."""
    import copy

    import torch
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    old, new = resume.layers(), resume.layers()
    optimizers = resume.adamw(old), resume.adamw(new)
    resume.train(old, optimizers[:1], steps=3)
    old[1].requires_grad_(False)
    new[1].requires_grad_(False)
    chosen = StateDictOptions(**options)
    state: Any = copy.deepcopy(get_optimizer_state_dict(old, optimizers[0], options=chosen))
    set_optimizer_state_dict(new, optimizers[1], state, options=StateDictOptions(**options))
    new.load_state_dict(old.state_dict())
    old[1].requires_grad_(True)
    new[1].requires_grad_(True)
    resume.train(old, optimizers[:1], steps=2)
    resume.train(new, optimizers[1:], steps=2)
    for a, b in zip(old.parameters(), new.parameters()):
        if not torch.equal(a, b):
            difference = float((a - b).detach().abs().max())
            raise AssertionError(f"training goes on differently: parameters differ by {difference:.1e}")


def nested() -> None:
    """A nested state dict."""
    _thawed()


def flat() -> None:
    """A flattened one."""
    _thawed(flatten_optimizer_state_dict=True)


def full() -> None:
    """A full one, which every rank has."""
    _thawed(full_state_dict=True)


SHIM = Shim(
    key="dcp_frozen_optimizer_state",
    summary="set_optimizer_state_dict drops the state of parameters that are frozen",
    symptom=(
        "silent: a layer that was frozen when the optimizer was loaded, and is thawed later, goes on "
        "without its averages; parameters differ from those of a run that was not interrupted"
    ),
    cause=(
        "get_optimizer_state_dict returns the state of every parameter that has one, "
        "set_optimizer_state_dict loads it where requires_grad is True."
    ),
    cure="What the state dict has is loaded, frozen or not.",
    upstream=("https://github.com/pytorch/pytorch/issues/192202",),
    affected=Affected(since=None),
    modules=("torch.distributed.checkpoint.state_dict", "torch.optim"),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=run.__name__,
            run=run,
            expect=r"AssertionError: training goes on differently",
            preload=resume.PRELOAD,
        )
        for run in (nested, flat, full)
    ),
    removable_when="states of frozen parameters are loaded",
    after=(
        "dcp_adamw_checkpoint",
        "dcp_empty_param_group",
        "dcp_stateless_optimizer",
        "dcp_full_flat_optimizer",
        "dcp_tied_optimizer",
        "dcp_missing_optimizer_state",
    ),
    notes=(
        "torch.distributed.checkpoint.load reads what the new optimizer is asked for: of a parameter "
        "that is frozen before its first step there is no state to read into. Thaw it before "
        "get_optimizer_state_dict, and freeze it again. Full state dicts: for optimizers of torch.optim "
        "only, or those that have the state already."
    ),
)

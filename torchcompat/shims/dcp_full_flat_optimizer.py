"""Full state dicts of optimizers with flattened names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import resume
from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..optimizer_states import changed_by, names_used
from ..shim import Probe, Reproducer, Shim, absent, drifted, present

_LOAD = "torch.distributed.checkpoint.state_dict:_load_optim_state_dict"


def probe() -> Probe:
    """Look whether the state dict to compare with is flattened too."""
    if changed_by("_load_optim_state_dict", "dcp_full_flat_optimizer"):
        return absent("names are unflattened before, by this shim", cured=True)
    names = names_used("_load_optim_state_dict")
    if names is None or not {"_unflatten_optim_state_dict", "_get_optim_state_dict"} <= names:
        return drifted("the state of optimizers is loaded differently")
    if "flatten_optimizer_state_dict" in names:
        return absent("loading knows of flattened names")
    return present("a nested state dict is compared with a flattened one")


def edits() -> Sequence[Edit]:
    """Unflatten the names first, then load as a nested state dict."""
    from torch.distributed.checkpoint import state_dict as module

    private: Any = module

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _load_optim_state_dict(model: Any, optimizers: Any, state_dict: Any, info: Any) -> Any:
            flat = info.flatten_optimizer_state_dict and "state" not in state_dict
            if not info.handle_optim or not info.full_state_dict or info.fsdp_modules or not flat:
                return original(model, optimizers, state_dict, info)
            nested_info = dataclasses.replace(info, flatten_optimizer_state_dict=False)
            for optim in optimizers:
                private._init_optim_state(optim)
                # With broadcast_from_rank0 only rank 0 has a state dict.
                nested = state_dict and private._unflatten_optim_state_dict(optim, state_dict, info)
                original(model, (optim,), nested, nested_info)
            return None

        return _load_optim_state_dict

    return [ReplaceAttr(_LOAD, make)]


def full() -> None:
    """AdamW and a flattened full state dict."""
    resume.assert_same_resumed(resume.adamw, full_state_dict=True, flatten_optimizer_state_dict=True)


def broadcast() -> None:
    """The same from rank 0, where the other rank has nothing, which gets it whole."""
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    model = resume.layers()
    optimizer = resume.adamw(model)
    resume.train(model, [optimizer], steps=2)
    saved = get_optimizer_state_dict(
        model,
        optimizer,
        options=StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True),
    )
    fresh = resume.layers()
    new = resume.adamw(fresh)
    set_optimizer_state_dict(
        fresh,
        new,
        saved if dist.get_rank() == 0 else {},
        options=StateDictOptions(
            full_state_dict=True, broadcast_from_rank0=True, flatten_optimizer_state_dict=True
        ),
    )
    for param, other in zip(model.parameters(), fresh.parameters()):
        for name, value in optimizer.state[param].items():
            if not torch.equal(value, new.state[other][name]):
                raise AssertionError(f"{name} came back differently")


SHIM = Shim(
    key="dcp_full_flat_optimizer",
    summary="set_optimizer_state_dict with full_state_dict and flatten_optimizer_state_dict",
    symptom=(
        "KeyError: 'param_groups.0.params.0', or on several ranks\n"
        "KeyError: 'param_groups' or\n"
        "KeyError: 'state', from set_optimizer_state_dict"
    ),
    cause=(
        "the saved state dict is unflattened and then compared with that of the optimizer, which has "
        "been flattened since the options say so."
    ),
    cure="Names are unflattened first, and the state dict is loaded as a nested one.",
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/checkpoint/state_dict.py",
    ),
    affected=Affected(since=None),
    modules=("torch.distributed.checkpoint.state_dict",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="full",
            run=full,
            expect=r"KeyError: 'param_groups\.0\.params\.0'",
            affected=Affected(since="2.5.0"),
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="broadcast",
            run=broadcast,
            expect=r"KeyError: '(param_groups|state)",
            ranks=2,
            preload=resume.PRELOAD,
        ),
    ),
    removable_when="the two options go together",
    after=("dcp_stateless_optimizer",),
    notes="On 2.4 a full state dict that every rank has is loaded right, one from rank 0 is not.",
)

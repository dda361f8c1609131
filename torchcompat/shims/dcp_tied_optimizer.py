"""Flattened state dicts of optimizers whose model has tied weights."""

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

_UNFLATTEN = "torch.distributed.checkpoint.state_dict:_unflatten_optim_state_dict"


def probe() -> Probe:
    """Look whether unflattening knows of shared parameters."""
    if changed_by("_unflatten_optim_state_dict", "dcp_tied_optimizer"):
        return absent("of a shared parameter the saved name is asked for, by this shim", cured=True)
    names = names_used("_unflatten_optim_state_dict")
    if names is None or "fqn_param_mapping" not in names:
        return drifted("the state of optimizers is unflattened differently")
    if "shared_params_mapping" in names:
        return absent("of a shared parameter the saved name is asked for")
    return present("a shared parameter is asked for by all of its names")


def edits() -> Sequence[Edit]:
    """Ask for the names of a shared parameter that have been saved."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _unflatten_optim_state_dict(optim: Any, state_dict: dict[str, Any], info: Any) -> Any:
            mapping = dict(info.fqn_param_mapping)
            for group in optim.param_groups:
                for param in group["params"]:
                    names = [n for n in mapping[param] if f"param_groups.{n}.lr" in state_dict]
                    if len(mapping[param]) > 1 and names:
                        mapping[param] = names
            known = dataclasses.replace(info, fqn_param_mapping=mapping)
            return original(optim, state_dict, known)

        return _unflatten_optim_state_dict

    return [ReplaceAttr(_UNFLATTEN, make)]


def _tied() -> Any:
    model = resume.layers()
    model[2].weight = model[0].weight
    return model


def flat() -> None:
    """First and last layer share their weight."""
    resume.assert_same_resumed(resume.adamw, model=_tied, flatten_optimizer_state_dict=True)


def disk() -> None:
    """The same through a checkpoint."""
    resume.assert_same_resumed(resume.adamw, model=_tied, disk=True, flatten_optimizer_state_dict=True)


SHIM = Shim(
    key="dcp_tied_optimizer",
    summary="flattened optimizer state dicts of models with tied weights cannot be loaded",
    symptom="KeyError: 'state.<second name of the weight>.step' from set_optimizer_state_dict",
    cause=(
        "a shared parameter is saved under one of its names, and _unflatten_optim_state_dict asks for "
        "all of them."
    ),
    cure="Only the names that were saved are asked for.",
    upstream=(
        "https://github.com/pytorch/pytorch/pull/148825",
        "https://github.com/pytorch/pytorch/issues/128011",
    ),
    affected=Affected(since=None, fixed_in=("2.7.0",)),
    modules=("torch.distributed.checkpoint.state_dict",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="flat",
            run=flat,
            expect=r"KeyError: 'state\.2\.weight\.",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="disk",
            run=disk,
            expect=r"KeyError: 'state\.2\.weight\.",
            ranks=1,
            preload=resume.PRELOAD,
        ),
    ),
    removable_when="torch 2.6 and older are no longer supported",
    after=("dcp_adamw_checkpoint", "dcp_empty_param_group"),
)

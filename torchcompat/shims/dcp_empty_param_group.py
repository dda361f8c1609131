"""A parameter group without parameters takes the options of another from a state dict."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import resume
from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..optimizer_states import PartOf, changed_by, names_used
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_SPLIT = "torch.distributed.checkpoint.state_dict:_split_optim_state_dict"
_UNFLATTEN = "torch.distributed.checkpoint.state_dict:_unflatten_optim_state_dict"
_NEST = "torch.distributed._state_dict_utils:_unflatten_state_dict"
_NEST_ALIAS = "torch.distributed.checkpoint.state_dict:_unflatten_state_dict"


def probe() -> Probe:
    """Look whether groups are matched by what stands in a loop's variable."""
    if changed_by("_split_optim_state_dict", "dcp_empty_param_group"):
        return absent("groups without parameters are matched by their order, by this shim", cured=True)
    names, flat = names_used("_split_optim_state_dict"), names_used("_unflatten_optim_state_dict")
    if names is None or flat is None or not {"pg_mapping", "loaded_param_group"} <= names:
        return drifted("parameter groups are matched differently")
    if "first_param_fqn" not in flat:
        return absent("a group need not have a first parameter")
    return present("groups are found by the names of their parameters")


def _empty(groups: Any) -> list[int]:
    return [index for index, group in enumerate(groups) if not group.get("params")]


def _joined(groups: Sequence[Any], empty: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Put groups without parameters back to their places."""
    joined = list(groups)
    for place, group in zip(places, empty):
        joined.insert(place, {**group, "params": []})
    return joined


def edits() -> Sequence[Edit]:
    """Load the groups that have parameters as ever, and the others by their order."""

    def make_split(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _split_optim_state_dict(model: Any, optim: Any, optim_state_dict: Any, info: Any) -> Any:
            places, saved = _empty(optim.param_groups), optim_state_dict["param_groups"]
            empty = [saved[index] for index in _empty(saved)]
            if not places:
                return original(model, optim, optim_state_dict, info)
            if len(places) != len(empty):
                raise ValueError(
                    f"{len(places)} parameter groups of the optimizer have no parameters, and "
                    f"{len(empty)} of the state dict: which belongs to which cannot be told"
                )
            full = [group for group in optim.param_groups if group["params"]]
            rest = {**optim_state_dict, "param_groups": [g for g in saved if g.get("params")]}
            split = original(model, PartOf(optim, groups=full), rest, info)
            return {**split, "param_groups": _joined(split["param_groups"], empty, places)}

        return _split_optim_state_dict

    def make_unflatten(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _unflatten_optim_state_dict(optim: Any, state_dict: dict[str, Any], info: Any) -> Any:
            places = _empty(optim.param_groups)
            full = [group for group in optim.param_groups if group["params"]]
            nested = original(PartOf(optim, groups=full), state_dict, info)
            # A flattened state dict has options by parameter, so none of these groups.
            own = [optim.param_groups[place] for place in places]
            return {**nested, "param_groups": _joined(nested["param_groups"], own, places)}

        return _unflatten_optim_state_dict

    def make_nest(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _unflatten_state_dict(state_dict: Any, mapping: Any) -> Any:
            nested = original(state_dict, mapping)
            for group in nested.get("param_groups", ()):
                group.setdefault("params", [])
            return nested

        return _unflatten_state_dict

    replaced = [ReplaceAttr(_SPLIT, make_split), ReplaceAttr(_UNFLATTEN, make_unflatten)]
    texts = inspect.unwrap(lookup(_SPLIT)).__code__.co_consts
    if not any("zero parameters" in str(text) for text in texts):
        # Flattening drops the list without names; 2.7, which also has that text, puts it back.
        replaced.append(ReplaceAttr(_NEST, make_nest, aliases=(_NEST_ALIAS,)))
    return replaced


def _groups(order: str) -> Callable[[Any], Any]:
    """Make an AdamW with two groups of layers, and one without parameters where ``e`` stands."""

    def make(model: Any) -> Any:
        import torch

        groups: dict[str, dict[str, Any]] = {
            "a": {"params": [*model[0].parameters()], "lr": 0.01},
            "b": {"params": [*model[1].parameters(), *model[2].parameters()], "betas": (0.8, 0.9)},
            "e": {"params": [], "lr": 0.5, "betas": (0.1, 0.2)},
        }
        return torch.optim.AdamW([groups[letter] for letter in order], lr=0.03)

    return make


def first() -> None:
    """The group without parameters is the first."""
    resume.assert_same_resumed(_groups("eab"))


def last() -> None:
    """The group without parameters is the last."""
    resume.assert_same_resumed(_groups("abe"))


def flat() -> None:
    """A flattened state dict."""
    resume.assert_same_resumed(_groups("aeb"), flatten_optimizer_state_dict=True)


def full() -> None:
    """A full state dict, which every rank has."""
    resume.assert_same_resumed(_groups("abe"), full_state_dict=True)


SHIM = Shim(
    key="dcp_empty_param_group",
    summary="set_optimizer_state_dict mixes up groups if one of them has no parameters",
    symptom=(
        "KeyError: 'betas' (or another option) in the first step after set_optimizer_state_dict; with "
        "flattened names IndexError: list index out of range; up to 2.6 with full_state_dict also "
        "KeyError: 'params'"
    ),
    cause=(
        "which saved group belongs to one without parameters is read from a variable that the loop "
        "has left at the last group, which then loses its own; up to 2.6 nothing is looked for."
    ),
    cure="Groups without parameters are matched by their order, the others as before.",
    upstream=("https://github.com/pytorch/pytorch/issues/143828",),
    affected=Affected(since=None),
    modules=(
        "torch.distributed._state_dict_utils",
        "torch.distributed.checkpoint.state_dict",
        "torch.optim",
    ),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="first",
            run=first,
            expect=r"KeyError: 'betas'",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="last",
            run=last,
            expect=r"KeyError: 'betas'",
            affected=Affected(since=None, fixed_in=("2.7.0",)),
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="flat",
            run=flat,
            expect=r"IndexError: list index out of range",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="full",
            run=full,
            expect=r"KeyError: '(params|betas)'",
            affected=Affected(since=None, fixed_in=("2.7.0",)),
            preload=resume.PRELOAD,
        ),
    ),
    removable_when="groups without parameters are matched",
    after=("dcp_adamw_checkpoint",),
    notes=(
        "Where optimizer and state dict have different numbers of groups without parameters, a "
        "ValueError says so, as torch's does from 2.7 on for all but one. Flattened state dicts have "
        "no options for such a group: it keeps its own."
    ),
)

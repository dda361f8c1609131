"""Optimizer state dicts without the state of some parameters, as sparse training leaves them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import resume
from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..optimizer_states import PartOf, changed_by, names_of, names_used
from ..shim import Probe, Reproducer, Shim, absent, drifted, present

_SPLIT = "torch.distributed.checkpoint.state_dict:_split_optim_state_dict"
_UNFLATTEN = "torch.distributed.checkpoint.state_dict:_unflatten_optim_state_dict"


def probe() -> Probe:
    """Look whether flattened state dicts are loaded by the option strict."""
    if changed_by("_unflatten_optim_state_dict", "dcp_missing_optimizer_state"):
        return absent("a missing state is told, or left out, by this shim", cured=True)
    split, flat = names_used("_split_optim_state_dict"), names_used("_unflatten_optim_state_dict")
    if split is None or flat is None or "requires_grad" not in flat:
        return drifted("the state of optimizers is loaded differently")
    if "strict" in flat:
        return absent("flattened state dicts are loaded by the option strict")
    return present("a state that is missing is looked up all the same")


def edits() -> Sequence[Edit]:
    """Tell which parameter has no state, or leave it out where ``strict`` is False."""

    def refuse(names: Sequence[str]) -> None:
        raise RuntimeError(
            f"the state dict has no optimizer state for {', '.join(map(repr, names))}, which "
            f"{'needs' if len(names) == 1 else 'need'} gradients; "
            "StateDictOptions(strict=False) loads the others"
        )

    def make_split(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _split_optim_state_dict(model: Any, optim: Any, optim_state_dict: Any, info: Any) -> Any:
            state, groups = optim_state_dict["state"], optim_state_dict["param_groups"]
            saved = {name for group in groups for name in group.get("params", ())}
            missing = [
                name
                for group in optim.param_groups
                for param in group["params"]
                if param.requires_grad
                for name in info.fqn_param_mapping[param]
                if name in saved and name not in state
            ]
            if not missing or not any(isinstance(name, str) for name in state):
                return original(model, optim, optim_state_dict, info)
            if info.strict:
                refuse(missing)
            # The original looks every state up; what is put there for it is taken out again.
            filled = {**optim_state_dict, "state": {**state, **{name: {} for name in missing}}}
            split = original(model, optim, filled, info)
            return {**split, "state": {n: s for n, s in split["state"].items() if n not in missing}}

        return _split_optim_state_dict

    def make_unflatten(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _unflatten_optim_state_dict(optim: Any, state_dict: dict[str, Any], info: Any) -> Any:
            saved = [name for name in state_dict if name.startswith("state.")]
            bare, missing = set(), []
            for group in optim.param_groups:
                for param in group["params"]:
                    names = names_of(info, {"params": [param]})
                    if any(key.startswith(f"state.{name}.") for name in names for key in saved):
                        continue
                    bare.add(param)
                    if param.requires_grad and optim.state.get(param):
                        missing.append(names[0])
            if missing and saved and info.strict:
                refuse(missing)
            state = {
                param: {} if param in bare else optim.state.get(param, {})
                for group in optim.param_groups
                for param in group["params"]
            }
            nested = original(PartOf(optim, state=state), state_dict, info)
            return {**nested, "state": {n: s for n, s in nested["state"].items() if s}}

        return _unflatten_optim_state_dict

    return [ReplaceAttr(_SPLIT, make_split), ReplaceAttr(_UNFLATTEN, make_unflatten)]


def _without_last(state: dict[str, Any]) -> None:
    """Take the last layer's states out, as if no batch had reached it."""
    states = state.get("state", state)
    for name in [n for n in states if n.startswith(("2.", "state.2."))]:
        del states[name]


def _resume(**options: Any) -> None:
    """Load what there is; the last layer then begins anew."""
    resume.assert_same_resumed(resume.adamw, used=(0, 1), edit=_without_last, strict=False, **options)


def nested() -> None:
    """A state dict without the last layer's states, with ``strict=False``."""
    _resume()


def flat() -> None:
    """The same with flattened names."""
    _resume(flatten_optimizer_state_dict=True)


def told() -> None:
    """With ``strict=True`` the error tells what is missing."""
    try:
        resume.assert_same_resumed(
            resume.adamw, used=(0, 1), edit=_without_last, flatten_optimizer_state_dict=True
        )
    except RuntimeError as error:
        if "2.weight" not in str(error) or "strict=False" not in str(error):
            raise


SHIM = Shim(
    key="dcp_missing_optimizer_state",
    summary="optimizer state dicts that lack some parameters' state cannot be loaded, strict or not",
    symptom=(
        "with StateDictOptions(strict=False) and flattened names TypeError: float() argument must be a "
        "string or a real number, not 'dict' (KeyError: 'state.<name>.step' up to 2.9); up to 2.9 "
        "KeyError: '<name>' with nested ones too. The same where strict is True, instead of an error "
        "that tells what is missing"
    ),
    cause=(
        "each state that the optimizer has is looked up, there or not; 2.10 learned the option strict, "
        "but for nested state dicts only."
    ),
    cure=(
        "A parameter whose state is not in the state dict gets none with strict=False, and otherwise a "
        "RuntimeError names it."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/192224",
        "https://github.com/pytorch/pytorch/issues/164257",
        "https://github.com/pytorch/pytorch/pull/165228",
    ),
    affected=Affected(since=None),
    modules=("torch.distributed.checkpoint.state_dict",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="nested",
            run=nested,
            expect=r"KeyError: '2\.weight'",
            affected=Affected(since=None, fixed_in=("2.10.0",)),
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="flat",
            run=flat,
            expect=r"KeyError: 'state\.2\.weight\.|TypeError: float\(\) argument must be",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="told",
            run=told,
            expect=r"KeyError: 'state\.2\.weight\.|TypeError: float\(\) argument must be",
            preload=resume.PRELOAD,
        ),
    ),
    removable_when="flattened state dicts are loaded by the option strict",
    after=(
        "dcp_adamw_checkpoint",
        "dcp_empty_param_group",
        "dcp_stateless_optimizer",
        "dcp_tied_optimizer",
    ),
    notes=(
        "torch.distributed.checkpoint.load asks for what the new optimizer has; there "
        "DefaultLoadPlanner(allow_partial_load=True) leaves out what the checkpoint lacks."
    ),
)

"""Optimizer checkpoints of torch 2.6 and older cannot be loaded by newer releases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import resume
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..optimizer_states import names_of, names_used
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_PLAN = "torch.distributed.checkpoint.default_planner:create_default_local_load_plan"
_UNFLATTEN = "torch.distributed.checkpoint.state_dict:_unflatten_optim_state_dict"
_ADAM = "torch.optim.adam:Adam"
#: What Adam's and AdamW's parameter groups have since 2.7.
_NEW = "decoupled_weight_decay"


def probe() -> Probe:
    """Look whether a new option of Adam is asked of every checkpoint."""
    if is_replaced(_PLAN):
        return absent("an option that the checkpoint lacks is left out, by this shim", cured=True)
    plan = getattr(lookup(_PLAN, None), "__code__", None)
    if plan is None or names_used("_unflatten_optim_state_dict") is None:
        return drifted("checkpoints are read differently")
    adam = lookup(f"{_ADAM}.__setstate__", None)
    if _NEW not in getattr(getattr(adam, "__code__", None), "co_consts", ()):
        return absent("Adam's parameter groups have no such option")
    if _NEW in plan.co_consts:
        return absent("an option that the checkpoint lacks is left out")
    return present(f"every checkpoint is asked for {_NEW}, which older torch did not write")


def edits() -> Sequence[Edit]:
    """Keep the optimizer's own value of an option that the checkpoint cannot have."""

    def make_plan(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def create_default_local_load_plan(
            state_dict: dict[str, Any], metadata: Any, strict: bool = True
        ) -> Any:
            there = metadata.state_dict_metadata
            asked = {
                name: value
                for name, value in state_dict.items()
                if name in there or "param_groups." not in name or not name.endswith(f".{_NEW}")
            }
            return original(asked, metadata, strict)

        return create_default_local_load_plan

    def make_unflatten(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _unflatten_optim_state_dict(optim: Any, state_dict: dict[str, Any], info: Any) -> Any:
            own = {
                f"param_groups.{name}.{_NEW}": group[_NEW]
                for group in optim.param_groups
                if _NEW in group
                for name in names_of(info, group)
                # A shared parameter is saved under one of its names only.
                if f"param_groups.{name}.lr" in state_dict
            }
            return original(optim, {**own, **state_dict}, info)

        return _unflatten_optim_state_dict

    return [ReplaceAttr(_PLAN, make_plan), ReplaceAttr(_UNFLATTEN, make_unflatten)]


def _as_2_6(state: dict[str, Any]) -> None:
    """Take out what 2.6 did not write."""
    for group in state.get("param_groups", ()):
        group.pop(_NEW, None)
    for name in [name for name in state if name.endswith(f".{_NEW}")]:
        del state[name]


def load() -> None:
    """AdamW goes on from a checkpoint in 2.6's format."""
    resume.assert_same_resumed(resume.adamw, disk=True, edit=_as_2_6)


def load_flat() -> None:
    """The same with the names flattened, as pipeline parallelism needs them."""
    resume.assert_same_resumed(resume.adamw, disk=True, edit=_as_2_6, flatten_optimizer_state_dict=True)


def set_flat() -> None:
    """A flattened state dict of 2.6 that torch.load has read."""
    resume.assert_same_resumed(resume.adamw, edit=_as_2_6, flatten_optimizer_state_dict=True)


SHIM = Shim(
    key="dcp_adamw_checkpoint",
    summary="checkpoints of Adam and AdamW that torch 2.6 or older wrote cannot be loaded",
    symptom=(
        "RuntimeError: Missing key in checkpoint state_dict: "
        "optim.param_groups.0.decoupled_weight_decay in CheckpointException; or KeyError: "
        "'param_groups.<name>.decoupled_weight_decay' from set_optimizer_state_dict"
    ),
    cause=(
        "since 2.7 AdamW is an Adam with the option decoupled_weight_decay in its parameter groups; "
        "optimizers that are unpickled get it, a checkpoint is asked for it."
    ),
    cure="Where the checkpoint does not have this option, the optimizer keeps its own value.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/146157",
        "https://github.com/pytorch/torchtitan/issues/886",
        "https://github.com/mosaicml/composer/pull/3850",
    ),
    affected=Affected(since="2.7.0"),
    modules=(
        "torch.distributed.checkpoint.default_planner",
        "torch.distributed.checkpoint.state_dict",
        "torch.optim.adam",
    ),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="load",
            run=load,
            expect=r"Missing key in checkpoint state_dict: optim\.param_groups\S*decoupled_weight_decay",
            ranks=1,
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="flat",
            run=load_flat,
            expect=r"Missing key in checkpoint state_dict: optim\.param_groups\S*decoupled_weight_decay",
            ranks=1,
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="memory",
            run=set_flat,
            expect=r"KeyError: 'param_groups\.0\.weight\.decoupled_weight_decay'",
            preload=resume.PRELOAD,
        ),
    ),
    removable_when="no job resumes from checkpoints of torch 2.6 or older",
    notes=(
        "No other option of an optimizer in torch.optim that state dicts hold has been added from 2.4 "
        "to 2.15 (LBFGS got maximize in 2.15). DefaultLoadPlanner(allow_partial_load=True) also loads "
        "them, and with them everything else that is incomplete."
    ),
)

"""Asking for the state dict of an optimizer makes a step, or leaves parameters out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import resume
from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..optimizer_states import changed_by, names_used, prepare
from ..shim import Probe, Reproducer, Shim, absent, drifted, present

_INIT = "torch.distributed.checkpoint.state_dict:_init_optim_state"
_GET = "torch.distributed.checkpoint.state_dict:_get_optim_state_dict"


def probe() -> Probe:
    """Look whether the state is initialised by a step."""
    if changed_by("_init_optim_state", "dcp_optimizer_init"):
        return absent("states are initialised without a step, by this shim", cured=True)
    names, reader = names_used("_init_optim_state"), names_used("_get_optim_state_dict")
    if names is None or reader is None or "_init_optim_state" not in reader:
        return drifted("the state of optimizers is read differently")
    if "step" not in names:
        return absent("the state is initialised without a step")
    return present("the state is initialised by a step with gradients of zero")


def edits() -> Sequence[Edit]:
    """Have states initialised as the optimizer itself begins, for all parameters."""

    def make_init(original: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(original, updated=())
        def _init_optim_state(optim: Any) -> None:
            params = [p for group in optim.param_groups for p in group["params"]]
            if not optim.state:
                prepare(optim, [p for p in params if p.requires_grad])
            # It returns where there is state, and makes its step for what prepare does not know.
            original(optim)

        return _init_optim_state

    def make_get(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _get_optim_state_dict(model: Any, optimizers: Any, info: Any) -> Any:
            for optim in optimizers if info.handle_optim else ():
                params = [p for group in optim.param_groups for p in group["params"]]
                bare = [p for p in params if p.requires_grad and not optim.state.get(p)]
                if optim.state and bare:
                    prepare(optim, bare)
            return original(model, optimizers, info)

        return _get_optim_state_dict

    return [ReplaceAttr(_INIT, make_init), ReplaceAttr(_GET, make_get)]


def _asked_before_training(make: Callable[[Any], Any]) -> None:
    """Train two models, of one the optimizer's state has been asked for; both come out alike."""
    import torch
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model, asked = resume.layers(), resume.layers()
    optimizers = make(model), make(asked)
    get_optimizer_state_dict(asked, optimizers[1])
    resume.train(model, optimizers[:1], steps=2)
    resume.train(asked, optimizers[1:], steps=2)
    for a, b in zip(model.parameters(), asked.parameters()):
        if not torch.equal(a, b):
            difference = float((a - b).detach().abs().max())
            raise AssertionError(f"asking for the state changes training, by {difference:.1e}")


def asked() -> None:
    """AdamW corrects its first averages by the number of steps, which is one too many."""
    _asked_before_training(resume.adamw)


def asked_rprop() -> None:
    """Rprop takes its first step sizes from the learning rate, which is 0 meanwhile."""
    import torch

    _asked_before_training(lambda model: torch.optim.Rprop(model.parameters()))


def gradients() -> None:
    """Between the first backward and the first step there is state to save as well."""
    import torch
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = resume.layers()
    optimizer = resume.adamw(model)
    model(torch.ones(1, 4)).sum().backward()
    state: Any = get_optimizer_state_dict(model, optimizer)["state"]
    missing = [name for name, _ in model.named_parameters() if name not in state]
    if missing:
        raise AssertionError(f"no state of {', '.join(missing)}")


def unused() -> None:
    """The state of a parameter that no batch has reached is saved as well."""
    resume.assert_same_resumed(resume.adamw, used=(0, 1))


def unused_disk() -> None:
    """A checkpoint holds what the optimizer that loads it asks for."""
    resume.assert_same_resumed(resume.adamw, used=(0, 1), disk=True)


SHIM = Shim(
    key="dcp_optimizer_init",
    summary="get_optimizer_state_dict advances a new optimizer, and leaves unused parameters out",
    symptom=(
        "training differs, silently, if get_optimizer_state_dict or set_optimizer_state_dict was "
        "called before the first step: Adam's bias correction counts one step too many, Rprop's step "
        "sizes and ASGD's rate are 0. Where a parameter has had no gradient before the checkpoint, "
        "loading it ends in RuntimeError: Missing optimizer state for parameter (2.10 on), KeyError "
        "(before), or RuntimeError: Missing key in checkpoint state_dict: optim.state.<name>.step. "
        "Between the first backward and the first step there is no state, on 2.4 RuntimeError"
    ),
    cause=(
        "_init_optim_state gives an optimizer its state by a step with gradients of zero and a "
        "learning rate of 0, which counts; and it does nothing if any parameter has state or a "
        "gradient, so that of a parameter without a gradient so far nothing is saved."
    ),
    cure=(
        "Optimizers of torch.optim make their first state by themselves, without a step, for all "
        "parameters that need gradients and have none."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/164929",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/2779",
    ),
    affected=Affected(since=None),
    modules=("torch.distributed.checkpoint.state_dict", "torch.optim"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="asked",
            run=asked,
            expect=r"AssertionError: asking for the state changes training",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="rprop",
            run=asked_rprop,
            expect=r"AssertionError: asking for the state changes training",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="gradients",
            run=gradients,
            expect=r"AssertionError: no state of 0\.weight|RuntimeError: state_dict can only be used if",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="unused",
            run=unused,
            expect=r"Missing optimizer state for parameter '2\.weight'|KeyError: '2\.weight'",
            preload=resume.PRELOAD,
        ),
        Reproducer(
            name="disk",
            run=unused_disk,
            expect=r"Missing key in checkpoint state_dict: optim\.state\.2\.weight",
            ranks=1,
            preload=resume.PRELOAD,
        ),
    ),
    removable_when="the state of an optimizer is read without a step",
    notes=(
        "SparseAdam, LBFGS and optimizers of other packages still get torch's step. SGD with "
        "dampening: the first gradient of a parameter is damped if the state was asked for before, "
        "since a momentum of zero cannot be told from none. Checkpoints that were written without "
        "the shim still lack what they lack; see dcp_missing_optimizer_state."
    ),
)

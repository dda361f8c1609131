"""How torch's distributed state dicts see an optimizer. Imports torch only when called."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from .dtensor import layers
from .targets import lookup

__all__ = ["MODULE", "PartOf", "changed_by", "names_of", "names_used", "prepare"]

#: The module of torch that reads and writes the state of sharded models and optimizers.
MODULE = "torch.distributed.checkpoint.state_dict"


def names_used(function: str) -> frozenset[str] | None:
    """Return the names that a function of that module uses, or None where there is none."""
    found = lookup(f"{MODULE}:{function}", None)
    code = getattr(inspect.unwrap(found), "__code__", None) if callable(found) else None
    return None if code is None else frozenset(code.co_names + code.co_varnames + code.co_freevars)


def changed_by(function: str, key: str) -> bool:
    """Whether a function of that module has been wrapped by a shim, others may lie above it."""
    made_in = f"torchcompat.shims.{key}"
    return any(
        getattr(layer, "__globals__", {}).get("__name__") == made_in
        for layer in layers(lookup(f"{MODULE}:{function}", None))
    )


def names_of(info: Any, group: Any) -> list[str]:
    """Return the fully qualified names of a group's parameters, of a shared one all."""
    return [name for param in group["params"] for name in info.fqn_param_mapping[param]]


class PartOf:
    """An optimizer as torch's state dict functions read it, with other groups or states.

    Attributes:
        param_groups: those given, or the optimizer's.
        state: the one given, or the optimizer's.
    """

    def __init__(self, optimizer: Any, *, groups: Any = None, state: Any = None) -> None:
        self.param_groups = optimizer.param_groups if groups is None else groups
        self.state = optimizer.state if state is None else state


def prepare(optimizer: Any, parameters: Iterable[Any]) -> bool:
    """Give parameters that have no state the one with which an optimizer of torch begins.

    Returns:
        Whether it could: the optimizer must be one of ``torch.optim`` that makes its state
        apart from its step, as all but LBFGS and SparseAdam do. Nothing is done otherwise.
    """
    import torch

    kind = type(optimizer)
    begin: Any = getattr(kind, "_init_group", None)
    for function in (begin, kind.step):
        if not getattr(function, "__module__", "").startswith("torch.optim."):
            return False
    wanted = {id(p) for p in parameters}
    with torch.no_grad():
        for group in optimizer.param_groups:
            bare = [p for p in group["params"] if id(p) in wanted and p.grad is None]
            for param in bare:
                param.grad = torch.zeros_like(param)
            try:
                # Lists to fill, one for each kind of state; AdamW before 2.7 also asks an option.
                names = [*inspect.signature(begin).parameters][2:]
                begin(optimizer, group, *(group[n] if n == "amsgrad" else [] for n in names))
            finally:
                for param in bare:
                    param.grad = None
            # SGD makes it in its step, and then as the gradient.
            momentum = isinstance(optimizer, torch.optim.SGD) and group["momentum"]
            for param in group["params"]:
                state = optimizer.state.get(param, {})
                if momentum and id(param) in wanted and state.get("momentum_buffer") is None:
                    optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)
                if not optimizer.state.get(param, True):
                    del optimizer.state[param]
    return True

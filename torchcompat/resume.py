"""What reproducers about checkpoints of optimizers share. Imports torch only when called."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["PRELOAD", "adamw", "assert_same_resumed", "layers", "train"]

#: What a reproducer needs; steps of an optimizer import dynamo on recent builds.
PRELOAD = ("torch.distributed.checkpoint", "torch._dynamo")


def layers() -> torch.nn.Sequential:
    """Build three linear layers of width 4, always with the same parameters."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))


def adamw(model: Any) -> Any:
    """Make an AdamW of all parameters of a model."""
    import torch

    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(
    model: torch.nn.Sequential,
    optimizers: Sequence[Any],
    *,
    steps: int,
    seed: int = 0,
    used: Sequence[int] | None = None,
) -> None:
    """Train by some steps on random batches; only the layers in ``used`` see them."""
    import torch

    torch.manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(5, 4)
        for index, layer in enumerate(model):
            if used is None or index in used:
                x = torch.tanh(layer(x))
        for optimizer in optimizers:
            optimizer.zero_grad()
        x.pow(2).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def assert_same_resumed(
    make: Callable[[Any], Any],
    *,
    model: Callable[[], Any] = layers,
    steps: int = 3,
    used: Sequence[int] | None = None,
    disk: bool = False,
    edit: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> None:
    """Train, save the optimizer, load it into a new one, train both on; parameters must agree.

    Args:
        make: builds the optimizer of a model, or a tuple of optimizers.
        model: builds the model; each call gives the same parameters.
        steps: before the state is saved.
        used: layers that are trained before; all are trained after.
        disk: save and load with ``torch.distributed.checkpoint``, which is asked for what
            the new optimizer has; otherwise the state dict is handed over in memory.
        edit: changes the state dict before it is saved.
        options: of ``StateDictOptions``.

    Raises:
        AssertionError: loading has changed parameters, or training goes on differently.
    """
    import torch
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    dcp: Any = checkpoint

    def built() -> tuple[Any, Any]:
        new = model()
        return new, make(new)

    def every(optimizers: Any) -> Sequence[Any]:
        return optimizers if isinstance(optimizers, tuple) else (optimizers,)

    def saved(of: Any, optimizers: Any) -> dict[str, Any]:
        state: dict[str, Any] = get_optimizer_state_dict(
            of, optimizers, options=StateDictOptions(**options)
        )
        return state

    old, old_optimizers = built()
    train(old, every(old_optimizers), steps=steps, used=used)
    state = copy.deepcopy(saved(old, old_optimizers))
    if edit is not None:
        edit(state)
    new, new_optimizers = built()
    new.load_state_dict(old.state_dict())
    if disk:
        with tempfile.TemporaryDirectory() as path:
            dcp.save({"optim": state}, checkpoint_id=path)
            asked = {"optim": saved(new, new_optimizers)}
            dcp.load(asked, checkpoint_id=path)
            state = asked["optim"]
    set_optimizer_state_dict(new, new_optimizers, state, options=StateDictOptions(**options))
    for a, b in zip(old.parameters(), new.parameters()):
        if not torch.equal(a, b):
            raise AssertionError("loading the optimizer has changed the parameters")
    train(old, every(old_optimizers), steps=2, seed=1)
    train(new, every(new_optimizers), steps=2, seed=1)
    for a, b in zip(old.parameters(), new.parameters()):
        if not torch.equal(a, b):
            difference = float((a - b).detach().abs().max())
            raise AssertionError(f"training goes on differently: parameters differ by {difference:.1e}")

"""DTensor has no sharding strategy for the fused steps of SGD and Adagrad, nor for copies of lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM, STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..missing_ops import probe_missing
from ..shim import Probe, Reproducer, Shim
from ..strategies import held, missing, refuse_partial, register

_MODEL = "_fused_adam_.default"
# Where each keeps the steps, one number per parameter, which may be on a smaller mesh.
_STEPS: dict[str, int | None] = {
    "_foreach_copy_.default": None,
    "_fused_sgd_.default": None,
    "_fused_sgd_.tensor_lr": None,
    "_fused_adagrad_.default": 3,
    "_fused_adagrad_.tensor_lr": 3,
}


def probe() -> Probe:
    """Look for the operators in the propagator's tables, and for Adam's, to borrow from."""
    return probe_missing(_STEPS, model=_MODEL, none="the fused optimizers have strategies")


def edits() -> Sequence[Edit]:
    """Register for them what is registered for Adam's fused step."""
    borrowed = held(SINGLE_DIM, _MODEL)
    single_dim = borrowed is not None
    if not single_dim:
        borrowed = refuse_partial(held(STRATEGIES, _MODEL))

    def fitted(steps: int | None) -> Any:
        if not single_dim or getattr(borrowed, "different_mesh_args", None) is None:
            return borrowed
        return dataclasses.replace(borrowed, different_mesh_args=None if steps is None else [steps])

    entries: Mapping[Any, Any] = {
        overload: fitted(_STEPS[f"{overload.overloadpacket.__name__}.{overload._overloadname}"])
        for overload in missing(_STEPS)
    }
    return register(entries, single_dim=single_dim, lists=True)


def sgd() -> None:
    """SGD with ``fused=True``: plain, with momentum, and with a tensor as learning rate."""
    import torch

    sgd = torch.optim.SGD
    _same_training(lambda p: sgd(p, lr=0.1, fused=True))
    _same_training(lambda p: sgd(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True))


def adagrad() -> None:
    """Adagrad with ``fused=True``."""
    import torch

    _same_training(lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, fused=True))


def copies() -> None:
    """``torch._foreach_copy_``, which writes a list of tensors into another."""
    import torch

    def copied(x: Any, _: Any) -> list[Any]:
        targets = [torch.zeros_like(x), torch.ones_like(x)]
        torch._foreach_copy_(targets, [x.detach(), x.detach() * 2])
        return targets

    reproduce.assert_same_sharded(copied, shape=(5, 6))


def _same_training(optimizer: Callable[[list[Any]], Any]) -> None:
    """Train sharded parameters of uneven sizes, and compare with the same, unsharded."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = reproduce.cpu_mesh()

    def train(placement: Any) -> list[Any]:
        def put(tensor: Any) -> Any:
            return tensor if placement is None else distribute_tensor(tensor, mesh, [placement])

        starts = reproduce.batches(1, (5, 6)) + reproduce.batches(1, (7,), seed=2)
        parameters = [put(start).requires_grad_() for start in starts]
        step = optimizer(parameters)
        for seed in range(3):
            for parameter in parameters:
                parameter.grad = put(reproduce.batches(1, tuple(parameter.shape), seed=10 + seed)[0])
            step.step()
        return [reproduce.whole(parameter) for parameter in parameters]

    reference = train(None)
    for placement in (Replicate(), Shard(0)):
        for got, want in zip(train(placement), reference):
            torch.testing.assert_close(got, want)


_PUBLIC = Affected(since="2.5.0")
# The older builds look for a mesh before they look for a strategy.
_EXPECT = (
    r"(Operator aten\.|no DeviceMesh from dtensor args for aten(\.|::))"
    r"_(fused_(sgd|adagrad)|foreach_copy)_"
)

SHIM = Shim(
    key="dtensor_optimizer_ops",
    summary="SGD and Adagrad with fused=True find no sharding strategy for DTensor parameters (FSDP2)",
    symptom=(
        "NotImplementedError: Operator aten._fused_sgd_.default does not have a sharding strategy "
        "registered. So for aten._fused_adagrad_.default and aten._foreach_copy_.default. Builds before "
        "2.11 say: found no DeviceMesh from dtensor args for aten._fused_sgd_.default!"
    ),
    cause="Of the fused steps, DTensor registers those of Adam and AdamW only, and no copy of lists.",
    cure="They get the sharding strategy of aten._fused_adam_: everything goes with its parameter.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/126670",
        "https://github.com/pytorch/pytorch/pull/125369",
    ),
    affected=_PUBLIC,
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=f"{run.__name__}_{ranks}rank{'s' * (ranks > 1)}",
            run=run,
            expect=_EXPECT,
            ranks=ranks,
            runnable=_PUBLIC,
            needs="the public torch.distributed.tensor",
            preload=("torch.distributed.tensor", "torch._dynamo"),
        )
        for run in (sgd, adagrad, copies)
        for ranks in (1, 2)
    ),
    notes="The two links are about Adam and AdamW, which torch registers by now.",
    removable_when="torch registers strategies for the fused steps of SGD and Adagrad",
)

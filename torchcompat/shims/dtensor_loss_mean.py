"""Elementwise losses of sharded tensors: no strategy, later wrong means and wrong gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SCHEMA_INFO, STRATEGIES, forget_shardings
from ..edits import AddEntries, Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

#: Operator, and where its argument ``reduction`` is; forward, then backward.
_LOSSES = {
    "mse_loss": 2,
    "smooth_l1_loss": 2,
    "huber_loss": 2,
    "soft_margin_loss": 2,
    "binary_cross_entropy": 3,
    "binary_cross_entropy_with_logits": 4,
    "mse_loss_backward": 3,
    "smooth_l1_loss_backward": 3,
    "huber_loss_backward": 3,
    "soft_margin_loss_backward": 3,
    "binary_cross_entropy_backward": 4,
}
_NONE, _MEAN = 0, 1  # of torch's reductions; 2 is the sum


def _overloads() -> dict[Any, int]:
    import torch

    return {getattr(torch.ops.aten, name).default: at for name, at in _LOSSES.items()}


def probe() -> Probe:
    """Look which of the losses have a strategy: no build's own knows of uneven shards."""
    strategies = lookup(STRATEGIES, None)
    if not isinstance(strategies, dict) or not isinstance(lookup(SCHEMA_INFO, None), dict):
        return drifted("DTensor keeps its strategies elsewhere")
    missing = [overload for overload in _overloads() if overload not in strategies]
    if not missing:
        return absent("every loss has a strategy", cured=True)
    return present(f"{len(missing)} of {len(_LOSSES)} losses have no strategy of their own")


def _make_strategy(reduction_at: int, backward: bool) -> Callable[[Any], Any]:
    def strategy(*mesh_and_schema: Any) -> Any:  # up to 2.6 a mesh comes first
        from torch.distributed.tensor import Partial, Replicate, Shard
        from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

        op_schema = mesh_and_schema[-1]
        arguments = op_schema.args_schema
        inputs = [argument for argument in arguments if hasattr(argument, "strategies")]
        # The dispatcher leaves out arguments that have their default.
        reduction = arguments[reduction_at] if len(arguments) > reduction_at else _MEAN
        operands = inputs[1:] if backward else inputs
        shape = _broadcast([tuple(operand.shape) for operand in operands])
        mesh = inputs[0].strategies[0].output_spec.mesh

        def shard(operand: Any, dim: int) -> Any:
            own = dim - len(shape) + len(operand.shape)
            return Shard(own) if own >= 0 and operand.shape[own] == shape[dim] else Replicate()

        choices: list[Any] = [[Replicate()] * (1 + len(inputs))]
        for dim, size in enumerate(shape):
            if reduction == _MEAN and size % mesh.size():
                continue  # a mean of means would weigh every shard alike
            sharded = [shard(operand, dim) for operand in operands]
            if not backward:
                out = {_NONE: Shard(dim), _MEAN: Partial("avg")}.get(reduction, Partial("sum"))
                choices.append([out, *sharded])
            elif tuple(operands[0].shape) == shape:
                # The kernel divides by the shard's number of elements, and not by the tensor's:
                # a gradient that is "partial" over the mesh comes in divided by the mesh's size.
                gradient = {_NONE: shard(inputs[0], dim), _MEAN: Partial("sum")}
                choices.append([Shard(dim), gradient.get(reduction, Replicate()), *sharded])
        return expand_to_full_mesh_op_strategy(mesh, op_schema, choices, input_index=1)

    return strategy


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    import torch

    return tuple(torch.broadcast_shapes(*shapes))


def edits() -> Sequence[Edit]:
    """Register a strategy that knows the reduction, where torch registers none."""

    def missing() -> dict[Any, int]:
        strategies = lookup(STRATEGIES)
        return {overload: at for overload, at in _overloads().items() if overload not in strategies}

    def strategies() -> Mapping[Any, Any]:
        return {
            overload: _make_strategy(at, "backward" in str(overload))
            for overload, at in missing().items()
        }

    def information() -> Mapping[Any, Any]:
        from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

        return {overload: RuntimeSchemaInfo(static_argnum=at) for overload, at in missing().items()}

    return [
        # torch notes an operator's information once it has met it without a strategy.
        AddEntries(SCHEMA_INFO, information, replace=True),
        AddEntries(STRATEGIES, strategies, settle=forget_shardings),
    ]


def _compare(
    shape: tuple[int, ...], reductions: Sequence[str], *, some: bool = True, logits: bool = True
) -> None:
    """Compare the two losses that stand for all (``some``), or all; with logits from 2.12 on."""
    import torch
    from torch.distributed.tensor import Shard
    from torch.nn import functional as f

    for reduction in reductions:

        def losses(x: Any, place: Any, reduction: str = reduction) -> Any:
            y = place(torch.linspace(-2, 2, math.prod(shape)).view(shape))
            likely, labels = x.sigmoid(), (y > 0).float()
            values = [f.mse_loss(x, y, reduction=reduction)]
            if not some:
                values += [
                    f.smooth_l1_loss(x, y, reduction=reduction, beta=0.7),
                    f.huber_loss(x, y, reduction=reduction, delta=0.6),
                    f.soft_margin_loss(x, y.sign(), reduction=reduction),
                    f.binary_cross_entropy(likely, labels, reduction=reduction),
                ]
            if logits:
                weights = place(torch.linspace(0.5, 2, math.prod(shape)).view(shape))
                row = place(torch.linspace(0.5, 2, shape[1])[None].expand(shape).contiguous())[:1]
                values += [
                    f.binary_cross_entropy(likely, labels, weights, reduction=reduction),
                    f.binary_cross_entropy_with_logits(
                        x, labels, weights, pos_weight=row, reduction=reduction
                    ),
                ]
            return values

        reproduce.assert_same_sharded(losses, shape=shape, placements=[Shard(0), Shard(1)])


def mean_of_even_shards() -> None:
    """``reduction="mean"`` where every rank has as many elements: values and gradients."""
    _compare((6, 10), ("mean",), some=False, logits=False)


def mean_of_uneven_shards() -> None:
    """``reduction="mean"`` of 5 rows over two ranks, and of 6 columns."""
    _compare((5, 6), ("mean",))


def sum_and_none() -> None:
    """The other two reductions, whose gradients were right wherever there was a strategy."""
    _compare((5, 6), ("sum", "none"), some=False)


def every_reduction() -> None:
    """Mean, sum and none after each other, so that no cached sharding serves another."""
    _compare((6, 5), ("sum", "none", "mean", "sum"))


_PUBLIC = (Affected(since="2.5.0"), "the public torch.distributed.tensor")
_MEANS = (Affected(since="2.8.0"), "a gloo that averages")
_FAULT = (
    r"AssertionError: .*(output \d+|the gradient) differs|NotImplementedError: Operator "
    r"aten\.\w+\.default does not have a sharding strategy registered"
)

SHIM = Shim(
    key="dtensor_loss_mean",
    summary="mse_loss and its kin of a sharded DTensor: wrong gradients and means, or no strategy",
    symptom=(
        "From 2.11 on no error: F.mse_loss(x, y).backward() of tensors sharded over n ranks gives n "
        "times the gradient, and over uneven shards another loss; so do smooth_l1_loss, huber_loss, "
        "soft_margin_loss and binary_cross_entropy. Before: NotImplementedError: Operator "
        "aten.mse_loss.default does not have a sharding strategy registered."
    ),
    cause=(
        "From 2.11 on DTensor derives shardings of operators without a strategy from how they are made "
        "of others, and then runs the operator itself on every shard. A mean there divides by the "
        "number of elements of the shard."
    ),
    cure=(
        "The losses and their backward get a strategy that knows the reduction: means and their "
        "gradients are sharded where all shards are of one size, and else computed from whole tensors."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/tensor/_decompositions.py",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=name,
            run=run,
            expect=_FAULT,
            ranks=2,
            affected=affected,
            runnable=runnable,
            needs=needs,
            preload=("torch.distributed.tensor", "torch._dynamo"),
        )
        for name, run, (runnable, needs), affected in (
            ("mean_of_even_shards", mean_of_even_shards, _MEANS, None),
            ("mean_of_uneven_shards", mean_of_uneven_shards, _MEANS, None),
            ("every_reduction", every_reduction, _MEANS, None),
            ("sum_and_none", sum_and_none, _PUBLIC, Affected(since="2.5.0", fixed_in=("2.12.0",))),
        )
    ),
    removable_when="the oldest torch you support registers strategies for losses",
    notes=(
        "l1_loss, kl_div and cross_entropy are made of other operators and are not concerned. Where "
        "shards are uneven, both operands are gathered, as torch gathers them for a mean."
    ),
)

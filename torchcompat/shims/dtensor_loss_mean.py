"""Elementwise losses of sharded tensors: no strategy, later wrong means and wrong gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..strategies import arguments, can_build, missing, register, tensors
from ..targets import lookup

_LOSSES = (
    *("mse_loss.default", "mse_loss_backward.default"),
    *("smooth_l1_loss.default", "smooth_l1_loss_backward.default"),
    *("huber_loss.default", "huber_loss_backward.default"),
    *("soft_margin_loss.default", "soft_margin_loss_backward.default"),
    *("binary_cross_entropy.default", "binary_cross_entropy_backward.default"),
    "binary_cross_entropy_with_logits.default",
)
_NONE, _MEAN = 0, 1  # of torch's reductions; 2 is the sum


def probe() -> Probe:
    """Look which of the losses have a strategy: no build's own knows of uneven shards."""
    if not isinstance(lookup(STRATEGIES, None), dict) or not can_build():
        return drifted("DTensor keeps its strategies elsewhere")
    lacking = len([*missing(_LOSSES)])
    if not lacking:
        return absent("every loss has a strategy", cured=True)
    return present(f"{lacking} of {len(_LOSSES)} losses have no strategy of their own")


def _make_strategy(backward: bool) -> Callable[..., Any]:
    def strategy(*mesh_and_schema: Any) -> Any:  # up to 2.6 a mesh comes first
        import torch
        from torch.distributed.tensor import Partial, Replicate, Shard
        from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

        op_schema = mesh_and_schema[-1]
        inputs = [tensor for argument in op_schema.args_schema for tensor in tensors(argument)]
        reduction = arguments(op_schema)["reduction"]
        operands = inputs[1:] if backward else inputs
        shape = tuple(torch.broadcast_shapes(*(operand.shape for operand in operands)))
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


def edits() -> Sequence[Edit]:
    """Register a strategy that knows the reduction, where torch registers none."""
    forward, backward = _make_strategy(backward=False), _make_strategy(backward=True)
    return register(
        {overload: backward if "backward" in str(overload) else forward for overload in missing(_LOSSES)}
    )


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

"""The mean of ``nll_loss`` over a sharded batch weighs every rank alike, whatever its targets weigh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM, STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..strategies import arguments, input_specs, outcome, overridden, override, place
from ..targets import lookup

_MEAN = 1  # of torch's reductions


def _losses() -> tuple[Any, Any]:
    import torch

    return torch.ops.aten.nll_loss_forward.default, torch.ops.aten.nll_loss2d_forward.default


def probe() -> Probe:
    """Look for the strategy that asks for even shards, as means of means need them."""
    strategies = lookup(STRATEGIES, None)
    if not isinstance(strategies, dict):
        return drifted("DTensor keeps its strategies elsewhere")
    if overridden(_losses(), _whole):
        return absent("a mean is computed from the whole batch, by this shim", cured=True)
    found = [getattr(strategies.get(overload), "__code__", None) for overload in _losses()]
    if all(code is not None and "is_tensor_evenly_shardable" in code.co_names for code in found):
        return present("a mean over ranks is made of the ranks' means")
    newer = lookup(SINGLE_DIM, None)
    if not any(found) and isinstance(newer, dict) and all(overload in newer for overload in _losses()):
        return absent("nll_loss is registered with rules for one mesh dimension")
    return drifted("DTensor's nll_loss is registered differently")


def _whole(*mesh_and_schema: Any) -> Any:
    op_schema = mesh_and_schema[-1]
    if arguments(op_schema)["reduction"] != _MEAN:
        return None
    inputs = [place(spec.placements, lambda dim: None) for _, spec in input_specs(op_schema)]
    return outcome(op_schema, inputs, [inputs[0]] * 2)


def edits() -> Sequence[Edit]:
    """Compute means from whole inputs; sums, single losses and gradients stay sharded."""
    return [override(dict.fromkeys(_losses(), _whole))]


def _compare(
    shape: tuple[int, ...],
    *,
    weighted: bool,
    ignored: int = 0,
    reductions: Sequence[str] = ("mean",),
) -> None:
    """Compare both losses, with the first ``ignored`` targets left out."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.nn import functional as f

    samples, classes, *positions = shape
    targets = (torch.arange(samples * max([1, *positions])) * 2 + 1) % classes
    targets[:ignored] = -100
    targets = targets.view(samples, *positions)
    weights = torch.linspace(0.5, 3, classes) if weighted else None

    def losses(x: Any, _: Any) -> Any:
        label: Any = targets
        weight: Any = weights
        if hasattr(x, "placements"):
            (placement,) = x.placements
            # the targets have no dimension of classes
            beside = {0: Shard(0), 2: Shard(1)}.get(getattr(placement, "dim", -1), Replicate())
            label = distribute_tensor(targets, x.device_mesh, [beside])
            if weights is not None:
                weight = distribute_tensor(weights, x.device_mesh, [Replicate()])
        likely = x.log_softmax(1)
        return [
            loss
            for reduction in reductions
            for loss in (
                f.nll_loss(likely, label, weight, reduction=reduction),
                f.cross_entropy(x, label, weight, reduction=reduction),
            )
        ]

    reproduce.assert_same_sharded(losses, shape=shape)


def weighted_mean() -> None:
    """Classes of different weights, for samples and for positions of samples."""
    _compare((4, 6), weighted=True)
    _compare((4, 6, 3), weighted=True, reductions=("none", "mean", "sum"))


def ignored_targets() -> None:
    """``ignore_index`` of some targets of one rank, and of all of them, where a rank's mean is NaN."""
    _compare((4, 6), weighted=False, ignored=1)
    _compare((4, 6), weighted=False, ignored=2)
    _compare((4, 6), weighted=True, ignored=2)


def uneven_shards() -> None:
    """5 samples over two ranks, which DTensor refuses."""
    _compare((5, 6), weighted=False)
    _compare((5, 6), weighted=True, ignored=1, reductions=("sum", "mean", "none"))


_PUBLIC = (Affected(since="2.5.0"), "the public torch.distributed.tensor")
_MEANS = (Affected(since="2.8.0"), "a gloo that averages")

SHIM = Shim(
    key="dtensor_nll_loss_weight",
    summary="cross_entropy and nll_loss over a sharded batch: wrong mean with weight or ignore_index",
    symptom=(
        "No error: F.cross_entropy(x, y, weight=w) of a batch sharded over ranks is not the weighted "
        "mean; nor is the mean where the ranks have different numbers of targets with ignore_index, and "
        "it is NaN where one has no other. Uneven shards raise: The intermediate results of nll_loss "
        "cannot be evenly sharded, resulting in biased mean result."
    ),
    cause=(
        "The mean of the ranks' means is taken, which is right only where all ranks divide by the same "
        "weight."
    ),
    cure=(
        "reduction='mean' is computed from the whole batch, as 2.14 and newer do. Gradients stay "
        "sharded."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/185167",
        "https://github.com/pytorch/pytorch/pull/185177",
    ),
    affected=Affected(since="2.5.0", fixed_in=("2.14.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=run.__name__,
            run=run,
            expect=expect,
            ranks=2,
            runnable=runnable,
            needs=needs,
            preload=("torch.distributed.tensor", "torch._dynamo"),
        )
        for run, expect, (runnable, needs) in (
            (weighted_mean, r"AssertionError: .*(output \d+|the gradient) differs", _MEANS),
            (ignored_targets, r"AssertionError: .*(output \d+|the gradient) differs", _MEANS),
            (
                uneven_shards,
                # 2.9 names the operator only
                r"nll_loss cannot be evenly sharded|"
                r"Sharding propagation failed for Op\(op=aten\.nll_loss",
                _PUBLIC,
            ),
        )
    ),
    removable_when="the oldest torch you support is 2.14",
    notes=(
        "Logits and targets are gathered for a mean, which costs memory. Where that is too much: "
        "reduction='sum', divided by the targets' weights. loss_parallel() handles its losses itself."
    ),
)

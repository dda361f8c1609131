"""DTensor has no sharding strategy for pooling, padding, distances and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM
from ..edits import Edit
from ..gate import Affected
from ..missing_ops import Groups, alike, probe_missing, register_missing
from ..shim import Probe, Shim
from ..strategies import (
    decomposes,
    gathered,
    held,
    input_specs,
    masked_outcome,
)


def _both_ways(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}{end}.default" for name in names for end in ("", "_backward"))


# The overloads, by the release from which torch does without us. Those of SPATIAL work along as
# many dimensions, the last ones, as their names say; those of GATHERED need all of their inputs.
_SPATIAL = (
    *_both_ways("avg_pool2d", "avg_pool3d", "max_pool3d_with_indices", "_adaptive_avg_pool3d"),
    *_both_ways("adaptive_max_pool2d", "adaptive_max_pool3d"),
    *_both_ways("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
    *_both_ways("replication_pad1d", "replication_pad2d", "replication_pad3d"),
)
_GATHERED = (
    *_both_ways("multi_margin_loss"),
    *("multilabel_margin_loss_forward.default", "multilabel_margin_loss_backward.default"),
    *("im2col.default", "col2im.default", "affine_grid_generator.default"),
    *("_cdist_forward.default", "_cdist_backward.default"),
    *("_pdist_forward.default", "_pdist_backward.default", "_trilinear.default", "addbmm.default"),
    *("take.default", "put.default", "masked_scatter.default", "scatter_reduce.two"),
    *("renorm.default", "searchsorted.Tensor", "searchsorted.Scalar"),
    # registered from 2.13 on; the sizes of the whole input are among the arguments
    *(f"upsample_{kind}_backward.default" for kind in ("nearest1d", "nearest2d", "nearest3d")),
    *(f"upsample_{kind}_backward.default" for kind in ("linear1d", "bilinear2d", "bicubic2d")),
    "upsample_trilinear3d_backward.default",
    *(f"_upsample_nearest_exact{dims}d_backward.default" for dims in (1, 2, 3)),
)
_SPATIAL_UNTIL_212 = (
    *_both_ways("max_pool2d_with_indices", "_adaptive_avg_pool2d"),
    *(f"upsample_{kind}.default" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d")),
    *(f"upsample_{kind}.default" for kind in ("bilinear2d", "bicubic2d", "trilinear3d")),
    *(f"_upsample_nearest_exact{dims}d.default" for dims in (1, 2, 3)),
)
_GATHERED_UNTIL_212 = ("linalg_cross.default", "diagonal_backward.default")
_GATHERED_UNTIL_211 = (
    *("pixel_shuffle.default", "pixel_unshuffle.default", "channel_shuffle.default"),
    "isin.Tensor_Tensor",
)


def _groups() -> Groups:
    if held(SINGLE_DIM, "cos.default") is not None:  # 2.12 and later
        return ((_spatial, _SPATIAL), (_whole, _GATHERED))
    more = _GATHERED + _GATHERED_UNTIL_212
    if not decomposes():
        more += _GATHERED_UNTIL_211
    return ((_spatial, _SPATIAL + _SPATIAL_UNTIL_212), (_whole, more))


def _spatial(*given: Any) -> Any:
    """Let samples and channels stay sharded, which the operator does not mix."""
    schema = given[-1]
    spatial = re.search(r"(\d)d", str(schema.op))
    kept = alike(schema, lambda dim, ndim: dim < ndim - (int(spatial[1]) if spatial else ndim))
    return masked_outcome(schema, [kept] * len(input_specs(schema)), kept)


def _whole(*given: Any) -> Any:
    return gathered(given[-1])


def probe() -> Probe:
    """Look for the operators in the propagator's tables."""
    return probe_missing(name for _, names in _groups() for name in names)


def edits() -> Sequence[Edit]:
    """Register one strategy per kind of operator."""
    return register_missing(_groups())


# -- reproducers ---------------------------------------------------------------------


def pooled() -> None:
    """Averages and maxima over windows, and adaptive ones, of two and three dimensions."""
    F = reproduce.functional()
    _same((4, 3, 6, 6), lambda x, _: [F.avg_pool2d(x, 3, 2, 1), F.adaptive_max_pool2d(x, (3, 2))])
    _same((2, 4, 8), lambda x, _: [F.avg_pool1d(x, 2), F.adaptive_max_pool1d(x, 3)])
    _same(
        (2, 3, 4, 4, 6),
        lambda x, _: [F.avg_pool3d(x, 2), F.max_pool3d(x, 2), F.adaptive_avg_pool3d(x, 2)],
        lambda x, _: F.adaptive_max_pool3d(x, (2, 1, 3)),
    )


def padded() -> None:
    """``pad`` that reflects and that repeats, ``unfold`` and ``fold``."""
    F = reproduce.functional()

    def extended(pad: tuple[int, ...], mode: str) -> Callable[[Any, Any], Any]:
        return lambda x, _: F.pad(x, pad, mode=mode)

    for shape, pad in (((2, 3, 8), (1, 2)), ((2, 4, 4, 5), (1, 2, 0, 1)), ((2, 1, 3, 4, 4), (1,) * 6)):
        _same(shape, extended(pad, "reflect"), extended(pad, "replicate"))
    _same((2, 3, 4, 5), lambda x, _: F.unfold(x, 2))
    _same((2, 8, 9), lambda x, _: F.fold(x, (4, 4), 2))


def compared() -> None:
    """``cdist``, ``pdist``, ``bilinear``, ``addbmm``, ``renorm`` and margin losses."""
    import torch

    F = reproduce.functional()
    labels, several = torch.tensor([0, 3, 1, 2]), torch.tensor([[1, 2, -1, 0, 0, 0]] * 4)
    _same(
        (4, 6),
        lambda x, place: [torch.cdist(x, place(torch.ones(4, 6))), torch.cdist(x, x * 2 + 1, p=1.0)],
        lambda x, _: F.pdist(x),
        lambda x, place: F.bilinear(x, x + 1, place(torch.ones(2, 6, 6))),
        lambda x, _: x.detach().renorm(2, 0, 1.0),
        lambda x, place: F.multi_margin_loss(x, place(labels)),
        lambda x, place: F.multilabel_margin_loss(x, place(several)),
    )
    _same(
        (4, 3, 2), lambda x, place: torch.addbmm(place(torch.ones(3, 5)), x, place(torch.ones(4, 2, 5)))
    )


def picked() -> None:
    """``take``, ``put``, ``scatter_reduce``, ``masked_scatter`` and ``searchsorted``."""
    import torch

    places, edges = torch.tensor([0, 5, 11, 7]), torch.arange(-2.0, 3.0)
    columns = torch.tensor([[0], [3], [1], [2]])
    _same(
        (4, 6),
        lambda x, place: x.detach().take(place(places)),
        lambda x, place: x.detach().put(place(places), place(torch.ones(4))),
        lambda x, place: x.detach().scatter_reduce(1, place(columns), place(torch.ones(4, 1)), "amax"),
        lambda x, place: x.detach().masked_scatter(x.detach() > 0, place(torch.ones(4, 6))),
        lambda x, place: torch.searchsorted(place(edges), x.detach()),
    )


def resized() -> None:
    """``interpolate`` of all kinds, ``max_pool2d`` and ``adaptive_avg_pool2d``."""
    F = reproduce.functional()
    kinds = (
        *(((2, 3, 4), "nearest"), ((2, 3, 4), "linear"), ((2, 3, 4), "nearest-exact")),
        *(((2, 3, 4, 4), kind) for kind in ("nearest", "bilinear", "bicubic", "nearest-exact")),
        *(((2, 2, 3, 2, 2), kind) for kind in ("nearest", "trilinear", "nearest-exact")),
    )

    def doubled(kind: str) -> Callable[[Any, Any], Any]:
        return lambda x, _: F.interpolate(x, scale_factor=2.0, mode=kind)

    for shape, kind in kinds:
        _same(shape, doubled(kind))
    _same((4, 3, 6, 6), lambda x, _: [F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 2)])


def crossed() -> None:
    """The cross product, and the gradient of a diagonal."""
    import torch

    _same((4, 4), lambda x, _: x.diagonal())
    _same((4, 3), lambda x, place: torch.linalg.cross(x, place(torch.ones(4, 3)), dim=1))


def shuffled() -> None:
    """``pixel_shuffle``, ``pixel_unshuffle``, ``channel_shuffle`` and ``isin``."""
    import torch

    F = reproduce.functional()
    _same(
        (2, 4, 2, 4),
        lambda x, _: [F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)],
        lambda x, _: F.channel_shuffle(x.detach(), 2),
        lambda x, place: torch.isin(x.detach().round(), place(torch.tensor([0.0, 1.0]))),
    )


def _same(shape: tuple[int, ...], *functions: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
    for function in functions:
        reproduce.assert_same_sharded(function, shape=shape, rtol=1e-4, atol=1e-5)


_EXPECT = r"Operator aten\.\w+\.\w+ does not have a sharding strategy registered"

SHIM = Shim(
    key="dtensor_gathered_ops",
    summary="pooling, padding, cdist, take and others of DTensors find no sharding strategy",
    symptom=(
        "NotImplementedError: Operator aten.avg_pool2d.default does not have a sharding strategy "
        "registered. So for max_pool3d, adaptive_max_pool, padding that reflects or repeats, "
        "fold and unfold, cdist, pdist, bilinear, addbmm, margin losses, renorm, take, put, "
        "scatter_reduce, masked_scatter and searchsorted, forward or backward; up to 2.12 also for "
        "interpolate, up to 2.11 for max_pool2d and cross products, up to 2.10 for pixel_shuffle"
    ),
    cause="DTensor registers nothing for these operators.",
    cure=(
        "They get a strategy: pooling, padding and resizing leave samples and channels sharded; the "
        "others gather all of their inputs, and every rank has the whole result."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/pull/176821",
        "https://github.com/pytorch/pytorch/pull/179202",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        *(reproduce.on_two_ranks(run, _EXPECT) for run in (pooled, padded, compared, picked)),
        reproduce.on_two_ranks(resized, _EXPECT, affected=Affected(since="2.5.0", fixed_in=("2.13.0",))),
        reproduce.on_two_ranks(crossed, _EXPECT, affected=Affected(since="2.5.0", fixed_in=("2.12.0",))),
        reproduce.on_two_ranks(
            shuffled, _EXPECT, affected=Affected(since="2.5.0", fixed_in=("2.11.0",))
        ),
    ),
    removable_when="torch registers strategies for all of them",
    notes=(
        "What is gathered costs memory and time on every rank. Only operators that a build cannot do "
        "otherwise are registered; those in place, batch norm (whose statistics are written in place) "
        "and those whose result has a size that only the data tell are not."
    ),
)

"""Gradient clipping over DTensors of several meshes, or DTensors and plain tensors."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_CLIP = "torch.nn.utils.clip_grad"
_WHOLE = f"{_CLIP}:clip_grad_norm_"
# From 2.6 on clip_grad_norm_ is made of these two, which are public as well.
_NORM = f"{_CLIP}:_get_total_norm"
_SCALE = f"{_CLIP}:_clip_grads_with_norm_"


def probe() -> Probe:
    """Look whether the norm knows of meshes."""
    target = _WHOLE if lookup(_NORM, None) is None else _NORM
    if is_replaced(target):
        return absent("norms are combined mesh by mesh, by this shim", cured=True)
    function = lookup(target, None)
    if not inspect.isfunction(function):
        return drifted("torch.nn.utils.clip_grad is written differently")
    names = inspect.unwrap(function).__code__.co_names
    if "vector_norm" not in names:
        return drifted("the norm is computed differently")
    if {"device_mesh", "full_tensor", "DTensor"} & set(names):
        return absent("the norm looks at device meshes")
    return present("the norm stacks the norms of all tensors, whatever their mesh")


def edits() -> Sequence[Edit]:
    """Replace norm and scaling where they get tensors of more than one mesh."""
    import functools

    import torch

    def listed(tensors: Any) -> list[Any]:
        return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)

    def by_mesh(tensors: list[Any]) -> list[list[Any]]:
        groups: dict[Any, list[Any]] = {}
        for tensor in tensors:
            groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
        return list(groups.values())

    def norm_over(groups: list[list[Any]], order: float, error: bool, foreach: bool | None) -> Any:
        totals = []
        for group in groups:
            if foreach is False:
                norms = [torch.linalg.vector_norm(tensor, order) for tensor in group]
            else:
                norms = list(torch._foreach_norm(group, order))
            total: Any = torch.linalg.vector_norm(torch.stack(norms), order)
            # Every rank has the same groups in the same order, so the collectives match.
            totals.append(total.full_tensor() if hasattr(total, "full_tensor") else total)
        total = torch.linalg.vector_norm(torch.stack([t.to(totals[0].device) for t in totals]), order)
        if error and not bool(total.isfinite()):
            raise RuntimeError(
                f"the total norm of order {order} of the gradients is {float(total)}, so they cannot be "
                "clipped; set error_if_nonfinite=False to scale by it anyway"
            )
        return total

    def scale(grads: list[Any], max_norm: float, total: Any) -> None:
        if hasattr(total, "full_tensor"):
            total = total.full_tensor()
        coefficient = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
        for grad in grads:
            grad.mul_(coefficient.to(grad.device))

    def make_norm(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def _get_total_norm(
            tensors: Any,
            norm_type: float = 2.0,
            error_if_nonfinite: bool = False,
            foreach: bool | None = None,
        ) -> Any:
            tensors = listed(tensors)
            groups = by_mesh(tensors)
            if len(groups) < 2:
                return original(tensors, norm_type, error_if_nonfinite, foreach)
            with torch.no_grad():
                return norm_over(groups, float(norm_type), error_if_nonfinite, foreach)

        return _get_total_norm

    def make_scale(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def _clip_grads_with_norm_(
            parameters: Any, max_norm: float, total_norm: Any, foreach: bool | None = None
        ) -> None:
            parameters = listed(parameters)
            grads = [p.grad for p in parameters if p.grad is not None]
            if len(by_mesh(grads)) < 2:
                original(parameters, max_norm, total_norm, foreach)
                return
            with torch.no_grad():
                scale(grads, max_norm, total_norm)

        return _clip_grads_with_norm_

    def make_whole(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def clip_grad_norm_(
            parameters: Any,
            max_norm: float,
            norm_type: float = 2.0,
            error_if_nonfinite: bool = False,
            foreach: bool | None = None,
        ) -> Any:
            parameters = listed(parameters)
            grads = [p.grad for p in parameters if p.grad is not None]
            groups = by_mesh(grads)
            if len(groups) < 2:
                return original(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
            with torch.no_grad():
                total = norm_over(groups, float(norm_type), error_if_nonfinite, foreach)
                scale(grads, max_norm, total)
            return total

        return clip_grad_norm_

    utils = "torch.nn.utils"
    if lookup(_NORM, None) is None:
        return [ReplaceAttr(_WHOLE, make_whole, aliases=(f"{utils}:clip_grad_norm_",))]
    return [
        ReplaceAttr(_NORM, make_norm, aliases=(f"{utils}:get_total_norm",)),
        ReplaceAttr(_SCALE, make_scale, aliases=(f"{utils}:clip_grads_with_norm_",)),
    ]


def _clip(kinds: str) -> None:
    """Clip gradients of several kinds; norm and gradients equal those of plain tensors."""
    from importlib import import_module

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    tensor: Any = import_module("torch.distributed.tensor")
    if not hasattr(tensor, "Shard"):  # torch 2.4
        tensor = import_module("torch.distributed._tensor")
    shard, distribute = tensor.Shard, tensor.distribute_tensor
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "ep"))
    torch.manual_seed(0)
    for order, foreach, max_norm in ((2.0, None, 1.0), (float("inf"), False, 0.5), (1.0, True, 1e3)):
        plain, given = [], []
        for kind in kinds:
            reference = torch.nn.Parameter(torch.randn(4, 4))
            reference.grad = torch.randn(4, 4)
            parameter: Any = torch.nn.Parameter(reference.detach().clone())
            parameter.grad = reference.grad.clone()
            if kind != "p":
                on = (mesh["dp"], [shard(0)]) if kind == "1" else (mesh, [shard(0), shard(1)])
                parameter = torch.nn.Parameter(distribute(reference.detach(), *on))
                parameter.grad = distribute(reference.grad, *on)
            plain.append(reference)
            given.append(parameter)
        clip = torch.nn.utils.clip_grad_norm_
        total = reproduce.whole(clip(iter(given), max_norm, order, foreach=foreach))
        torch.testing.assert_close(total, clip(plain, max_norm, order, foreach=foreach))
        for got, want in zip(given, plain):
            torch.testing.assert_close(reproduce.whole(got.grad), want.grad)


def two_meshes() -> None:
    """Parameters on a mesh and on a slice of it, as dense layers and experts are."""
    _clip("1212")


def with_plain_tensors() -> None:
    """Sharded parameters, and one that is not; then what must go on working."""
    for kinds in ("1p21", "11", "ppp"):
        _clip(kinds)


_FAULT = (
    r"aten\.(_foreach_norm\.Scalar|stack\.default).*(cross-mesh operation|got mixed torch\.Tensor and "
    r"DTensor|must have the same mesh|are not on the same mesh|mesh)"
)

SHIM = Shim(
    key="clip_grad_mixed_mesh",
    summary="clip_grad_norm_ fails on DTensors of different meshes, or DTensors and plain tensors",
    symptom=(
        "NotImplementedError: aten._foreach_norm.Scalar: DTensor does not support cross-mesh operation "
        "yet! (to 2.8), RuntimeError: Sharding propagation failed for Op(op=aten.stack.default (to "
        "2.14), RuntimeError: All operands in aten.stack.default must have the same mesh, or "
        "aten._foreach_norm.Scalar: got mixed torch.Tensor and DTensor"
    ),
    cause=(
        "The norms of all gradients are stacked in one tensor, which DTensors of different device "
        "meshes, such as those of dense layers and of experts, cannot be."
    ),
    cure=(
        "Norms are computed mesh by mesh, gathered, and combined; the result is a plain tensor. "
        "Gradients of a single mesh take torch's own way."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/180346",
        "https://github.com/pytorch/pytorch/pull/180501",
    ),
    affected=Affected(since="2.4.0"),
    modules=("torch.nn.utils.clip_grad",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=name,
            run=run,
            expect=_FAULT,
            ranks=ranks,
            preload=("torch.distributed.device_mesh", "torch._dynamo"),
        )
        for name, run, ranks in (
            ("two_meshes_1rank", two_meshes, 1),
            ("two_meshes_2ranks", two_meshes, 2),
            ("with_plain_tensors", with_plain_tensors, 2),
        )
    ),
    removable_when="the oldest torch you support combines norms over meshes by itself",
    carried_by=("NVIDIA-NeMo/Automodel#3301", "huggingface/accelerate#4219"),
    notes=(
        "A plain tensor counts as replicated: its norm is taken once. Costs one more collective a "
        "mesh, and only where there is more than one. foreach=True optimizers over DTensors and plain "
        "tensors together are not covered; their default is not foreach."
    ),
)

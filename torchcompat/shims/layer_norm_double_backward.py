"""Derivatives of layer_norm's forward-mode derivative are wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

if TYPE_CHECKING:
    import torch

_TARGET = "torch.nn.functional:layer_norm"
_LEVEL = "torch.autograd.forward_ad:_current_level"


def probe() -> Probe:
    """The fault is in C++, out of a probe's sight: look for the cure, and for what it needs."""
    function = lookup(_TARGET, None)
    if getattr(function, "splits_under_forward_ad", False):
        return absent("layer_norm is decomposed while a forward-AD level is open", cured=True)
    if function is None or not isinstance(lookup(_LEVEL, None), int):
        return drifted("torch no longer counts forward-AD levels in forward_ad._current_level")
    return present("layer_norm keeps its own forward-mode formula, which is not differentiable right")


def _decomposed(
    x: torch.Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> torch.Tensor:
    import torch

    half = x.dtype in (torch.float16, torch.bfloat16)
    wide = x.float() if half else x
    dims = list(range(-len(shape), 0))
    centered = wide - wide.mean(dims, keepdim=True)
    out = centered * torch.rsqrt((centered * centered).mean(dims, keepdim=True) + eps)
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.to(x.dtype)


def edits() -> Sequence[Edit]:
    """Write layer_norm out in elementary operations while a forward-AD level is open."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        from torch.autograd import forward_ad
        from torch.overrides import has_torch_function_variadic

        @functools.wraps(original, updated=())
        def layer_norm(
            input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
        ) -> Any:
            out = original(input, normalized_shape, weight, bias, eps)
            if forward_ad._current_level < 0 or has_torch_function_variadic(input, weight, bias):
                return out
            # The original has checked shapes and dtypes, and says which dtype to return.
            return _decomposed(input, normalized_shape, weight, bias, eps).to(out.dtype)

        layer_norm.splits_under_forward_ad = True  # type: ignore[attr-defined]
        return layer_norm

    return [ReplaceAttr(_TARGET, make)]


def _compare(order: str) -> None:
    """Second derivatives of both orders, against the same formula written out, in float64."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)

    def reference(x: Any, shape: Any, weight: Any, bias: Any) -> Any:
        dims = list(range(-len(shape), 0))
        mean = x.mean(dims, keepdim=True)
        out = (x - mean) / (x.var(dims, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return out if weight is None else out * weight + bias

    def derivative(norm: Any, x: Any, v: Any, *rest: Any) -> Any:
        if order == "gradient of a jvp":
            x = x.detach().requires_grad_()
            tangent: Any = torch.func.jvp(lambda z: norm(z, *rest), (x,), (v,))[1]
            return torch.autograd.grad((tangent**2).sum(), x)[0]
        gradient = torch.func.grad(lambda z: (norm(z, *rest) ** 3).sum())
        return torch.func.jvp(gradient, (x,), (v,))[1]

    shapes: tuple[tuple[int, ...], ...] = ((5,), (4, 5))
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        for shape in shapes:
            for affine in (True, False):
                x, v = (torch.randn(5, 4, 3, dtype=dtype).transpose(0, 2) for _ in range(2))
                parts = [torch.randn(shape, dtype=dtype) if affine else None for _ in range(2)]
                got = derivative(F.layer_norm, x, v, shape, *parts).double()
                wide = [None if part is None else part.double() for part in parts]
                want = derivative(reference, x.double(), v.double(), shape, *wide)
                off = float((got - want).abs().max() / want.abs().max())
                if off > tolerance:
                    raise AssertionError(f"{order} of layer_norm is off by {off:.2g} in {dtype}")


def second_derivatives() -> None:
    """Reverse over forward, which is wrong, and forward over reverse, which is not."""
    _compare("gradient of a jvp")
    _compare("jvp of a gradient")


SHIM = Shim(
    key="layer_norm_double_backward",
    summary="the gradient of layer_norm's jvp is wrong (Hessian-vector products)",
    symptom=(
        "No error. The gradient of torch.func.jvp through torch.nn.functional.layer_norm "
        "(or nn.LayerNorm) has wrong numbers; the jvp itself and plain gradients are right."
    ),
    cause=(
        "The forward-mode formula of native_layer_norm, in C++, treats the saved mean and rstd as "
        "constants where it is itself differentiated."
    ),
    cure=(
        "torch.nn.functional.layer_norm is written out in elementary operations while a forward-AD "
        "level is open (torch.func.jvp, jacfwd, hessian, forward_ad.dual_level)."
    ),
    upstream=("https://github.com/pytorch/pytorch/issues/196700",),
    affected=Affected(since=None),
    modules=("torch.nn.functional", "torch.autograd.forward_ad"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="second_derivatives",
            run=second_derivatives,
            expect=r"AssertionError: gradient of a jvp of layer_norm is off by",
            preload=("torch._decomp.decompositions_for_jvp",),
        ),
    ),
    removable_when="torch's own forward-mode formula can be differentiated",
    dynamo_reset=True,
    notes=(
        "Only while a forward-AD level is open: about three times the time and memory of the fused "
        "layer_norm. Elsewhere it costs one comparison a call. torch.layer_norm, called directly, is "
        "not covered; neither is a forward that ran before the level was opened."
    ),
)

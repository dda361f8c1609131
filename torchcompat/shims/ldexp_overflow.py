"""torch.ldexp overflows, or vanishes, where its result can be represented."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, present
from ..targets import lookup

_TARGETS = ("torch:ldexp", "torch:Tensor.ldexp", "torch:Tensor.ldexp_")


def probe() -> Probe:
    """The op is C++: from 2.11 on it has a decomposition of its own, before it was a composite."""
    import torch

    if all(getattr(lookup(target, None), "in_steps", False) for target in _TARGETS):
        return absent("ldexp scales in steps", cured=True)
    if not torch._C._dispatch_has_kernel_for_dispatch_key(
        "aten::ldexp.Tensor", "CompositeImplicitAutograd"
    ):
        return absent("ldexp is an op with kernels of its own", cured=True)
    return present("ldexp(x, e) is computed as x * 2**e, and 2**e may overflow by itself")


def _power(exponent: Any, like: Any) -> Any:
    import torch

    return torch.pow(torch.tensor(2.0, dtype=like.dtype, device=like.device), exponent.to(like.dtype))


def _in_steps(x: Any, exponent: Any, dtype: Any) -> Any:
    """``x * 2**exponent``, rounded once."""
    import torch

    if dtype != torch.float64:
        # Every product of a narrower float and a power of two that matters is exact here.
        wide = x.to(torch.float64)
        return (wide * _power(exponent.clamp(-1000, 1000), wide)).to(dtype)
    x = x.to(dtype)
    _, own = torch.frexp(x.detach())
    e = exponent.to(dtype)
    # The first two factors bring x half-way to its result, where nothing is rounded.
    total = (e.detach() + own).clamp(-1200, 1200)
    half = torch.floor(total / 2) - own
    first = torch.floor(half / 2)
    last = e.clamp(-2400, 2400) - half
    return x * _power(first, x) * _power(half - first, x) * _power(last.clamp(-1000, 1000), x)


def _make(target: str, original: Callable[..., Any]) -> Callable[..., Any]:
    inplace = target.endswith("_")

    @functools.wraps(original, updated=())
    def ldexp(input: Any, other: Any, *, out: Any = None) -> Any:
        import torch
        from torch.overrides import has_torch_function_variadic

        plain = isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor)
        if (
            not plain
            or has_torch_function_variadic(input, other)
            or input.is_complex()
            or other.is_complex()
            or input.device.type == "mps"  # which has no float64
        ):
            keywords = {} if out is None else {"out": out}
            return original(input, other, **keywords)
        if inplace:
            if not input.is_floating_point():
                return original(input, other)
            return input.copy_(_in_steps(input, other, input.dtype))
        plainly = torch._C._VariableFunctions.ldexp(input, other)  # for its dtype
        exact = _in_steps(input, other, plainly.dtype)
        if out is None:
            return exact
        torch._C._VariableFunctions.ldexp(input, other, out=out)  # checks and resizes it
        return out.copy_(exact)

    ldexp.in_steps = True  # type: ignore[attr-defined]
    # A builtin's names are not those under which it is found, and pickle goes by names.
    ldexp.__module__, _, ldexp.__qualname__ = target.partition(":")
    return ldexp


def edits() -> Sequence[Edit]:
    """Compute the function and both methods in steps."""
    return [ReplaceAttr(target, functools.partial(_make, target)) for target in _TARGETS]


def closed_form() -> None:
    """Powers of two times a random mantissa, against Python's own ldexp; gradients too."""
    import math

    import torch

    def check(got: Any, x: Any, e: Any, dtype: Any, what: str) -> None:
        want = torch.tensor(
            [math.ldexp(a, b) for a, b in zip(x.double().tolist(), e.tolist())], dtype=torch.float64
        ).to(dtype)
        if got.dtype != dtype or not torch.equal(got, want):
            at = int((got.double() != want.double()).nonzero()[0]) if got.dtype == dtype else 0
            raise AssertionError(
                f"{what}({float(x[at])!r}, {int(e[at])}) is {float(got[at])!r} of {got.dtype}, "
                f"and not {float(want[at])!r} of {dtype}"
            )

    torch.manual_seed(0)
    spans = {torch.float32: 126, torch.float64: 1022, torch.bfloat16: 126, torch.float16: 14}
    for dtype, span in spans.items():
        mantissas = (torch.rand(2, 200, dtype=torch.float64) + 1).to(dtype)[:, ::2]  # with gaps
        start = torch.randint(-span, 0, (200,)).double()[::2]
        x = (mantissas[0].double() * 2**start).to(dtype)
        e = torch.randint(0, span, (200,))[::2] - start.long()
        out_dtype = torch._C._VariableFunctions.ldexp(x, e).dtype
        check(torch.ldexp(x, e), x, e, out_dtype, "torch.ldexp")
        check(x.ldexp(e), x, e, out_dtype, "Tensor.ldexp")
        check(x.clone().ldexp_(e), x, e, dtype, "Tensor.ldexp_")
        check(torch.ldexp(x, e, out=torch.empty(0, dtype=out_dtype)), x, e, out_dtype, "torch.ldexp")
        tiny = torch.ldexp(x[:1], -e[:1])  # goes under, to a denormal or to zero
        check(tiny, x[:1], -e[:1], out_dtype, "torch.ldexp")
    x = torch.tensor([1e-30, 3.0], requires_grad=True)
    e = torch.tensor([120.0, 0.5], requires_grad=True)
    torch.ldexp(x, e).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([2.0**120, 2**0.5]))
    torch.testing.assert_close(e.grad, (x * 2**e * math.log(2)).detach())


SHIM = Shim(
    key="ldexp_overflow",
    summary="torch.ldexp overflows to inf, or to zero, where the result can be represented",
    symptom=(
        "No error. torch.ldexp(torch.tensor([1e-30]), torch.tensor([130])) is inf instead of 1.36e9; in "
        "float16 and bfloat16 it happens at small exponents already."
    ),
    cause="ldexp(x, e) is computed as x * 2**e in the result's dtype, where 2**e overflows by itself.",
    cure=(
        "torch.ldexp, Tensor.ldexp and Tensor.ldexp_ compute in float64 and round once; float64 itself "
        "is scaled in three steps, of which only the last can round. The result's dtype stays."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/133265",
        "https://github.com/pytorch/pytorch/issues/153069",
    ),
    affected=Affected(since=None, fixed_in=("2.11.0",)),
    modules=("torch",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="closed_form",
            run=closed_form,
            expect=r"AssertionError: (torch|Tensor)\.ldexp_?\(.*\) is (inf|0\.0) of torch",
        ),
    ),
    removable_when="the oldest torch you support is 2.11",
    notes=(
        "Three to six times the time of the plain op, which is elementwise and rarely hot. MPS has no "
        "float64, and complex numbers have no exponent: both are left alone."
    ),
)

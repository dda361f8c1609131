"""Casting a large float to ``float8_e4m3fn`` gives nan. Opt-in: a changed result."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_TO = "torch:Tensor.to"
_TYPE = "torch:Tensor.type"

_MOST = 448.0


def probe() -> Probe:
    """Cast one number: the cast is in C++, and no structure in Python shows what it does."""
    if is_replaced(_TO) and is_replaced(_TYPE):
        return absent("casts to float8_e4m3fn are clamped, by this shim", cured=True)
    to = lookup(_TO, None)
    if not (callable(to) and callable(lookup(_TYPE, None))):
        return drifted("Tensor.to or Tensor.type is not where it was")
    import torch

    if float(to(to(torch.tensor(1e3), torch.float8_e4m3fn), torch.float32)) == _MOST:
        return absent("casts to float8_e4m3fn saturate", cured=True)
    return present("a cast of 1000 to float8_e4m3fn is nan")


def edits() -> Sequence[Edit]:
    """Clamp floats before a cast to float8_e4m3fn."""
    import torch

    narrow = torch.float8_e4m3fn
    most = torch.finfo(narrow).max

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def cast(self: Any, *args: Any, **kwargs: Any) -> Any:
            other = args[0] if args else None
            # to(dtype), to(device, dtype), to(tensor), to(dtype=...), type(dtype), type(dtype=...)
            wanted = narrow in args or kwargs.get("dtype") is narrow
            if not wanted and isinstance(other, torch.Tensor):
                wanted = other.dtype is narrow
            if (
                wanted
                and self.dtype is not narrow
                and self.is_floating_point()
                and self.element_size() > 1
            ):
                self = self.clamp(-most, most)
            return original(self, *args, **kwargs)

        cast.__module__, cast.__qualname__ = "torch", f"Tensor.{original.__name__}"
        return cast

    return [ReplaceAttr(_TO, make), ReplaceAttr(_TYPE, make)]


def too_large() -> None:
    """Floats past the largest number become that number; nan stays; the rest is as ever."""
    import torch

    fp8 = torch.float8_e4m3fn
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.tensor([1.0, -448.0, 500.0, -6e4, float("inf"), float("nan")], dtype=dtype)
        for name, got in (
            ("to(dtype)", x.to(fp8)),
            ("to(dtype=)", x.to(dtype=fp8)),
            ("to(device, dtype)", x.to("cpu", fp8)),
            ("to(tensor)", x.to(torch.ones(1).to(fp8))),
            ("type(dtype)", x.type(fp8)),
        ):
            floats = got.float()
            if floats[:5].tolist() != [1.0, -448.0, 448.0, -448.0, 448.0] or not floats[5].isnan():
                raise AssertionError(f"x.{name} of {dtype} is {floats.tolist()}")


SHIM = Shim(
    key="fp8_saturate",
    summary="casts to float8_e4m3fn saturate at 448, as from 2.13 on, instead of giving nan",
    symptom="No error: torch.tensor(500.0).to(torch.float8_e4m3fn) is nan.",
    cause="Up to 2.12 a cast of a float past 448 gives nan, as the format has no infinity.",
    cure="Tensor.to and Tensor.type clamp floats to what the format can hold before they cast.",
    upstream=("https://github.com/pytorch/pytorch/blob/v2.13.0/c10/util/Float8_e4m3fn.h",),
    affected=Affected(since=None, fixed_in=("2.13.0",)),
    modules=("torch",),
    probe=probe,
    edits=edits,
    reproducers=(Reproducer(name="too_large", run=too_large, expect=r"AssertionError: x\..* is \["),),
    removable_when="the oldest torch you support is 2.13",
    opt_in=True,
    notes=(
        "Opt-in, since a nan that stood for an overflow is seen no more, and Tensor.to costs a Python "
        "call more. Casts that torch.compile traces go past it, as do copy_() and casts in C++; the "
        "gradient of a clamped element is 0."
    ),
)

"""``torch.isin`` does not take half-width floats."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_ISIN = "torch:isin"


def probe() -> Probe:
    """The fault is in C++, and nothing in Python shows it; the cure is exact everywhere."""
    if is_replaced(_ISIN):
        return absent("torch.isin widens half-width floats, by this shim", cured=True)
    if not inspect.isbuiltin(lookup(_ISIN, None)):
        return drifted("torch.isin is no longer what C++ registers")
    return present("torch.isin hands bfloat16 and float16 to the kernel as they are")


def edits() -> Sequence[Edit]:
    """Widen bfloat16 and float16 first; every one of their values is a float32."""
    import torch

    narrow = (torch.bfloat16, torch.float16)

    def widened(value: Any) -> Any:
        wide = isinstance(value, torch.Tensor) and value.dtype in narrow
        return value.to(torch.float32) if wide else value

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def isin(*args: Any, **kwargs: Any) -> Any:
            args = tuple(widened(value) for value in args)
            for name in ("elements", "element", "test_elements", "test_element"):
                if name in kwargs:
                    kwargs[name] = widened(kwargs[name])
            return original(*args, **kwargs)

        isin.__module__, isin.__qualname__ = "torch", "isin"
        return isin

    return [ReplaceAttr(_ISIN, make)]


def half_width_floats() -> None:
    """Two tensors, and a tensor and a number, in both dtypes, inverted and not."""
    import torch

    for dtype in (torch.bfloat16, torch.float16):
        x = torch.tensor([1.0, 2.5, 3.0, float("nan")], dtype=dtype)
        some = torch.tensor([2.5, 3.0, float("nan")], dtype=dtype)
        for got, want in (
            (torch.isin(x, some), [False, True, True, False]),
            (torch.isin(elements=x, test_elements=some, invert=True), [True, False, False, True]),
            (torch.isin(x, 3), [False, False, True, False]),
        ):
            if got.tolist() != want:
                raise AssertionError(f"isin gave {got.tolist()}, not {want}")


SHIM = Shim(
    key="isin_bf16",
    summary="torch.isin takes bfloat16 and float16",
    symptom=(
        "RuntimeError: Unsupported input type encountered for isin(): BFloat16, and for float16 on the "
        "CPU: "
        "\"isin_default_cpu\" not implemented for 'Half'"
    ),
    cause="Up to 2.5 the kernel is not made for bfloat16, nor on the CPU for float16.",
    cure="torch.isin widens bfloat16 and float16 to float32 first, which is exact.",
    upstream=("https://github.com/pytorch/pytorch/blob/v2.5.1/aten/src/ATen/native/TensorCompare.cpp",),
    affected=Affected(since=None, fixed_in=("2.6.0",)),
    modules=("torch",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="half_width_floats",
            run=half_width_floats,
            expect=r"RuntimeError: (Unsupported input type encountered for isin|\"isin_default_cpu\")",
        ),
    ),
    removable_when="the oldest torch you support is 2.6",
)

"""``rms_norm`` with a weight of another dtype returns float32. Opt-in: a changed result."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_RMS_NORM = "torch.nn.functional:rms_norm"


def probe() -> Probe:
    """The difference is in C++, and nothing in Python shows it; a cast too many changes nothing."""
    if is_replaced(_RMS_NORM):
        return absent("rms_norm returns its input's dtype, by this shim", cured=True)
    if not callable(lookup(_RMS_NORM, None)):
        return drifted("rms_norm is not where it was")
    return present("rms_norm returns whatever dtype the product with its weight has")


def edits() -> Sequence[Edit]:
    """Cast the result."""

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def rms_norm(
            input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
        ) -> Any:
            return original(input, normalized_shape, weight, eps).to(input.dtype)

        return rms_norm

    return [ReplaceAttr(_RMS_NORM, make)]


def mixed_dtypes() -> None:
    """A bfloat16 input and a float32 weight, through the function and the module."""
    import torch

    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.bfloat16)
    norm = torch.nn.RMSNorm(4, eps=1e-6)
    wide = x.double()
    want = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    for got in (norm(x), torch.nn.functional.rms_norm(x, (4,), norm.weight, 1e-6)):
        if got.dtype != torch.bfloat16:
            raise AssertionError(f"rms_norm of bfloat16 is {got.dtype}")
        off = float((got.double() - want).abs().max())
        if off > 1e-2:
            raise AssertionError(f"rms_norm is off by {off}")


SHIM = Shim(
    key="rms_norm_dtype",
    summary="rms_norm with a weight of another dtype returns its input's dtype, as from 2.7 on",
    symptom="No error: rms_norm of a bfloat16 input with a float32 weight is float32.",
    cause="Up to 2.6 the result has the promoted dtype of input and weight.",
    cure="torch.nn.functional.rms_norm, and so torch.nn.RMSNorm, casts its result to the input's dtype.",
    upstream=("https://github.com/pytorch/pytorch/blob/v2.7.0/aten/src/ATen/native/layer_norm.cpp",),
    affected=Affected(since=None, fixed_in=("2.7.0",)),
    modules=("torch.nn.functional",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="mixed_dtypes", run=mixed_dtypes, expect="AssertionError: rms_norm of bfloat16 is"
        ),
    ),
    removable_when="the oldest torch you support is 2.7",
    opt_in=True,
    dynamo_reset=True,
    notes="Opt-in, since it narrows a result that a program for 2.6 may count on.",
)

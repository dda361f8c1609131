"""``torch.compiler.is_exporting`` does not exist yet."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..edits import AddAttr, Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_NAME = "torch.compiler:is_exporting"
_FLAG = "torch.compiler:_is_compiling_flag"


def is_exporting() -> bool:
    """Whether torch.export, strict or not, or dynamo's own export traces the calling code."""
    dynamo = sys.modules.get("torch._dynamo.symbolic_convert")
    if dynamo is not None:
        try:
            return bool(dynamo.InstructionTranslator.current_tx().output.export)
        except AttributeError:
            pass  # dynamo is not at work: no translator is current
    # Up to 2.6 only torch.export, where it traces by itself, sets this flag.
    return bool(lookup(_FLAG, False))


# Dynamo takes its answer as a constant, when it traces a call of it.
is_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


def probe() -> Probe:
    """Look for the name, and for the flag that answers it."""
    if lookup(_NAME, None) is not None:
        return absent("torch.compiler.is_exporting is there", cured=True)
    if lookup(_FLAG, None) is None:
        return drifted("torch.compiler has no flag that export sets")
    return present("torch.compiler has no is_exporting")


def edits() -> Sequence[Edit]:
    """Add the function."""
    return [AddAttr(_NAME, lambda: is_exporting)]


def in_eager_compile_and_export() -> None:
    """False in eager code and under torch.compile, True under both kinds of export."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 100 if torch.compiler.is_exporting() else x + 1

    x = torch.zeros(2)
    answers = {"eager": float(Module()(x)[0])}
    # Torch's own is compiler_is_exporting's matter; a strict export takes a second.
    own = torch.compiler.is_exporting.__module__.startswith("torch.")
    for strict in (False,) if own else (True, False):
        exported = torch.export.export(Module(), (x,), strict=strict).module()
        answers[f"export, strict={strict}"] = float(exported(x)[0])
    if list(answers.values()) != [1, *[100] * (len(answers) - 1)]:
        raise AssertionError(f"torch.compiler.is_exporting() went wrong: {answers}")


SHIM = Shim(
    key="is_exporting_missing",
    summary="torch.compiler.is_exporting() for the builds before it",
    symptom="AttributeError: module 'torch.compiler' has no attribute 'is_exporting'",
    cause="The function is part of 2.7.",
    cure=(
        "torch.compiler gets the function. It is True while torch.export traces, strict or not, and "
        "False in eager code and under torch.compile."
    ),
    upstream=("https://github.com/pytorch/pytorch/blob/v2.7.0/torch/compiler/__init__.py",),
    affected=Affected(since=None, fixed_in=("2.7.0",)),
    modules=("torch.compiler",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="in_eager_compile_and_export",
            run=in_eager_compile_and_export,
            expect="has no attribute 'is_exporting'",
            preload=("torch._dynamo", "torch._inductor.codecache", "torch.export._trace"),
        ),
    ),
    removable_when="the oldest torch you support is 2.7",
    notes="From 2.7 to 2.11 torch's own answers True under torch.compile: see compiler_is_exporting.",
)

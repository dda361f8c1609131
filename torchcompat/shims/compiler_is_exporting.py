"""``torch.compiler.is_exporting()`` is True inside torch.compile."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_STATES = "torch._dynamo.variables.torch:tracing_state_functions"
_HANDLERS = "torch._dynamo.variables.torch:TorchInGraphFunctionVariable._get_handlers"
_IS_EXPORTING = "torch.compiler:is_exporting"
_FLAG = "torch.compiler:_is_exporting_flag"


def _exports() -> bool:
    """Whether torch.export, or dynamo's own export, drives the tracing."""
    if lookup(_FLAG):
        return True
    # Strict export sets no flag in 2.7; there dynamo knows by itself.
    translator = lookup("torch._dynamo.symbolic_convert:InstructionTranslator").current_tx()
    return bool(translator.output.export)


class _LiveStates(dict[Any, Any]):
    """What dynamo answers for functions about tracing; is_exporting from who drives it."""

    def __getitem__(self, function: Any) -> Any:
        if function is lookup(_IS_EXPORTING):
            return _exports()
        return super().__getitem__(function)


def _reads_the_flag() -> bool | None:
    """Whether dynamo's own handler asks for the flag, as from 2.12 on; None for other code."""
    handlers = getattr(lookup(_HANDLERS, None), "__func__", None)
    code = getattr(getattr(handlers, "__wrapped__", handlers), "__code__", None)
    inner = [const for const in getattr(code, "co_consts", ()) if hasattr(const, "co_names")]
    return any("_is_exporting_flag" in const.co_names for const in inner) if inner else None


def probe() -> Probe:
    """Look whether dynamo folds is_exporting to a constant."""
    if lookup(_IS_EXPORTING, None) is None:
        return absent("this torch has no torch.compiler.is_exporting", cured=True)
    states = lookup(_STATES, None)
    if isinstance(states, _LiveStates) or getattr(states, "is_live", False):
        return absent("dynamo answers is_exporting from the flag", cured=True)
    reads = _reads_the_flag()
    if reads:
        return absent("dynamo's handler answers is_exporting from the flag", cured=True)
    if reads is None:
        return drifted("dynamo's handlers for functions about tracing are written differently")
    if lookup(_FLAG, None) is None or not (isinstance(states, dict) or callable(states)):
        return drifted("dynamo keeps its answers about tracing somewhere else")
    return present("dynamo folds is_exporting to True")


def edits() -> Sequence[Edit]:
    """Let the table of answers read the flag; up to 2.7 it is a dict, later a function."""

    def make(original: Any) -> Any:
        if isinstance(original, dict):
            return _LiveStates(original)

        @functools.wraps(original, updated=())
        def tracing_state_functions() -> dict[Any, Any]:
            return _LiveStates(original())

        tracing_state_functions.is_live = True  # type: ignore[attr-defined]
        return tracing_state_functions

    return [ReplaceAttr(_STATES, make)]


def compile_and_export() -> None:
    """False under torch.compile, called directly and nested; True under both kinds of export."""
    import torch

    def choose(x: torch.Tensor) -> torch.Tensor:
        return x + 100 if torch.compiler.is_exporting() else x + 1

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return choose(x)

    x = torch.zeros(2, dtype=torch.float64)

    def compiled(target: Any, **options: Any) -> float:
        run: Any = torch.compile(target, backend="eager", fullgraph=True, **options)
        return float(run(x)[0])

    def expect(got: float, want: float, where: str) -> None:
        if got != want:
            raise AssertionError(f"torch.compiler.is_exporting() is {got == 100} {where}")

    for dynamic in (False, True):
        expect(compiled(choose, dynamic=dynamic), 1, "under torch.compile")
        expect(compiled(Module(), dynamic=dynamic), 1, "under torch.compile of a module")
    for strict in (True, False):
        exported: Any = torch.export.export(Module(), (x,), strict=strict).module()
        expect(float(exported(x)[0]), 100, f"under torch.export with strict={strict}")
    expect(compiled(lambda y: choose(y) * 1), 1, "under torch.compile after an export")


SHIM = Shim(
    key="compiler_is_exporting",
    summary="torch.compiler.is_exporting() is True inside torch.compile",
    symptom=(
        "No error. Inside torch.compile, torch.compiler.is_exporting() answers True, so models run the "
        "branch that they keep for torch.export."
    ),
    cause="Dynamo folds is_exporting() to True, as it does is_compiling(), whoever drives it.",
    cure=(
        "Dynamo's table of answers (torch._dynamo.variables.torch.tracing_state_functions) reads "
        "torch.compiler's own flag and dynamo's, which are set during an export only, strict or not."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/176347",
        "https://github.com/pytorch/pytorch/pull/176499",
    ),
    affected=Affected(since="2.7.0", fixed_in=("2.12.0",)),
    modules=("torch.compiler", "torch._dynamo.variables.torch", "torch._dynamo.symbolic_convert"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="compile_and_export",
            run=compile_and_export,
            expect=r"AssertionError: torch\.compiler\.is_exporting\(\) is True under torch\.compile",
            runnable=Affected(since="2.7.0"),
            needs="torch.compiler.is_exporting",
            preload=("torch._dynamo", "torch.export"),
        ),
    ),
    removable_when="the oldest torch you support is 2.12",
    dynamo_reset=True,
    notes="Costs nothing at run time; a table is copied where a compilation asks about tracing.",
)

"""The old and the new names of the TF32 setting cannot both be used in one process."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..edits import Call, Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_CUBLAS = "torch._C:_get_cublas_allow_tf32"
_CUDNN = "torch._C:_get_cudnn_allow_tf32"
_MATMUL = "torch._C:_get_float32_matmul_precision"
# The object that answers torch.backends.cudnn keeps the module proper as m.
_CUDNN_HELD = "torch.backends.cudnn:m.CudnnModule.allow_tf32.getter"
_FLAGS = "torch.backends.cudnn:m.flags"
# In torch._dynamo.variables.torch, and no targets: undone by the call below, where they are loaded.
_DYNAMO = ("constant_fold_functions", "constant_fold_functions_need_guards")
_NEW = "torch._C:_get_fp32_precision_getter"

# Strings that a test or a reader finds in torch's message.
_MIXED = "mix of the legacy and new APIs"


def probe() -> Probe:
    """Look whether there are new names, and who answers under the old ones."""
    if all(is_replaced(target) for target in (_CUBLAS, _CUDNN, _MATMUL, _CUDNN_HELD, _FLAGS)):
        return absent("the old names answer from the new state, by this shim", cured=True)
    if lookup(_NEW, None) is None:
        return absent("this torch has the old names only")
    for target in (_CUBLAS, _CUDNN, _MATMUL, _CUDNN_HELD, _FLAGS):
        if not callable(lookup(target, None)):
            return drifted(f"{target} is not where it was")
    return present("the old names check whether the new ones were used")


def _precision(backend: str, op: str) -> str:
    import torch

    return str(torch._C._get_fp32_precision_getter(backend, op))  # type: ignore[attr-defined, unused-ignore]


def _cublas() -> bool:
    return _precision("cuda", "matmul") == "tf32"


def _cudnn() -> bool:
    return _precision("cuda", "conv") == _precision("cuda", "rnn") == "tf32"


def _matmul() -> str:
    if _precision("mkldnn", "matmul") == "bf16":
        return "medium"
    return (
        "high" if "tf32" in (_precision("cuda", "matmul"), _precision("mkldnn", "matmul")) else "highest"
    )


def edits() -> Sequence[Edit]:
    """Let the getters fall back on the new state, and flags() put that state back whole."""
    import torch

    state: Any = torch._C
    ours: list[tuple[Any, Any]] = []  # each getter with the one it replaces

    def forget() -> None:
        """Put the getters back where dynamo has collected ours, since it was loaded after us."""
        for name in _DYNAMO:
            # Not by its attribute: a module that loads lazily may not be ready to be asked.
            module = sys.modules.get("torch._dynamo.variables.torch")
            table = getattr(module, "__dict__", {}).get(name)
            for getter, original in ours:
                if isinstance(table, dict) and getter in table:
                    table[original] = table.pop(getter)

    def answering(effective: Callable[[], Any]) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            @functools.wraps(original, updated=())
            def getter() -> Any:
                try:
                    return original()
                except RuntimeError as error:
                    if _MIXED not in str(error):
                        raise
                    return effective()

            # Dynamo folds the original to a constant, and guards on it by itself.
            getter._dynamo_marked_constant = True  # type: ignore[attr-defined]
            getter.__module__, getter.__qualname__ = "torch._C", original.__name__
            ours.append((getter, original))
            return getter

        return make

    def make_flags(original: Any) -> Any:
        @functools.wraps(original, updated=())
        @contextlib.contextmanager
        def flags(*args: Any, **kwargs: Any) -> Iterator[None]:
            before = {op: _precision("cuda", op) for op in ("conv", "rnn")}
            try:
                with original(*args, **kwargs):
                    yield
            finally:
                for op, precision in before.items():
                    if _precision("cuda", op) != precision:
                        state._set_fp32_precision_setter("cuda", op, precision)

        return flags

    return [
        Call("dynamo's tables of functions without side effects", lambda: None, forget),
        ReplaceAttr(_CUBLAS, answering(_cublas)),
        ReplaceAttr(_CUDNN, answering(_cudnn), aliases=(_CUDNN_HELD,)),
        ReplaceAttr(_MATMUL, answering(_matmul)),
        ReplaceAttr(_FLAGS, make_flags),
    ]


def _expect(got: object, want: object, what: str) -> None:
    if got != want:
        raise AssertionError(f"{what}: {got!r}, not {want!r}")


def two_libraries() -> None:
    """One library sets the new names, another reads and sets the old ones, and back again."""
    import torch

    backends: Any = torch.backends
    if not hasattr(torch._C, "_get_fp32_precision_getter"):
        return  # one kind of names alone cannot be mixed
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    for new, allowed, name in (("tf32", True, "high"), ("ieee", False, "highest")):
        matmul.fp32_precision = new
        _expect(matmul.allow_tf32, allowed, "matmul.allow_tf32 after the new name was set")
        _expect(torch.get_float32_matmul_precision(), name, "the matmul precision")
        matmul.allow_tf32 = not allowed
        _expect(matmul.fp32_precision == "tf32", not allowed, "the new name after the old one was set")
        _expect(matmul.allow_tf32, not allowed, "matmul.allow_tf32 after it was set")
    cudnn.conv.fp32_precision = "ieee"
    cudnn.rnn.fp32_precision = "tf32"
    _expect(cudnn.allow_tf32, False, "cudnn.allow_tf32 where convolutions may not use TF32")
    with cudnn.flags(enabled=True, allow_tf32=True):
        _expect(cudnn.allow_tf32, True, "cudnn.allow_tf32 within flags()")
    _expect((cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision), ("ieee", "tf32"), "after flags()")
    cudnn.allow_tf32 = True
    _expect(cudnn.conv.fp32_precision, "tf32", "the new name after cudnn.allow_tf32 was set")


SHIM = Shim(
    key="tf32_mixed_api",
    summary="allow_tf32 and fp32_precision can be used in one process; the last one set holds",
    symptom=(
        "RuntimeError: ... you have used mix of the legacy and new APIs to set the TF32 status, from "
        "reading allow_tf32 or get_float32_matmul_precision(), or from torch.backends.cudnn.flags()"
    ),
    cause=(
        "2.9 brought torch.backends.*.fp32_precision. The old names set both kinds of state, the new "
        "ones theirs alone; where they differ, reading an old name raises."
    ),
    cure=(
        "Where reading an old name would raise, it answers from the new state, which is what the "
        "kernels use. torch.backends.cudnn.flags() puts the precision of convolutions and RNNs back "
        "each."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/179445",
        "https://github.com/pytorch/pytorch/pull/179750",
    ),
    affected=Affected(since="2.9.0"),
    modules=("torch._C", "torch.backends.cudnn"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="two_libraries",
            run=two_libraries,
            expect="RuntimeError: .*mix of the legacy and new APIs",
        ),
    ),
    removable_when="no two of your dependencies use different names for this setting",
    notes=(
        "cudnn.allow_tf32 is True where both convolutions and RNNs may use TF32. The state itself, and "
        "the setters, stay torch's. Code in C++ that reads the old flags still raises."
    ),
)

"""Compiled cumsum of a constant tensor: wrong dtype, wrong values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..compile_cache import SaltCompileCache
from ..edits import Call, Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_KEY = "cumsum_fill_dtype"
_HANDLER = "torch._inductor.fx_passes.post_grad:pointless_cumsum_replacement"
_PASSES = "torch._inductor.fx_passes.post_grad:pass_patterns"


def _entries() -> Iterator[Any]:
    """The pattern's entries in inductor's pass tables."""
    handler = lookup(_HANDLER, None)
    for table in lookup(_PASSES, ()):
        patterns = getattr(table, "patterns", {})
        for entries in patterns.values() if isinstance(patterns, Mapping) else ():
            for entry in entries:
                if handler is not None and getattr(entry, "handler", None) is handler:
                    yield entry


def probe() -> Probe:
    """Look what the pattern's handler makes of a dtype argument."""
    handler = lookup(_HANDLER, None)
    if handler is None:
        return drifted("inductor has no pointless_cumsum_replacement")
    code = handler.__code__
    if "out_dtype" in (*code.co_varnames, *code.co_cellvars):
        return absent("the pattern heeds cumsum's dtype", cured=True)
    entries = list(_entries())
    if not entries:
        return drifted("the pattern of pointless_cumsum_replacement is registered elsewhere")
    if all(getattr(entry.extra_check, "only_exact", False) for entry in entries):
        return absent("the pattern is used only where it is exact", cured=True)
    return present("the pattern ignores cumsum's dtype and the cast of the fill value")


def _is_exact(match: Any) -> bool:
    """Whether ``arange(1, n + 1, dtype) * fill_value`` is what cumsum returns."""
    import torch

    if match.output_node().kwargs.get("dtype") is not None or len(match.kwargs["shape"]) == 0:
        return False
    dtype, fill = match.kwargs["dtype"], match.kwargs["fill_value"]
    if dtype in (torch.float32, torch.float64):
        return type(fill) in (int, float, bool)
    if dtype is torch.bool or dtype.is_floating_point or dtype.is_complex:
        return False
    info = torch.iinfo(dtype)
    return type(fill) is int and info.min <= fill <= info.max


def edits() -> Sequence[Edit]:
    """Narrow the pattern's check; cumsum itself runs where it no longer matches."""
    before: list[tuple[Any, Callable[[Any], bool]]] = []

    def narrowed(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        @functools.wraps(original, updated=())
        def extra_check(match: Any) -> bool:
            return _is_exact(match) and original(match)

        extra_check.only_exact = True  # type: ignore[attr-defined]
        return extra_check

    def do() -> None:
        for entry in _entries():
            before.append((entry, entry.extra_check))
            entry.extra_check = narrowed(entry.extra_check)

    def undo() -> None:
        while before:
            entry, check = before.pop()
            entry.extra_check = check

    return [Call(f"{_HANDLER} (its extra_check)", do, undo), SaltCompileCache(_KEY)]


def _check(name: str, got: Any, want: Any) -> None:
    import torch

    if got.dtype != want.dtype:
        raise AssertionError(f"compiled {name} returns {got.dtype}, eager {want.dtype}")
    if got.shape != want.shape or not torch.allclose(got.double(), want.double(), rtol=1e-6):
        raise AssertionError(f"compiled {name} ends in {got[-1]}, eager's in {want[-1]}")


def default_backend() -> None:
    """What DETR's position embeddings do, through the default backend."""
    import torch

    from ..reproduce import quick_inductor

    quick_inductor()

    def embed(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(x.shape, dtype=torch.bool).cumsum(1, dtype=torch.bfloat16)

    x = torch.zeros(4, 5)
    _check("cumsum(bool ones, dtype=bfloat16)", torch.compile(embed)(x), embed(x))


def _passes_only(module: Any, inputs: Any, **_: Any) -> Any:
    """Inductor's graph passes without its code generation: the result runs op by op."""
    from torch._guards import detect_fake_mode
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.virtualized import V

    with V.set_fake_mode(detect_fake_mode(inputs)):
        post_grad_passes(module, True)
    module.recompile()

    def run(args: list[Any]) -> Any:
        return module(*args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def many_dtypes() -> None:
    """Dtypes and fill values through inductor's passes, with symbolic shapes."""
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    def of(fill: float, dtype: Any, out: Any = None, size: int = 4) -> Callable[[Any], Any]:
        return lambda x: torch.full((x.shape[0], size), fill, dtype=dtype).cumsum(1, dtype=out)

    functions = {
        "cumsum(full(1, int64), dtype=bfloat16)": of(1, torch.int64, torch.bfloat16),
        "cumsum(full(1, float32), dtype=float16)": of(1, torch.float32, torch.float16),
        "cumsum(full(1.7, float32), dtype=int32)": of(1.7, torch.float32, torch.int32),
        "cumsum(full(0.1, float32), dtype=float64)": of(0.1, torch.float32, torch.float64),
        "cumsum(full(2.7, int64))": of(2.7, torch.int64),
        "cumsum(full(3, bool))": of(3, torch.bool),
        "cumsum(full(2, int32))": of(2, torch.int32),
        "cumsum(full(0.5, float32))": of(0.5, torch.float32),
        "cumsum(full(0.25, float64))": of(0.25, torch.float64),
    }

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in functions.values()]

    # Not compile_fx, which first traces the attention patterns of another pass, for seconds.
    backend = aot_autograd(fw_compiler=_passes_only, decompositions=select_decomp_table())
    x = torch.zeros(3, 4)
    torch._dynamo.mark_dynamic(x, 0)  # and not dynamic=True: the fill values stay constants
    results = torch.compile(run, backend=backend)(x)
    for name, got, want in zip(functions, results, run(x)):
        _check(name, got, want)


SHIM = Shim(
    key=_KEY,
    summary="compiled cumsum of a constant tensor returns another dtype, or counts the wrong value",
    symptom=(
        "No error. Under torch.compile(backend='inductor'), torch.ones(n).cumsum(0, dtype=...) returns "
        "int64 or the constant's own dtype, and torch.full(n, 2.7, dtype=torch.int64).cumsum(0) float32."
    ),
    cause=(
        "A pattern of inductor replaces cumsum(full(...)) by arange times the fill value. It overlooks "
        "cumsum's dtype argument, and the cast that full makes of its value; in half precision arange "
        "also rounds differently."
    ),
    cure=(
        "The pattern is used only where it is exact: no dtype argument, and float32, float64 or an "
        "integer dtype with an integer value. Elsewhere it is switched off, and cumsum itself runs."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/189518",
        "https://github.com/pytorch/pytorch/pull/190328",
    ),
    affected=Affected(since=None, fixed_in=("2.14.0",)),
    modules=("torch._inductor.fx_passes.post_grad", "torch._inductor.codecache"),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=run.__name__,
            run=run,
            expect=r"AssertionError: compiled cumsum\(.* (returns torch\.|ends in )",
            preload=("torch._dynamo", "torch._inductor.compile_fx"),
        )
        for run in (default_backend, many_dtypes)
    ),
    removable_when="the oldest torch you support is 2.14",
    dynamo_reset=True,
    notes=(
        "Costs a scan over a constant in every run of the graph where it was folded before with a "
        "dtype argument or in half precision; the common cumsum of float32 or int64 ones stays folded."
    ),
)

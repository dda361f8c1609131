"""Names of ``torch.fx.experimental.symbolic_shapes`` that are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import moved
from ..gate import Affected
from ..shim import Reproducer, Shim


def hint_int(a: Any, fallback: int | None = None) -> int:
    """Return the hint of a symbolic integer, an integer as it is, else ``fallback``."""
    from torch.fx.experimental import symbolic_shapes

    if fallback is not None and not symbolic_shapes.has_guarding_hint(a):
        return fallback
    return int(symbolic_shapes.guarding_hint_or_throw(a))


def definitely_true(a: Any) -> bool:
    """Whether ``a`` is known to be true, guarding on it where it has a hint."""
    from torch.fx.experimental import symbolic_shapes

    return bool(symbolic_shapes.guard_or_false(a))


def definitely_false(a: Any) -> bool:
    """Whether ``a`` is known to be false, guarding on it where it has a hint."""
    from torch.fx.experimental import symbolic_shapes

    return not symbolic_shapes.guard_or_true(a)


_ROWS: dict[str, str | Callable[..., Any]] = {
    "torch.fx.experimental.symbolic_shapes:hint_int": hint_int,
    "torch.fx.experimental.symbolic_shapes:has_hint": (
        "torch.fx.experimental.symbolic_shapes.has_guarding_hint"
    ),
    "torch.fx.experimental.symbolic_shapes:definitely_true": definitely_true,
    "torch.fx.experimental.symbolic_shapes:definitely_false": definitely_false,
}

probe, edits = moved.names(__name__, _ROWS)

# What a ShapeEnv imports when it is made.
_LOADED = ("torch._dynamo", "torch._inductor.codecache", "torch.export._trace")


def _sizes() -> tuple[Any, Any]:
    """A symbolic size whose hint is 5, and one without a hint."""
    import torch
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    env = ShapeEnv()
    symbol = env.create_symbol(5, ConstantSource("size"), DimDynamic.DYNAMIC, None)
    backed: Any = env.create_symintnode(symbol, hint=5, source=ConstantSource("size"))
    assert isinstance(backed, torch.SymInt)
    return backed, env.create_unbacked_symint()


def _expect(got: object, want: object, what: str) -> None:
    if got != want:
        raise AssertionError(f"{what} is {got!r}, not {want!r}")


def hints() -> None:
    """``hint_int`` and ``has_hint`` of plain, backed and unbacked integers."""
    from torch.fx.experimental.symbolic_shapes import (  # type: ignore[attr-defined, unused-ignore]
        has_hint,
        hint_int,
    )

    backed, unbacked = _sizes()
    _expect((hint_int(7), hint_int(backed), hint_int(backed, fallback=1)), (7, 5, 5), "hint_int")
    # Some builds know a better guess than ours.
    _expect(type(hint_int(unbacked, fallback=3)), int, "hint_int(..., fallback=3)")
    _expect((has_hint(7), has_hint(backed), has_hint(unbacked)), (True, True, False), "has_hint")


def definite() -> None:
    """``definitely_true`` and ``definitely_false`` of known and unknown conditions."""
    from torch.fx.experimental.symbolic_shapes import (  # type: ignore[attr-defined, unused-ignore]
        definitely_false,
        definitely_true,
    )

    backed, unbacked = _sizes()
    for condition, true, false in (
        (True, True, False),
        (False, False, True),
        (backed == 5, True, False),
        (backed == 6, False, True),
        (unbacked == 5, False, False),
    ):
        _expect(definitely_true(condition), true, f"definitely_true({condition})")
        _expect(definitely_false(condition), false, f"definitely_false({condition})")


SHIM = Shim(
    key="symbolic_shapes_names",
    summary="hint_int, has_hint, definitely_true and definitely_false of symbolic_shapes are back",
    symptom="ImportError: cannot import name 'hint_int' from 'torch.fx.experimental.symbolic_shapes'",
    cause=(
        "definitely_true and definitely_false went in 2.8, in favour of guard_or_false and "
        "guard_or_true; hint_int and has_hint in 2.12, in favour of guarding_hint_or_throw and "
        "has_guarding_hint."
    ),
    cure="The old names are put back over the functions that took their place.",
    upstream=(
        "https://github.com/pytorch/pytorch/pull/175497",
        "https://github.com/pytorch/pytorch/pull/171944",
    ),
    affected=Affected(since="2.8.0"),
    modules=("torch.fx.experimental.symbolic_shapes",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="hints",
            run=hints,
            expect="ImportError: cannot import name '(hint_int|has_hint)'",
            affected=Affected(since="2.12.0"),
            preload=_LOADED,
        ),
        Reproducer(
            name="definite",
            run=definite,
            expect="ImportError: cannot import name 'definitely_(true|false)'",
            preload=_LOADED,
        ),
    ),
    removable_when="none of your dependencies imports these names",
)

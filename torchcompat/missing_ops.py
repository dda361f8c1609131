"""What the shims share that register strategies for operators that DTensor has none for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .dtensor import SINGLE_DIM, STRATEGIES, each_rank_has_some
from .edits import Edit
from .shim import Probe, absent, drifted, present
from .strategies import can_build, held, input_specs, missing, place, register

__all__ = ["Groups", "alike", "probe_missing", "register_missing"]

#: Strategies, each with the names of the overloads of aten that it is for.
Groups = Sequence[tuple[Callable[..., Any], Iterable[str]]]


def probe_missing(
    names: Iterable[str],
    *,
    model: str | None = None,
    none: str = "every operator of the table has a strategy",
) -> Probe:
    """Look for operators in the propagator's tables.

    Args:
        names: of overloads of aten, such as ``"exp.default"``.
        model: the overload whose strategy is to be borrowed for them, if it is.
        none: what to say where none is missing.
    """
    first = next(missing(names), None)
    if first is None:
        return absent(none, cured=True)
    if model is not None and held(SINGLE_DIM, model) is None and held(STRATEGIES, model) is None:
        packet = model.partition(".")[0]
        return drifted(f"DTensor no longer registers aten.{packet} in a table that is known")
    if not can_build():
        return drifted("torch.distributed.tensor._op_schema lacks a class that strategies are made of")
    return present(f"no strategy for {first} is registered")


def register_missing(groups: Groups) -> Sequence[Edit]:
    """Declare the edits that register strategies for those operators that are missing."""
    return register({found: strategy for strategy, names in groups for found in missing(names)})


def alike(schema: Any, independent: Callable[[int, int], bool]) -> tuple[Any, ...]:
    """Return placements for all inputs that leave dimensions sharded which all of them have alike.

    Not where a rank has nothing of one, which many operators refuse.

    Args:
        schema: what a strategy function got.
        independent: whether the operator works on the parts along a dimension on their own;
            called with the dimension and the number of dimensions of the first input.
    """
    specs = [spec for _, spec in input_specs(schema)]
    first, sizes = specs[0], specs[0].shape

    def stays(dim: int) -> int | None:
        same = all(len(spec.shape) > dim and spec.shape[dim] == sizes[dim] for spec in specs)
        return dim if same and each_rank_has_some(first, dim) and independent(dim, len(sizes)) else None

    return place(first.placements, stays)

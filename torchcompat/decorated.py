"""An edit of what a decorated function calls.

Where torch keeps a function in tables, or imports it under other names, replacing it by
name leaves some of its holders behind, and modules that are loaded later hold the
replacement for good. What stands behind the decorator is held by the decorator alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

from .edits import Change, _AttrChange, _placed
from .errors import ConflictError, TargetDriftError
from .records import Record
from .targets import foreign_maker, lookup, replacement_drift

__all__ = ["ReplaceDecorated", "decorated", "is_replaced_behind"]


def decorated(target: str) -> Any:
    """Return the function that the decorated ``"module:attribute.path"`` calls, or None."""
    cell = _cell(lookup(target, None))
    return None if cell is None else cell.cell_contents


def is_replaced_behind(target: str) -> bool:
    """Whether a replacement of ours is what the decorated function calls now."""
    return id(decorated(target)) in _placed


def _cell(wrapper: Any) -> CellType | None:
    """Find the closure's cell for the function that ``functools.wraps`` says is wrapped."""
    if not isinstance(wrapper, FunctionType):
        return None
    name = wrapper.__name__
    for cell in wrapper.__closure__ or ():
        inner = cell.cell_contents
        if isinstance(inner, FunctionType) and inner.__name__ == name:
            return cell
    return None


@dataclass(eq=False, repr=False)
class ReplaceDecorated(Record):
    """Replace the function behind a decorator; the decorated one stays the same object.

    Attributes:
        target: ``"module:attribute.path"`` of the decorated function.
        make: gets the function behind the decorator and returns the replacement, which
            keeps its name (``functools.wraps(original, updated=())``).
    """

    target: str
    make: Callable[[Any], Any]
    reversible: bool = True

    def prepare(self) -> Change:
        """Build the replacement; see :class:`~torchcompat.edits.Edit`."""
        wrapper = lookup(self.target)
        maker = foreign_maker(wrapper, self.target)
        if maker is not None and id(wrapper) not in _placed:
            raise ConflictError(self.target, f"a function of {maker}")
        cell = _cell(wrapper)
        if cell is None:
            raise TargetDriftError(self.target, "is not a decorated function")
        original = cell.cell_contents
        new = self.make(original)
        drift = None if id(original) in _placed else replacement_drift(original, new)
        if drift is not None:
            raise TargetDriftError(self.target, drift)
        return _AttrChange(self.target, cell, "cell_contents", original, new)

"""What the engine must know of a shim before it loads the shim's own module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .gate import Affected
from .records import Record

__all__ = ["Declared", "Entry"]


class Declared(Protocol):
    """What an entry and a whole shim have in common."""

    @property
    def key(self) -> str:
        """The shim's name."""

    @property
    def affected(self) -> Affected:
        """The gate."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of torch that must be loaded first."""

    @property
    def opt_in(self) -> bool:
        """Whether it is applied only by name."""

    @property
    def after(self) -> tuple[str, ...]:
        """The shims that may hold the same target and come first."""

    @property
    def revision(self) -> int:
        """Counted up when the cure changes."""

    @property
    def retired(self) -> str | None:
        """Why it is no longer applied."""


@dataclass(eq=False, repr=False, kw_only=True)
class Entry(Record):
    """One line of the index of the built-in shims; see :class:`torchcompat.Shim`."""

    key: str
    affected: Affected
    modules: tuple[str, ...]
    opt_in: bool = False
    after: tuple[str, ...] = ()
    revision: int = 1
    retired: str | None = None

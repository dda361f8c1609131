"""Immutable records that cost little to define.

``@dataclass(frozen=True)`` writes and compiles six methods for each class, some 1.3 ms, and
``apply_all()`` loads fifteen such classes: that was a third of its cost. A dataclass
that inherits them has only its ``__init__`` written.

    @dataclass(eq=False, repr=False, kw_only=True)
    class Outcome(Record):
        key: str
"""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError
from typing import Any, ClassVar

__all__ = ["Record"]


class Record:
    """Base of a dataclass whose fields are set once: compared, hashed and shown by its fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __setattr__(self, name: str, value: Any) -> None:
        # __init__ assigns each field once; copies and pickles fill __dict__ at once.
        if name in self.__dict__ or name not in self.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _compared(self) -> tuple[Any, ...]:
        return tuple(self.__dict__[f.name] for f in self.__dataclass_fields__.values() if f.compare)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{f.name}={self.__dict__[f.name]!r}" for f in self.__dataclass_fields__.values() if f.repr
        )
        return f"{type(self).__qualname__}({fields})"

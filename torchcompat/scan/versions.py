"""Version classes that gates use and that are not packaging's, as they really compare.

They stand in for torch's and for distutils', so that a scan needs neither. Where an
original raises, so do they.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import total_ordering
from typing import Any

from packaging.version import InvalidVersion, Version

__all__ = ["LooseVersion", "StrictVersion", "TorchVersion"]


class TorchVersion(str):
    """``torch.__version__``: text that compares as a version, except with ``!=``."""

    __slots__ = ()
    __hash__ = str.__hash__

    def _compare(self, other: Any, name: str, by_text: Callable[[str, Any], Any]) -> Any:
        try:
            return getattr(Version(self), name)(_version(other))
        except InvalidVersion:
            return by_text(self, other)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "__lt__", str.__lt__)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "__le__", str.__le__)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, "__gt__", str.__gt__)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, "__ge__", str.__ge__)

    def __eq__(self, other: Any) -> Any:
        return self._compare(other, "__eq__", str.__eq__)

    # torch does not define it, so str's own is used: a comparison of text.
    __ne__ = str.__ne__


def _version(other: Any) -> Version:
    if isinstance(other, Version):
        return other
    if isinstance(other, str):
        return Version(other)
    if isinstance(other, Iterable):
        return Version(".".join(map(str, other)))
    raise InvalidVersion(other)


_PIECE = re.compile(r"\d+|[a-z]+|[^a-z\d.]+")


@total_ordering
class LooseVersion:
    """distutils': lists of numbers and words, which cannot be compared with each other."""

    def __init__(self, text: str) -> None:
        self.vstring = text
        self.version: list[Any] = [int(p) if p.isdigit() else p for p in _PIECE.findall(text)]

    def __str__(self) -> str:
        return self.vstring

    def __eq__(self, other: Any) -> bool:
        return self.version == _loose(other).version

    def __lt__(self, other: Any) -> bool:
        return self.version < _loose(other).version

    __hash__ = None  # type: ignore[assignment]


def _loose(other: Any) -> LooseVersion:
    return other if isinstance(other, LooseVersion) else LooseVersion(str(other))


_STRICT = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:([ab])(\d+))?")


@total_ordering
class StrictVersion:
    """distutils': two or three numbers and an alpha or beta tag, nothing else."""

    def __init__(self, text: str) -> None:
        match = _STRICT.fullmatch(text)
        if match is None:
            raise ValueError(f"invalid version number {text!r}")
        major, minor, patch, tag, number = match.groups()
        self.version = (int(major), int(minor), int(patch or 0))
        # A release comes after its alphas and betas.
        self.prerelease = (tag, int(number)) if tag else None
        self._key = (self.version, (tag, int(number)) if tag else ("z", 0))

    def __eq__(self, other: Any) -> bool:
        return self._key == _strict(other)._key

    def __lt__(self, other: Any) -> bool:
        return self._key < _strict(other)._key

    __hash__ = None  # type: ignore[assignment]


def _strict(other: Any) -> StrictVersion:
    return other if isinstance(other, StrictVersion) else StrictVersion(str(other))

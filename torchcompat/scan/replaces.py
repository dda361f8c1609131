"""Which shim replaces a patch: read from the targets that the shims' edits name.

Nothing is called for it, so that it works without torch: the targets are the strings
``"module:attribute.path"`` that the code of a shim's ``edits`` mentions, itself, in the
functions of its package that it calls, through the constants of their modules, or through
what it closes over (the rows of a table that ``torchcompat.moved`` made it from).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from ..shim import Shim

__all__ = ["Replacements", "edit_targets"]

_TARGET = re.compile(r"torch(?:\.\w+)*:\w+(?:\.\w+)*")


def edit_targets(shim: Shim) -> set[str]:
    """Return the targets that a shim's ``edits`` mentions."""
    return {text for text in _strings(shim.edits, set()) if _TARGET.fullmatch(text)}


def _strings(function: Any, seen: set[int]) -> Iterator[str]:
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    names: set[str] = set()
    for code in _codes(function.__code__):
        names.update(code.co_names)
        for constant in code.co_consts:
            yield from _texts(constant)
    for cell in function.__closure__ or ():
        yield from _texts(cell.cell_contents)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and _package(value) == _package(function):
            yield from _strings(value, seen)
        else:
            yield from _texts(value)


def _package(function: FunctionType) -> str:
    return function.__module__.partition(".")[0]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list, frozenset)):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)


class Replacements:
    """The shims by what they edit."""

    def __init__(self, shims: Iterable[Shim]) -> None:
        self._keys: dict[str, list[str]] = {}
        self._paths: dict[str, list[str]] = {}
        for shim in shims:
            if shim.retired is not None:
                continue
            for target in sorted(edit_targets(shim)):
                self._keys.setdefault(target.replace(":", "."), []).append(shim.key)
                self._paths.setdefault(target.partition(":")[2], []).append(shim.key)

    def of(self, target: str) -> tuple[str, ...]:
        """Return the keys of the shims that edit ``target``, a dotted path.

        A class may be reached through several modules (``fsdp.FSDPModule`` and
        ``fsdp._fully_shard.FSDPModule``), so a path of two names or more counts whatever
        module it was found through.
        """
        found = self._keys.get(target)
        if found is None:
            last = ".".join(target.split(".")[-2:])
            found = self._paths.get(last, [])
        return tuple(dict.fromkeys(found))

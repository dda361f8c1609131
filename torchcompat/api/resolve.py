"""Find a name of the table in the torch that is installed, or say why it is not there."""

from __future__ import annotations

import dis
import sys
from importlib import import_module

from ..builds import detect
from ..errors import TorchNotFoundError, near_misses
from .rows import TABLE, Home, Row

__all__ = ["absent_message", "find", "resolve"]

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]
_MISSING = object()


def resolve(name: str, *, depth: int = 0) -> object:
    """Return what ``name`` is on this build.

    Args:
        name: a name of the table.
        depth: frames between this call and the code that wants the name. A ``from ... import``
            there gets ImportError with our sentence, where the interpreter would put its own in
            the place of an AttributeError; everything else gets AttributeError, so that
            ``hasattr`` and ``getattr`` with a default work.
    """
    row = TABLE.get(name)
    if row is None:
        raise _error(name, _unknown_message(name), depth + 1)
    home, found = find(row)
    if home is not None:
        return found
    if row.backport:
        from . import backports

        return getattr(backports, name)
    raise _error(name, absent_message(row), depth + 1)


def find(row: Row) -> tuple[Home | None, object]:
    """Return the first home of a row that this build has, and the object there."""
    for home in row.homes:
        try:
            module = import_module(home.module)
        except ModuleNotFoundError as error:
            _raise_unless_about(error, home.module)
            continue
        found = getattr(module, home.attribute, _MISSING)
        if found is not _MISSING:
            return home, found
    return None, None


def _raise_unless_about(error: ModuleNotFoundError, module: str) -> None:
    """Let through that torch lacks a module, and nothing else that goes wrong inside it."""
    missing = error.name or ""
    if missing == "torch":
        raise TorchNotFoundError() from error
    if missing != module and not module.startswith(f"{missing}."):
        raise error


def _error(name: str, message: str, depth: int) -> Exception:
    if _asked_by_import(depth + 1):
        return ImportError(message, name="torchcompat.api")
    return AttributeError(message)


def _asked_by_import(depth: int) -> bool:
    frame = sys._getframe(depth + 1)
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM


def _unknown_message(name: str) -> str:
    near = near_misses(name, TABLE)
    hint = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else "its table has the names that moved or are new; import all others from torch itself."
    )
    return f"torchcompat.api has no name {name!r}; {hint}"


def absent_message(row: Row) -> str:
    """Say since when torch has a name that this build lacks, and what to do about it."""
    home, build = row.homes[0], detect()
    oldest = min((home.since for home in row.homes), key=_order)
    instead = f", and {row.instead} for older builds" if row.instead else ""
    return (
        f"torch {build} has no {home}: releases have it from {oldest or '2.4.0 or before'} on, and "
        f"torchcompat has no backport. Require torch>={oldest or '2.4.0'}, or catch this{instead}."
    )


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")) if release else ()

"""Builders of probes and edits for API that moved or went away, from a row of data each.

A row names the old place as a target (``"module:attribute.path"``) and says what belongs
there: another dotted path, or the object itself. The functions that come back are given
the name and the module of the shim that calls the builder, since probes and edits are
pickled by name.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, TypeAlias

from .edits import AddAttr, Change, Edit, ReplaceAttr, is_replaced
from .errors import ConflictError, TargetDriftError, TorchCompatWarning
from .records import Record
from .shim import Probe, absent, drifted, present
from .targets import MISSING, lookup, own_attr, owner_of, who_made

__all__ = [
    "AddModule",
    "Pair",
    "forwarding_modules",
    "ignored_argument",
    "lazy_names",
    "modules",
    "named_for",
    "names",
    "warn_once",
]

#: A shim's probe and its edits.
Pair: TypeAlias = tuple[Callable[[], Probe], Callable[[], Sequence[Edit]]]

_warned: set[str] = set()


def warn_once(key: str, message: str, *, stacklevel: int = 2) -> None:
    """Warn the first time in this process that a shim's restored API is used."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(f"{message} (torchcompat's shim {key})", TorchCompatWarning, stacklevel + 1)


def named_for(module: str, probe: Callable[[], Probe], edits: Callable[[], Sequence[Edit]]) -> Pair:
    """Give both functions the names under which ``module`` will hold them."""
    for name, function in (("probe", probe), ("edits", edits)):
        function.__module__, function.__name__, function.__qualname__ = module, name, name
    return probe, edits


def names(module: str, rows: Mapping[str, str | Callable[..., Any]]) -> Pair:
    """Put names back: each target gets the object at a dotted path, or the function given.

    Only names that are missing are added. A dotted path must lead into a loaded module.
    """

    def at(row: str | Callable[..., Any]) -> Any:
        return lookup(":".join(row.rsplit(".", 1)), None) if isinstance(row, str) else row

    def probe() -> Probe:
        gone = [target for target in rows if lookup(target, None) is None]
        if not gone:
            return absent(f"{_last(rows)} can be had", cured=True)
        lost = [target for target in gone if at(rows[target]) is None]
        if lost:
            return drifted(f"{_last(lost)} is at neither of its known places")
        return present(f"{_last(gone)} cannot be had")

    def edits() -> Sequence[Edit]:
        return [
            AddAttr(target, functools.partial(at, row))
            for target, row in rows.items()
            if lookup(target, None) is None or is_replaced(target)
        ]

    return named_for(module, probe, edits)


def lazy_names(module: str, home: str, rows: Mapping[str, str]) -> Pair:
    """Put names back into the module ``home`` that are imported when they are asked for.

    For objects in modules that ``home`` does not load: they are found by a module-level
    ``__getattr__``, so that nothing is imported for the shim's sake.
    """
    target = f"{home}:__getattr__"
    paths = {old.partition(":")[2]: new for old, new in rows.items()}

    def found(name: str) -> Any:
        if name not in paths:
            raise AttributeError(f"module {home!r} has no attribute {name!r}")
        path, _, last = paths[name].rpartition(".")
        return getattr(import_module(path), last)

    found.__module__, found.__name__, found.__qualname__ = home, "__getattr__", "__getattr__"

    def probe() -> Probe:
        if is_replaced(target):
            return absent(f"{home} looks for moved names", cured=True)
        gone = [old for old in rows if lookup(old, None) is None]
        if not gone:
            return absent(f"{home} has {_last(rows)}", cured=True)
        if lookup(target, None) is not None:
            return drifted(f"{home} has a __getattr__ of its own")
        return present(f"{home} has no {_last(gone)}")

    def edits() -> Sequence[Edit]:
        assert rows  # named here for the scan, which reads targets from what edits() holds
        return [AddAttr(target, lambda: found)]

    return named_for(module, probe, edits)


def modules(module: str, rows: Mapping[str, str]) -> Pair:
    """Put modules back under their old names: rows of old targets and new dotted names.

    The modules at the new places must be loaded, by those that the shim waits for.
    """

    def probe() -> Probe:
        gone = [target for target in rows if not isinstance(lookup(target, None), ModuleType)]
        if not gone:
            return absent(f"{_last(rows)} can be imported", cured=True)
        lost = [rows[target] for target in gone if rows[target] not in sys.modules]
        if lost:
            return drifted(f"{lost[0]} is not loaded, or not there")
        return present(f"{_last(gone)} cannot be imported")

    def edits() -> Sequence[Edit]:
        return [AddModule(target, new) for target, new in rows.items()]

    return named_for(module, probe, edits)


def forwarding_modules(module: str, rows: Mapping[str, str], advice: str) -> Pair:
    """Put modules back that another distribution has today: rows of old targets and new names.

    What stands there imports the new module when one of its names is asked for, and raises
    an ImportError with ``advice`` where it is not installed.
    """

    def stand_in(target: str, new: str) -> ModuleType:
        old = target.replace(":", ".")
        made = ModuleType(old, f"Forwards to {new}; put here by torchcompat.")

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            try:
                found = import_module(new)
            except ModuleNotFoundError as error:
                if new != error.name and not new.startswith(f"{error.name}."):
                    raise
                raise ImportError(f"{old} cannot be used: {advice}", name=new) from error
            return getattr(found, name)

        made.__dict__["__getattr__"] = find
        return made

    def probe() -> Probe:
        gone = [target for target in rows if not isinstance(lookup(target, None), ModuleType)]
        if not gone:
            return absent(f"{_last(rows)} can be imported", cured=True)
        if any(_findable(target.replace(":", ".")) for target in gone):
            return absent(f"{_last(rows)} can be imported, and are not yet", cured=True)
        return present(f"{_last(gone)} cannot be imported")

    def edits() -> Sequence[Edit]:
        return [
            AddModule(target, functools.partial(stand_in, target, new)) for target, new in rows.items()
        ]

    return named_for(module, probe, edits)


def _findable(name: str) -> bool:
    """Whether a module's file is there, without importing anything: its package is loaded."""
    parent = name.rpartition(".")[0]
    paths = getattr(sys.modules.get(parent), "__path__", ())
    return PathFinder.find_spec(name, list(paths)) is not None


class _ModuleChange:
    def __init__(self, target: str, owner: Any, name: str, new: ModuleType) -> None:
        self.target = target
        self.owner = owner
        self.name = name
        self.full_name = target.replace(":", ".")
        self.new = new

    def commit(self) -> None:
        sys.modules[self.full_name] = self.new
        setattr(self.owner, self.name, self.new)

    def undo(self) -> None:
        if sys.modules.get(self.full_name) is self.new:
            del sys.modules[self.full_name]
        if own_attr(self.owner, self.name) is self.new:
            delattr(self.owner, self.name)

    def claims(self) -> tuple[str, ...]:
        return (self.target,)

    def holder(self) -> str | None:
        for live in (sys.modules.get(self.full_name, MISSING), own_attr(self.owner, self.name)):
            if live is not self.new:
                return f"another object under the name {self.full_name} ({live!r})"
        return None

    def describe(self) -> str:
        return f"put {self.new.__name__} under the name {self.full_name} too"

    def late_holders(self) -> list[str]:
        return []


@dataclass(eq=False, repr=False)
class AddModule(Record):
    """Put a loaded module under another name too, for both kinds of import statement.

    Attributes:
        target: ``"package:name"``, the old place.
        module: the module's name today, or what makes the module.
    """

    target: str
    module: str | Callable[[], ModuleType]
    reversible: bool = True

    def prepare(self) -> Change:
        """Find the module; see :class:`~torchcompat.edits.Edit`."""
        owner, name = owner_of(self.target)
        full_name = self.target.replace(":", ".")
        there = sys.modules.get(full_name, own_attr(owner, name))
        if there is not MISSING:
            raise ConflictError(self.target, who_made(there))
        new = sys.modules.get(self.module) if isinstance(self.module, str) else self.module()
        if new is None:
            raise TargetDriftError(self.target, f"cannot be put back: {self.module} is not loaded")
        return _ModuleChange(self.target, owner, name, new)


def ignored_argument(module: str, key: str, argument: str, targets: Sequence[str], advice: str) -> Pair:
    """Accept an argument again that was the last one of each target, and ignore it.

    It is stored as an attribute of ``self``, as it was, since subclasses read it there.
    """

    def make(original: Any) -> Any:
        most = len(_arguments(original))

        @functools.wraps(original, updated=())
        def accepting(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = argument in kwargs
            if given:
                value = kwargs.pop(argument)
            elif len(args) == most:  # most counts self
                given, value, args = True, args[-1], args[:-1]
            if given:
                warn_once(key, f"{type(self).__name__}: the argument {argument} is ignored; {advice}")
                setattr(self, argument, value)
            return original(self, *args, **kwargs)

        return accepting

    def probe() -> Probe:
        functions = {target: own_attr(*owner_of(target)) for target in targets}
        missing = [target for target, function in functions.items() if not inspect.isfunction(function)]
        if missing:
            return drifted(f"{_last(missing)} is no function of its own")
        if all(is_replaced(target) or argument in _arguments(functions[target]) for target in targets):
            return absent(f"{argument} is accepted", cured=True)
        return present(f"{argument} is not accepted")

    def edits() -> Sequence[Edit]:
        return [ReplaceAttr(target, make) for target in targets]

    return named_for(module, probe, edits)


def _arguments(function: Any) -> tuple[str, ...]:
    code = function.__code__
    return tuple(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _last(targets: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(target.partition(":")[2] for target in targets)

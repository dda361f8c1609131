"""Reversible edits of loaded modules, as declarations.

An edit is a declaration; :meth:`Edit.prepare` looks at the live target, touches
nothing, and returns a :class:`Change`. A change's ``commit`` and ``undo`` both look
at the live state rather than at a flag, so either may be interrupted at any point
and repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from .errors import ConflictError, TargetDriftError
from .records import Record
from .targets import (
    MISSING,
    foreign_maker,
    lookup,
    own_attr,
    owner_of,
    raw_attr,
    replacement_drift,
    same_name_holders,
    who_made,
)

__all__ = [
    "AddAttr",
    "AddEntries",
    "AddItems",
    "Call",
    "Change",
    "Edit",
    "ReplaceAttr",
    "is_ousted",
    "is_replaced",
]


class Change(Protocol):
    """One prepared edit of one live object."""

    target: str

    def commit(self) -> None:
        """Make the edit."""

    def undo(self) -> None:
        """Take the edit back; does nothing where it was not made."""

    def claims(self) -> tuple[str, ...]:
        """Name what no other shim may edit at the same time."""

    def holder(self) -> str | None:
        """Return None while the live value is still ours, else who holds it now."""

    def describe(self) -> str:
        """Say what was changed, for reports."""

    def late_holders(self) -> list[str]:
        """Name the modules outside torch that hold the old object under its name."""


@runtime_checkable
class Edit(Protocol):
    """The declaration of one edit of one target, ``"module:attribute.path"``."""

    @property
    def target(self) -> str:
        """What the edit changes."""

    @property
    def reversible(self) -> bool:
        """Whether torch can be brought back to what it was."""

    def prepare(self) -> Change:
        """Look at the target and return the change to make.

        Raises:
            TargetDriftError: the target is not there, or not of the expected kind.
            ConflictError: somebody else's object is in the way.
        """


# -- attributes ----------------------------------------------------------------------


# Replacements that are in place, by id: a shim may build on another's, and the engine
# settles who may, but nobody may build on a foreign patch.
_placed: dict[int, Any] = {}


def is_replaced(target: str) -> bool:
    """Whether a replacement of ours is what ``"module:attribute.path"`` holds now."""
    return id(lookup(target, None)) in _placed


class _AttrChange:
    def __init__(
        self,
        target: str,
        owner: Any,
        name: str,
        seen_before: Any,
        new: Any,
        *,
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.target = target
        self.owner = owner
        self.name = name
        self.own_before = own_attr(owner, name)  # MISSING where inherited or absent
        self.seen_before = seen_before  # what a lookup found
        self.new = new
        self.aliases = aliases
        self._rebound: list[str] = []

    def commit(self) -> None:
        _placed[id(self.new)] = self.new
        setattr(self.owner, self.name, self.new)
        for alias in self.aliases:
            if lookup(alias, None) is self.seen_before:
                owner, name = owner_of(alias)
                self._rebound.append(alias)
                setattr(owner, name, self.new)

    def undo(self) -> None:
        # A module that imported the target after us holds our object: put back there too.
        for alias in self.aliases:
            if lookup(alias, None) is self.new:
                owner, name = owner_of(alias)
                setattr(owner, name, self.seen_before)
        if own_attr(self.owner, self.name) is self.new:
            if self.own_before is MISSING:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.own_before)
        _placed.pop(id(self.new), None)

    def claims(self) -> tuple[str, ...]:
        return (self.target, *self.aliases)

    def holder(self) -> str | None:
        live = own_attr(self.owner, self.name)
        return None if live is self.new else who_made(live)

    def describe(self) -> str:
        also = f" (and where it was imported: {', '.join(self._rebound)})" if self._rebound else ""
        verb = "added" if self.seen_before is MISSING else "replaced"
        return f"{verb} {self.target}{also}"

    def late_holders(self) -> list[str]:
        if not isinstance(self.owner, ModuleType) or self.seen_before is MISSING:
            return []
        return same_name_holders(self.seen_before, self.owner.__name__, self.name)


@dataclass(eq=False, repr=False)
class ReplaceAttr(Record):
    """Replace an attribute of a module or a class.

    Attributes:
        target: ``"module:attribute.path"``.
        make: gets the original and returns the replacement. A classmethod or
            staticmethod is handed over as its function and wrapped again. Use a plain
            closure with ``functools.wraps(original, updated=())``: torch.compile runs
            the *original* body of a wrapt proxy, and copying ``__dict__`` would copy
            dynamo's marks.
        aliases: the other places in torch that hold the same object, rebound too.
    """

    target: str
    make: Callable[[Any], Any]
    aliases: tuple[str, ...] = ()
    reversible: bool = True

    def prepare(self) -> Change:
        """Build the replacement; see :class:`Edit`."""
        owner, name = owner_of(self.target)
        raw = raw_attr(owner, name)
        if raw is MISSING:
            raise TargetDriftError(self.target, "does not exist in this torch")
        maker = foreign_maker(raw, self.target)
        if maker is not None and id(raw) not in _placed:
            raise ConflictError(self.target, f"a function of {maker}")
        if isinstance(raw, (classmethod, staticmethod)):
            new: Any = type(raw)(self.make(raw.__func__))
        else:
            new = self.make(raw)
        drift = None if id(raw) in _placed else replacement_drift(raw, new)
        if drift is not None:
            raise TargetDriftError(self.target, drift)
        return _AttrChange(self.target, owner, name, raw, new, aliases=self.aliases)


@dataclass(eq=False, repr=False)
class AddAttr(Record):
    """Add an attribute that is missing; one that is there is a conflict."""

    target: str
    make: Callable[[], Any]
    reversible: bool = True

    def prepare(self) -> Change:
        """Build the value; see :class:`Edit`."""
        owner, name = owner_of(self.target)
        raw = raw_attr(owner, name)
        if raw is not MISSING:
            raise ConflictError(self.target, who_made(raw))
        return _AttrChange(self.target, owner, name, MISSING, self.make())


def is_ousted(change: Change) -> bool:
    """Whether another patch, and not torch's own code, is where a change was made."""
    if isinstance(change, _AttrChange):
        live = own_attr(change.owner, change.name)
        mine = live is change.new or id(live) in _placed
        return not mine and foreign_maker(live, change.target) is not None
    if isinstance(change, _EntriesChange):
        live_entries = (
            (change.container.get(key, value), value) for key, value in change.entries.items()
        )
        return any(live is not value for live, value in live_entries)
    return False


# -- sets and dicts ------------------------------------------------------------------


class _InPlace:
    def late_holders(self) -> list[str]:
        return []  # the object keeps its identity, so every holder sees the edit


class _ItemsChange(_InPlace):
    def __init__(self, target: str, container: set[Any], wanted: list[Any]) -> None:
        self.target = target
        self.container = container
        self.wanted = wanted
        self.items = [item for item in wanted if item not in container]

    def commit(self) -> None:
        self.container.update(self.items)

    def undo(self) -> None:
        self.container.difference_update(self.items)

    def claims(self) -> tuple[str, ...]:
        return tuple(f"{self.target}[{item}]" for item in self.wanted)

    def holder(self) -> str | None:
        if lookup(self.target, None) is not self.container:
            return "another object that was put in its place"
        gone = [item for item in self.items if item not in self.container]
        return f"somebody who removed {gone[0]} from it" if gone else None

    def describe(self) -> str:
        return f"added {len(self.items)} items to {self.target}: {', '.join(map(str, self.items))}"


@dataclass(eq=False, repr=False)
class AddItems(Record):
    """Add items to a set in place; undo takes out only those that were not there."""

    target: str
    make: Callable[[], Iterable[Any]]
    reversible: bool = True

    def prepare(self) -> Change:
        """Work out what is missing; see :class:`Edit`."""
        container = lookup(self.target)
        if not isinstance(container, set):
            raise TargetDriftError(self.target, f"is a {type(container).__name__}, not a set")
        return _ItemsChange(self.target, container, list(self.make()))


class _EntriesChange(_InPlace):
    def __init__(self, edit: AddEntries, container: MutableMapping[Any, Any]) -> None:
        self.target = edit.target
        self.container = container
        self.entries = entries = dict(edit.make())
        self.settle = edit.settle
        self.before = {key: container[key] for key in entries if key in container}

    def commit(self) -> None:
        self.container.update(self.entries)
        if self.settle is not None:
            self.settle()

    def undo(self) -> None:
        for key, value in self.entries.items():
            if self.container.get(key, MISSING) is value:
                if key in self.before:
                    self.container[key] = self.before[key]
                else:
                    del self.container[key]
        if self.settle is not None:
            self.settle()

    def claims(self) -> tuple[str, ...]:
        return tuple(f"{self.target}[{key}]" for key in self.entries)

    def holder(self) -> str | None:
        if lookup(self.target, None) is not self.container:
            return "another object that was put in its place"
        for key, value in self.entries.items():
            live = self.container.get(key, MISSING)
            if live is not value:
                return f"{who_made(live)} (entry {key})"
        return None

    def describe(self) -> str:
        keys = ", ".join(map(str, self.entries))
        verb = "replaced" if self.before else "added"
        return f"{verb} {len(self.entries)} entries of {self.target}: {keys}"


@dataclass(eq=False, repr=False)
class AddEntries(Record):
    """Put entries into a dict or registry in place.

    Attributes:
        target: ``"module:attribute.path"`` of the mapping.
        make: returns the entries.
        replace: whether an entry that is there may be replaced (and is put back by
            undo); otherwise it is a conflict.
        settle: called after the entries were put in and after they were taken out,
            to drop what torch has computed from the mapping, such as a cache. It may be
            called more than once.
    """

    target: str
    make: Callable[[], Mapping[Any, Any]]
    replace: bool = False
    settle: Callable[[], None] | None = None
    reversible: bool = True

    def prepare(self) -> Change:
        """Work out the entries; see :class:`Edit`."""
        container = lookup(self.target)
        if not isinstance(container, MutableMapping):
            raise TargetDriftError(self.target, f"is a {type(container).__name__}, not a mapping")
        change = _EntriesChange(self, container)
        if change.before and not self.replace:
            key, value = next(iter(change.before.items()))
            raise ConflictError(f"{self.target}[{key}]", who_made(value))
        return change


# -- anything else -------------------------------------------------------------------


class _CallChange(_InPlace):
    def __init__(
        self, target: str, do: Callable[[], None], take_back: Callable[[], None] | None
    ) -> None:
        self.target = target
        self.do = do
        self.take_back = take_back
        self._done = False

    def commit(self) -> None:
        self._done = True
        self.do()

    def undo(self) -> None:
        if self._done and self.take_back is not None:
            self.take_back()
            self._done = False

    def claims(self) -> tuple[str, ...]:
        return (self.target,)

    def holder(self) -> str | None:
        return None

    def describe(self) -> str:
        final = "" if self.take_back is not None else " (cannot be taken back)"
        return f"changed {self.target}{final}"


@dataclass(eq=False, repr=False)
class Call(Record):
    """An edit that only a call can make: an operator registration, a C++ flag.

    Attributes:
        target: what it changes, for reports and conflicts.
        do: makes the edit.
        undo: takes it back, and must bear being called after a ``do`` that raised
            half-way; None where torch offers no way back.
    """

    target: str
    do: Callable[[], None]
    undo: Callable[[], None] | None = None

    @property
    def reversible(self) -> bool:
        """Whether there is a way back."""
        return self.undo is not None

    def prepare(self) -> Change:
        """Nothing to look at; see :class:`Edit`."""
        return _CallChange(self.target, self.do, self.undo)

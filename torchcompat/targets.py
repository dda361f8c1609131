"""Where an edit's target lives: lookups that neither import nor bind anything.

Owners are looked up through raw ``__dict__`` along the MRO, never with a plain
``getattr`` on a class: that would store a bound classmethod on its base, and copy
an inherited attribute down into the subclass for good.
"""

from __future__ import annotations

import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

from .errors import TargetDriftError, TorchCompatError

__all__ = [
    "MISSING",
    "foreign_maker",
    "lookup",
    "own_attr",
    "owner_of",
    "raw_attr",
    "replacement_drift",
    "same_name_holders",
    "split",
    "who_made",
]


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


MISSING = _Missing()


def split(target: str) -> tuple[str, list[str]]:
    """Split ``"module:attribute.path"`` into the module and the path."""
    module, colon, path = target.partition(":")
    if not (module and colon and path) or "" in path.split("."):
        raise TorchCompatError(f"an edit's target is 'module:attribute.path', not {target!r}")
    return module, path.split(".")


def raw_attr(owner: Any, name: str) -> Any:
    """The attribute as stored, descriptors unbound; MISSING where there is none."""
    if isinstance(owner, type):
        for base in owner.__mro__:
            if name in base.__dict__:
                return base.__dict__[name]
        return MISSING
    names = getattr(owner, "__dict__", None)
    if names is not None and name in names:
        return names[name]
    if isinstance(owner, ModuleType):
        return MISSING
    return getattr(owner, name, MISSING)


def own_attr(owner: Any, name: str) -> Any:
    """Like :func:`raw_attr`, but only what the owner itself stores."""
    names = getattr(owner, "__dict__", {})
    return names.get(name, MISSING)


def owner_of(target: str) -> tuple[Any, str]:
    """Return the live object that holds the target's last name, and that name.

    Raises:
        TargetDriftError: the module is not loaded, or the path breaks off.
    """
    module_name, path = split(target)
    owner: Any = sys.modules.get(module_name)
    if owner is None:
        raise TargetDriftError(target, f"cannot be reached: the module {module_name} is not loaded")
    for name in path[:-1]:
        found = raw_attr(owner, name)
        if found is MISSING:
            raise TargetDriftError(target, f"cannot be reached: there is no {name!r} on the way")
        owner = found
    return owner, path[-1]


def lookup(target: str, default: Any = MISSING) -> Any:
    """Return what ``"module:attribute.path"`` holds, as stored.

    Only loaded modules are looked at; nothing is imported. Descriptors come back
    unbound, a classmethod as a classmethod.

    Raises:
        TargetDriftError: it is not there, and no default was given.
    """
    try:
        owner, name = owner_of(target)
        found = raw_attr(owner, name)
    except TargetDriftError:
        if default is MISSING:
            raise
        return default
    if found is not MISSING:
        return found
    if default is MISSING:
        raise TargetDriftError(target, "does not exist")
    return default


def who_made(value: Any) -> str:
    """Name an object by where it was made, for messages about who holds a target."""
    value = getattr(value, "__func__", value)
    # Not __module__: functools.wraps copies that from what it wraps.
    module = getattr(value, "__globals__", {}).get("__name__") or getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", type(value).__name__)
    return f"{module}.{name}" if isinstance(module, str) else f"an object of type {name}"


_HELPERS = frozenset({"typing_extensions"})


def foreign_maker(raw: Any, target: str) -> str | None:
    """Name the module that a target's function was really defined in, if it is not torch's own.

    ``__module__`` would not do, since ``functools.wraps`` copies it. Wrappers from the
    standard library (``contextmanager``) belong to what they wrap.
    """
    function = getattr(raw, "__func__", raw)
    if not isinstance(function, FunctionType):
        return None
    root = target.partition(":")[0].partition(".")[0]
    maker = str(function.__globals__.get("__name__", root))
    top = maker.partition(".")[0]
    if top == root or top in sys.stdlib_module_names or top in _HELPERS:
        return None
    return maker


def replacement_drift(raw: Any, new: Any) -> str | None:
    """Say why a replacement does not fit what it would replace; None where it does.

    A function takes the place of a function that can be called the same way; anything else
    is its shim's own affair, as long as what can be called stays so.
    """
    raw, new = getattr(raw, "__func__", raw), getattr(new, "__func__", new)
    if not isinstance(new, FunctionType):
        fits = callable(raw) == callable(new)
        return None if fits else f"is a {type(raw).__name__}, and the cure a {type(new).__name__}"
    if not inspect.isroutine(raw):
        return f"is a {type(raw).__name__}, not a function"
    # Decorators of torch may lie around the replacement itself, and pass on what they get.
    own = inspect.unwrap(new, stop=lambda f: getattr(f, "__wrapped__", None) is raw)
    if _takes_everything(raw, own):
        return None  # at once: to read a signature takes longer than the edit
    try:
        theirs = list(inspect.signature(raw).parameters.values())
    except (TypeError, ValueError):
        return None  # C, which tells nothing
    ours = list(inspect.signature(own, follow_wrapped=False).parameters.values())
    refused = _refused(theirs, ours)
    return None if refused is None else f"takes other arguments than the cure knows: {refused}"


def _takes_everything(raw: Any, own: Any) -> bool:
    """Whether a replacement is ``(*args, **kwargs)``, after ``self`` where the original has it."""
    code = getattr(own, "__code__", None)
    every = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    if code is None or code.co_flags & every != every or code.co_kwonlyargcount:
        return False
    named = code.co_varnames[: code.co_argcount]
    if not named:
        return True
    theirs = getattr(raw, "__code__", None)
    return named == ("self",) and theirs is not None and theirs.co_varnames[:1] == named


def _refused(theirs: list[inspect.Parameter], ours: list[inspect.Parameter]) -> str | None:
    """Name the first argument that a call may have and the replacement does not take."""
    kinds = {p.kind for p in ours}
    named = {p.name: i for i, p in enumerate(ours)}
    spare_positions = inspect.Parameter.VAR_POSITIONAL in kinds
    spare_names = inspect.Parameter.VAR_KEYWORD in kinds
    for i, p in enumerate(theirs):
        if p.kind is p.VAR_POSITIONAL:
            fits = spare_positions
        elif p.kind is p.VAR_KEYWORD:
            fits = spare_names
        elif p.kind is p.KEYWORD_ONLY:
            fits = p.name in named or spare_names
        else:
            fits = named.get(p.name) == i or (p.name not in named and spare_positions)
        if not fits:
            return p.name
    known = {p.name for p in theirs}
    for p in ours:
        needed = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if needed and p.name not in known:
            return p.name
    return None


def same_name_holders(original: Any, module_name: str, name: str) -> list[str]:
    """Modules outside torch that hold ``original`` under ``name`` (``from x import y``)."""
    root = module_name.partition(".")[0]
    inside = f"{root}."
    held = []
    loaded: dict[str, ModuleType | None] = dict(sys.modules)
    for other_name, other in loaded.items():
        if other_name.startswith(inside):
            continue  # asked first: of a thousand modules most are torch's
        names = getattr(other, "__dict__", None)
        if isinstance(names, dict) and names.get(name) is original and other_name != root:
            held.append(f"{other_name}:{name}")
    return sorted(held)

"""What scanned expressions may call, with the real functions behind it; nothing else runs."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from packaging.version import parse as parse_version

from .versions import LooseVersion, StrictVersion, TorchVersion

__all__ = [
    "BUILTINS",
    "COMPARISONS",
    "PLAIN",
    "REAL",
    "Attribute",
    "Raised",
    "Ref",
    "Unreadable",
    "attribute",
    "guarded",
    "known_function",
]


class Unreadable(Exception):
    """The expression is not one of those that can be evaluated."""


class Raised(Exception):
    """The scanned code would raise this."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error

    def __str__(self) -> str:
        said = " ".join(str(self.error).split())[:80]
        return f"raises {type(self.error).__name__} ({said})"


@dataclass(frozen=True, slots=True)
class Ref:
    """A dotted name that was imported."""

    dotted: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """A method of a value, not called yet."""

    owner: Any
    name: str


#: Values that may be compared, indexed and passed on.
PLAIN = (
    *(str, int, float, bool, tuple, list, dict, set, type(None)),
    *(Version, LooseVersion, StrictVersion, re.Match),
)

_VERSION_PARTS = frozenset(
    (
        *("major", "minor", "micro", "release", "base_version", "public", "local", "pre", "dev"),
        *("post", "epoch", "is_prerelease", "is_devrelease", "is_postrelease"),
    )
)
_LOOSE_PARTS = frozenset({"version", "vstring", "prerelease"})
_STR_METHODS = frozenset(
    (
        *("split", "rsplit", "partition", "rpartition", "startswith", "endswith", "strip", "lstrip"),
        *("rstrip", "replace", "lower", "upper", "isdigit", "isnumeric", "isdecimal", "join"),
        *("removesuffix", "removeprefix", "find", "rfind", "index", "count"),
    )
)
_MAX_SIZE = 10_000


def attribute(owner: Any, name: str) -> Any:
    """Read an attribute, or hand a method over uncalled."""
    if isinstance(owner, Version) and name in _VERSION_PARTS:
        return getattr(owner, name)
    if isinstance(owner, (LooseVersion, StrictVersion)) and name in _LOOSE_PARTS:
        return guarded(getattr, owner, name)
    known = (
        (isinstance(owner, str) and name in _STR_METHODS)
        or (isinstance(owner, re.Match) and name in ("group", "groups"))
        or (isinstance(owner, dict) and name in ("keys", "get"))
        or (isinstance(owner, SpecifierSet) and name == "contains")
    )
    if known:
        return Attribute(owner, name)
    raise Unreadable(name)


def guarded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a known function; what it raises is the scanned code's own answer."""
    try:
        value = function(*args, **kwargs)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, ZeroDivisionError) as error:
        raise Raised(error) from error
    if hasattr(value, "__len__") and not isinstance(value, Version) and len(value) > _MAX_SIZE:
        raise Unreadable("a value that grows")
    return value


def _matching(name: str) -> Callable[..., Any]:
    """A function of ``re`` that leaves patterns alone which can take for ever."""

    def match(pattern: Any, text: Any, *rest: Any) -> Any:
        if not (isinstance(pattern, str) and isinstance(text, str)) or rest:
            raise Unreadable("a pattern")
        if _REPEATED_GROUP.search(pattern) or len(_REPEATS.findall(pattern)) > 5 or len(text) > 48:
            raise Unreadable("a pattern that may take for ever")
        try:
            return getattr(re, name)(pattern, text)
        except re.error as error:
            raise Unreadable("a pattern") from error

    return match


_REPEATS = re.compile(r"[*+?{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")

#: Builtins that gates use.
BUILTINS: dict[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "len": len,
    "tuple": tuple,
    "list": list,
    "set": set,
    "any": any,
    "all": all,
    "max": max,
    "min": min,
}

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}

REAL: dict[str, Callable[..., Any]] = {
    "packaging.version.Version": Version,
    "packaging.version.parse": parse_version,
    "packaging.specifiers.SpecifierSet": SpecifierSet,
    "torch.torch_version.TorchVersion": TorchVersion,
    **{f"re.{name}": _matching(name) for name in ("match", "search", "fullmatch")},
    **{f"operator.{name}": getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}


def known_function(dotted: str) -> Callable[..., Any] | None:
    """Return the function that a dotted name stands for, if it is one of ours to call."""
    found = REAL.get(dotted)
    if found is not None:
        return found
    name = dotted.rpartition(".")[2]
    if name == "LooseVersion":
        return LooseVersion
    if name == "StrictVersion":
        return StrictVersion
    if name == "parse_version" and dotted.startswith("pkg_resources"):
        return parse_version
    for real in ("packaging.version.Version", "packaging.version.parse"):
        if dotted.endswith(f".{real}"):  # a vendored copy
            return REAL[real]
    return None

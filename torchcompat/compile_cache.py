"""Keep torch's compile caches from serving what was compiled without an edit.

The caches on disk key a graph by its text, by torch's version and by its settings. An
edit of the compiler itself changes none of these, so without a salt a build that is
cured goes on running the wrong code that it compiled yesterday. The salt goes into
``FxGraphHashDetails``, from which the keys of inductor's and of AOTAutograd's cache are
both made.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .edits import Change
from .errors import TargetDriftError
from .records import Record
from .targets import own_attr, owner_of, who_made

__all__ = ["SaltCompileCache"]

_TARGET = "torch._inductor.codecache:FxGraphHashDetails.__init__"

# One wrapper for all salts, or two shims could not both be in place.
_salts: dict[str, None] = {}
_wrapper: Callable[..., None] | None = None
_original: Any = None


def _salted(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original, updated=())
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.torchcompat = sorted(_salts)

    return init


class _SaltChange:
    def __init__(self, target: str, salt: str, owner: Any) -> None:
        self.target = target
        self.salt = salt
        self.owner = owner

    def commit(self) -> None:
        global _original, _wrapper
        _salts[self.salt] = None
        live = own_attr(self.owner, "__init__")
        if _wrapper is None or live is not _wrapper:
            _original, _wrapper = live, _salted(live)
            self.owner.__init__ = _wrapper

    def undo(self) -> None:
        global _original, _wrapper
        _salts.pop(self.salt, None)
        if not _salts and _wrapper is not None and own_attr(self.owner, "__init__") is _wrapper:
            self.owner.__init__ = _original
            _original = _wrapper = None

    def claims(self) -> tuple[str, ...]:
        return (f"{self.target}[{self.salt}]",)

    def holder(self) -> str | None:
        live = own_attr(self.owner, "__init__")
        return None if live is _wrapper else who_made(live)

    def describe(self) -> str:
        return f"put {self.salt!r} into the keys of torch's compile caches"

    def late_holders(self) -> list[str]:
        return []


@dataclass(eq=False, repr=False)
class SaltCompileCache(Record):
    """Put a shim's name and revision into the keys of torch's compile caches.

    For a shim that edits the compiler. It lists ``torch._inductor.codecache`` in its
    ``modules``.

    Attributes:
        key: the shim's key.
        revision: counted up whenever the cure changes what is compiled.
    """

    key: str
    revision: int = 1
    target: str = _TARGET
    reversible: bool = True

    def prepare(self) -> Change:
        """Find the place where cache keys are made; see :class:`~torchcompat.edits.Edit`."""
        owner, name = owner_of(self.target)
        if not inspect.isfunction(own_attr(owner, name)):
            raise TargetDriftError(self.target, "is no function of its own in this torch")
        return _SaltChange(self.target, f"{self.key}:{self.revision}", owner)

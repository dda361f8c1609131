"""The environment variables, read anew at every call.

They can only switch named shims off or on; none of them names code to run.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import TorchCompatWarning, unknown_key_message
from .records import Record

__all__ = ["DISABLE", "NO_PLUGINS", "ONLY", "STRICT", "Switches", "plugins_wanted"]

DISABLE = "TORCHCOMPAT_DISABLE"
ONLY = "TORCHCOMPAT_ONLY"
STRICT = "TORCHCOMPAT_STRICT"
NO_PLUGINS = "TORCHCOMPAT_NO_PLUGINS"

_warned: set[tuple[str, str]] = set()


@dataclass(eq=False, repr=False)
class Switches(Record):
    """What the environment says.

    Attributes:
        disabled: keys that must not be applied; ``everything`` stands for all of them.
        only: the only keys that may be applied, None for no such limit.
        everything: ``TORCHCOMPAT_DISABLE=*``.
        strict: ``apply_all()`` raises for a shim that could not be applied.
    """

    disabled: frozenset[str]
    only: frozenset[str] | None
    everything: bool
    strict: bool

    @classmethod
    def read(cls, known: Iterable[str]) -> Switches:
        """Read the environment; a key that names no shim warns with its near misses."""
        known = frozenset(known)
        disabled = _keys(DISABLE, known | {"*"})
        only = _keys(ONLY, known) if os.environ.get(ONLY, "").strip() else None
        return cls(disabled - {"*"}, only, "*" in disabled, _flag(STRICT))

    def why_disabled(self, key: str) -> str | None:
        """Say why ``key`` is switched off, or return None."""
        if self.everything:
            return f"{DISABLE}=* switches every shim off"
        if key in self.disabled:
            return f"{DISABLE} names it; take it out of that variable to have it back"
        if self.only is not None and key not in self.only:
            return f"{ONLY} does not name it; add it there to have it applied"
        return None


def plugins_wanted() -> bool:
    """Whether entry points may be loaded."""
    return not _flag(NO_PLUGINS)


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


def _keys(name: str, known: frozenset[str]) -> frozenset[str]:
    text = os.environ.get(name, "")
    keys = frozenset(filter(None, (piece.strip() for piece in text.split(","))))
    for key in sorted(keys - known):
        if (name, key) not in _warned:
            _warned.add((name, key))
            message = unknown_key_message(key, known - {"*"}, where=f"{name}: ")
            warnings.warn(message, TorchCompatWarning, stacklevel=2)
    return keys & known

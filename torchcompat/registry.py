"""Which shims there are: built-in, from entry points, and registered by hand."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from . import shims
from .entries import Declared
from .errors import DuplicateShimError, ShimDefinitionError, TorchCompatWarning, UnknownShimError
from .settings import DISABLE, NO_PLUGINS, plugins_wanted
from .shim import Shim

__all__ = ["DISTRIBUTION", "GROUP", "Registry"]

#: The entry-point group for other distributions' shims.
GROUP = "torchcompat.shims"

#: The distribution that the built-in shims belong to.
DISTRIBUTION = "torchcompat-shims"


class Registry:
    """All known shims by key. A key is taken once and for all."""

    def __init__(self, builtin: Sequence[str] = shims.KEYS, *, plugins: bool = True) -> None:
        self._lock = threading.Lock()
        self._builtin = tuple(builtin)
        self._entries: dict[str, Declared] = {}
        self._builtin_listed = False
        self._plugins = plugins
        self._plugins_loaded = False
        self._loading = threading.local()
        self._problems: list[str] = []

    @property
    def problems(self) -> tuple[str, ...]:
        """Plugins that could not be used, one sentence each."""
        return tuple(self._problems)

    def keys(self) -> tuple[str, ...]:
        """Return all keys, built-in ones first."""
        self._load()
        return tuple(self._entries)

    def __iter__(self) -> Iterator[Shim]:
        return iter([self._whole(entry) for entry in self.entries()])

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def get(self, key: str) -> Shim:
        """Return the shim of ``key``.

        Raises:
            UnknownShimError: there is none; the message names the near misses.
        """
        return self._whole(self.entry(key))

    def entries(self) -> tuple[Declared, ...]:
        """Return what decides about each shim; built-in shims are not loaded for it."""
        self._load()
        return tuple(self._entries.values())

    def entry(self, key: str) -> Declared:
        """Return what decides about the shim of ``key``.

        Raises:
            UnknownShimError: there is none; the message names the near misses.
        """
        self._load()
        try:
            return self._entries[key]
        except KeyError:
            raise UnknownShimError(key, self.keys()) from None

    def _whole(self, entry: Declared) -> Shim:
        """Return the shim of an entry, and keep it in the entry's place."""
        if isinstance(entry, Shim):
            return entry
        shim = self._loaded(entry.key)
        with self._lock:
            held = self._entries.get(entry.key)
            if isinstance(held, Shim):
                return held  # another thread was first
            self._entries[entry.key] = shim
        return shim

    def register(self, shim: Shim, *, distribution: str = "") -> Shim:
        """Add a shim; ``distribution`` says whose it is.

        Raises:
            DuplicateShimError: the key is taken.
            ShimDefinitionError: this is no shim, or a reproducer expects no regular expression.
        """
        if not isinstance(shim, Shim):
            raise ShimDefinitionError(
                f"register() takes a torchcompat.Shim, not a {type(shim).__name__}: {shim!r}"
            )
        shim.check()
        self._list_builtin()
        return self._add(shim, distribution or shim.distribution or "the running program")

    def unregister(self, key: str) -> None:
        """Forget a shim that :meth:`register` added; built-in ones stay."""
        shim = self.get(key)
        if shim.distribution == DISTRIBUTION:
            raise ShimDefinitionError(f"{key!r} is built in and stays; {DISABLE} switches it off")
        with self._lock:
            del self._entries[key]

    def _add(self, shim: Shim, distribution: str) -> Shim:
        shim = replace(shim, distribution=distribution)
        with self._lock:
            holder = self._entries.get(shim.key)
            if holder is not None:
                owner = holder.distribution if isinstance(holder, Shim) else DISTRIBUTION
                raise DuplicateShimError(shim.key, owner, distribution)
            self._entries[shim.key] = shim
        return shim

    # -- loading ---------------------------------------------------------------------

    def _load(self) -> None:
        self._list_builtin()
        if not self._plugins or self._plugins_loaded or not plugins_wanted():
            return
        if getattr(self._loading, "now", False):
            return  # a plugin asks while it is being loaded: it sees what there is so far
        self._loading.now = True
        try:
            found = list(self._find_plugins())  # imports: never under our lock
        finally:
            self._loading.now = False
        with self._lock:
            first, self._plugins_loaded = not self._plugins_loaded, True
        if first:
            for shim, distribution in found:
                self._accept(shim, distribution)

    def _list_builtin(self) -> None:
        if self._builtin_listed:
            return
        from .shims._index import INDEX

        listed: dict[str, Declared] = {}
        for key in self._builtin:
            # A shim that is not in the index yet is loaded; tools/index.py writes the index.
            listed[key] = INDEX[key] if key in INDEX else self._loaded(key)
        with self._lock:
            if not self._builtin_listed:
                self._entries = listed | self._entries
                self._builtin_listed = True

    @staticmethod
    def _loaded(key: str) -> Shim:
        shim: Shim = import_module(f"{shims.__name__}.{key}").SHIM
        return replace(shim, distribution=DISTRIBUTION)

    def _find_plugins(self) -> Iterator[tuple[Any, str]]:
        from importlib.metadata import distributions, entry_points

        # Reading these files takes a third of the time of parsing them all.
        if not any(GROUP in (dist.read_text("entry_points.txt") or "") for dist in distributions()):
            return

        def owner(entry: Any) -> str:
            return entry.dist.name if entry.dist is not None else "an unknown distribution"

        for entry in sorted(entry_points(group=GROUP), key=lambda e: (owner(e), e.name)):
            try:
                loaded = entry.load()
                if callable(loaded) and not isinstance(loaded, Shim):
                    loaded = loaded()
                for shim in [loaded] if isinstance(loaded, Shim) else list(_as_iterable(loaded)):
                    yield shim, owner(entry)
            except Exception as error:
                self._problem(
                    f"the plugin {entry.name!r} of {owner(entry)} could not be loaded "
                    f"({type(error).__name__}: {error}); mend or uninstall it, or set {NO_PLUGINS}=1."
                )

    def _accept(self, shim: Any, distribution: str) -> None:
        try:
            self.register(shim, distribution=distribution)
        except (DuplicateShimError, ShimDefinitionError) as error:
            self._problem(f"a shim of {distribution} is left out: {error}")

    def _problem(self, sentence: str) -> None:
        if sentence not in self._problems:
            self._problems.append(sentence)
            warnings.warn(sentence, TorchCompatWarning, stacklevel=2)


def _as_iterable(loaded: object) -> Iterable[Any]:
    if isinstance(loaded, Iterable):
        return loaded
    raise ShimDefinitionError(
        f"the entry point gives a {type(loaded).__name__}; "
        f"it must give a Shim, an iterable of them, or a function that returns either"
    )

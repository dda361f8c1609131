"""Run a callback once modules, and torch itself, are completely imported.

``import torch`` runs for seconds, and in its middle ``torch.utils.checkpoint`` is
already loaded while torch has no ``ops``. So a callback waits for two things: its
modules and torch, all with ``__spec__._initializing`` back to False. That attribute
is import's own sign for "being imported" (every ``import`` statement reads it), and
the moment it turns False is the moment to wait for. The finder therefore gives the
specs it is asked about a class whose ``_initializing`` reports that moment, and takes
the class away again; loaders, ``__loader__`` and ``__spec__`` stay what they were.
The same works for a module whose import is already under way.

The finder is on ``sys.meta_path`` only while somebody waits.
"""

from __future__ import annotations

import _frozen_importlib as _bootstrap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["Waiter", "is_ready", "poll", "when_ready"]

ROOT = "torch"

#: Seconds to wait for a module that another thread has found and not yet created.
_GAP = 1.0

_lock = threading.RLock()
_searching = threading.local()


class Waiter:
    """A callback that waits; ``cancel()`` removes it."""

    def __init__(self, modules: frozenset[str], callback: Callable[[], None]) -> None:
        self.modules = modules
        self.callback = callback

    def cancel(self) -> None:
        """Stop waiting. Does nothing where the callback has run or is running."""
        with _lock:
            _forget(self)


class _Waiting:
    """Who waits, and the names of all their modules, which every import is looked up in.

    Never changed but replaced, in one step that no interrupt can cut in two.
    """

    def __init__(self, waiters: Iterable[Waiter] = ()) -> None:
        self.waiters = tuple(waiters)
        self.names = frozenset[str]().union(*(waiter.modules for waiter in self.waiters))


_waiting = _Waiting()


def is_ready(modules: Iterable[str]) -> bool:
    """Whether torch and all ``modules`` are loaded and no longer being imported."""
    return all(_complete(name) for name in (ROOT, *modules))


def _complete(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None:
        return False
    try:
        spec = getattr(module, "__spec__", None)
        return not getattr(spec, "_initializing", False)
    except Exception:
        return False  # a stand-in that cannot be looked at yet


def when_ready(modules: Iterable[str], callback: Callable[[], None]) -> Waiter:
    """Call ``callback`` once torch and all ``modules`` are completely imported.

    It runs in the thread that finished the import, without this module's lock, right
    before the ``import`` statement returns; if everything is ready, it runs at once.
    It runs at most once and must not raise.
    """
    global _waiting
    waiter = Waiter(frozenset((ROOT, *modules)), callback)
    with _lock:
        _waiting = _Waiting((*_waiting.waiters, waiter))
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
    for name in waiter.modules:
        # Its import may be under way, in another thread or further up the stack.
        _await_module_object(name)
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and not _complete(name):
            _watch(vars(module).get("__spec__"))
    poll()
    return waiter


def _await_module_object(name: str) -> None:
    """Wait out the moment in which an import is past the finders and not in sys.modules.

    Another thread that asked the finders right before we stood among them is about to
    put its module into ``sys.modules``, with a spec that nobody watches yet.
    """
    deadline = time.monotonic() + _GAP
    while (
        name not in sys.modules
        and _imported_elsewhere(name)
        and _complete(name.rpartition(".")[0] or "sys")  # else the finders are still to be asked
        and time.monotonic() < deadline
    ):
        time.sleep(0.0005)


def _imported_elsewhere(name: str) -> bool:
    """Whether another thread holds the import lock of ``name``."""
    reference = getattr(_bootstrap, "_module_locks", {}).get(name)
    lock = reference() if reference is not None else None
    owner = getattr(lock, "owner", None)
    return owner is not None and owner != threading.get_ident()


def _forget(waiter: Waiter) -> None:
    global _waiting
    if waiter in _waiting.waiters:
        _waiting = _Waiting(other for other in _waiting.waiters if other is not waiter)
    if not _waiting.waiters and _finder in sys.meta_path:
        # Another list, not this one made shorter: an import that goes through it, in another thread
        # or further up the stack, would skip a finder, and not find its module.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not _finder]


def poll() -> None:
    """Run the callbacks of waiters whose modules are complete by now.

    Only for modules that were loaded past the import system; the others come by
    themselves.
    """
    with _lock:
        ready = [waiter for waiter in _waiting.waiters if all(map(_complete, waiter.modules))]
        for waiter in ready:
            _forget(waiter)
    for waiter in ready:
        waiter.callback()


def _finished(spec: ModuleSpec) -> None:
    # Not in sys.modules: the import has failed, and may be tried again.
    if spec.name in sys.modules and spec.name in _waiting.names:
        poll()


# -- watching a spec -----------------------------------------------------------------

_classes: dict[type[Any], type[Any]] = {}


def _watching(base: type[Any]) -> type[Any]:
    """Return the subclass of a spec's class that reports the end of its import."""

    def read(self: Any) -> bool:
        return bool(self.__dict__.get("_initializing", False))

    def write(self: Any, value: bool) -> None:
        begun = self.__dict__.get("_initializing", False)
        self.__dict__["_initializing"] = value
        if begun and not value:
            self.__class__ = base
            _finished(self)

    if base not in _classes:
        _classes[base] = type(
            base.__name__,
            (base,),
            {
                "_initializing": property(read, write),
                "__module__": base.__module__,
                "_torchcompat": True,
            },
        )
    return _classes[base]


def _watch(spec: ModuleSpec | None) -> None:
    if spec is None or hasattr(type(spec), "_torchcompat"):
        return
    try:
        spec.__class__ = _watching(type(spec))
    except TypeError:
        return  # a class with another layout cannot be watched: the next poll() sees it


class _Finder:
    """Finds nothing itself: asks the other finders, and watches what they found."""

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting.names:
            return None
        searching: set[str] = _searching.__dict__.setdefault("names", set())
        if name in searching:
            return None  # another finder of this kind asks back
        searching.add(name)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            searching.discard(name)
        _watch(spec)
        return spec

    def _ask_others(self, name: str, path: Any, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None

    def invalidate_caches(self) -> None:
        """Nothing is cached here."""


_finder: Any = _Finder()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock, always for a moment only.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""The engine's lock: sessions, arrivals from the import hooks, events, and fork.

One lock guards every change to torch. Import callbacks and subscribers never run
under it, and an import callback never waits for it for long: the thread that holds it
may itself wait for an import. What arrives while the lock is held is done by its
holder on release.

An interrupt may fall on any line. So who holds the lock is asked of the lock and never of
a flag, and what an interrupt has cut off half-way is mended before the lock is released.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import import_hooks
from .builds import TorchBuild, detect
from .errors import TorchCompatWarning
from .report import Event

__all__ = ["Session", "Sessions", "logger", "said"]

logger = logging.getLogger("torchcompat")

#: Seconds that an import callback waits for the lock before it leaves its work to the holder.
PATIENCE = 5.0


class Session:
    """What one holder of the lock has to do after releasing it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.warnings: list[str] = []
        self.build: TorchBuild | None = None


class Sessions:
    """The lock, and everything that has to happen around it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._arrived: deque[str] = deque()
        self._subscribers: list[Callable[[Event], object]] = []
        self._fork_locked = False
        _all.add(self)

    def _take(self, key: str, session: Session) -> None:
        """Decide about a pending shim whose modules have arrived; under the lock."""
        raise NotImplementedError

    def _recover(self) -> None:
        """Finish what an interrupt has cut off half-way; under the lock."""
        raise NotImplementedError

    def _overdue(self) -> list[str]:
        """Name the pending shims whose modules are there although nobody said so."""
        raise NotImplementedError

    def _is_ours(self) -> bool:
        """Whether this thread holds the lock."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined, unused-ignore]

    @contextmanager
    def _locked(self) -> Iterator[Session]:
        """Hold the lock; on release do what has arrived meanwhile, and send the events."""
        if self._session is not None and self._is_ours():
            yield self._session
            return
        with self._lock:
            try:
                session = self._begin()
                yield session
            finally:
                self._end()
        self._send(session)
        self._drain()

    def _begin(self) -> Session:
        self._session = session = Session()
        self._recover()
        import_hooks.poll()
        session.build = detect()
        self._arrived.extend(self._overdue())
        self._apply_arrived()
        return session

    def _end(self) -> None:
        try:
            self._recover()
            self._apply_arrived()
        finally:
            self._session = None

    def _drain(self) -> None:
        """Do what has arrived, unless the lock's holder will."""
        while self._arrived:
            try:
                if not self._lock.acquire(timeout=PATIENCE):
                    return
                with self._lock:  # which no interrupt can leave behind
                    self._lock.release()
                    try:
                        session = self._begin()
                    finally:
                        self._end()
            finally:
                if self._is_ours():
                    self._lock.release()
            self._send(session)

    def _on_ready(self, key: str) -> None:
        """Called by the import hooks when a pending shim's modules are complete."""
        self._arrived.append(key)
        if self._is_ours():
            return  # the frame further up does it
        try:
            self._drain()
        except TorchCompatWarning as error:
            # Warnings are errors here; an exception now would break the user's import.
            logger.error("%s", error)  # noqa: TRY400 - its sentence says it all

    def _apply_arrived(self) -> None:
        while self._arrived and self._session is not None:
            self._take(self._arrived.popleft(), self._session)

    def _send(self, session: Session) -> None:
        for event in session.events:
            for callback in list(self._subscribers):
                try:
                    callback(event)
                except Exception as error:
                    session.warnings.append(
                        f"a subscriber raised {said(error)} at {event.outcome}; the shim is unharmed"
                    )
            late = event.outcome.late
            if late:
                session.warnings.append(
                    f"{event.outcome.key} was applied late: {', '.join(late)} had been imported "
                    f"before and still hold the old object; apply torchcompat before importing them"
                )
        for message in session.warnings:
            warnings.warn(message, TorchCompatWarning, stacklevel=4)


_all: weakref.WeakSet[Sessions] = weakref.WeakSet()


def _before_fork() -> None:
    # A child must never inherit a half-made edit. Not for ever: the lock's holder may be
    # waiting for an import lock of ours.
    for holder in list(_all):
        holder._fork_locked = holder._lock.acquire(timeout=PATIENCE)


def _after_fork(*, child: bool = False) -> None:
    for holder in list(_all):
        if holder._fork_locked:
            holder._lock.release()
        elif child:
            holder._lock = threading.RLock()
            holder._session = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=lambda: _after_fork(child=True),
    )


def said(error: BaseException) -> str:
    """Name an error with its type, for reasons."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

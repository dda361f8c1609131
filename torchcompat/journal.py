"""The journal of one apply: what was done, so that it can be undone backwards."""

from __future__ import annotations

from .edits import Change
from .errors import TorchCompatError

__all__ = ["Journal"]


class Journal:
    """Changes in the order they were begun, so that they can be undone backwards."""

    def __init__(self) -> None:
        self._changes: list[Change] = []

    def commit(self, change: Change) -> None:
        """Make one change. It is written down first: an interrupt may fall in between."""
        self._changes.append(change)
        change.commit()

    def rollback(self) -> None:
        """Undo everything, last first.

        An interrupt in the middle is held back until torch is as it was. An undo that
        fails does not keep the others from being undone.

        Raises:
            TorchCompatError: some undo failed; the message names the targets.
        """
        interrupt: KeyboardInterrupt | None = None
        failures: list[tuple[Change, Exception]] = []
        while self._changes:
            change = self._changes[-1]
            try:
                change.undo()
            except KeyboardInterrupt as error:
                interrupt = error
                continue  # undo looks at the live state, so it can be repeated
            except Exception as error:
                failures.append((change, error))
            self._changes.pop()
        if failures:
            what = "; ".join(f"{change.target} ({error})" for change, error in failures)
            raise TorchCompatError(f"could not be undone: {what}") from failures[0][1]
        if interrupt is not None:
            raise interrupt

    def foreign_holder(self) -> tuple[str, str] | None:
        """Name the first target that somebody else has taken over, and who."""
        for change in self._changes:
            holder = change.holder()
            if holder is not None:
                return change.target, holder
        return None

    def describe(self) -> tuple[str, ...]:
        """Say what was changed, one line a change."""
        return tuple(change.describe() for change in self._changes)

    def late_holders(self) -> tuple[str, ...]:
        """Name the copies outside torch that the edits could not reach."""
        return tuple(name for change in self._changes for name in change.late_holders())

"""The journal of one apply: what was done, so that it can be undone backwards."""

from __future__ import annotations

from collections.abc import Container

from .edits import Change, is_ousted

__all__ = ["Journal"]


class Journal:
    """Changes in the order they were begun, so that they can be undone backwards."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._lost: dict[str, str] = {}  # what an undo has failed to bring back

    def commit(self, change: Change) -> None:
        """Make one change. It is written down first: an interrupt may fall in between."""
        self._changes.append(change)
        change.commit()

    def rollback(self) -> tuple[str, ...]:
        """Undo everything, last first; return what could not be undone.

        An undo that fails does not keep the others from being undone. What an interrupt
        cuts off is done by calling this again: undo looks at the live state. One that falls
        into an undo is held back until torch is as it was.
        """
        interrupt: KeyboardInterrupt | None = None
        while self._changes:
            change = self._changes[-1]
            try:
                change.undo()
            except KeyboardInterrupt as error:
                interrupt = error
                continue
            except Exception as error:
                self._lost[change.target] = f"{change.target} ({error})"
            if self._changes and self._changes[-1] is change:
                self._changes.pop()
        if interrupt is not None:
            raise interrupt
        return tuple(self._lost.values())

    def foreign_holder(self, *, besides: Container[str] = ()) -> tuple[str, str] | None:
        """Name the first target that somebody else has taken over, and who.

        Args:
            besides: claims that others may hold by agreement.
        """
        for change in self._changes:
            if any(claim in besides for claim in change.claims()):
                continue
            try:
                holder = change.holder()
            except Exception as error:
                holder = f"an object that cannot be looked at ({type(error).__name__}: {error})"
            if holder is not None:
                return change.target, holder
        return None

    def is_ousted(self) -> bool:
        """Whether somebody else's patch is in an edit's place, and may put ours back."""
        return any(map(is_ousted, self._changes))

    def describe(self) -> tuple[str, ...]:
        """Say what was changed, one line a change."""
        return tuple(change.describe() for change in self._changes)

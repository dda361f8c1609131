"""What became of a shim: states, outcomes, events, and how they are shown."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .builds import OLDEST_TESTED, TorchBuild
from .gate import Verdict
from .records import Record

__all__ = ["Event", "Outcome", "Report", "State", "build_note", "table"]


class State(str, enum.Enum):
    """What became of a shim in this process."""

    APPLIED = "applied"
    PENDING = "pending"
    NOT_AFFECTED = "not_affected"
    ALREADY_FIXED = "already_fixed"
    OPT_IN = "opt_in"
    DISABLED = "disabled"
    UNSUPPORTED = "unsupported"
    CONFLICT = "conflict"
    FAILED = "failed"
    REVERTED = "reverted"
    RETIRED = "retired"

    def __str__(self) -> str:
        return self.value

    @property
    def is_trouble(self) -> bool:
        """Whether the build may need the shim and does not have it."""
        return self in (State.UNSUPPORTED, State.CONFLICT, State.FAILED)


@dataclass(eq=False, repr=False, kw_only=True)
class Outcome(Record):
    """The state of one shim.

    Attributes:
        key: the shim.
        state: what became of it.
        reason: why, as a sentence a person can act on.
        verdict: what the gate said, None where it was not asked.
        edits: what was changed, one line an edit; empty unless applied.
        late: copies outside torch that were taken before the edit and still hold the
            old object (``from torch... import name`` in a module imported earlier).
        reversible: whether :func:`torchcompat.revert` can bring torch back.
        forced: applied with ``force=True`` against the gate.
    """

    key: str
    state: State
    reason: str
    verdict: Verdict | None = None
    edits: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    reversible: bool = True
    forced: bool = False

    def __str__(self) -> str:
        return f"{self.key}: {self.state} ({self.reason})"

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready values."""
        return {
            "key": self.key,
            "state": str(self.state),
            "reason": self.reason,
            "verdict": None if self.verdict is None else str(self.verdict),
            "edits": list(self.edits),
            "late": list(self.late),
            "reversible": self.reversible,
            "forced": self.forced,
        }


@dataclass(eq=False, repr=False)
class Event(Record):
    """Sent to subscribers after a shim's state has changed.

    Attributes:
        outcome: the new outcome.
        before: the state it had, None where it had none.
    """

    outcome: Outcome
    before: State | None


class Report(Mapping[str, Outcome]):
    """Outcomes by key, for one build of torch.

    Attributes:
        build: the build, None where there is no torch.
        problems: plugins that could not be loaded, one sentence each.
    """

    def __init__(
        self,
        outcomes: Mapping[str, Outcome],
        build: TorchBuild | None,
        problems: tuple[str, ...] = (),
    ) -> None:
        self._outcomes = dict(outcomes)
        self.build = build
        self.problems = problems

    def __getitem__(self, key: str) -> Outcome:
        return self._outcomes[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    def keys_in(self, *states: State) -> tuple[str, ...]:
        """Return the keys whose state is one of ``states``."""
        return tuple(key for key, outcome in self.items() if outcome.state in states)

    @property
    def applied(self) -> tuple[str, ...]:
        """The keys of the shims that are applied."""
        return self.keys_in(State.APPLIED)

    @property
    def troubled(self) -> tuple[str, ...]:
        """The keys of the shims that may be needed here and are not applied."""
        return tuple(key for key, outcome in self.items() if outcome.state.is_trouble)

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for outcome in self.values():
            counts[str(outcome.state)] = counts.get(str(outcome.state), 0) + 1
        said = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        return f"<torchcompat report on torch {self.build}: {said or 'no shims'}>"

    def __str__(self) -> str:
        rows = [(o.key, str(o.state), str(o.verdict or "-"), o.reason) for o in self.values()]
        lines = [f"torch {self.build}" if self.build is not None else "no torch"]
        note = build_note(self.build)
        if note:
            lines.append(f"note: {note}")
        lines.extend(f"note: {problem}" for problem in self.problems)
        lines.extend(table(("shim", "state", "gate", "why"), rows))
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "torch": None if self.build is None else self.build.raw,
            "note": build_note(self.build),
            "problems": list(self.problems),
            "shims": [outcome.as_dict() for outcome in self.values()],
        }


def build_note(build: TorchBuild | None) -> str | None:
    """Say what is unusual about a build: absent, unreadable, or older than we test."""
    if build is None:
        return (
            "torch is not installed in this environment, so there is nothing to patch; "
            "install it with `pip install torch` (torchcompat never does)."
        )
    if build.line is None:
        return (
            f"the version {build.raw!r} cannot be read, so the probes alone decide; "
            f"`torchcompat verify` shows what this build really needs."
        )
    if build.line < OLDEST_TESTED:
        oldest = ".".join(map(str, OLDEST_TESTED[:2]))
        return (
            f"torch {build} is older than {oldest}, the oldest that torchcompat is tested with; "
            f"update torch, or check with `torchcompat verify`."
        )
    return None


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay rows out in columns; the last column is left as long as it is."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip()
        for row in [header, *rows]
    ]

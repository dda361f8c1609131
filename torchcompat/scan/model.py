"""What a scan finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["RULES", "Answer", "Finding", "Place", "Scan"]

#: Rule names and what each is about; the prefix is the kind.
RULES: dict[str, str] = {
    "gate-version": "a version of torch compared as PEP 440 has it",
    "gate-text": "a version of torch compared as text",
    "gate-numbers": "numbers cut out of a version of torch",
    "gate-specifier": "a version of torch tested with a SpecifierSet",
    "gate-part": "a version of torch tested by a piece of its text",
    "gate-helper": "a version of torch tested through a helper function",
    "patch-attribute": "an attribute of torch set from outside",
    "patch-container": "a registry or set of torch changed from outside",
}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where in a file; lines and columns count from 1."""

    path: str
    line: int
    column: int
    end_line: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a gate answers on one build, against what it is meant to."""

    build: str
    got: str
    meant: str

    @property
    def right(self) -> bool:
        """Whether both are the same."""
        return self.got == self.meant


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One gate or one patch.

    Attributes:
        rule: a key of :data:`RULES`.
        place: the first place of it.
        code: the source, on one line and shortened.
        target: for a patch, what it changes, as a dotted path.
        wrong: for a gate, the builds that it misjudges; empty for one that is right.
        tried: for a gate, the number of builds that it was evaluated on.
        shims: keys of shims that replace it.
        also: further lines of the same file that do the same.
        note: what a reader should know besides.
    """

    rule: str
    place: Place
    code: str
    target: str = ""
    wrong: tuple[Answer, ...] = ()
    tried: int = 0
    shims: tuple[str, ...] = ()
    also: tuple[int, ...] = ()
    note: str = ""

    @property
    def is_gate(self) -> bool:
        """Whether it is a version gate; else it is a patch."""
        return self.rule.startswith("gate")

    @property
    def counts(self) -> bool:
        """Whether it is something to look at: a patch, or a gate that misjudges a build."""
        return not self.is_gate or bool(self.wrong)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-ready values."""
        place = self.place
        return {
            "rule": self.rule,
            "path": place.path,
            "line": place.line,
            "column": place.column,
            "end_line": place.end_line,
            "also_lines": list(self.also),
            "code": self.code,
            "target": self.target or None,
            "wrong_on": [{"torch": a.build, "answers": a.got, "meant": a.meant} for a in self.wrong],
            "builds_tried": self.tried,
            "shims": list(self.shims),
            "note": self.note,
        }


@dataclass(slots=True)
class Scan:
    """The outcome of a scan.

    Attributes:
        files: how many files were read.
        found: gates (right ones too) and patches, by place.
        unread: places that look like gates on torch and could not be evaluated.
        broken: files that could not be read, with the reason.
    """

    files: int = 0
    found: list[Finding] = field(default_factory=list)
    unread: list[tuple[Place, str]] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """What is worth looking at."""
        return [finding for finding in self.found if finding.counts]

    def as_dict(self) -> dict[str, Any]:
        """Return the scan as JSON-ready values."""
        gates = [finding for finding in self.found if finding.is_gate]
        return {
            "files": self.files,
            "gates": len(gates),
            "gates_wrong_somewhere": sum(bool(gate.wrong) for gate in gates),
            "gates_not_evaluated": [
                {"path": place.path, "line": place.line, "code": code} for place, code in self.unread
            ],
            "patches": len(self.found) - len(gates),
            "not_read": [{"path": path, "reason": reason} for path, reason in self.broken],
            "findings": [finding.as_dict() for finding in self.findings],
        }

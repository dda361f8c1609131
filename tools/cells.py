"""What the evidence says of each shim on each build: the cells that page and picture are made of."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchcompat.builds import TorchBuild
from torchcompat.evidence import build_of, judge, read
from torchcompat.gate import Verdict
from torchcompat.releases import RELEASES
from torchcompat.shim import Shim
from torchcompat.verify import Conclusion, Finding, Verification


class Cell(enum.Enum):
    """One shim on one build."""

    NEEDED = "needed"
    FORCED = "needed in a rare case, with force=True"
    FIXED = "fixed upstream"
    CLEAR = "not affected"
    NOT_RUN = "not run"
    WRONG = "contradiction"


@dataclass(frozen=True, slots=True)
class Column:
    """One measured build."""

    label: str
    found: Verification

    @property
    def emulated(self) -> bool:
        return self.found.emulated is not None

    @property
    def build(self) -> TorchBuild:
        return build_of(self.found)

    def findings(self, shim: Shim) -> list[Finding]:
        return [finding for finding in self.found.findings if finding.shim == shim.key]


def columns(folder: Path) -> list[Column]:
    """Read the evidence: releases from old to new, then the emulated builds."""
    read_all = [read(path) for path in sorted(folder.glob("*.json"))]
    found = [
        Column(
            v.facts["torch"] if v.emulated else v.facts["torch"].partition("+")[0],
            v,
        )
        for v in read_all
    ]
    order = {release: place for place, release in enumerate(RELEASES)}
    return sorted(found, key=lambda c: (c.emulated, order.get(c.label, len(order)), c.label))


def cell(shim: Shim, column: Column) -> Cell:
    """Conclude for the whole shim from its reproducers, with the ranges of today."""
    build = column.build
    found = [(finding, judge(finding, shim, build)[0]) for finding in column.findings(shim)]
    told = {conclusion for _, conclusion in found}
    if any(not conclusion.is_right for conclusion in told):
        return Cell.WRONG
    if Conclusion.NEEDED in told:
        outside = shim.affected.verdict(build) is Verdict.OUT
        return Cell.FORCED if outside else Cell.NEEDED
    if told <= {Conclusion.NOT_RUN}:
        return Cell.NOT_RUN
    since = None if shim.affected.since is None else TorchBuild.parse(shim.affected.since).line
    began = since is None or (build.line is not None and build.line >= since)
    return Cell.FIXED if began else Cell.CLEAR


def needed_count(shims: Iterable[Shim], column: Column) -> int:
    """How many shims this build needs."""
    return sum(cell(shim, column) is Cell.NEEDED for shim in shims)

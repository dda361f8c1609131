"""How ``torchcompat verify`` shows its work: plain lines, or rich where it is wanted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .shim import Reproducer, Shim
from .verify import Conclusion, Finding, Ran, Verification

__all__ = ["Plain", "progress"]


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Plain]:
    """Give a display: silent, rich's progress bar on a terminal, else one line a finding."""
    if quiet:
        yield Plain(lines=False)
        return
    if not sys.stdout.isatty():
        yield Plain()
        return
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError:
        yield Plain()
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, transient=True) as bar:
        yield _Rich(bar)


class Plain:
    """One line a finding."""

    def __init__(self, *, lines: bool = True) -> None:
        self._lines = lines

    def start(self, shim: Shim, reproducer: Reproducer, number: int, total: int) -> None:
        """Say nothing yet; a line comes with the finding."""

    def finding(self, finding: Finding) -> None:
        """Print one finding."""
        if self._lines:
            print(_line(finding), flush=True)

    def summary(self, found: Verification) -> None:
        """Print what was found, with the logs of what went wrong."""
        print("\n".join(_summary(found)), flush=True)


class _Rich(Plain):
    def __init__(self, bar: Any) -> None:
        super().__init__()
        self._bar = bar
        self._task: Any = None

    def start(self, shim: Shim, reproducer: Reproducer, number: int, total: int) -> None:
        if self._task is None:
            self._task = self._bar.add_task("", total=total)
        self._bar.update(self._task, completed=number - 1, description=f"{shim.key}: {reproducer.name}")

    def finding(self, finding: Finding) -> None:
        self._bar.console.print(_line(finding), markup=False, highlight=False, soft_wrap=True)


def _line(finding: Finding) -> str:
    name = f"{finding.shim}/{finding.reproducer}"
    if finding.conclusion is Conclusion.NOT_RUN:
        return f"{name}: NOT RUN: {finding.advice}"
    told = f"gate {finding.gate}, probe {finding.probe or 'did not run'}"
    return (
        f"{name}: {finding.conclusion} ({told}; without: {finding.without.ran} in "
        f"{finding.without.seconds:.2f} s, with: {finding.cured.ran} in {finding.cured.seconds:.2f} s)"
        f"{'; ' + finding.advice if 'force=True' in finding.advice else ''}"
    )


def _summary(found: Verification) -> Iterator[str]:
    counts: dict[str, int] = {}
    for finding in found.findings:
        counts[str(finding.conclusion)] = counts.get(str(finding.conclusion), 0) + 1
    real = f" (emulated on {found.emulated})" if found.emulated else ""
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    yield f"torch {found.facts['torch']}{real}: {said or 'nothing to verify'}"
    for finding in found.wrong:
        yield f"WRONG {finding.shim}/{finding.reproducer}: {finding.advice}"
        for label, run in (("without", finding.without), ("with", finding.cured)):
            if run.ran in (Ran.OTHERWISE, Ran.DOCUMENTED):
                yield f"  {label}: {run.message}"
                yield from (f"    | {line}" for line in run.log.splitlines()[-12:])

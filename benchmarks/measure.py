"""Figures from fresh interpreters, each a ratio to something measured in the same run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

#: Times are of the processor and not of the clock: neighbours on the machine spoil only the clock.
CLOCK = "time.process_time()"

#: As a user's: where no bytecode may be written, every start compiles anew.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

Measure = Callable[[], float]


def child(code: str, *, result: str = f"{CLOCK} - begun") -> Measure:
    """Run code in a fresh interpreter; by default seconds from its start to its end."""
    return lambda: float(printed(f"import time; begun = {CLOCK}\n{code}", result))


def printed(code: str, result: str) -> str:
    """Run code in a fresh interpreter, and return what it then prints of an expression."""
    program = f"{code}\nprint({result})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{done.stderr}\nin:\n{program}")
    return done.stdout.splitlines()[-1]


@dataclass
class Case:
    """One figure.

    Attributes:
        what: what we measure.
        against: what it is divided by.
        ours: measures the first.
        theirs: measures the second; None where the figure is no ratio.
        aim: the greatest ratio that issue and README promise, None where there is no promise.
        unit: of ``ours`` where the figure is no ratio.
        share: the ratio is of ``ours`` alone to ``theirs``, a small part, told in percent.
    """

    what: str
    against: str
    ours: Measure
    theirs: Measure | None = None
    aim: float | None = None
    unit: str = "ms"
    share: bool = False
    group: str = field(default="", compare=False)


def run(case: Case, rounds: int) -> dict[str, object]:
    """Measure a case in interleaved rounds; medians and quartiles."""
    ours, theirs = [], []
    for number in range(rounds + 1):
        pair = (case.ours(), case.theirs() if case.theirs else 1.0)
        if number:  # the first round writes bytecode and fills the page cache
            ours.append(pair[0])
            theirs.append(pair[1])
    ratios = [a / b for a, b in zip(ours, theirs)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "what": case.what,
        "against": case.against,
        "group": case.group,
        "ours": statistics.median(ours),
        "theirs": statistics.median(theirs) if case.theirs else None,
        "ratio": median,
        "quartiles": [low, high],
        "aim": case.aim,
        "unit": case.unit,
        "share": case.share,
        "rounds": rounds,
    }

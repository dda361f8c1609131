"""Write README's reliability table from what the tests count.

    python tools/reliability.py            # runs them at full scale, some twenty minutes
    python tools/reliability.py --check    # README has every figure that the tests report
    python tools/reliability.py --from LOG ...   # from the output of runs made before

A test reports a figure with the fixture of that name, and pytest prints the sums at its end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
SCALE = 40
TESTS = (
    "tests/contract/test_orders.py",
    "tests/test_stateful.py",
    "tests/test_faults.py",
    "tests/test_processes.py",
    "tests/test_drift.py",
    "tests/test_gate_fuzz.py",
)
BEGIN, END = "<!-- reliability: python tools/reliability.py -->", "<!-- /reliability -->"
ORDERS = "orders of import, apply and revert, with every shim"


def figures(output: str) -> dict[str, int]:
    """Read the figures that pytest has printed at its end."""
    section = output.rpartition("= reliability =")[2]
    found = re.findall(r"^ *([\d,]+) (.+)$", section.split("\n====")[0], re.MULTILINE)
    found = [(count, name) for count, name in found if not re.match(r"(passed|failed|skipped)\b", name)]
    return {name: int(count.replace(",", "")) for count, name in found}


def grouped(name: str) -> str:
    """Return the row that a figure belongs to: all kinds of faults share one."""
    return name.partition(": ")[0]


def names() -> set[str]:
    """List the rows that the tests can report, from their text."""
    found = {ORDERS}
    for test in TESTS:
        text = (ROOT / test).read_text(encoding="utf-8")
        found |= {grouped(name) for name in re.findall(r'figure\(\s*"([^"]+)"', text)}
    return found


def rows(counts: dict[str, int]) -> list[str]:
    """Lay the sums out as the lines of a table."""
    sums: dict[str, int] = {}
    for name, count in counts.items():
        sums[grouped(name)] = sums.get(grouped(name), 0) + count
    return [
        "| what the tests try | how many |",
        "|---|---|",
        *(f"| {n} | {sums[n]:,} |" for n in sorted(sums)),
    ]


def table() -> str:
    """Return the table as README has it."""
    text = README.read_text(encoding="utf-8")
    return text.partition(BEGIN)[2].partition(END)[0]


def run() -> str:
    """Run the tests at full scale."""
    env = {**os.environ, "TORCHCOMPAT_TEST_SCALE": str(SCALE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode:
        sys.exit("the tests failed, so there are no figures")
    return done.stdout


def main() -> int:
    """Check or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare the rows with the tests")
    parser.add_argument("--from", dest="logs", nargs="+", type=Path, help="output of runs made before")
    options = parser.parse_args()
    if options.check:
        written = set(
            re.findall(r"^\| (?!what the tests|---)(.+?) \| [\d,]+ \|$", table(), re.MULTILINE)
        )
        if written != names():
            print(f"README's reliability table differs from the tests in: {sorted(written ^ names())}")
            return 1
        return 0
    counts: dict[str, int] = {}
    for output in [log.read_text(encoding="utf-8") for log in options.logs] if options.logs else [run()]:
        counts |= figures(output)
    if {grouped(name) for name in counts} != names():
        print(f"no figures for: {sorted(names() - {grouped(name) for name in counts})}")
        return 1
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    written = "\n".join([BEGIN, *rows(counts), END])
    README.write_text(before + written + rest.partition(END)[2], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

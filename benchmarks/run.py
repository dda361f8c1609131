"""What torchcompat costs, each figure as a ratio to something measured in the same run.

    python benchmarks/run.py [--rounds N] [--only TEXT] [--json FILE]

Medians over interleaved rounds, with the quartiles; these are no assertions, machines
are noisy. benchmarks/report.py makes docs/benchmarks.md from the JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from importlib import metadata

from cases import GROUPS
from measure import run


def said(row: dict) -> str:
    """One row as a line."""
    low, high = row["quartiles"]
    if row["theirs"] is None:
        return f"{row['what']}: {row['ratio']:.2f} {row['unit']} [{low:.2f}, {high:.2f}]"
    return (
        f"{row['what']} / {row['against']}: {row['ratio']:.4f} [{low:.4f}, {high:.4f}]"
        f"  ({row['ours'] * 1e3:.3f} ms / {row['theirs'] * 1e3:.3f} ms)"
    )


def import_time() -> list[str]:
    """What ``python -X importtime`` says of ``import torchcompat``."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import torchcompat"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    return [lines[0], *(line for line in lines if "torchcompat" in line)]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="only figures whose name has this in it")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    rows = []
    for group, cases in GROUPS.items():
        for case in cases():
            if arguments.only not in case.what:
                continue
            case.group = group
            row = run(case, arguments.rounds)
            rows.append(row)
            print(said(row), flush=True)
    if arguments.json:
        result = {
            "torch": metadata.version("torch"),
            "python": platform.python_version(),
            "processor": f"{platform.machine()}, {platform.system()}",
            "rows": rows,
            "importtime": import_time(),
        }
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()

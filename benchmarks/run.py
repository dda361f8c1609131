"""What torchcompat costs, each figure as a ratio to something measured in the same run.

    python benchmarks/run.py [--rounds N] [--only TEXT] [--json FILE]

Medians over interleaved rounds, with the quartiles; these are no assertions, machines
are noisy. benchmarks/report.py makes docs/benchmarks.md from the JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from cases import GROUPS
from measure import run

ROOT = Path(__file__).resolve().parent.parent


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


def verifying() -> str:
    """Say what one verification costs, from the evidence."""
    per_shim = []
    for path in sorted((ROOT / "evidence").glob("torch-*.json")):
        findings = [
            finding
            for finding in json.loads(path.read_text(encoding="utf-8"))["findings"]
            if finding["conclusion"] != "not run"
        ]
        seconds = sum(f["without"]["seconds"] + f["with"]["seconds"] for f in findings)
        per_shim.append(
            (seconds / len({f["shim"] for f in findings}), seconds, len(findings), path.stem)
        )
    low, middle, high = min(per_shim), statistics.median_low(per_shim), max(per_shim)
    return (
        f"`torchcompat verify` runs two reproducers side by side. Their seconds, halved, are "
        f"{middle[0] / 2:.1f} s a shim (median of {len(per_shim)} builds; "
        f"{low[0] / 2:.1f} s on {low[3].removeprefix('torch-')}, {high[0] / 2:.1f} s on "
        f"{high[3].removeprefix('torch-')}), every reproducer run without and with its shim, "
        f"beyond one `import torch`. What goes through inductor's C++ compiler takes most of it."
    )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="only figures whose name has this in it")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    rows: list[dict] = []
    result = {
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "processor": f"{platform.machine()}, {platform.system()}",
        "rows": rows,
        "verifying": verifying(),
        "importtime": import_time(),
    }
    for group, cases in GROUPS.items():
        for case in cases():
            if arguments.only not in case.what:
                continue
            case.group = group
            rows.append(run(case, arguments.rounds))
            print(said(rows[-1]), flush=True)
            if arguments.json:  # after each row: a long run that is cut off is not lost
                text = json.dumps(result, indent=2) + "\n"
                Path(arguments.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

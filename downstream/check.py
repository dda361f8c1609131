"""Run a client's example without and with the shims: it must die as documented, then train.

python downstream/check.py NAME        (nox -s downstream; the table is clients.json)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def clients() -> list[dict]:
    return json.loads((HERE / "clients.json").read_text(encoding="utf-8"))


def judge(example: Path, fails_with: str) -> list[str]:
    """Return what is not as documented."""
    wrong = []
    without = run(example, "--no-shim")
    if without.returncode == 0:
        wrong.append("without the shim it trains, so there is nothing to cure")
    elif fails_with not in without.stderr:
        wrong.append(f"without the shim it fails otherwise than documented:\n{without.stderr[-3000:]}")
    with_shim = run(example)
    if with_shim.returncode != 0:
        wrong.append(f"with the shim it fails:\n{with_shim.stderr[-3000:]}")
    elif not trained(with_shim.stdout):
        wrong.append(f"with the shim the loss does not fall:\n{with_shim.stdout[-3000:]}")
    return wrong


def trained(printed: str) -> bool:
    """Whether the printed losses fall, from the first to the last."""
    losses = [float(line.split()[-1]) for line in printed.splitlines() if " loss " in line]
    return len(losses) > 1 and losses[-1] < losses[0]


def run(example: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(example), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)


def main() -> None:
    chosen = {client["name"]: client for client in clients()}[sys.argv[1]]
    wrong = judge(HERE.parent / chosen["example"], chosen["fails_with"])
    if wrong:
        sys.exit("\n".join(f"{chosen['name']}: {line}" for line in wrong))
    print(f"{chosen['name']}: without the shim: {chosen['fails_with']} ...; with it: trains")


if __name__ == "__main__":
    main()

"""Each case of downstream/old.json here: it dies without torchcompat, as said, and runs with it.

    python downstream/old/check.py [NAME ...]

The scripts know nothing of torchcompat: `torchcompat run` applies the shims around them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(*arguments: str) -> tuple[int, str]:
    """Run Python in an empty folder; return its exit status and what it said to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    return done.returncode, done.stderr


def check(case: dict[str, str]) -> bool:
    """Run one case in both directions, and say how it went."""
    script = str(HERE / case["script"])
    named = f"{case['package']} on torch {metadata.version('torch')}"
    distribution, _, wanted = case["package"].partition("==")
    if metadata.version(distribution) != wanted:
        print(f"FAILED {named}: {metadata.version(distribution)} is installed")
        return False
    code, said = run(script)
    if code == 0 or not re.search(case["error"], said):
        print(f"FAILED {named}, without: exit {code}, and not the documented error\n{said[-2000:]}")
        return False
    code, said = run("-m", "torchcompat", "run", "--only", case["shim"], script)
    if code != 0:
        print(f"FAILED {named}, with {case['shim']}: exit {code}\n{said[-2000:]}")
        return False
    print(f"{named}: dies with {case['error']!r}; runs with {case['shim']}", flush=True)
    return True


def main() -> None:
    """Check the cases that are named, or all."""
    cases = json.loads((HERE.parent / "old.json").read_text())
    chosen = [case for case in cases if case["name"] in sys.argv[1:]] if sys.argv[1:] else cases
    wrong = [case["name"] for case in chosen if not check(case)]
    if wrong or not chosen:
        sys.exit(f"not as documented: {', '.join(wrong) or 'no such case'}")
    print(f"{len(chosen)} cases, both directions")


if __name__ == "__main__":
    main()

"""Write generated files, or with --check only say which have drifted; shared by the tools."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["settle"]


def settle(texts: Mapping[Path, str], *, check: bool, drift: str) -> int:
    """Bring files to the texts that they must have; return the exit status.

    Args:
        texts: what each file must hold.
        check: change nothing, and fail where a file holds something else.
        drift: what to say then; ``{}`` stands for the names of the files.
    """
    drifted = [
        path
        for path, text in texts.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if check and drifted:
        print(drift.format(" and ".join(path.name for path in drifted)), file=sys.stderr)
        return 1
    for path in drifted:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
        print(f"wrote {path.name}")
    return 0

"""Write generated files, or with --check only say which have drifted; shared by the tools."""

from __future__ import annotations

import difflib
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["settle"]

#: Lines of a difference: enough to see what drifted where only a log is left of a run.
_SHOWN = 40


def settle(
    texts: Mapping[Path, str],
    *,
    check: bool,
    drift: str,
    compared: Callable[[str], str] = str,
) -> int:
    """Bring files to the texts that they must have; return the exit status.

    Args:
        texts: what each file must hold.
        check: change nothing; where a file holds something else, show the difference and fail.
        drift: what to say then; ``{}`` stands for the names of the files.
        compared: what of a text a check compares; all of it unless told.
    """
    held = {path: path.read_text(encoding="utf-8") if path.exists() else "" for path in texts}
    seen = compared if check else str
    drifted = [
        path for path, text in texts.items() if not path.exists() or seen(held[path]) != seen(text)
    ]
    if check and drifted:
        for path in drifted:
            lines = difflib.unified_diff(
                seen(held[path]).splitlines(),
                seen(texts[path]).splitlines(),
                path.name,
                "as it must be",
                lineterm="",
                n=1,
            )
            print("\n".join(itertools.islice(lines, _SHOWN)), file=sys.stderr)
        print(drift.format(" and ".join(path.name for path in drifted)), file=sys.stderr)
        return 1
    for path in drifted:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
        print(f"wrote {path.name}")
    return 0

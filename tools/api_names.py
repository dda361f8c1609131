"""Write docs/api-names.md from the table of torchcompat.api.

python tools/api_names.py            write it
python tools/api_names.py --check    change nothing; fail where it has drifted
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from pages import settle  # noqa: E402

from torchcompat.api.rows import ROWS, Home, Row  # noqa: E402
from torchcompat.releases import RELEASES  # noqa: E402

PAGE = ROOT / "docs" / "api-names.md"

INTRO = """\
<!-- Written by tools/api_names.py from torchcompat/api/rows.py. Do not edit. -->

# Names of torch

`torchcompat.api` gives a name from wherever the installed torch has it:

```python
from torchcompat.api import MixedPrecisionPolicy, fully_shard, is_exporting, register_op_strategy
```

- It is the very object that this build has, not a copy or a wrapper. Nothing in torch is edited.
- Where torch has it nowhere, a backport stands in, if the table says so. Backports are small and exact;
  what could only be imitated has none.
- Where there is neither, the import raises `ImportError` and says since when torch has the name and what
  to do; `hasattr(torchcompat.api, name)` is False.
- The build is asked, not its version, so alphas, nightlies and vendor builds get what they have.
- `import torchcompat.api` imports no torch. Type checkers see each name as torch's own.

The table is held against every torch of the matrix, in both directions: a name that is there where the
table denies it fails the tests as well. Ranges are of the releases from {oldest} to {newest}.
"""


def page() -> str:
    """Return the page as Markdown."""
    lines = [INTRO.format(oldest=RELEASES[0], newest=RELEASES[-1])]
    lines += [f"{len(ROWS)} names, {sum(row.backport for row in ROWS)} with a backport:", ""]
    lines += ["| name | where torch has it | where it has not |", "|---|---|---|"]
    lines += map(_row, sorted(ROWS, key=lambda row: (row.name.lower(), row.name)))
    return "\n".join(lines) + "\n"


def _row(row: Row) -> str:
    places = "<br>".join(_place(row, number) for number in range(len(row.homes)))
    if all(home.since for home in row.homes):
        missing = "backport" if row.backport else row.instead or "ImportError"
    else:
        missing = "-"
    return f"| `{row.name}` | {places} | {missing} |"


def _place(row: Row, number: int) -> str:
    """Say for which builds a place is taken: up to where an earlier one of the row begins."""
    home = row.homes[number]
    until = min(filter(None, (home.gone, *_later(row.homes[:number], home))), key=_order, default="")
    last = RELEASES[RELEASES.index(until) - 1] if until else ""
    first = home.since or RELEASES[0]
    if not until:
        when = f"from {home.since}" if home.since else "all"
    elif first == last:
        when = first
    else:
        when = f"{first} to {last}" if home.since else f"up to {last}"
    return f"`{home}` ({when})"


def _later(before: Sequence[Home], home: Home) -> Iterator[str]:
    return (other.since for other in before if _order(other.since) > _order(home.since))


def _order(release: str) -> int:
    return RELEASES.index(release) if release else -1


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with --check compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail on drift")
    arguments = parser.parse_args(argv)
    drift = (
        "api_names: docs/{} no longer matches the table: "
        "run `python tools/api_names.py` and commit what it writes"
    )
    return settle({PAGE: page()}, check=arguments.check, drift=drift)


if __name__ == "__main__":
    raise SystemExit(main())

"""The releases of torch that are known and measured: the one list that others are checked against."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["OLDER", "RELEASES", "spans"]

#: Every release from the oldest tested one on, oldest first. noxfile.py tests each of them.
RELEASES = (
    "2.4.0",
    "2.4.1",
    "2.5.0",
    "2.5.1",
    "2.6.0",
    "2.7.0",
    "2.7.1",
    "2.8.0",
    "2.9.0",
    "2.9.1",
    "2.10.0",
    "2.11.0",
    "2.12.0",
    "2.12.1",
    "2.13.0",
    "2.14.0",
    "2.14.1",
    "2.15.0",
)

#: Releases before those, newest first: only to notice that a range reaches back to them.
OLDER = (
    "2.3.1",
    "2.3.0",
    "2.2.2",
    "2.2.1",
    "2.2.0",
    "2.1.2",
    "2.1.1",
    "2.1.0",
    "2.0.1",
    "2.0.0",
    "1.13.1",
)


def spans(chosen: Iterable[str], among: tuple[str, ...] = RELEASES) -> str:
    """Write releases shortly: ``2.5.0 to 2.9.1, 2.11.0``; neighbours are those of ``among``."""
    places = sorted({among.index(release) for release in chosen})
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(_run([among[place] for place in run]) for run in runs)


def _run(run: list[str]) -> str:
    return ", ".join(run) if len(run) < 3 else f"{run[0]} to {run[-1]}"

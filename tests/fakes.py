"""Shims for tests: small, complete, and adjustable."""

from __future__ import annotations

from torchcompat import Affected, Reproducer, Shim, absent, lookup, present
from torchcompat.edits import ReplaceAttr


def nothing() -> None:
    """A reproducer that never fails."""


def make_shim(key="demo", target="fakelib.ops:broken", **changes):
    """A shim that replaces a function which returns "bad" by one that returns "good"."""

    def probe():
        return (
            present("it says bad") if lookup(target)() == "bad" else absent("it says good", cured=True)
        )

    def good(original):
        return lambda: "good"

    fields = {
        "key": key,
        "summary": "a function says bad",
        "symptom": "ValueError: bad",
        "cause": "it was written so",
        "cure": "it says good",
        "upstream": ("https://example.org/1",),
        "affected": Affected(since="2.13.0"),
        "modules": (target.partition(":")[0],),
        "probe": probe,
        "edits": lambda: [ReplaceAttr(target, good)],
        "reproducers": (Reproducer(name="only", run=nothing, expect="bad"),),
        "removable_when": "never",
    }
    return Shim(**{**fields, **changes})

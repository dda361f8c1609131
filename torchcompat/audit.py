"""What a framework's declared range of torch needs, and what it can drop once that moves.

Decided over the list of known releases, one by one. SpecifierSet is asked only about final
releases: whether it takes an alpha in depends on the version of packaging and on whether
the range itself names one, and a local segment (``==2.13.0+cu130``) would match nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .builds import TorchBuild
from .errors import InputError
from .gate import Verdict
from .releases import OLDER, RELEASES, spans
from .report import table
from .shim import Shim

__all__ = ["Audit", "Audited", "audit", "releases_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """One shim and one range.

    Attributes:
        shim: the shim.
        needed_on: the releases of the range that have the fault.
        drop_at: the lower bound from which on no release of the range has it; None where
            the newest one still does, or where no release has it.
    """

    shim: Shim
    needed_on: tuple[str, ...]
    drop_at: str | None

    @property
    def upstream_says(self) -> str:
        """Whether upstream has landed a fix, in words."""
        fixes = self.shim.affected.fixed_in
        return f"fixed in {', '.join(fixes)}" if fixes else "no release has a fix"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "key": self.shim.key,
            "summary": self.shim.summary,
            "opt_in": self.shim.opt_in,
            "needed_on": list(self.needed_on),
            "drop_at": self.drop_at,
            "since": self.shim.affected.since,
            "fixed_in": list(self.shim.affected.fixed_in),
            "upstream": list(self.shim.upstream),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A range, the known releases in it, and what each shim is to them.

    Attributes:
        ranges: the range as declared; more than one where markers tell them apart.
        releases: the known releases that any of them allows, oldest first.
        shims: every shim that is not retired.
        notes: what the answer does not cover.
    """

    ranges: tuple[str, ...]
    releases: tuple[str, ...]
    shims: tuple[Audited, ...]
    notes: tuple[str, ...]

    @property
    def needed(self) -> tuple[Audited, ...]:
        """The shims for faults that some release of the range has."""
        return tuple(audited for audited in self.shims if audited.needed_on)

    @property
    def moves(self) -> dict[str, list[str]]:
        """Lower bounds, lowest first, and the shims that can go at each."""
        found: dict[str, list[str]] = {}
        for release in self.releases:
            keys = [audited.shim.key for audited in self.needed if audited.drop_at == release]
            if keys:
                found[release] = keys
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the audit as JSON-ready values."""
        return {
            "ranges": list(self.ranges),
            "releases": list(self.releases),
            "notes": list(self.notes),
            "needed": [audited.as_dict() for audited in self.needed],
            "not_needed": [audited.as_dict() for audited in self.shims if not audited.needed_on],
            "moves": [{"lower_bound": bound, "drops": keys} for bound, keys in self.moves.items()],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        said = " or ".join(text or "(any version)" for text in self.ranges)
        yield f"torch {said}: known releases {spans(self.releases)} ({len(self.releases)})"
        for note in self.notes:
            yield f"note: {note}"
        rows = [
            (
                audited.shim.key + (" (opt-in)" if audited.shim.opt_in else ""),
                spans(audited.needed_on),
                audited.upstream_says,
                f"once the lower bound is {audited.drop_at}"
                if audited.drop_at
                else f"not yet: {self.releases[-1]} has the fault",
            )
            for audited in self.needed
        ]
        if rows:
            yield from table(("needed shim", "on", "upstream", "can be dropped"), rows)
        else:
            yield "no shim is needed"
        for bound, keys in self.moves.items():
            yield f"lower bound >={bound}: drop {', '.join(keys)}"
        unneeded = [audited for audited in self.shims if not audited.needed_on]
        if unneeded:
            named = ", ".join(f"{audited.shim.key} ({audited.shim.affected})" for audited in unneeded)
            yield f"not needed in this range: {named}"


def audit(ranges: Sequence[str], shims: Iterable[Shim]) -> Audit:
    """Say what ``shims`` are to the releases that any of ``ranges`` allows.

    Raises:
        InputError: a range cannot be read, or no known release is in it.
    """
    allowed = {release for text in ranges for release in releases_in(text, (*RELEASES, *OLDER))}
    releases = tuple(release for release in RELEASES if release in allowed)
    if not releases:
        raise InputError(
            f"no known release of torch is in {' or '.join(map(repr, ranges))}: this torchcompat knows "
            f"{RELEASES[0]} to {RELEASES[-1]}; widen the range, or update torchcompat-shims"
        )
    return Audit(
        ranges=tuple(ranges),
        releases=releases,
        shims=tuple(_audited(shim, releases) for shim in shims if shim.retired is None),
        notes=tuple(_notes(ranges, allowed)),
    )


def _audited(shim: Shim, releases: tuple[str, ...]) -> Audited:
    ill = [shim.affected.verdict(TorchBuild.parse(release)) is Verdict.IN for release in releases]
    needed_on = tuple(release for release, is_in in zip(releases, ill) if is_in)
    drop_at = None
    if needed_on and not ill[-1]:
        drop_at = releases[len(ill) - ill[::-1].index(True)]
    return Audited(shim=shim, needed_on=needed_on, drop_at=drop_at)


def _notes(ranges: Sequence[str], allowed: set[str]) -> Iterator[str]:
    older = [release for release in OLDER if release in allowed]
    if older:
        yield (
            f"the range also allows releases before {RELEASES[0]}, such as {older[0]}, "
            f"which torchcompat is not tested with; they are left out"
        )
    major, minor, _ = map(int, RELEASES[-1].split("."))
    next_ones = (f"{major}.{minor + 1}.0", f"{major + 1}.0.0")
    if any(releases_in(text, next_ones) for text in ranges):
        yield (
            f"the range also allows releases newer than {RELEASES[-1]}, the newest known; count on "
            f"them to need what {RELEASES[-1]} needs, until `torchcompat verify` says otherwise"
        )


_PIECE = re.compile(r"(?P<operator>===|==|~=|!=|<=|>=|<|>)\s*(?P<version>[^\s,]+)")


def releases_in(text: str, releases: Sequence[str] = RELEASES) -> tuple[str, ...]:
    """Return those of ``releases`` (final ones) that a range allows.

    A local segment names a build of a release, so ``==2.13.0+cu130`` is about 2.13.0.

    Raises:
        InputError: ``text`` is no range of versions.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    pieces = []
    for piece in filter(None, map(str.strip, text.split(","))):
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise InputError(_no_range(text, piece))
        version, _, local = match["version"].partition("+")
        operator = "==" if match["operator"] == "===" else match["operator"]
        if operator == "!=" and local:
            continue  # leaves out one build of the release, not the release
        pieces.append(f"{operator}{version}")
    try:
        wanted = SpecifierSet(",".join(pieces))
    except InvalidSpecifier:
        raise InputError(_no_range(text, text)) from None
    return tuple(release for release in releases if wanted.contains(release, prereleases=True))


def _no_range(text: str, piece: str) -> str:
    hint = "write it like '>=2.9,<2.16'"
    poetry = re.fullmatch(r"[\^~](\d+)\.(\d+)[\d.]*", piece)
    if poetry is not None:
        upper = int(poetry[1]) + 1 if piece.startswith("^") else f"{poetry[1]}.{int(poetry[2]) + 1}"
        hint = f"it is Poetry's notation; write '>={piece[1:]},<{upper}'"
    elif re.fullmatch(r"\d[\w.+]*", piece):
        hint = f"write '=={piece}' for that version alone, '>={piece}' for it and what follows"
    part = "" if piece == text.strip() else f" in {text!r}"
    return f"{piece!r}{part} is not a range of versions; {hint}"

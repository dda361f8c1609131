"""Which builds have a fault, as far as the version alone can say.

A release is decided by its number. A pre-release was cut somewhere before the
release of its line, so on the very line where a fault came or went its version
cannot say on which side it lies: that is EDGE, and the probe decides. PEP 440's
order is no help there: it puts ``2.13.0.dev20260601`` below ``2.13.0a0``, although
that nightly is newer than many alphas.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

from .builds import Stage, TorchBuild
from .errors import GateError
from .records import Record

__all__ = ["Affected", "Gated", "NamedBuild", "Verdict"]


class Verdict(str, enum.Enum):
    """What the version says: affected, not affected, undecidable here, unreadable."""

    IN = "IN"
    OUT = "OUT"
    EDGE = "EDGE"
    UNKNOWN = "UNKNOWN"

    def __str__(self) -> str:
        return self.value


class Gated(NamedTuple):
    """A verdict and the sentence that explains it; a tuple, which is quick to make."""

    verdict: Verdict
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class NamedBuild(Record):
    """A build that somebody has tried: its verdict beats every rule.

    Attributes:
        verdict: ``Verdict.IN`` or ``Verdict.OUT``.
        sha: the commit, or a prefix of it with at least 7 digits.
        vendor: a container tag, or a prefix of it up to a dot (``nv25.11``).
        note: who found out, and how.
    """

    verdict: Verdict
    sha: str | None = None
    vendor: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in (Verdict.IN, Verdict.OUT):
            raise GateError(f"a named build is IN or OUT, not {self.verdict}")
        if (self.sha is None) == (self.vendor is None):
            raise GateError("a named build is named by exactly one of sha and vendor")
        if self.sha is not None and not re.fullmatch(r"[0-9a-f]{7,40}", self.sha):
            raise GateError(f"sha must be 7 to 40 lower-case hexadecimal digits, not {self.sha!r}")

    def matches(self, build: TorchBuild) -> bool:
        """Whether ``build`` is this one. Both shas may be prefixes of the full one."""
        if self.sha is not None:
            return build.sha is not None and (
                build.sha.startswith(self.sha) or (self.sha.startswith(build.sha))
            )
        if build.vendor is None or self.vendor is None:
            return False
        return f"{build.vendor}.".startswith(f"{self.vendor}.")


@dataclass(eq=False, repr=False, kw_only=True)
class Affected(Record):
    """The builds that have a fault.

    Attributes:
        since: the first version with the fault, or None where every version before
            the fix has it. A pre-release (``"2.13.0a0"``) says that builds of that
            line from there on have it already.
        fixed_in: the releases that brought the fix. ``("2.9.1", "2.10.0")`` reads:
            on the 2.9 branch in 2.9.1, and on main in 2.10.0. The highest reaches
            everything after it.
        first_bad_nightly: date (``YYYYMMDD``) of the first nightly of ``since``'s
            line with the fault.
        first_good_nightly: date of the first nightly of a fix's line without it.
        builds: single builds that have been tried.

    Raises:
        GateError: a version cannot be read, or a fix comes before ``since``.
    """

    since: str | None
    fixed_in: tuple[str, ...] = ()
    first_bad_nightly: str | None = None
    first_good_nightly: str | None = None
    builds: tuple[NamedBuild, ...] = ()

    def __post_init__(self) -> None:
        fixes: object = self.fixed_in
        if isinstance(fixes, str):
            raise GateError(f"fixed_in is a tuple of releases: write ({fixes!r},)")
        first = self._since
        for fix in self.fixed_in:
            build = _read(fix, "fixed_in")
            if not build.stage.is_release:
                raise GateError(
                    f"fixed_in names releases, and {fix!r} is none; "
                    f"for a nightly use first_good_nightly, for one build use builds"
                )
            too_early = first is not None and (
                _line(build) < _line(first) or (_line(build) == _line(first) and first.stage.is_release)
            )
            if too_early:
                raise GateError(f"fixed_in {fix!r} is not after since {self.since!r}")
        for name in ("first_bad_nightly", "first_good_nightly"):
            date = getattr(self, name)
            if date is not None and not re.fullmatch(r"20\d{6}", date):
                raise GateError(f"{name} must be a date YYYYMMDD, not {date!r}")

    @property
    def _since(self) -> TorchBuild | None:
        return None if self.since is None else _read(self.since, "since")

    @property
    def _fix_lines(self) -> list[tuple[int, int, int]]:
        return [_line(_read(fix, "fixed_in")) for fix in self.fixed_in]

    def __str__(self) -> str:
        start = f"from {self.since}" if self.since is not None else "every build"
        end = f", fixed in {', '.join(self.fixed_in)}" if self.fixed_in else ""
        return f"{start}{end}"

    def verdict(self, build: TorchBuild) -> Verdict:
        """Say whether ``build`` has the fault; see :meth:`judge` for the reason."""
        return self.judge(build).verdict

    def judge(self, build: TorchBuild) -> Gated:
        """Say whether ``build`` has the fault, and why that is the answer."""
        for named in self.builds:
            if named.matches(build):
                note = f": {named.note}" if named.note else ""
                return Gated(named.verdict, f"{build} was tried by name{note}")
        if build.line is None:
            return Gated(Verdict.UNKNOWN, f"the version {build.raw!r} cannot be read")
        if build.stage.is_release:
            return self._judge_line(build)
        return self._judge_prerelease(build)

    def _judge_line(self, build: TorchBuild) -> Gated:
        line = _line(build)
        first = self._since
        if first is not None and line < _line(first):
            return Gated(Verdict.OUT, f"{build} is older than {self.since}, the first affected")
        fixes = self._fix_lines
        same_branch = [fix for fix in fixes if fix[:2] == line[:2] and fix <= line]
        if same_branch or (fixes and line >= max(fixes)):
            fix = ".".join(map(str, max(same_branch) if same_branch else max(fixes)))
            return Gated(Verdict.OUT, f"{build} has the fix of {fix}")
        return Gated(Verdict.IN, f"{build} is affected ({self})")

    def _judge_prerelease(self, build: TorchBuild) -> Gated:
        line = _line(build)
        first = self._since
        starts_here = first is not None and line == _line(first)
        fixed_here = line in self._fix_lines
        if not starts_here and not fixed_here:
            return self._judge_line(build)
        if build.stage is Stage.NIGHTLY and build.date is not None:
            dated = self._judge_date(build, starts_here=starts_here, fixed_here=fixed_here)
            if dated is not None:
                return dated
        if (
            starts_here
            and not fixed_here
            and first is not None
            and not first.stage.is_release
            and _not_below(build, first)
        ):
            return Gated(Verdict.IN, f"{build} is at or past {self.since}, the first affected")
        side = "the fix" if fixed_here else "the fault"
        return Gated(
            Verdict.EDGE,
            f"{build} is a pre-release of the line that brought {side}; "
            f"its version cannot say on which side of it the build was cut",
        )

    def _judge_date(self, build: TorchBuild, *, starts_here: bool, fixed_here: bool) -> Gated | None:
        date = build.date or ""
        bad, good = self.first_bad_nightly, self.first_good_nightly
        if fixed_here and good is not None and date >= good:
            return Gated(Verdict.OUT, f"{build} is not older than the nightly of {good}, the first good")
        if starts_here and bad is not None and date < bad:
            return Gated(Verdict.OUT, f"{build} is older than the nightly of {bad}, the first bad")
        begun = not starts_here or bad is not None
        open_still = not fixed_here or good is not None
        if begun and open_still:
            return Gated(Verdict.IN, f"{build} lies between the first bad and the first good nightly")
        return None


@functools.lru_cache(maxsize=512)  # the bounds of ranges, read anew for each build judged
def _read(text: str, field: str) -> TorchBuild:
    build = TorchBuild.parse(text)
    if build.line is None:
        raise GateError(f"{field} {text!r} is not a version of torch; write it like '2.13.0'")
    return build


def _line(build: TorchBuild) -> tuple[int, int, int]:
    if build.line is None:  # pragma: no cover - callers have checked
        raise GateError(f"{build.raw!r} has no line")
    return build.line


def _not_below(build: TorchBuild, first: TorchBuild) -> bool:
    from packaging.version import Version

    return Version(build.public) >= Version(first.public)

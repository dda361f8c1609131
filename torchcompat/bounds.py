"""Which bound to write into a shim's range once a build has contradicted it."""

from __future__ import annotations

from .builds import Stage, TorchBuild
from .gate import Affected
from .releases import RELEASES

__all__ = ["bound_for_affected", "bound_for_fixed"]


def bound_for_fixed(range_: Affected, build: TorchBuild) -> str:
    """Say what to write where ``build`` should have the fault and has it no more."""
    if build.line is None:
        return f"name this build, {build}, as OUT in builds"
    release = _release(build.line)
    fixes = sorted({*range_.fixed_in, release}, key=lambda fix: TorchBuild.parse(fix).line or ())
    text = f"write fixed_in={tuple(fixes)!r}"
    if release in RELEASES and build.stage.is_release:
        text += ", or a later since if this build never had the fault"
    if build.stage is Stage.NIGHTLY and build.date is not None:
        text += f", first_good_nightly={build.date!r}"
    return text


def bound_for_affected(range_: Affected, build: TorchBuild) -> str:
    """Say what to write where ``build`` should not have the fault and has it."""
    if build.line is None:
        return f"name this build, {build}, as IN in builds"
    first = None if range_.since is None else TorchBuild.parse(range_.since).line
    if first is not None and build.line < first:
        release = _release(build.line)
        return f"write since={release!r}, or the first release with the fault before it"
    later = [fix for fix in range_.fixed_in if (TorchBuild.parse(fix).line or build.line) > build.line]
    kept = f", keeping {', '.join(later)}" if later else ""
    return f"take the fix that should reach {build.raw} out of fixed_in{kept}"


def _release(line: tuple[int, int, int]) -> str:
    return ".".join(map(str, line))

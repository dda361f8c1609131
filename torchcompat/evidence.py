"""Evidence files: read, written, shown, compared, and held against the shims of today."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .builds import TorchBuild
from .errors import InputError
from .gate import Verdict
from .report import table
from .schema import load_schema, violations
from .shim import Shim
from .verify import (
    Conclusion,
    Finding,
    Ran,
    Run,
    Verification,
    conclude,
    expectation,
    write_bound,
)

__all__ = [
    "build_of",
    "compare",
    "contradictions",
    "file_name",
    "from_dict",
    "judge",
    "read",
    "show",
    "stale",
    "write",
]


def read(path: str | Path) -> Verification:
    """Read an evidence file; ``"-"`` is the standard input.

    Raises:
        InputError: it cannot be read, or is no evidence.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        data = json.loads(text)
    except OSError as error:
        raise InputError(f"the evidence {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise InputError(
            f"{path} is no evidence file: {error}; `torchcompat verify --json FILE` writes one"
        ) from error
    return from_dict(data, name=str(path))


def from_dict(data: Any, *, name: str = "this") -> Verification:
    """Take evidence back from JSON values.

    Raises:
        InputError: they break the schema; the message names the first place.
    """
    found = list(violations(data, load_schema()))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InputError(
            f"{name} is no evidence of this torchcompat: {found[0]}{more}; "
            f"`torchcompat verify --json FILE` writes it anew"
        )
    facts = {
        key: data[key]
        for key in ("torchcompat", "torch", "git_version", "python", "platform", "cuda_devices")
    }
    return Verification(facts, data["emulated_from"], tuple(map(_finding, data["findings"])))


def _finding(data: dict[str, Any]) -> Finding:
    return Finding(
        shim=data["shim"],
        reproducer=data["reproducer"],
        revision=data["revision"],
        gate=Verdict(data["gate"]),
        probe=data["probe"],
        without=_run(data["without"]),
        cured=_run(data["with"]),
        conclusion=Conclusion(data["conclusion"]),
        advice=data["advice"],
    )


def _run(data: dict[str, Any]) -> Run:
    return Run(Ran(data["result"]), data["message"], data["seconds"])


def file_name(found: Verification) -> str:
    """Name the file of a build: by its public version, by the whole one if emulated."""
    if found.emulated:
        return f"emulated-{found.facts['torch']}.json"
    return f"torch-{found.facts['torch'].partition('+')[0]}.json"


def write(found: Verification, folder: str | Path) -> Path:
    """Write the evidence of a build into ``folder``.

    A file that says the same already, apart from the seconds and from the order of words in
    a message, is left as it is: so that
    measuring again shows as a change only where something has changed.
    """
    path = Path(folder) / file_name(found)
    fresh = found.as_dict()
    if path.exists():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            old = None  # a damaged file is replaced
        if _lasting(old) == _lasting(fresh):
            return path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fresh, indent=2) + "\n", encoding="utf-8")
    return path


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _lasting(item) for key, item in value.items() if key != "seconds"}
        if "message" in kept:  # torch prints sets, in an order of their own in every process
            kept["message"] = sorted(re.findall(r"\w+", kept["message"]))
        return kept
    if isinstance(value, list):
        return [_lasting(item) for item in value]
    return value


def build_of(found: Verification) -> TorchBuild:
    """Return the build that was measured."""
    return TorchBuild.parse(found.facts["torch"], git_version=found.facts["git_version"])


# -- held against the shims of today -------------------------------------------------


def judge(finding: Finding, shim: Shim, build: TorchBuild) -> tuple[Conclusion, str]:
    """Conclude anew from what was measured, with the shim's range as it is today."""
    if finding.without.ran is Ran.NOT_RUN:
        return Conclusion.NOT_RUN, finding.advice
    named = [r for r in shim.reproducers if r.name == finding.reproducer]
    own = named[0].affected if named else None
    range_ = own or shim.affected
    expected = expectation(range_.verdict(build), finding.probe, of_shim=own is None)
    conclusion, advice = conclude(finding.without, finding.cured, expected)
    return conclusion, write_bound(conclusion, advice, range_, build)


def contradictions(found: Verification, shims: Iterable[Shim]) -> list[str]:
    """Say where the measurements contradict the ranges or the cures of ``shims``."""
    build, known = build_of(found), {shim.key: shim for shim in shims}
    told = []
    for finding in found.findings:
        shim = known.get(finding.shim)
        if shim is None:
            continue
        conclusion, advice = judge(finding, shim, build)
        if not conclusion.is_right:
            told.append(f"{finding.shim}/{finding.reproducer} on torch {build}: {conclusion}; {advice}")
    return told


def stale(found: Verification, shims: Iterable[Shim]) -> list[str]:
    """Say which shims, reproducers, revisions and gates the measurements do not know."""
    build = build_of(found)
    wanted = {(shim.key, r.name): (shim, r) for shim in shims for r in shim.reproducers}
    have = {(finding.shim, finding.reproducer): finding for finding in found.findings}
    told = [f"{'/'.join(pair)} was not measured on torch {build}" for pair in wanted if pair not in have]
    for pair, finding in have.items():
        name = f"{'/'.join(pair)} on torch {build}"
        if pair not in wanted:
            told.append(f"{name} was measured and is no longer there")
            continue
        shim, reproducer = wanted[pair]
        gate = (reproducer.affected or shim.affected).verdict(build)
        if finding.revision != shim.revision:
            told.append(f"{name} was measured at revision {finding.revision}, now {shim.revision}")
        elif finding.gate is not gate:
            told.append(f"{name} was measured under the gate {finding.gate}, now {gate}")
    return told


# -- as text -------------------------------------------------------------------------


def show(found: Verification) -> Iterator[str]:
    """Yield the lines of one file: the build, a row a reproducer, and what is wrong."""
    yield _head(found)
    facts = found.facts
    devices = f", {facts['cuda_devices']} CUDA device(s)" if facts["cuda_devices"] else ""
    yield f"Python {facts['python']}, {facts['platform']}{devices}; commit {facts['git_version']}"
    rows = [
        (
            f"{f.shim}/{f.reproducer}",
            str(f.conclusion),
            str(f.gate),
            f.probe or "-",
            str(f.without.ran),
            str(f.cured.ran) if f.conclusion is not Conclusion.NOT_RUN else f.advice,
        )
        for f in found.findings
    ]
    yield from table(("shim/reproducer", "conclusion", "gate", "probe", "without", "with"), rows)
    for finding in found.wrong:
        yield f"WRONG {finding.shim}/{finding.reproducer}: {finding.advice}"
        for label, run in (("without", finding.without), ("with", finding.cured)):
            if run.message:
                yield f"  {label}: {run.message}"


def _head(found: Verification) -> str:
    emulated = f", emulated on {found.emulated}" if found.emulated else ""
    return f"torch {found.facts['torch']} ({build_of(found).stage}{emulated})"


def compare(old: Verification, new: Verification) -> dict[str, Any]:
    """Return what differs between two files; seconds and messages do not count."""
    facts = {
        key: [old.facts[key], new.facts[key]]
        for key in ("python", "platform", "cuda_devices")
        if old.facts[key] != new.facts[key]
    }
    before = {f"{f.shim}/{f.reproducer}": _told(f) for f in old.findings}
    after = {f"{f.shim}/{f.reproducer}": _told(f) for f in new.findings}
    changed = {
        name: {
            key: [before[name][key], value] for key, value in told.items() if before[name][key] != value
        }
        for name, told in after.items()
        if name in before and before[name] != told
    }
    return {
        "from": _head(old),
        "to": _head(new),
        "facts": facts,
        "changed": changed,
        "only_from": [name for name in before if name not in after],
        "only_to": [name for name in after if name not in before],
        "same": sum(before.get(name) == told for name, told in after.items()),
    }


def _told(finding: Finding) -> dict[str, str]:
    return {
        "conclusion": str(finding.conclusion),
        "gate": str(finding.gate),
        "probe": finding.probe or "-",
        "without": str(finding.without.ran),
        "with": str(finding.cured.ran),
    }

"""How a scan is shown: text for people, SARIF for code scanning, annotations for GitHub."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from .model import RULES, Answer, Finding, Scan

__all__ = ["FORMATS", "advice", "message"]

_SHOWN = 3

_ADVICE = {
    "gate-version": "compare Version(Version(torch.__version__).base_version), which counts a "
    "pre-release and every local build as its line",
    "gate-text": "compare packaging's Version objects (of the base_version), not text",
    "gate-numbers": "let packaging cut the version up: Version(torch.__version__).release",
    "gate-specifier": "pass the base_version, and prereleases=True, to the SpecifierSet",
    "gate-part": "compare Version(torch.__version__).release[:2] instead of a piece of text",
    "gate-helper": "let the helper compare the base_version, which counts a pre-release and every "
    "local build as its line",
}


def advice(finding: Finding) -> str:
    """Say what to write instead."""
    parts = []
    if finding.shims:
        keys = f"shim{'' if len(finding.shims) == 1 else 's'} {' and '.join(finding.shims)}"
        what = "what it guards" if finding.is_gate else "it"
        parts.append(f"the {keys} may replace {what}: torchcompat explain {finding.shims[0]}")
    if finding.is_gate:
        parts.append(_ADVICE[finding.rule])
    elif not finding.shims:
        parts.append("a shim of your own could be reverted, probed and verified: torchcompat.Shim")
    return "; ".join(parts)


def message(finding: Finding) -> str:
    """Say in one sentence what was found."""
    if not finding.is_gate:
        return f"{finding.target} is patched by hand ({finding.note})"
    if not finding.wrong:
        return f"right on all {finding.tried} builds tried"
    return "; ".join(_wrong(finding.wrong))


def _wrong(answers: Iterable[Answer]) -> Iterator[str]:
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        # Messages of exceptions quote the build, so that each would be a group of its own.
        kind = answer.got.partition(" (")[0]
        raises = kind.startswith("raises ")
        groups.setdefault(kind if raises else f"{answer.got} where {answer.meant} is meant", []).append(
            answer
        )
    for kind, group in groups.items():
        said = group[0].got if kind.startswith("raises ") else kind
        builds = [answer.build for answer in group]
        more = f" and {len(builds) - _SHOWN} more" if len(builds) > _SHOWN else ""
        yield f"{said} on {', '.join(builds[:_SHOWN])}{more}"


def _text(scan: Scan) -> str:
    lines = []
    for finding in scan.findings:
        place = finding.place
        lines.append(f"{place.path}:{place.line}:{place.column}: {finding.rule}: {finding.code}")
        lines.append(f"    {message(finding)}")
        if finding.also:
            lines.append(f"    also on line {', '.join(map(str, finding.also))}")
        lines.append(f"    {advice(finding)}")
    gates = [finding for finding in scan.found if finding.is_gate]
    wrong = sum(bool(gate.wrong) for gate in gates)
    lines.append(
        f"{_count(scan.files, 'file')}: {_count(len(gates), 'gate')} on torch's version, {wrong} "
        f"of them wrong on some build; {_count(len(scan.found) - len(gates), 'patch', 'es')} of torch"
    )
    if scan.unread:
        places = ", ".join(f"{place.path}:{place.line}" for place, _ in scan.unread[:_SHOWN])
        more = " ..." if len(scan.unread) > _SHOWN else ""
        unread = _count(len(scan.unread), "gate")
        lines.append(f"note: {unread} could not be evaluated from the code alone: {places}{more}")
    lines.extend(f"note: {path} could not be read: {reason}" for path, reason in scan.broken)
    return "\n".join(lines) + "\n"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def _json(scan: Scan) -> str:
    from packaging import __version__ as packaging

    from .. import __version__

    facts: dict[str, Any] = {"torchcompat": __version__, "packaging": packaging, **scan.as_dict()}
    for finding, shown in zip(scan.findings, facts["findings"]):
        shown["message"] = message(finding)
        shown["advice"] = advice(finding)
    return json.dumps(facts, indent=2) + "\n"


def _sarif(scan: Scan) -> str:
    from .. import __version__

    names = list(RULES)
    driver = {
        "name": "torchcompat scan",
        "version": __version__,
        "rules": [{"id": rule, "shortDescription": {"text": text}} for rule, text in RULES.items()],
    }
    results = [
        {
            "ruleId": finding.rule,
            "ruleIndex": names.index(finding.rule),
            "level": "warning" if finding.is_gate else "note",
            "message": {"text": f"{message(finding)}. {_sentence(advice(finding))}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": _artifact(finding.place.path),
                        "region": {
                            "startLine": finding.place.line,
                            "startColumn": finding.place.column,
                            "endLine": finding.place.end_line,
                        },
                    }
                }
            ],
        }
        for finding in scan.findings
    ]
    unread = [
        {"level": "warning", "message": {"text": f"{path} could not be read: {reason}"}}
        for path, reason in scan.broken
    ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": unread}],
        "results": results,
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _artifact(path: str) -> dict[str, str]:
    if path.startswith("/"):
        return {"uri": f"file://{quote(path)}"}
    return {"uri": quote(path.removeprefix("./"))}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _github(scan: Scan) -> str:
    lines = []
    for finding in scan.findings:
        place = finding.place
        level = "warning" if finding.is_gate else "notice"
        where = (
            f"file={_property(place.path)},line={place.line},col={place.column},"
            f"endLine={place.end_line},title={_property(f'torchcompat {finding.rule}')}"
        )
        text = f"{finding.code}: {message(finding)}. {_sentence(advice(finding))}"
        lines.append(f"::{level} {where}::{_data(text)}")
    for path, reason in scan.broken:
        lines.append(f"::notice file={_property(path)}::{_data(f'could not be read: {reason}')}")
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: dict[str, Callable[[Scan], str]] = {
    "text": _text,
    "json": _json,
    "sarif": _sarif,
    "github": _github,
}

"""``torchcompat evidence``: read and compare what ``torchcompat verify --json`` wrote."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

__all__ = ["add_evidence"]


def add_evidence(sub: argparse.ArgumentParser) -> None:
    """Give the command its actions."""
    actions = sub.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        found = actions.add_parser(name, help=text, description=text)
        found.set_defaults(run=run)
        return found

    show = action("show", _show, "Show one evidence file.")
    show.add_argument("file", metavar="FILE", help="what verify --json wrote; - for standard input")
    show.add_argument("--json", action="store_true", help="print it as JSON, checked")
    diff = action("diff", _diff, "Say what differs between two builds, or two runs on one.")
    diff.add_argument("old", metavar="FILE", help="the evidence to compare with")
    diff.add_argument("new", metavar="FILE", help="the evidence to compare")
    diff.add_argument("--json", action="store_true", help="print JSON instead of text")
    action("schema", _schema, "Print the JSON schema of evidence files.")


def _show(arguments: argparse.Namespace) -> int:
    from .evidence import read, show

    found = read(arguments.file)
    if arguments.json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        print("\n".join(show(found)))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from .evidence import compare, read

    told = compare(read(arguments.old), read(arguments.new))
    print(json.dumps(told, indent=2) if arguments.json else "\n".join(_lines(told)))
    return 0


def _lines(told: dict[str, Any]) -> Iterator[str]:
    yield f"from  {told['from']}"
    yield f"to    {told['to']}"
    for name, (old, new) in told["facts"].items():
        yield f"{name}: {old} -> {new}"
    for name, changes in told["changed"].items():
        said = "; ".join(f"{field}: {old} -> {new}" for field, (old, new) in changes.items())
        yield f"{name}: {said}"
    for field, where in (("only_from", "first"), ("only_to", "second")):
        for name in told[field]:
            yield f"{name}: only in the {where}"
    yield f"{len(told['changed'])} changed, {told['same']} the same"


def _schema(arguments: argparse.Namespace) -> int:
    from .schema import load_schema

    print(json.dumps(load_schema(), indent=2))
    return 0

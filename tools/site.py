"""Collect the pages of the docs site in build/site-src, from what the repository has already.

    python tools/site.py && zensical build --strict -f mkdocs.yml

The folder keeps the repository's layout, so that every link is the same in both. Added to it
are the command line's reference, from the parser, and the page for the docstrings.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torchcompat  # noqa: E402
from torchcompat.cli import build_parser  # noqa: E402

PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


def collect(target: Path) -> None:
    """Fill ``target`` anew: the pages, and every file of the repository that they link to."""
    shutil.rmtree(target, ignore_errors=True)
    pages = [ROOT / name for name in PAGES] + sorted((ROOT / "docs").glob("*.md"))
    for page in pages:
        copy(page, target)
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            linked = (page.parent / link).resolve()
            if linked.is_file() and linked not in pages:
                copy(linked, target)
    copy(ROOT / "docs" / "site.css", target)
    reference = target / "reference"
    reference.mkdir()
    (reference / "cli.md").write_text("\n".join(cli_page(build_parser())), encoding="utf-8")
    (reference / "api.md").write_text("\n".join(api_page()), encoding="utf-8")


def copy(path: Path, target: Path) -> None:
    place = target / path.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place)


def cli_page(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the reference of the command line: one section a command."""
    yield from ("# Command line", "", str(parser.description), "", str(parser.epilog), "")
    for name, command in _commands(parser):
        yield from (f"## torchcompat {name}", "", str(command.description), "")
        yield from _usage(command)
        for action, sub in _commands(command):
            yield from (f"### torchcompat {name} {action}", "", str(sub.description), "")
            yield from _usage(sub)


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    yield from ("```text", usage, "```", "")
    rows = [
        (", ".join(action.option_strings) or str(action.metavar or action.dest), action)
        for action in parser._actions
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)) and action.help
    ]
    if rows:
        yield from ("| argument | does |", "|---|---|")
    for name, action in rows:
        value = f" {action.metavar}" if action.option_strings and action.metavar else ""
        said = str(action.help).replace("|", r"\|")
        yield f"| `{name}{value}` | {said} |"
    yield ""


SECTIONS = {
    "Apply and revert": ["apply_all", "apply", "revert", "revert_all", "applied"],
    "Ask": ["status", "plan", "subscribe", "fingerprint", "torch_build"],
    "Your own shims": ["register", "unregister", "lookup", "present", "absent", "drifted"],
}


def api_page() -> Iterator[str]:
    """Yield the page that mkdocstrings fills: every public name, from its docstring."""
    yield from ("# Python API", "", "All of it can be had from `torchcompat` itself.", "")
    homes = {name: home for home, names in torchcompat._HOMES.items() for name in names}
    listed = {name for names in SECTIONS.values() for name in names}
    rest = [name for name in torchcompat.__all__ if name not in listed and name in homes]
    errors = [name for name in rest if homes[name] == "errors"]
    sections = {**SECTIONS, "Types": [n for n in rest if n not in errors], "Errors": errors}
    for title, names in sections.items():
        yield from (f"## {title}", "")
        for name in names:
            yield from (
                f"::: {_where_defined(name, homes[name])}",
                "    options:",
                f"      heading: {name}",
                f"      toc_label: {name}",
                "",
            )


def _where_defined(name: str, home: str) -> str:
    """Return the path of the definition; the process's engine gives bound methods."""
    found = getattr(torchcompat, name)
    owner = getattr(found, "__self__", None)
    if owner is not None:
        return f"{type(owner).__module__}.{found.__qualname__}"
    return f"torchcompat.{home}.{name}"


if __name__ == "__main__":
    collect(ROOT / "build" / "site-src")

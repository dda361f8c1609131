"""What left torch's public API: enumerate it on each release, and compare.

PYTHON tools/api_diff.py dump > 2.9.1.json     with the interpreter that has the torch
python tools/api_diff.py table DUMP [DUMP ...] [--out docs/data/removed.json]
python tools/api_diff.py page [--check]        docs/removed-api.md, from the table

Public is a name without a leading underscore in a module without one, which its `__all__`
lists, or, where a module has none, which is defined in it. A dump is a few MB and is not
committed; the table is. Of its rows, what covers a name and what replaces it is written by
hand and kept when the table is made anew; the rest is measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]
TABLE = ROOT / "docs" / "data" / "removed.json"
PAGE = ROOT / "docs" / "removed-api.md"

#: Public by name, yet nothing that a library calls: torch's own tests, tools and bundled code.
SKIPPED = (
    "torch.testing",
    "torch.bin",
    "torch.contrib",
    "torch.distributed.launch",
    "torch.distributed.run",
    "torch.include",
    "torch.lib",
    "torch.share",
    "torch.utils.benchmark",
    "torch.utils.bottleneck",
    "torch.utils.hipify",
    "torch.utils.model_dump",
    "torch.utils.serialization",
    "torch.utils.tensorboard",
)

#: Stands for the parameters of a method that a base class defines.
INHERITED = "<inherited>"


def dump() -> dict[str, Any]:
    """Enumerate the torch of this interpreter: module -> name -> parameters, or None."""
    import pkgutil
    import warnings
    from importlib import import_module

    warnings.simplefilter("ignore")
    import torch

    modules: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def visit(name: str, paths: Any) -> None:
        try:
            module = import_module(name)
        except (Exception, SystemExit) as error:  # an optional dependency, no GPU, ...
            failed[name] = f"{type(error).__name__}: {error}"[:120]
            return
        modules[name] = dict(_names(module))
        for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
            full = f"{name}.{info.name}"
            if not info.name.startswith("_") and not full.startswith(SKIPPED):
                visit(full, module)

    visit("torch", torch)
    return {"torch": torch.__version__, "modules": modules, "failed": failed}


def _names(module: Any) -> Iterator[tuple[str, list[str] | None]]:
    from types import ModuleType

    listed = getattr(module, "__all__", None)
    for name in sorted({*vars(module), *(listed or ())}):
        found = getattr(module, name, None)  # `__all__` may name what comes lazily
        if name.startswith("_") or found is None or isinstance(found, ModuleType):
            continue
        if listed is not None and name not in listed and module.__name__ != "torch":
            continue
        if listed is None and (getattr(found, "__module__", None) != module.__name__):
            continue
        yield name, _parameters(found)
        if isinstance(found, type):
            yield from _methods(name, found)


def _methods(name: str, owner: type) -> Iterator[tuple[str, list[str] | None]]:
    """Yield a class's methods; of those that it inherits, only that they are there."""
    for method in dir(owner):
        if not method.startswith("_"):
            own = vars(owner).get(method)
            yield f"{name}.{method}", [INHERITED] if own is None else _parameters(own)


def _parameters(found: Any) -> list[str] | None:
    """Return the names of the parameters, or None where nobody can say."""
    import inspect

    if not (inspect.isclass(found) or inspect.isroutine(found)):
        return None
    try:
        return list(inspect.signature(found).parameters)
    except (ValueError, TypeError):  # C functions
        return None


def _release(version: str) -> str:
    return version.partition("+")[0]


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _release(release).split("."))


def losses(dumps: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield what a release has, and the next one has not: modules, names, and parameters."""
    for old, new in pairwise(dumps):
        span = {"last": _release(old["torch"]), "gone": _release(new["torch"])}
        for module, names in old["modules"].items():
            if module in new["failed"]:
                continue  # it is there, and could not be enumerated
            if module not in new["modules"]:
                if module.rpartition(".")[0] in new["modules"]:
                    yield {"module": module, "name": module, "kind": "module", **span}
                continue
            for kind, name in _lost(names, new["modules"][module]):
                if f"{module}.{name}" not in new["modules"]:
                    yield {"module": module, "name": f"{module}.{name}", "kind": kind, **span}


def _lost(
    names: dict[str, list[str] | None], now: dict[str, list[str] | None]
) -> Iterator[tuple[str, str]]:
    """Compare one module: what kind of thing is no longer there, and its name."""
    for name, parameters in names.items():
        owner = name.rpartition(".")[0]
        if parameters == [INHERITED] or (owner and owner not in now):
            continue  # told of the base class, or of the class itself
        if name not in now:
            yield "name", name
            continue
        present = now[name]
        if parameters is not None and present not in (None, [INHERITED]):
            for parameter in _left(parameters, present or []):
                yield "parameter", f"{name}({parameter})"


def _left(before: Sequence[str], now: Sequence[str]) -> list[str]:
    if "kwargs" in now or "kwds" in now:
        return []
    return [p for p in before if p not in (*now, "args", "kwargs", "kwds") and not p.startswith("_")]


def returned(row: dict[str, str], dumps: Sequence[dict[str, Any]]) -> bool:
    """Whether the newest dump has the name again."""
    newest = dumps[-1]["modules"]
    if row["kind"] == "module":
        return row["name"] in newest
    full = row["name"].partition("(")[0]
    module = next(m for m in _parents(full) if m in newest or "." not in m)
    name = full.removeprefix(f"{module}.")
    if row["kind"] == "name":
        return name in newest.get(module, {})
    parameter = row["name"].partition("(")[2].rstrip(")")
    return parameter in (newest.get(module, {}).get(name) or ())


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _told_elsewhere(row: dict[str, str], names: set[str]) -> bool:
    """Whether a package above lost the same name, or it is a class of tensors that Tensor stands for."""
    if re.search(r"\.[A-Za-z0-9]+Tensor\.", row["name"]):
        return True
    rest = row["name"].removeprefix(row["module"])
    return any(f"{package}{rest}" in names for package in _parents(row["module"]))


def make_table(paths: Sequence[Path], out: Path) -> None:
    """Write the table, with what was written by hand in the one that is there."""
    dumps = sorted((json.loads(path.read_text()) for path in paths), key=lambda d: _order(d["torch"]))
    kept = {row["name"]: row for row in _read(out)["rows"]} if out.exists() else {}
    lost = [row for row in losses(dumps) if not returned(row, dumps)]
    names = {row["name"] for row in lost}
    rows = []
    for row in lost:
        if not _told_elsewhere(row, names):
            hand = kept.get(row["name"], {})
            told = {key: value for key, value in row.items() if key != "module"}
            rows.append({**told, "covered": hand.get("covered", ""), "note": hand.get("note", "")})
    rows.sort(key=lambda row: row["name"])
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    compared = json.dumps([_release(d["torch"]) for d in dumps])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f'{{\n "compared": {compared},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    print(f"{len(rows)} rows, {sum(not row['note'] for row in rows)} of them without a note")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


INTRO = """\
<!-- Written by tools/api_diff.py from docs/data/removed.json. Do not edit. -->

# What left torch

What the public API of torch {first} had and {newest} has not, found by enumerating names, methods and
parameters on {releases}, and comparing release by release. Public is a name without a leading
underscore in a module without one, that its `__all__` lists; in a module that has none, a name that
is defined there. What went and came back is left out, and so are `torch.testing` and torch's own tools.

A shim puts the name back; `torchcompat explain KEY` tells how. The table `docs/data/removed.json`
is made anew by

```console
$ for each release: PYTHON tools/api_diff.py dump > VERSION.json
$ python tools/api_diff.py table *.json && python tools/api_diff.py page
```

What an enumeration of public names cannot see are changed defaults, changed behaviour, private names
that libraries import nevertheless, and settings such as `torch._dynamo.config`. The shims for those
are in the [catalogue](catalogue.md), and the names that moved are in [Names of torch](api-names.md).
"""


def page(table: dict[str, Any]) -> str:
    """Return the table as Markdown: first what a shim covers, then what is left out, and why."""
    compared, rows = table["compared"], table["rows"]
    releases = f"{', '.join(compared[:-1])} and {compared[-1]}"
    lines = [INTRO.format(first=compared[0], newest=compared[-1], releases=releases)]
    covered = [row for row in rows if row["covered"]]
    lines += ["## Covered", "", "| gone | last in | shim | instead |", "|---|---|---|---|"]
    for row in covered:
        shim = f"[`{row['covered']}`](catalogue.md#{row['covered']})"
        lines.append(f"| `{row['name']}` | {row['last']} | {shim} | {row['note']} |")
    lines += ["", "## Left out", "", "Why there is no shim, and what to do instead.", ""]
    lines += ["| gone | last in | why not, and what instead |", "|---|---|---|"]
    by_note: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if not row["covered"]:
            by_note.setdefault((row["last"], row["note"]), []).append(f"`{row['name']}`")
    lines += [f"| {'<br>'.join(names)} | {last} | {note} |" for (last, note), names in by_note.items()]
    return "\n".join(lines) + "\n"


def write_page(*, check: bool) -> int:
    """Write docs/removed-api.md, or with check compare it; a row that is not finished fails."""
    from pages import settle

    from torchcompat.registry import Registry

    table = _read(TABLE)
    keys = {shim.key for shim in Registry(plugins=False)}
    unfinished = [
        row["name"]
        for row in table["rows"]
        if not row["note"] or (row["covered"] and row["covered"] not in keys)
    ]
    if unfinished:
        print(f"api_diff: no note, or no such shim: {', '.join(unfinished)}", file=sys.stderr)
        return 1
    drift = "api_diff: docs/{} has drifted: run `python tools/api_diff.py page`"
    return settle({PAGE: page(table)}, check=check, drift=drift)


def main(argv: Sequence[str] | None = None) -> int:
    """Dump, or make the table, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("dump", help="enumerate this interpreter's torch, to stdout")
    table = commands.add_parser("table", help="compare dumps, release by release")
    table.add_argument("dumps", type=Path, nargs="+", metavar="DUMP")
    table.add_argument("--out", type=Path, default=TABLE, metavar="FILE")
    paged = commands.add_parser("page", help="write docs/removed-api.md from the table")
    paged.add_argument("--check", action="store_true", help="change nothing; fail on drift")
    arguments = parser.parse_args(argv)
    if arguments.command == "page":
        return write_page(check=arguments.check)
    if arguments.command == "dump":
        json.dump(dump(), sys.stdout)
    elif arguments.command == "table":
        make_table(arguments.dumps, arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

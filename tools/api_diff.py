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
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
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
        last, gone = _release(old["torch"]), _release(new["torch"])
        for module, names in old["modules"].items():
            if module in new["failed"]:
                continue  # it is there, and could not be enumerated
            if module not in new["modules"]:
                parent = module.rpartition(".")[0]
                if parent in new["modules"]:
                    yield {"name": module, "kind": "module", "last": last, "gone": gone}
                continue
            now = new["modules"][module]
            for name, parameters in names.items():
                full, owner = f"{module}.{name}", name.rpartition(".")[0]
                if parameters == [INHERITED] or (owner and owner not in now):
                    continue  # told of the base class, or of the class itself
                if name not in now:
                    if full not in new["modules"]:
                        yield {"name": full, "kind": "name", "last": last, "gone": gone}
                elif parameters is not None and now[name] not in (None, [INHERITED]):
                    for parameter in _left(parameters, now[name]):
                        yield {
                            "name": f"{full}({parameter})",
                            "kind": "parameter",
                            "last": last,
                            "gone": gone,
                        }


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


def make_table(paths: Sequence[Path], out: Path) -> None:
    """Write the table, with what was written by hand in the one that is there."""
    dumps = sorted((json.loads(path.read_text()) for path in paths), key=lambda d: _order(d["torch"]))
    kept = {row["name"]: row for row in _read(out)["rows"]} if out.exists() else {}
    rows = []
    for row in losses(dumps):
        if returned(row, dumps):
            continue
        hand = kept.get(row["name"], {})
        rows.append({**row, "covered": hand.get("covered", ""), "instead": hand.get("instead", "")})
    text = json.dumps(
        {
            "compared": [_release(d["torch"]) for d in dumps],
            "rows": sorted(rows, key=lambda r: r["name"]),
        },
        indent=1,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n", encoding="utf-8")
    print(f"{len(rows)} rows")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def main(argv: Sequence[str] | None = None) -> int:
    """Dump, or make the table, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("dump", help="enumerate this interpreter's torch, to stdout")
    table = commands.add_parser("table", help="compare dumps, release by release")
    table.add_argument("dumps", type=Path, nargs="+", metavar="DUMP")
    table.add_argument("--out", type=Path, default=TABLE, metavar="FILE")
    arguments = parser.parse_args(argv)
    if arguments.command == "dump":
        json.dump(dump(), sys.stdout)
    elif arguments.command == "table":
        make_table(arguments.dumps, arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

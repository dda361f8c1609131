from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import torchcompat

PACKAGE = Path(torchcompat.__file__).parent


def test_every_public_name_resolves():
    for name in torchcompat.__all__:
        assert getattr(torchcompat, name) is not None
    assert set(torchcompat.__all__) <= set(dir(torchcompat))


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'aply'"):
        torchcompat.aply


def test_the_type_checker_sees_the_same_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    typed = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert typed == set(torchcompat.__all__) - {"__version__"}


def test_every_module_lists_what_it_exports():
    for path in PACKAGE.glob("*.py"):
        if path.stem in ("__init__", "__main__"):
            continue
        module = importlib.import_module(f"torchcompat.{path.stem}")
        for name in module.__all__:
            assert hasattr(module, name), f"{path.stem}.{name}"


FLOORS = [
    (
        "cli",
        "__main__",
        "__init__",
        "cli_audit",
        "cli_evidence",
        "cli_status",
        "progress",
        "launch",
        "pytest_plugin",
        "testing",
        "contract",
    ),
    ("ranks",),
    ("default", "scan"),
    ("evidence", "audit", "pyproject"),
    ("verify",),
    ("running",),
    ("child",),
    ("engine",),
    ("lifecycle",),
    ("session",),
    ("registry", "import_hooks"),
    ("shims",),
    ("moved", "missing_ops", "rules"),
    ("shim", "report", "journal", "settings", "reproduce", "compile_cache", "entries"),
    ("convolution", "factored", "optimizer_states", "pipelines", "resume", "schedules"),
    ("handlers",),
    ("strategies",),
    ("dtensor",),
    ("gloo",),
    ("edits", "bounds", "adafactor", "write_through"),
    ("targets", "gate"),
    ("api",),  # on no floor above: no engine and no shim comes with it
    ("builds", "errors", "schema", "scrub", "releases", "installation"),
    ("records",),
]


def test_imports_point_downward_only():
    floor = {name: -level for level, names in enumerate(FLOORS) for name in names}
    for path in sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("scan/*.py"), *PACKAGE.glob("api/*.py")]):
        if path.stem in ("__init__", "__main__"):
            continue
        inner = int(path.parent != PACKAGE)
        room = path.parent.name if inner else path.stem
        assert room in floor, f"give {room} a floor"
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ImportFrom) or node.level <= inner:
                continue
            targets = [node.module] if node.module else [alias.name for alias in node.names]
            for target in targets:
                lower = target.partition(".")[0]
                if lower == "__version__":
                    continue
                assert floor[lower] <= floor[room], f"{path.stem} imports {lower}"
                assert lower == room or floor[lower] < floor[room] or lower != "engine"


def test_modules_stay_small():
    for path in PACKAGE.rglob("*.py"):
        if path.name == "_index.py":
            continue  # generated, with some lines for every shim
        limit = 300 if path.parent.name == "shims" else 410
        assert len(path.read_text().splitlines()) <= limit, path

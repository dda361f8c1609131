"""Finding and reading the files of a scan."""

from __future__ import annotations

import ast
import functools
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import TorchCompatError
from .names import Scope, build_scopes

__all__ = ["UNREADABLE", "Module", "PathError", "Project", "python_files", "read_module"]

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})
#: How much source to keep the trees of; a tree takes about twenty times as much.
_KEPT_BYTES = 16_000_000
#: What :func:`read_module` raises.
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
#: A comment that keeps a line out of the report.
_IGNORE = re.compile(r"#.*\btorchcompat:\s*ignore\b")


class PathError(TorchCompatError):
    """A path that cannot be scanned."""


def python_files(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the Python files under ``paths``; a file named itself is taken whatever its suffix.

    Raises:
        PathError: a path does not exist.
    """
    seen: set[Path] = set()
    for name in paths:
        root = Path(name)
        if not root.exists():
            raise PathError(f"there is no file or folder {name!r}")
        for path in [root] if root.is_file() else _under(root):
            if path not in seen:
                seen.add(path)
                yield path


def _under(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("."))
        for name in sorted(files):
            if name.endswith((".py", ".pyi")) and not name.startswith("."):
                yield Path(folder, name)


@dataclass(slots=True)
class Module:
    """One parsed file.

    Attributes:
        path: as it was given, for reports.
        name: the dotted name, as far as ``__init__.py`` files tell it.
        is_package: whether it is an ``__init__.py``.
        lines: the source.
        tree: the syntax tree.
        scope: its global names.
        scopes: every scope by the id of its node.
    """

    path: str
    name: str
    is_package: bool
    lines: list[str]
    tree: ast.Module
    scope: Scope
    scopes: dict[int, Scope]

    def ignored(self, first: int, last: int) -> bool:
        """Whether a comment on lines ``first`` to ``last`` (from 1) asks for silence."""
        return any(_IGNORE.search(line) for line in self.lines[first - 1 : last])

    def column(self, line: int, offset: int) -> int:
        """Turn ast's offset in bytes into a column that counts characters from 1."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return len(text.encode()[:offset].decode(errors="ignore")) + 1


def read_module(path: Path, *, about: bytes = b"torch") -> Module | None:
    """Parse one file; None where it does not say ``about``, and so has nothing to find.

    When names are followed, packages' ``__init__.py`` count always: names pass through them.

    Raises:
        OSError, SyntaxError, ValueError, RecursionError, MemoryError: it cannot be read,
            or is no Python that this version reads.
    """
    data = path.read_bytes()
    if about not in data.lower() and (path.stem != "__init__" or about == b"torch"):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the scanned code's own, such as invalid escapes
        tree = ast.parse(data, filename=str(path))
    name, is_package = _dotted(path)
    scopes = build_scopes(tree, name, is_package=is_package)
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return Module(path.as_posix(), name, is_package, text.split("\n"), tree, scopes[id(tree)], scopes)


def _dotted(path: Path) -> tuple[str, bool]:
    is_package = path.stem == "__init__"
    parts = [] if is_package else [path.stem]
    parts.extend(_packages(path.parent.resolve()))
    return ".".join(reversed(parts)), is_package


@functools.lru_cache(maxsize=4096)
def _packages(folder: Path) -> tuple[str, ...]:
    """The packages that a folder is in, innermost first."""
    if not (folder / "__init__.py").exists():
        return ()
    return (folder.name, *_packages(folder.parent))


class Project:
    """The code around the scanned files, so that a name can be followed across files.

    Names are looked for on disk, next to the scanned files' outermost packages, so that a
    hook that passes single files finds the helpers of the others. Only files that may say
    something about versions are read for that. Trees are kept up to a limit: those of a
    large code base would fill the memory.
    """

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._roots = tuple(dict.fromkeys(_root(path) for path in paths))
        self._located: dict[str, Path | None] = {}
        self._modules: dict[Path, Module | None] = {}
        self._room = _KEPT_BYTES

    def module(self, path: Path) -> Module | None:
        """Return the parsed file, as :func:`read_module` does."""
        key = path.resolve()
        known = self._modules.get(key)
        if known is not None:
            return replace(known, path=path.as_posix())  # a name led to it first
        module = read_module(path)
        size = 0 if module is None else sum(map(len, module.lines))
        if module is not None and size <= self._room:
            self._room -= size
            self._modules[key] = module
        return module

    def find(self, dotted: str) -> tuple[Module, str] | None:
        """Split a dotted name into a module of the project and one name in it."""
        module_name, _, name = dotted.rpartition(".")
        if module_name not in self._located:
            self._located[module_name] = self._locate(module_name)
        path = self._located[module_name]
        if path is None:
            return None
        if path not in self._modules:
            try:
                self._modules[path] = read_module(path, about=b"version")
            except UNREADABLE:
                self._modules[path] = None  # reported where the file itself is scanned
        module = self._modules[path]
        return None if module is None else (module, name)

    def _locate(self, module_name: str) -> Path | None:
        parts = module_name.split(".")
        if not all(part.isidentifier() for part in parts) or parts[0] == "torch":
            return None
        for root in self._roots:
            folder = root.joinpath(*parts)
            for path in (folder / "__init__.py", folder.with_name(f"{folder.name}.py")):
                if path.is_file():
                    return path
        return None


def _root(path: Path) -> Path:
    folder = path.resolve().parent
    for _ in _packages(folder):
        folder = folder.parent
    return folder

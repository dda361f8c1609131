"""Where a project's pyproject.toml says which torch it wants."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from .errors import InputError

__all__ = ["torch_ranges"]


def torch_ranges(path: str | Path) -> tuple[tuple[str, ...], str]:
    """Return the ranges of torch in a pyproject.toml, and the table they stand in.

    The project's own dependencies come first, then its extras, then its dependency groups;
    the first of them that names torch counts. Several ranges are alternatives: markers and
    extras tell them apart.

    Raises:
        InputError: the file cannot be read, or gives no range for torch.
    """
    document = _read(Path(path))
    for where, requirements in _tables(document):
        ranges = tuple(dict.fromkeys(_ranges(requirements, f"{path}: {where}")))
        if ranges:
            return ranges, where
    raise InputError(f"{path} {_why_none(document)}; give the range itself: --torch '>=2.9,<2.16'")


def _read(path: Path) -> dict[str, Any]:
    try:
        toml = import_module("tomllib")
    except ModuleNotFoundError:  # Python 3.10
        try:
            toml = import_module("tomli")
        except ModuleNotFoundError:
            raise InputError(
                "reading a pyproject.toml takes Python 3.11 or `pip install tomli`; "
                "or give the range itself: --torch '>=2.9,<2.16'"
            ) from None
    if path.is_dir():
        raise InputError(f"{path} is a folder; did you mean {path / 'pyproject.toml'}?")
    try:
        document: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise InputError(f"{path} is not TOML: {error}") from error
    return document


def _tables(document: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    project = _table(document, "project")
    yield "project.dependencies", _list(project.get("dependencies"))
    for where, groups in (
        ("project.optional-dependencies", _table(project, "optional-dependencies")),
        ("dependency-groups", _table(document, "dependency-groups")),
    ):
        yield where, [item for items in groups.values() for item in _list(items)]


def _table(holder: dict[str, Any], name: str) -> dict[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _ranges(requirements: list[Any], where: str) -> Iterator[str]:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    for text in requirements:
        if not isinstance(text, str):
            continue  # a dependency group that includes another one
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            if text.strip().lower().startswith("torch"):
                raise InputError(f"{where}: {text!r} is no requirement: {error}") from error
            continue  # somebody else's, and not our question
        if canonicalize_name(requirement.name) != "torch":
            continue
        if requirement.url is not None:
            raise InputError(
                f"{where}: {text!r} names one file and no range; "
                f"give the range itself: --torch '>=2.9,<2.16'"
            )
        # packaging sorts the pieces by their text; people write the lower bound first.
        pieces = sorted(map(str, requirement.specifier), key=lambda piece: (piece[0] in "<!", piece))
        yield ",".join(pieces)


def _why_none(document: dict[str, Any]) -> str:
    poetry = _table(_table(_table(document, "tool"), "poetry"), "dependencies")
    if "torch" in poetry:
        return f"states torch in Poetry's own table, as {poetry['torch']!r}"
    if "dependencies" in _list(_table(document, "project").get("dynamic")):
        return "leaves its dependencies to the build (project.dynamic)"
    return "does not name torch among its dependencies, extras or dependency groups"

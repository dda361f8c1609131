"""A checker for the part of JSON Schema that our published schemas use.

It takes no dependency, and it refuses a schema with a keyword that it does not know,
so that nothing in a schema can go unchecked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

__all__ = ["EVIDENCE", "load_schema", "violations"]

#: The schema of what ``torchcompat verify --json`` writes.
EVIDENCE = "evidence-1.schema.json"

_ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def load_schema(name: str = EVIDENCE) -> dict[str, Any]:
    """Read a schema that comes with the package."""
    text = files(__package__).joinpath("schemas").joinpath(name).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def violations(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    """Yield one sentence for each place where ``value`` breaks ``schema``.

    Raises:
        NotImplementedError: the schema uses a keyword that is not supported here.
    """
    yield from _check(value, schema, schema, "")


def _check(value: Any, schema: dict[str, Any], root: dict[str, Any], where: str) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        yield from _check(value, root["$defs"][name], root, where)
        return
    for keyword, wanted in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        check = _KEYWORDS.get(keyword)
        if check is None:
            raise NotImplementedError(f"the schema keyword {keyword!r}")
        for problem in check(value, wanted):
            yield f"{where or 'the document'} {problem}"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name in value:
            if name in known:
                yield from _check(value[name], known[name], root, f"{where}.{name}".lstrip("."))
            elif schema.get("additionalProperties") is False:
                yield f"{where or 'the document'} has an unknown field {name!r}"
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from _check(item, schema["items"], root, f"{where}[{number}]")


def _type(value: Any, wanted: str | list[str]) -> Iterator[str]:
    names = [wanted] if isinstance(wanted, str) else wanted
    fits = any(isinstance(value, _TYPES[name]) for name in names)
    if not fits or isinstance(value, bool):  # a bool is an int in Python, and no number in JSON
        yield f"must be {' or '.join(names)}, not {json.dumps(value, default=str)[:60]}"


def _enum(value: Any, wanted: list[Any]) -> Iterator[str]:
    if value not in wanted:
        yield f"must be one of {', '.join(map(repr, wanted))}, not {value!r}"


def _const(value: Any, wanted: Any) -> Iterator[str]:
    if value != wanted:
        yield f"must be {wanted!r}, not {value!r}"


def _required(value: Any, wanted: list[str]) -> Iterator[str]:
    if isinstance(value, dict):
        for name in wanted:
            if name not in value:
                yield f"lacks the field {name!r}"


def _pattern(value: Any, wanted: str) -> Iterator[str]:
    if isinstance(value, str) and not re.search(wanted, value):
        yield f"must look like {wanted}, not {value!r}"


def _minimum(value: Any, wanted: float) -> Iterator[str]:
    if isinstance(value, (int, float)) and value < wanted:
        yield f"must be at least {wanted}, not {value}"


def _elsewhere(value: Any, wanted: Any) -> Iterator[str]:
    """Accept: a keyword that :func:`_check` follows into the value itself."""
    yield from ()


_KEYWORDS = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "pattern": _pattern,
    "minimum": _minimum,
    "properties": _elsewhere,
    "additionalProperties": _elsewhere,
    "items": _elsewhere,
}

"""Monkey patches of torch: what a statement sets, deletes or changes in place there."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["PATCHING", "Patch", "patches_of"]

#: Resolves an expression to the dotted name that it stands for.
Resolve = Callable[[ast.expr], "str | None"]

#: The nodes that can be a patch.
PATCHING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.Call)
_MUTATORS = frozenset(
    (
        *("add", "update", "discard", "remove", "clear", "pop", "append", "extend", "insert"),
        *("setdefault", "register", "difference_update", "intersection_update"),
        "symmetric_difference_update",
    )
)
#: Method names that torch's own modules and classes have too, as functions to call.
_AMBIGUOUS = frozenset({"add", "clear", "pop", "remove", "insert", "register", "append", "update"})
_CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*")

#: What torch's documentation tells its users to set.
_SETTINGS = ("torch.backends.", "torch.utils.deterministic.", "torch.testing.")


@dataclass(frozen=True, slots=True)
class Patch:
    """One change of torch: the rule, what is changed, and how."""

    rule: str
    target: str
    how: str
    node: ast.stmt | ast.expr


def patches_of(node: ast.AST, resolve: Resolve) -> Iterator[Patch]:
    """Yield the patches that one node makes itself (not those inside of it)."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _stored(target, node, resolve)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _stored(node.target, node, resolve)
    elif isinstance(node, ast.AugAssign):
        yield from _augmented(node, resolve)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            for patch in _stored(target, node, resolve):
                yield Patch(patch.rule, patch.target, "deleted", node)
    elif isinstance(node, ast.Call):
        yield from _called(node, resolve)


def _stored(target: ast.expr, node: ast.stmt, resolve: Resolve) -> Iterator[Patch]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _stored(element, node, resolve)
    elif isinstance(target, ast.Attribute):
        owner = resolve(target.value)
        if owner is not None and _is_patchable(f"{owner}.{target.attr}"):
            yield Patch("patch-attribute", f"{owner}.{target.attr}", "set", node)
    elif isinstance(target, ast.Subscript):
        owner = resolve(target.value)
        if owner is not None and owner.count(".") > 0 and _is_patchable(owner):
            yield Patch("patch-container", owner, "an entry set", node)


def _augmented(node: ast.AugAssign, resolve: Resolve) -> Iterator[Patch]:
    if isinstance(node.target, ast.Name):
        # The name alone may be another object; a set or list is changed in place.
        name = ast.Name(node.target.id, ast.Load(), lineno=node.lineno, col_offset=node.col_offset)
        owner = resolve(name)
        if owner is not None and owner.count(".") > 0 and _is_patchable(owner):
            yield Patch("patch-container", owner, "changed in place", node)
    else:
        for patch in _stored(node.target, node, resolve):
            yield Patch("patch-container", patch.target, "changed in place", node)


def _called(node: ast.Call, resolve: Resolve) -> Iterator[Patch]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in ("setattr", "delattr") and len(node.args) >= 2:
        owner = resolve(node.args[0])
        name = node.args[1]
        if owner is None:
            return
        attr = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else "*"
        if _is_patchable(f"{owner}.{attr}"):
            how = "set" if function.id == "setattr" else "deleted"
            yield Patch("patch-attribute", f"{owner}.{attr}", how, node)
    elif isinstance(function, ast.Attribute) and function.attr in _MUTATORS:
        owner = resolve(function.value)
        if owner is None or owner.count(".") < 1 or not _is_patchable(owner):
            return
        last = owner.rpartition(".")[2]
        if _CONSTANT.fullmatch(last) or function.attr not in _AMBIGUOUS:
            yield Patch("patch-container", owner, f"changed by .{function.attr}()", node)


def _is_patchable(dotted: str) -> bool:
    """Whether a dotted name is inside torch, and no setting that is meant to be set."""
    parts = dotted.split(".")
    if parts[0] != "torch" or len(parts) < 2 or dotted.startswith(_SETTINGS):
        return False
    return not any(part.endswith(("config", "options")) for part in parts)

"""What a name in a file stands for: imports, assignments, functions, by scope."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

__all__ = ["SCOPED", "Binding", "Kind", "Position", "Scope", "build_scopes", "inner_scope", "position"]

Position = tuple[int, int]

#: The nodes whose names are their own.
SCOPED = (
    *(ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp),
)


class Kind(enum.Enum):
    """How a name was bound."""

    IMPORT = enum.auto()
    VALUE = enum.auto()
    FUNCTION = enum.auto()
    OPAQUE = enum.auto()


@dataclass(frozen=True, slots=True)
class Binding:
    """One place that binds a name.

    Attributes:
        kind: how.
        at: where.
        direct: whether the statement stands in the scope's own body, not in a branch.
        fallback: whether it stands in an ``except`` branch.
        dotted: for an import, what it imports.
        value: for an assignment, the right side.
        index: for ``a, b = value``, which of the two.
        function: for a function, its definition.
    """

    kind: Kind
    at: Position
    direct: bool
    dotted: str = ""
    value: ast.expr | None = None
    index: int | None = None
    function: ast.FunctionDef | None = None
    fallback: bool = False


@dataclass(slots=True)
class Scope:
    """The names of a module, class or function."""

    parent: Scope | None
    is_class: bool = False
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    not_ours: set[str] = field(default_factory=set)

    def holders(self, name: str) -> tuple[Scope, list[Binding]] | None:
        """Find the scope that binds ``name``, as Python would from inside this one."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or not scope.is_class):
                return scope, scope.bindings[name]
            scope = scope.parent
        return None


def position(node: ast.expr | ast.stmt) -> Position:
    """Where a node begins."""
    return (node.lineno, node.col_offset)


def build_scopes(tree: ast.Module, name: str, *, is_package: bool) -> dict[int, Scope]:
    """Return every scope of a module by the id of its node."""
    builder = _Builder(name if is_package else name.rpartition(".")[0])
    builder.enter(tree, None, tree.body)
    return builder.scopes


def inner_scope(node: ast.AST, scope: Scope) -> Scope | None:
    """Return the scope of a lambda or a comprehension, whose names hide outer ones."""
    if isinstance(node, ast.Lambda):
        inner = Scope(scope)
        _bind_arguments(node.args, inner)
        return inner
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        inner = Scope(scope)
        for loop in node.generators:
            _bind_opaque(loop.target, inner)
        return inner
    return None


def _bind_arguments(given: ast.arguments, scope: Scope) -> None:
    extra = [a for a in (given.vararg, given.kwarg) if a is not None]
    for argument in [*given.posonlyargs, *given.args, *given.kwonlyargs, *extra]:
        at = (argument.lineno, argument.col_offset)
        scope.bindings.setdefault(argument.arg, []).append(Binding(Kind.OPAQUE, at, direct=True))


def _bind_opaque(target: ast.expr, scope: Scope) -> None:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            binding = Binding(Kind.OPAQUE, position(node), direct=False)
            scope.bindings.setdefault(node.id, []).append(binding)


class _Builder:
    def __init__(self, package: str) -> None:
        self.package = package
        self.scopes: dict[int, Scope] = {}
        self._in_handler = False

    def enter(self, node: ast.AST, parent: Scope | None, body: Iterable[ast.stmt]) -> None:
        scope = Scope(parent, isinstance(node, ast.ClassDef))
        self.scopes[id(node)] = scope
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            _bind_arguments(node.args, scope)
        for child in body:
            self.visit(child, scope, direct=True)

    def visit(self, node: ast.AST, scope: Scope, *, direct: bool) -> None:
        """Bind what a statement binds, and go into its branches."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            at = position(node)
            if isinstance(node, ast.FunctionDef):
                binding = Binding(Kind.FUNCTION, at, direct, function=node)
            else:
                binding = Binding(Kind.OPAQUE, at, direct)
            self._bind(scope, node.name, binding)
            self.enter(node, scope, node.body)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, scope, direct=direct)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            # A value counts from the end of its statement: ``x = x.strip()``.
            at = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
            for target in targets:
                self._assign(target, node.value, at, scope, direct=direct)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            scope.not_ours.update(node.names)
        elif isinstance(node, ast.Try):
            self._try(node, scope, direct=direct)
        else:
            # A loop, a with, an augmented assignment: values that cannot be read off.
            for target in _targets(node):
                _bind_opaque(target, scope)
            self._branches(node, scope)

    def _try(self, node: ast.Try, scope: Scope, *, direct: bool) -> None:
        for child in [*node.body, *node.orelse, *node.finalbody]:
            self.visit(child, scope, direct=direct)
        before, self._in_handler = self._in_handler, True
        for handler in node.handlers:
            if handler.name:
                at = (handler.lineno, handler.col_offset)
                self._bind(scope, handler.name, Binding(Kind.OPAQUE, at, direct=False))
            self._branches(handler, scope)
        self._in_handler = before

    def _branches(self, node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.visit(child, scope, direct=False)
            elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                self._branches(child, scope)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope, *, direct: bool) -> None:
        at = position(node)
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                dotted = alias.name if alias.asname else top
                binding = Binding(Kind.IMPORT, at, direct, dotted=dotted)
                self._bind(scope, alias.asname or top, binding)
            return
        base = self._absolute(node)
        for alias in node.names:
            if alias.name == "*":
                scope.stars.append(base)
                continue
            dotted = f"{base}.{alias.name}"
            self._bind(
                scope, alias.asname or alias.name, Binding(Kind.IMPORT, at, direct, dotted=dotted)
            )

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        parts = parts[: len(parts) - (node.level - 1)]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _assign(
        self, target: ast.expr, value: ast.expr | None, at: Position, scope: Scope, *, direct: bool
    ) -> None:
        if value is None:
            return
        if isinstance(target, ast.Name):
            self._bind(scope, target.id, Binding(Kind.VALUE, at, direct, value=value))
        elif isinstance(target, (ast.Tuple, ast.List)):
            starred = False
            for index, element in enumerate(target.elts):
                inner = element.value if isinstance(element, ast.Starred) else element
                if not isinstance(inner, ast.Name):
                    continue
                readable = not starred and inner is element
                starred = starred or inner is not element
                binding = (
                    Binding(Kind.VALUE, at, direct, value=value, index=index)
                    if readable
                    else Binding(Kind.OPAQUE, at, direct)
                )
                self._bind(scope, inner.id, binding)

    def _bind(self, scope: Scope, name: str, binding: Binding) -> None:
        if name in scope.not_ours:
            top = scope
            while top.parent is not None:
                top = top.parent
            scope, binding = top, Binding(Kind.OPAQUE, binding.at, direct=False)
        if self._in_handler:
            binding = replace(binding, fallback=True)
        scope.bindings.setdefault(name, []).append(binding)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.For, ast.AsyncFor, ast.AugAssign)):
        return [node.target]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return node.targets if isinstance(node, ast.Delete) else []

"""Call a small helper function of the scanned code: bind its arguments, interpret its body."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from .frames import Frame, Function
from .values import Raised, Unreadable

if TYPE_CHECKING:
    from .evaluate import Evaluator

__all__ = ["call"]

_TALKERS = frozenset({"log", "logger", "logging", "print", "warnings"})
_CACHES = frozenset({"lru_cache", "cache"})


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def call(evaluator: Evaluator, function: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function and give what it returns.

    Raises:
        Unreadable: it does something that is not understood.
        Raised: it would raise.
    """
    definition, frame = function.definition, function.frame
    for decorator in definition.decorator_list:
        if not _is_transparent(evaluator, decorator, frame):
            raise Unreadable("a decorated function")
    bound = _arguments(evaluator, function, args, kwargs)
    inner = Frame(frame.module, frame.module.scopes[id(definition)], bound)
    with evaluator.deeper():
        try:
            _statements(evaluator, definition.body, inner)
        except _Return as returned:
            return returned.value
    return None


def _is_transparent(evaluator: Evaluator, decorator: ast.expr, frame: Frame) -> bool:
    """Whether a decorator leaves what the function returns alone."""
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    last = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
    if last in _CACHES:
        return True
    try:
        found = evaluator.inner(decorator, frame)
    except (Unreadable, Raised):
        return False
    if not isinstance(found, Function):
        return False
    *_, end = found.definition.body
    arguments = found.definition.args.args
    return (
        isinstance(end, ast.Return)
        and isinstance(end.value, ast.Name)
        and len(arguments) == 1
        and end.value.id == arguments[0].arg
    )


def _arguments(
    evaluator: Evaluator, function: Function, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    given = function.definition.args
    if given.vararg or given.kwarg or given.posonlyargs:
        raise Unreadable("*args")
    positional = [argument.arg for argument in given.args]
    defaults = [
        *zip(reversed(positional), reversed(given.defaults)),
        *zip([argument.arg for argument in given.kwonlyargs], given.kw_defaults),
    ]
    bound = {
        name: evaluator.inner(default, function.frame)
        for name, default in defaults
        if default is not None
    }
    bound.update(zip(positional, args))
    bound.update(kwargs)
    names = {*positional, *(argument.arg for argument in given.kwonlyargs)}
    if len(args) > len(positional) or set(bound) != names:
        raise Unreadable("arguments that do not fit")
    return bound


def _statements(evaluator: Evaluator, body: list[ast.stmt], frame: Frame) -> None:
    for statement in body:
        _statement(evaluator, statement, frame)


def _statement(evaluator: Evaluator, node: ast.stmt, frame: Frame) -> None:
    if frame.locals is None:
        raise Unreadable("statements outside a function")
    if isinstance(node, ast.Return):
        raise _Return(None if node.value is None else evaluator.inner(node.value, frame))
    if isinstance(node, ast.If):
        chosen = node.body if evaluator.plain(node.test, frame) else node.orelse
        _statements(evaluator, chosen, frame)
    elif isinstance(node, ast.Assign):
        value = evaluator.inner(node.value, frame)
        for target in node.targets:
            _assign(target, value, frame.locals)
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            _assign(node.target, evaluator.inner(node.value, frame), frame.locals)
    elif isinstance(node, ast.Try):
        _try(evaluator, node, frame)
    elif isinstance(node, ast.Raise):
        raise Raised(RuntimeError("raised by the helper itself"))
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        # The names are bound in the function's scope, where lookups that find no local
        # value would stop; take them over as locals.
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            binding = frame.scope.bindings[name][0] if name in frame.scope.bindings else None
            if binding is None:
                raise Unreadable("an import of everything")
            frame.locals[name] = evaluator.bound(binding, frame)
    elif not (isinstance(node, (ast.Pass, ast.Global)) or _is_talk(node)):
        raise Unreadable(type(node).__name__)


def _is_talk(node: ast.stmt) -> bool:
    """Whether a statement is a docstring or a log line."""
    if not isinstance(node, ast.Expr):
        return False
    root: ast.expr = node.value
    while isinstance(root, (ast.Call, ast.Attribute)):
        root = root.func if isinstance(root, ast.Call) else root.value
    return isinstance(root, ast.Constant) or (isinstance(root, ast.Name) and root.id in _TALKERS)


def _try(evaluator: Evaluator, node: ast.Try, frame: Frame) -> None:
    try:
        _statements(evaluator, node.body, frame)
    except Raised:
        if not node.handlers:
            raise
        _statements(evaluator, node.handlers[0].body, frame)
    else:
        _statements(evaluator, node.orelse, frame)
    _statements(evaluator, node.finalbody, frame)


def _assign(target: ast.expr, value: Any, names: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        names[target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (tuple, list)):
        if len(target.elts) != len(value):
            raise Unreadable("unpacking")
        for element, item in zip(target.elts, value):
            _assign(element, item, names)
    else:
        raise Unreadable("an assignment")

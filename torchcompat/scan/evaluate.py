"""Evaluate what a piece of scanned code answers on one build of torch.

The code is interpreted, never run: only names that lead to ``torch.__version__``, to
packaging and to a handful of builtins and str methods are understood, with the real
functions behind them. Everything else is :class:`Unreadable`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .frames import Frame, Function
from .names import Binding, Kind, Position, Scope, position
from .sources import Project
from .specials import asks_for_torch, special_call
from .values import (
    BUILTINS,
    COMPARISONS,
    PLAIN,
    Attribute,
    Raised,
    Ref,
    Unreadable,
    attribute,
    guarded,
    known_function,
)
from .versions import TorchVersion

__all__ = ["Evaluator"]

_TORCH_VERSION = frozenset({"torch.__version__", "torch.torch_version.__version__"})
_NUMBERS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_MAX_STEPS = 4000
_MAX_DEPTH = 40


@dataclass(slots=True)
class Evaluator:
    """Evaluates expressions for one version string.

    Attributes:
        project: where names lead to.
        version: what ``torch.__version__`` is.
        used: whether the version has been looked at since this was last cleared.
        specifier: whether a SpecifierSet has been built.
        strict_pre: SpecifierSets leave pre-releases out unless they name one, as
            packaging does up to version 25.
    """

    project: Project
    version: str
    used: bool = False
    specifier: bool = False
    strict_pre: bool = False
    _steps: int = 0
    _depth: int = 0
    _known: dict[tuple[int, int | None], Any] = field(default_factory=dict)

    def value(self, node: ast.expr, frame: Frame) -> Any:
        """Evaluate one expression.

        Raises:
            Unreadable: it is not understood.
            Raised: the scanned code would raise.
        """
        self._steps = self._depth = 0
        try:
            return self.inner(node, frame)
        except RecursionError:
            raise Unreadable("too deep") from None

    def ref(self, node: ast.expr, frame: Frame) -> str | None:
        """Return the dotted name that an expression stands for, if it is one."""
        try:
            found = self.value(node, frame)
        except (Unreadable, Raised):
            return None
        return found.dotted if isinstance(found, Ref) else None

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count one step into a name or a function, of which there is an end."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable("too deep")
        try:
            yield
        finally:
            self._depth -= 1

    # -- expressions -----------------------------------------------------------------

    def inner(self, node: ast.expr, frame: Frame) -> Any:
        """Evaluate a part of the expression."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise Unreadable("too long")
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise Unreadable(type(node).__name__)
        return method(node, frame)

    def plain(self, node: ast.expr, frame: Frame) -> Any:
        """Evaluate a part that must be a value, not a reference."""
        value = self.inner(node, frame)
        if not isinstance(value, PLAIN):
            raise Unreadable("a reference where a value is needed")
        return value

    def _constant(self, node: ast.Constant, frame: Frame) -> Any:
        if isinstance(node.value, (str, int, float, type(None))):
            return node.value
        raise Unreadable("constant")

    def _tuple(self, node: ast.Tuple, frame: Frame) -> tuple[Any, ...]:
        return tuple(self._items(node.elts, frame))

    def _list(self, node: ast.List, frame: Frame) -> list[Any]:
        return list(self._items(node.elts, frame))

    def _set(self, node: ast.Set, frame: Frame) -> set[Any]:
        items = list(self._items(node.elts, frame))
        return guarded(set, items)  # type: ignore[no-any-return]

    def _items(self, nodes: list[ast.expr], frame: Frame) -> Iterator[Any]:
        for element in nodes:
            if isinstance(element, ast.Starred):
                yield from guarded(list, self.plain(element.value, frame))
            else:
                yield self.inner(element, frame)

    def _dict(self, node: ast.Dict, frame: Frame) -> dict[Any, Any]:
        made = {}
        for key, value in zip(node.keys, node.values):
            if key is None:
                raise Unreadable("** in a dict")
            made[self.plain(key, frame)] = self.inner(value, frame)
        return made

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> str:
        pieces = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.format_spec is not None or part.conversion != -1:
                    raise Unreadable("a formatted piece")
                pieces.append(str(self.plain(part.value, frame)))
            else:
                pieces.append(str(self.inner(part, frame)))
        return "".join(pieces)

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value = self.plain(node.operand, frame)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
            return -value
        raise Unreadable("an operator")

    def _boolop(self, node: ast.BoolOp, frame: Frame) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        value: Any = None
        for operand in node.values:
            value = self.plain(operand, frame)
            if bool(value) is stop_at:
                return value
        return value

    def _binop(self, node: ast.BinOp, frame: Frame) -> Any:
        left, right = self.plain(node.left, frame), self.plain(node.right, frame)
        function = _NUMBERS.get(type(node.op))
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if function is None or not (numbers or isinstance(node.op, ast.Add)):
            raise Unreadable("an operator")
        return guarded(function, left, right)

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> Any:
        return self.inner(node.body if self.plain(node.test, frame) else node.orelse, frame)

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        left = self.inner(node.left, frame)
        result: Any = True
        for op, right_node in zip(node.ops, node.comparators):
            right = self.inner(right_node, frame)
            result = self.compared(left, op, right)
            if not result:
                break
            left = right
        return result

    def compared(self, left: Any, op: ast.cmpop, right: Any) -> Any:
        """Compare two values as the scanned code would."""
        if isinstance(right, SpecifierSet) and isinstance(op, (ast.In, ast.NotIn)):
            inside = self._contains(right, left, None)
            return inside if isinstance(op, ast.In) else not inside
        if isinstance(op, (ast.Is, ast.IsNot)) and isinstance(left, Ref) and right is None:
            return isinstance(op, ast.IsNot)  # what could be imported is not None
        if not isinstance(left, PLAIN) or not isinstance(right, PLAIN):
            raise Unreadable("a comparison of references")
        return guarded(COMPARISONS[type(op)], left, right)

    def _contains(self, specifiers: SpecifierSet, item: Any, prereleases: Any) -> Any:
        if prereleases is None and self.strict_pre and not specifiers.prereleases:
            prereleases = False
        return guarded(specifiers.contains, item, prereleases=prereleases)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        owner = self.inner(node.value, frame)
        if isinstance(owner, Ref):
            key = self.plain(node.slice, frame)
            if owner.dotted == "sys.modules" and isinstance(key, str):
                return Ref(key)
            raise Unreadable("an item of something imported")
        if not isinstance(owner, (str, tuple, list, dict)):
            raise Unreadable("an item")
        return guarded(lambda key: owner[key], self._index(node.slice, frame))

    def _index(self, node: ast.expr, frame: Frame) -> Any:
        if not isinstance(node, ast.Slice):
            return self.plain(node, frame)
        bounds = (node.lower, node.upper, node.step)
        return slice(*(None if bound is None else self.plain(bound, frame) for bound in bounds))

    def _listcomp(self, node: ast.ListComp, frame: Frame) -> list[Any]:
        return list(self._comprehended(node, frame))

    def _generatorexp(self, node: ast.GeneratorExp, frame: Frame) -> list[Any]:
        return list(self._comprehended(node, frame))

    def _comprehended(self, node: ast.ListComp | ast.GeneratorExp, frame: Frame) -> Iterator[Any]:
        (loop, *others) = node.generators
        if others or loop.is_async or not isinstance(loop.target, ast.Name):
            raise Unreadable("a comprehension")
        for item in guarded(list, self.plain(loop.iter, frame)):
            inner = Frame(frame.module, frame.scope, {**(frame.locals or {}), loop.target.id: item})
            if all(self.plain(test, inner) for test in loop.ifs):
                yield self.inner(node.elt, inner)

    # -- names -----------------------------------------------------------------------

    def _name(self, node: ast.Name, frame: Frame) -> Any:
        return self._named(node.id, frame, position(node))

    def _named(self, name: str, frame: Frame, at: Position | None) -> Any:
        if frame.locals is not None and name in frame.locals:
            return frame.locals[name]
        held = frame.scope.holders(name)
        if held is None:
            return self._unbound(name, frame)
        scope, bindings = held
        same = scope is frame.scope
        if same and frame.locals is not None and scope.parent is not None:
            raise Unreadable("a local name without a value yet")
        binding = _choose(bindings, at if same else None)
        return self.bound(binding, Frame(frame.module, scope))

    def _unbound(self, name: str, frame: Frame) -> Any:
        scope: Scope | None = frame.scope
        while scope is not None:
            for star in scope.stars:
                found = self.project.find(f"{star}.{name}")
                if found is not None and name in found[0].scope.bindings:
                    return self._named(name, Frame(found[0], found[0].scope), None)
            scope = scope.parent
        if name in BUILTINS or name in ("map", "isinstance", "getattr", "hasattr"):
            return Ref(f"builtins.{name}")
        raise Unreadable(f"the name {name}")

    def bound(self, binding: Binding, frame: Frame) -> Any:
        """Evaluate what a name was bound to."""
        if binding.kind is Kind.IMPORT:
            return self.imported(binding.dotted)
        if binding.kind is Kind.FUNCTION and binding.function is not None:
            return Function(binding.function, frame)
        if binding.value is None:
            raise Unreadable("a name that changes")
        key = (id(binding.value), binding.index)
        if key in self._known:
            self.used = self.used or self._known[key][1]
            return self._known[key][0]
        before, self.used = self.used, False
        try:
            with self.deeper():
                value = self.inner(binding.value, frame)
            if binding.index is not None:
                if not isinstance(value, (str, tuple, list)):
                    raise Unreadable("unpacking")
                value = guarded(operator.getitem, value, binding.index)
            # The node is kept with it: its id must not be taken by another one.
            self._known[key] = (value, self.used, binding.value)
        finally:
            self.used = self.used or before
        return value

    def imported(self, dotted: str) -> Any:
        """Follow an imported name to its value, if it is in the scanned code."""
        if dotted in _TORCH_VERSION:
            self.used = True
            return TorchVersion(self.version)
        if dotted == "torch.version.__version__":
            self.used = True
            return str(self.version)
        found = self.project.find(dotted)
        if found is not None:
            module, name = found
            if name in module.scope.bindings or module.scope.stars:
                with self.deeper():
                    return self._named(name, Frame(module, module.scope), None)
        return Ref(dotted)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        owner = self.inner(node.value, frame)
        if isinstance(owner, Ref):
            return self.imported(f"{owner.dotted}.{node.attr}")
        return attribute(owner, node.attr)

    # -- calls -----------------------------------------------------------------------

    def _call(self, node: ast.Call, frame: Frame) -> Any:
        function = self.inner(node.func, frame)
        if isinstance(function, Ref) and function.dotted == "builtins.isinstance":
            return self._isinstance(node, frame)
        args = list(self._items(node.args, frame))
        kwargs = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise Unreadable("** in a call")
            kwargs[keyword.arg] = self.inner(keyword.value, frame)
        return self.called(function, args, kwargs)

    def called(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call something that the scanned code calls, if it is known."""
        if asks_for_torch(function):
            return True
        if isinstance(function, Function):
            from .functions import call

            return call(self, function, args, kwargs)
        if isinstance(function, Attribute):
            if isinstance(function.owner, SpecifierSet):
                return self._contains(function.owner, args[0], kwargs.get("prereleases"))
            found = guarded(getattr(function.owner, function.name), *args, **kwargs)
            return list(found) if function.name == "keys" else found
        if not isinstance(function, Ref):
            raise Unreadable("a call")
        dotted = function.dotted
        special = special_call(self, dotted, args, kwargs)
        if special is not None:
            return special
        real = BUILTINS.get(dotted.removeprefix("builtins.")) or known_function(dotted)
        if real is None or not all(isinstance(a, PLAIN) for a in (*args, *kwargs.values())):
            raise Unreadable(dotted)
        self.specifier = self.specifier or real is SpecifierSet
        return guarded(real, *args, **kwargs)

    def _isinstance(self, node: ast.Call, frame: Frame) -> bool:
        types = {"str": str, "int": int, "float": float, "tuple": tuple, "list": list}
        value = self.inner(node.args[0], frame)
        wanted = self.inner(node.args[1], frame)
        if isinstance(wanted, Ref):
            if wanted.dotted.removeprefix("builtins.") in types:
                return isinstance(value, types[wanted.dotted.removeprefix("builtins.")])
            if wanted.dotted.endswith("packaging.version.Version"):
                return isinstance(value, Version)
        raise Unreadable("isinstance")


def _choose(bindings: list[Binding], at: Position | None) -> Binding:
    """Pick the binding that a use at ``at`` sees; ``at`` None means after all of them."""
    # try: ... except: what the handler binds is for when there is no torch, or an old one.
    bindings = [binding for binding in bindings if not binding.fallback] or bindings
    if len(bindings) == 1:
        return bindings[0]
    for binding in bindings:
        if binding.kind is Kind.IMPORT:
            return binding  # try: import ... except ImportError: import ... or None
    if any(b.kind not in (Kind.VALUE, Kind.FUNCTION) or not b.direct for b in bindings):
        raise Unreadable("a name that changes")
    before = [b for b in bindings if at is None or b.at < at]
    if not before:
        raise Unreadable("a name without a value yet")
    return before[-1]

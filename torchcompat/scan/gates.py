"""Version gates on torch: found by evaluating, judged on every build of the table."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from .evaluate import Evaluator
from .frames import Frame, Function
from .model import Answer
from .sources import Project
from .specials import COMPARE_VERSION
from .table import RELEASES, line_of
from .values import COMPARISONS, Attribute, Raised, Ref, Unreadable
from .versions import LooseVersion, StrictVersion, TorchVersion

__all__ = ["Judge", "Judgement"]

Line = tuple[int, int, int]

_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}
#: A piece of a version, as in ``"2.1" in torch.__version__``; "dev" or "cu" is none.
_PIECE = re.compile(r"v?(\d+(?:\.\d+)+)\.?|(\d+)\.")
#: A release whose three numbers differ, to see which of them a piece holds.
_SAMPLE: Line = (2, 9, 1)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was made of one expression: its rule, and its answers on the builds."""

    rule: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a comparison: whether it comes from torch's version, and its value."""

    node: ast.expr
    derived: bool
    value: Any


class Judge:
    """Evaluates expressions on a table of builds."""

    def __init__(self, project: Project, builds: Sequence[str]) -> None:
        self.builds = builds
        self._on = {raw: Evaluator(project, raw) for raw in {*builds, *RELEASES}}
        for raw in builds:
            plain = _plain(line_of(raw))
            self._on.setdefault(plain, Evaluator(project, plain))

    def looks_like_one(self, node: ast.expr, frame: Frame) -> bool | None:
        """Whether an expression asks for torch's version; None where it does, unreadably."""
        sample = self._on[RELEASES[-2]]
        sample.used = False
        try:
            value = sample.value(node, frame)
        except Raised:
            return sample.used
        except Unreadable:
            return None if sample.used else False
        return sample.used and isinstance(value, bool)

    def compare(self, node: ast.Compare, frame: Frame) -> Judgement | None:
        """Judge a comparison, a chain of them pair by pair.

        Returns:
            None where it asks for something else than the line (a nightly, a backend).

        Raises:
            Unreadable: some build's answer cannot be worked out.
        """
        lefts = [node.left, *node.comparators[:-1]]
        rules, meanings = [], []
        for left, op, right in zip(lefts, node.ops, node.comparators):
            judged = self._pair(left, op, right, frame)
            if judged is None:
                return None
            rules.append(judged[0])
            meanings.append(judged[1])
        return self._judged(node, frame, rules[0], lambda raw: _all([m(raw) for m in meanings]))

    def call(self, node: ast.Call, frame: Frame) -> Judgement | None:
        """Judge a call: a helper with arguments, ``startswith``, ``contains``."""
        function = self._sample(node.func, frame).value
        if isinstance(function, Attribute):
            if isinstance(function.owner, SpecifierSet):
                return self._judged(node, frame, "gate-specifier", self._as_release(node, frame))
            if function.name != "startswith" or not node.args:
                return None
            pieces = self._sample(node.args[0], frame).value
            lines = [_piece(p) for p in (pieces if isinstance(pieces, tuple) else (pieces,))]
            if None in lines:
                return None

            def starts(raw: str) -> bool:
                return any(line_of(raw)[: len(p)] == p for p in lines if p is not None)

            return self._judged(node, frame, "gate-part", starts)
        is_helper = isinstance(function, Function) or function == Ref(COMPARE_VERSION)
        if is_helper and (node.args or node.keywords):
            return self._judged(node, frame, "gate-helper", self._as_release(node, frame))
        return None

    # -- what is meant ---------------------------------------------------------------

    def _pair(
        self, left: ast.expr, op: ast.cmpop, right: ast.expr, frame: Frame
    ) -> tuple[str, Callable[[str], Any]] | None:
        """Return the rule and what the author meant, by build."""
        a, b = self._sample(left, frame), self._sample(right, frame)
        if isinstance(op, (ast.In, ast.NotIn)):
            return self._membership(a, op, b, frame)
        if type(op) not in _MIRRORED:
            return None
        as_release = self._as_release(ast.Compare(left, [op], [right]), frame)
        if not (a.derived or b.derived):
            return "gate-version", as_release  # the constant pair of a chain
        if a.derived and b.derived:
            return None
        if b.derived:
            a, b, op = b, a, _MIRRORED[type(op)]()
        rule = _rule(a.value)
        wanted = _threshold(b.value)
        if wanted is None:
            # A number that is a component is compared as a number by everybody.
            return (rule, as_release) if isinstance(b.value, int) else None
        width = _width(a.value)
        if width is None:
            index = _component(a.value)
            if index is None:
                return rule, as_release
            number = wanted.release[0]
            return rule, lambda raw: COMPARISONS[type(op)](line_of(raw)[index], number)
        dated = wanted.dev is not None and wanted.dev > 20000000

        def meant(raw: str) -> Any:
            line = line_of(raw)
            if dated and line == (*wanted.release, 0, 0)[:3] and Version(raw).is_prerelease:
                return None  # a date was asked for, and no line
            return COMPARISONS[type(op)](Version(".".join(map(str, line[:width]))), wanted)

        return rule, meant

    def _membership(
        self, a: _Side, op: ast.cmpop, b: _Side, frame: Frame
    ) -> tuple[str, Callable[[str], Any]] | None:
        negated = isinstance(op, ast.NotIn)
        if isinstance(b.value, SpecifierSet):
            return "gate-specifier", self._as_release(ast.Compare(a.node, [op], [b.node]), frame)
        if a.derived and isinstance(b.value, (tuple, list, set, dict)):
            if not all(_threshold(item) is not None for item in b.value):
                return None
            return _rule(a.value), self._as_release(ast.Compare(a.node, [op], [b.node]), frame)
        if b.derived and not a.derived and isinstance(b.value, str):
            piece = _piece(a.value)
            if piece is None:
                return None
            return "gate-part", lambda raw: (line_of(raw)[: len(piece)] == piece) is not negated
        return None

    def _as_release(self, node: ast.expr, frame: Frame) -> Callable[[str], Any]:
        """What the same expression answers on the plain release of the build's line."""

        def meant(raw: str) -> Any:
            plain = _plain(line_of(raw))
            try:
                return self._on[plain].value(node, frame)
            except Raised:
                return None

        return meant

    # -- evaluation ------------------------------------------------------------------

    def _sample(self, node: ast.expr, frame: Frame) -> _Side:
        evaluator = self._on[_plain(_SAMPLE)]
        evaluator.used = False
        try:
            value = evaluator.value(node, frame)
        except Raised as raised:
            raise Unreadable("raises on a release") from raised
        return _Side(node, evaluator.used, value)

    def _judged(
        self, node: ast.expr, frame: Frame, rule: str, meant: Callable[[str], Any]
    ) -> Judgement | None:
        got_on_releases = {str(self._answer(raw, node, frame)) for raw in RELEASES}
        if len(got_on_releases) == 1 and len({meant(raw) for raw in RELEASES}) == 1:
            return None  # it does not ask for the line, but for the kind of build
        answers = []
        for raw in self.builds:
            want = meant(raw)
            if want is None:
                continue
            got = self._answer(raw, node, frame)
            answers.append(Answer(raw, str(got), str(bool(want))))
        return Judgement(rule, tuple(answers))

    def _answer(self, raw: str, node: ast.expr, frame: Frame) -> Any:
        evaluator = self._on[raw]
        evaluator.specifier = False
        try:
            got: Any = bool(evaluator.value(node, frame))
        except Raised as raised:
            return str(raised)
        if evaluator.specifier and got:
            evaluator.strict_pre = True
            try:
                if not evaluator.value(node, frame):
                    return "False (packaging 25 and older)"
            except Raised as raised:
                return str(raised)
            finally:
                evaluator.strict_pre = False
        return got


def _plain(line: Line) -> str:
    return ".".join(map(str, line))


def _all(parts: list[Any]) -> Any:
    return None if None in parts else all(parts)


def _rule(value: Any) -> str:
    if isinstance(value, (Version, TorchVersion, LooseVersion, StrictVersion)):
        return "gate-version"
    return "gate-text" if isinstance(value, str) else "gate-numbers"


def _threshold(value: Any) -> Version | None:
    """Read the constant side as a version, if it is one."""
    if isinstance(value, Version):
        return value
    if isinstance(value, LooseVersion):
        value = value.vstring
    elif isinstance(value, StrictVersion):
        value = ".".join(map(str, value.version))
    elif isinstance(value, (tuple, list)) and value:
        value = ".".join(map(str, value))
    elif isinstance(value, float):
        value = repr(value)
    if not isinstance(value, str) or not re.match(r"v?\d", value):
        return None
    try:
        return Version(value)
    except InvalidVersion:
        return None


def _width(value: Any) -> int | None:
    """How many components of the line a value for the sample release holds."""
    if isinstance(value, (Version, TorchVersion, LooseVersion, StrictVersion)):
        return 3
    if isinstance(value, float):
        value = repr(value)
    if isinstance(value, str):
        value = [piece for piece in value.split(".") if piece]
    if not isinstance(value, (tuple, list)):
        return None
    try:
        numbers = tuple(int(item) for item in value)
    except (TypeError, ValueError):
        return None
    return len(numbers) if numbers and numbers == _SAMPLE[: len(numbers)] else None


def _component(value: Any) -> int | None:
    """Which component of the line a single value for the sample release is."""
    for index, number in enumerate(_SAMPLE):
        if value in (str(number), [str(number)], [number]):
            return index
    return None


def _piece(text: Any) -> tuple[int, ...] | None:
    match = _PIECE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    return tuple(map(int, (match[1] or match[2]).split(".")))

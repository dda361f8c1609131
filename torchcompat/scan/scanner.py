"""The scan of files: gates and patches, with the shims that replace them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ..shim import Shim
from .evaluate import Evaluator
from .frames import Frame
from .gates import Judge, Judgement
from .model import Finding, Place, Scan
from .names import SCOPED, Scope, inner_scope
from .patches import PATCHING, Patch, patches_of
from .replaces import Replacements
from .sources import UNREADABLE, Module, Project, python_files
from .table import BUILDS
from .values import Unreadable

__all__ = ["scan"]

_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.alias)


def scan(paths: Iterable[str], shims: Iterable[Shim] = (), builds: Sequence[str] = BUILDS) -> Scan:
    """Scan files and folders.

    Args:
        paths: what to scan.
        shims: those that may replace a patch.
        builds: the versions that gates are tried on.

    Raises:
        PathError: a path does not exist.
    """
    files = list(python_files(paths))
    result = Scan(files=len(files))
    project = Project(files)
    judge = Judge(project, builds)
    replacements = Replacements(shims)
    # Trees hold no cycles; collecting them again and again takes half of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        _scan_files(files, project, judge, replacements, result)
    finally:
        if collects:
            gc.enable()
    result.found.sort(key=lambda finding: finding.place)
    result.unread.sort()
    return result


def _scan_files(
    files: list[Path], project: Project, judge: Judge, replacements: Replacements, result: Scan
) -> None:
    for path in files:
        try:
            module = project.module(path)
            if module is not None:
                _Walk(module, project, judge, replacements, result).run()
        except UNREADABLE as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            result.broken.append((path.as_posix(), reason))


class _Walk:
    """One walk through one module."""

    def __init__(
        self,
        module: Module,
        project: Project,
        judge: Judge,
        replacements: Replacements,
        result: Scan,
    ) -> None:
        self.module = module
        self.judge = judge
        self.replacements = replacements
        self.result = result
        self.names = Evaluator(project, "2.9.1")
        self.gates: list[tuple[ast.expr, Finding]] = []
        self.patches: dict[str, Finding] = {}
        self.branches: list[ast.If] = []
        self.guarded: dict[int, list[str]] = {}

    def run(self) -> None:
        self._visit(self.module.tree, self.module.scope)
        for node, finding in self.gates:
            keys = tuple(dict.fromkeys(self.guarded.get(id(node), ())))
            self.result.found.append(replace(finding, shims=keys))
        self.result.found.extend(self.patches.values())

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, PATCHING):
            frame = Frame(self.module, scope)
            for patch in patches_of(node, lambda expr: self.names.ref(expr, frame)):
                self._patched(patch)
        if isinstance(node, (ast.Compare, ast.Call)) and self._gate(node, Frame(self.module, scope)):
            return
        if isinstance(node, SCOPED):
            scope = self.module.scopes.get(id(node)) or inner_scope(node, scope) or scope
        if isinstance(node, ast.If):
            self.branches.append(node)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, _LEAVES):
                self._visit(child, scope)
        if isinstance(node, ast.If):
            self.branches.pop()

    def _patched(self, patch: Patch) -> None:
        place = self._place(patch.node)
        if self.module.ignored(place.line, place.end_line):
            return
        keys = self.replacements.of(patch.target)
        for branch in self.branches:
            for test in ast.walk(branch.test):
                self.guarded.setdefault(id(test), []).extend(keys)
        first = self.patches.get(patch.target)
        if first is not None:
            self.patches[patch.target] = replace(first, also=_with(first.also, place, first))
            return
        self.patches[patch.target] = Finding(
            rule=patch.rule,
            place=place,
            code=_code(patch.node),
            target=patch.target,
            shims=keys,
            note=patch.how,
        )

    def _gate(self, node: ast.Compare | ast.Call, frame: Frame) -> bool:
        """Judge an expression if it is a gate; say whether it was one."""
        looks = self.judge.looks_like_one(node, frame)
        if looks is False:
            return False
        place = self._place(node)
        if looks is None:
            if isinstance(node, ast.Compare):
                self.result.unread.append((place, _code(node)))
            return False
        try:
            judged: Judgement | None
            if isinstance(node, ast.Compare):
                judged = self.judge.compare(node, frame)
            else:
                judged = self.judge.call(node, frame)
        except Unreadable:
            self.result.unread.append((place, _code(node)))
            return False
        if judged is None or self.module.ignored(place.line, place.end_line):
            return judged is not None
        code = _code(node)
        wrong = tuple(answer for answer in judged.answers if not answer.right)
        for number, (first, found) in enumerate(self.gates):
            if found.code == code and found.rule == judged.rule and found.wrong == wrong:
                self.gates[number] = (first, replace(found, also=_with(found.also, place, found)))
                return True
        finding = Finding(
            rule=judged.rule, place=place, code=code, wrong=wrong, tried=len(judged.answers)
        )
        self.gates.append((node, finding))
        return True

    def _place(self, node: ast.stmt | ast.expr) -> Place:
        module = self.module
        return Place(
            module.path,
            node.lineno,
            module.column(node.lineno, node.col_offset),
            node.end_lineno or node.lineno,
        )


def _with(lines: tuple[int, ...], place: Place, first: Finding) -> tuple[int, ...]:
    more = () if place.line == first.place.line else (place.line,)
    return tuple(dict.fromkeys((*lines, *more)))


def _code(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:97]}..."

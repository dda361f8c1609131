"""The scan of files: gates and patches, with the shims that replace them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..shim import Shim
from .evaluate import Evaluator
from .frames import Frame
from .gates import Judge, Judgement
from .model import Finding, Place, Scan
from .names import Scope, inner_scope
from .patches import PATCHING, Patch, patches_of
from .replaces import Replacements
from .sources import UNREADABLE, Module, Project, python_files
from .table import BUILDS
from .values import Unreadable

__all__ = ["scan"]


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
    for path in files:
        try:
            module = project.module(path)
            if module is not None:
                _Walk(module, project, judge, replacements, result).run()
        except UNREADABLE as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            result.broken.append((path.as_posix(), reason))
    result.found.sort(key=lambda finding: finding.place)
    result.unread.sort()
    return result


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
        frame = Frame(self.module, scope)
        if isinstance(node, PATCHING):
            for patch in patches_of(node, lambda expr: self.names.ref(expr, frame)):
                self._patched(patch)
        if isinstance(node, (ast.Compare, ast.Call)) and self._gate(node, frame):
            return
        inner = self.module.scopes.get(id(node)) or inner_scope(node, scope) or scope
        if isinstance(node, ast.If):
            self.branches.append(node)
        for child in ast.iter_child_nodes(node):
            self._visit(child, inner)
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
            also = tuple(dict.fromkeys((*first.also, place.line)))
            self.patches[patch.target] = replace(first, also=also)
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
        finding = Finding(
            rule=judged.rule,
            place=place,
            code=_code(node),
            wrong=tuple(answer for answer in judged.answers if not answer.right),
            tried=len(judged.answers),
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


def _code(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:97]}..."

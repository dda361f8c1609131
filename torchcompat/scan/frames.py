"""Where an expression of the scanned code stands."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from .names import Scope
from .sources import Module

__all__ = ["Frame", "Function"]


@dataclass(slots=True)
class Frame:
    """Where an expression stands: its module, its scope, and a called function's locals."""

    module: Module
    scope: Scope
    locals: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the scanned code."""

    definition: ast.FunctionDef
    frame: Frame

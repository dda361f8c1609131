"""Calls that lead to torch: its metadata, importlib, and helpers of known distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import Version

from .frames import Function
from .values import Ref, guarded

if TYPE_CHECKING:
    from .evaluate import Evaluator

__all__ = ["COMPARE_VERSION", "asks_for_torch", "special_call"]

_METADATA = frozenset({"importlib.metadata.version", "importlib_metadata.version"})
#: A helper of another distribution that frameworks use; its real behaviour is below.
COMPARE_VERSION = "lightning_utilities.core.imports.compare_version"


def special_call(evaluator: Evaluator, dotted: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Answer calls that depend on torch or that take what is imported; else None."""
    first = args[0] if args else None
    if dotted in _METADATA and first == "torch":
        evaluator.used = True
        return str(evaluator.version)
    if dotted in ("importlib.import_module", "importlib.util.find_spec") and isinstance(first, str):
        return Ref(first)
    if dotted == "builtins.getattr" and isinstance(first, Ref) and isinstance(args[1], str):
        return evaluator.imported(f"{first.dotted}.{args[1]}")
    if dotted == "builtins.hasattr" and first == Ref("torch.version"):
        return args[1] in ("__version__", "cuda", "debug", "git_version", "hip")
    if dotted == "builtins.map" and len(args) == 2:
        return [evaluator.called(first, [item], {}) for item in guarded(list, args[1])]
    if dotted == COMPARE_VERSION and first == "torch" and len(args) == 3:
        evaluator.used = True
        found = Version(evaluator.version)
        if kwargs.get("use_base_version"):
            found = Version(found.base_version)
        return evaluator.called(args[1], [found, guarded(Version, args[2])], {})
    return None


def asks_for_torch(function: Any) -> bool:
    """Whether a helper asks if torch is installed: a scan is about builds of it."""
    name = (
        function.definition.name if isinstance(function, Function) else getattr(function, "dotted", "")
    )
    return name.rpartition(".")[2].lstrip("_") == "is_torch_available"

"""``torchcompat status``: what became of each shim here, and what is wrong with the installation."""

from __future__ import annotations

import argparse
import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .report import Report

__all__ = ["run_status"]


def run_status(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from .installation import troubles

    found = troubles()
    if not arguments.json:
        # Before anything else: a damaged installation may fail at the next import.
        for trouble in found:
            print(f"note: {trouble.sentence}", flush=True)
    report = _report()
    if arguments.json:
        told = report.as_dict()
        told["problems"] += [trouble.sentence for trouble in found]
        print(json.dumps(told, indent=2))
    else:
        print(report)
        for outcome in report.values():
            for edit in outcome.edits:
                print(f"  {outcome.key}: {edit}")
    return 1 if report.troubled or any(trouble.broken for trouble in found) else 0


def _report() -> Report:
    """Apply all shims to a fully imported torch."""
    from importlib import import_module

    from .builds import torch_loaded
    from .default import apply_all, registry, torch_build
    from .errors import TorchCompatError
    from .report import State

    torch_build()
    report = apply_all()
    waiting = {name for key in report.keys_in(State.PENDING) for name in registry.entry(key).modules}
    for name in ("torch", *sorted(waiting)):
        try:
            import_module(name)
        except ImportError as error:
            if not torch_loaded():
                raise TorchCompatError(f"torch cannot be imported: {error}") from error
    return apply_all()

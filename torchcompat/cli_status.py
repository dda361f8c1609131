"""``torchcompat status``: what became of each shim here, and what is wrong with the installation."""

from __future__ import annotations

import argparse
import json

__all__ = ["run_status"]


def run_status(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from importlib import import_module

    from .builds import torch_loaded
    from .default import apply_all, registry, torch_build
    from .errors import TorchCompatError
    from .installation import troubles
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
    report = apply_all()
    found = troubles()
    if arguments.json:
        told = report.as_dict()
        told["problems"] += [trouble.sentence for trouble in found]
        print(json.dumps(told, indent=2))
    else:
        for trouble in found:
            print(f"note: {trouble.sentence}")
        print(report)
        for outcome in report.values():
            for edit in outcome.edits:
                print(f"  {outcome.key}: {edit}")
    return 1 if report.troubled or any(trouble.broken for trouble in found) else 0

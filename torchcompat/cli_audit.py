"""``torchcompat audit``: what a framework's declared range of torch needs."""

from __future__ import annotations

import argparse
import json

__all__ = ["add_audit", "run_audit"]


def add_audit(sub: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    source = sub.add_mutually_exclusive_group(required=True)
    source.add_argument("--torch", metavar="RANGE", help='the range, such as ">=2.9,<2.16"')
    source.add_argument("--pyproject", metavar="FILE", help="read the range from a pyproject.toml")
    sub.add_argument("--json", action="store_true", help="print JSON instead of text")


def run_audit(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from .audit import audit
    from .default import registry
    from .errors import InputError
    from .pyproject import torch_ranges

    where = ""
    if arguments.pyproject is not None:
        ranges, where = torch_ranges(arguments.pyproject)
    elif arguments.torch.strip():
        ranges = (arguments.torch,)
    else:
        raise InputError("--torch is empty; write it like '>=2.9,<2.16', or '>=2.4' for all")
    found = audit(ranges, registry)
    if arguments.json:
        print(json.dumps({"found_in": where or None, **found.as_dict()}, indent=2))
    else:
        print(f"{where}: {found}" if where else found)
    return 0

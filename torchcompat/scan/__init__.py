"""``torchcompat scan``: what a code base does to torch, and about its version, by hand."""

from __future__ import annotations

from .model import Finding, Scan
from .scanner import scan

__all__ = ["Finding", "Scan", "scan"]

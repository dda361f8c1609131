"""Take out of a message what belongs to one machine or one run, so that evidence can be compared."""

from __future__ import annotations

import re

__all__ = ["scrub"]

_PACKAGES = re.compile(r"(?:\b[A-Za-z]:)?[^\s'\"`:,;()<>\[\]]*[/\\](?:site|dist)-packages(?=[/\\])")
_STDLIB = re.compile(r"(?:\b[A-Za-z]:)?[^\s'\"`:,;()<>\[\]]*[/\\]lib[/\\]python3\.\d+(?=[/\\])")
# Two parts at least: "/tmp" alone, or "N/A", says nothing about a machine.
_MACHINE = re.compile(
    r"(?<![\w/.<>])(?:file://)?(?:[A-Za-z]:[/\\]|/)"
    r"(?:home|root|tmp|var|private|work|Users|mnt|media|opt|usr|workspace|builds|scratch|data)"
    r"[/\\][^\s'\"`:,;()<>\[\]]*"
)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")


def scrub(message: str) -> str:
    """Replace folders of this machine and addresses in memory by names for them.

    A file keeps its last part, and its whole path below ``site-packages``.
    """
    message = _PACKAGES.sub("<site-packages>", message)
    message = _STDLIB.sub("<python>", message)
    message = _MACHINE.sub(_last_part, message)
    return _ADDRESS.sub("0x...", message)


def _last_part(found: re.Match[str]) -> str:
    return "<path>/" + re.split(r"[/\\]", found[0])[-1]

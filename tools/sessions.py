"""Turn ``nox --list --json`` on stdin into a JSON list of session names for a CI matrix."""

from __future__ import annotations

import json
import sys

names = [session["session"] for session in json.load(sys.stdin)]
if not names:
    raise SystemExit("nox listed no session: is the tag right?")
print(json.dumps(names))

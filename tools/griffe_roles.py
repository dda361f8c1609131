"""For the docs site: show ``:meth:`name``` in docstrings as plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Roles(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", obj.docstring.value)

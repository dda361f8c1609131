"""How long the generated tests run, and the figures that they report for the README's table.

``TORCHCOMPAT_TEST_SCALE=20`` plays twenty times as many cases; ``tools/reliability.py`` does so.
"""

from __future__ import annotations

import os

# Read here: the clean_environment fixture takes our variables away from the tests.
SCALE = float(os.environ.get("TORCHCOMPAT_TEST_SCALE", "1"))


def scaled(count: int) -> int:
    return max(1, int(count * SCALE))

from __future__ import annotations

import pytest

from torchcompat.scrub import scrub


@pytest.mark.parametrize(
    ("message", "clean"),
    [
        (
            "ImportError: cannot import name 'x' from 'torch.y' (/a/b/lib/python3.11/site-packages/torch/y.py)",
            "ImportError: cannot import name 'x' from 'torch.y' (<site-packages>/torch/y.py)",
        ),
        ("in /usr/lib/python3/dist-packages/torch/y.py", "in <site-packages>/torch/y.py"),
        ("at /opt/py/lib/python3.12/random.py:3", "at <python>/random.py:3"),
        ("No such file: '/tmp/torchcompat-ab12/store'", "No such file: '<path>/store'"),
        ("file:///tmp/torchcompat-ab12/store is gone", "<path>/store is gone"),
        (r"C:\Users\me\shim.py is gone", "<path>/shim.py is gone"),
        (r"C:\py\Lib\site-packages\torch\y.py", r"<site-packages>\torch\y.py"),
        ("<function f at 0x7f00aabbccdd>", "<function f at 0x...>"),
        # What every machine says alike is kept.
        ("Operator aten.alias.default N/A", "Operator aten.alias.default N/A"),
        ("see https://pytorch.org/docs/data/x.html", "see https://pytorch.org/docs/data/x.html"),
        ("raised from check at /pytorch/c10/core/Device.cpp:5", None),
        ("shape [4, 4] and dtype 0x10", None),
        ("torch/usr/x.py", None),
    ],
)
def test_scrub(message, clean):
    assert scrub(message) == (message if clean is None else clean)
    assert scrub(scrub(message)) == scrub(message)

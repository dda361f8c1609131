"""The table of real frameworks, and what judges their examples (nox -s downstream runs them)."""

from __future__ import annotations

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "downstream"))

import check

CLIENTS = check.clients()


@pytest.mark.parametrize("client", CLIENTS, ids=[client["name"] for client in CLIENTS])
def test_a_client_has_a_short_example(client):
    text = (ROOT / client["example"]).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert "--no-shim" in text
    assert "torchcompat.apply_all()" in text
    assert any(client["name"] in word for arguments in client["install"] for word in arguments)
    assert client["torch"].startswith("torch==")
    assert client["path"]


GOOD = "print('step 0 loss 2.0')\nprint('step 1 loss 1.0')\n"
BAD = "raise RuntimeError('the fault')\n"


@pytest.mark.parametrize(
    ("without", "with_shim", "said"),
    [
        (BAD, GOOD, None),
        (GOOD, GOOD, "without the shim it trains"),
        ("raise ValueError('another')\n", GOOD, "fails otherwise than documented"),
        (BAD, BAD, "with the shim it fails"),
        (BAD, "print('step 0 loss 1.0')\nprint('step 1 loss 1.0')\n", "the loss does not fall"),
        (BAD, "print('nothing')\n", "the loss does not fall"),
    ],
)
def test_both_directions_count(tmp_path, without, with_shim, said):
    example = tmp_path / "example.py"
    branches = [text.replace("\n", "\n    ") for text in (without, with_shim)]
    example.write_text(
        f"import sys\nif '--no-shim' in sys.argv:\n    {branches[0]}\nelse:\n    {branches[1]}\n"
    )
    wrong = check.judge(example, "the fault")
    assert (said is None and wrong == []) or (len(wrong) == 1 and said in wrong[0])

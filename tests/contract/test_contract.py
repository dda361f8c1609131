"""The contract finds what it is there to find; on a tiny package named torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import ROOT, child_environment

INIT = "from . import ops\n"
OPS = "def broken():\n    return 'bad'\n\nKEEP = [1]\nTABLE = {}\n"
SHIM = """
import functools
import torchcompat
from torchcompat import *

TARGET = "torch.ops:broken"

def probe():
    return present("bad") if lookup(TARGET)() == "bad" else absent("good", cured=True)

def make(original):
    {wraps}
    def broken():
        return "good"
    return broken

def left_behind():
    lookup("torch.ops:TABLE")["left"] = 1

def other_list():
    import torch.ops
    torch.ops.KEEP = [2]

def edits():
    {edits}

def nothing():
    pass

SHIM = Shim(
    key="tiny", summary="{summary}", symptom="s", cause="c", cure="c", upstream={upstream},
    affected=Affected(since="2.13.0"), modules=("torch.ops",), probe=probe, edits=edits,
    reproducers=(Reproducer(name="only", run={run}, expect="x"),), removable_when="never",
)
torchcompat.register(SHIM)
"""
GOOD = {
    "wraps": "@functools.wraps(original, updated=())",
    "edits": "return [ReplaceAttr(TARGET, make)]",
    "summary": "it says bad",
    "upstream": "()",
    "run": "nothing",
}
TEST = """
from torchcompat.testing import ORDERS, ShimContract

class TestTiny(ShimContract):
    keys = ("tiny",)
    setup_modules = ("tiny_shim",)

    test_the_reproducers_agree_with_the_gate = None

    def pytest_generate_tests(self, metafunc):
        if "order" in metafunc.fixturenames:
            metafunc.parametrize("order", ORDERS if {every} else ["T M A", "T M A R", "A T M R"])
        if "key" in metafunc.fixturenames:
            metafunc.parametrize("key", self.keys)
"""


@pytest.fixture
def contract(tmp_path, fake_torch):
    def run(*, every=False, **changes):
        folder = fake_torch("2.13.0", init=INIT)
        (folder / "torch" / "ops.py").write_text(OPS)
        (tmp_path / "tiny_shim.py").write_text(SHIM.format(**{**GOOD, **changes}))
        (tmp_path / "test_tiny.py").write_text(TEST.format(every=every))
        env = child_environment(folder, tmp_path, ROOT)
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "test_tiny.py"],
            capture_output=True, text=True, env=env, cwd=tmp_path, check=False, timeout=300,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_good_shim_passes_every_order(contract):
    code, out = contract(every=True)
    assert code == 0, out
    assert "27 passed" in out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"edits": "return [ReplaceAttr(TARGET, make), Call('torch.ops:TABLE', left_behind, nothing)]"},
            "TABLE is not what it was",
        ),
        (
            {"edits": "return [ReplaceAttr(TARGET, make), Call('torch.ops:KEEP', other_list, nothing)]"},
            "KEEP is not what it was",
        ),
        ({"wraps": "# not wrapped"}, "no longer pickles"),
        ({"summary": "two\\nlines"}, "summary is one line"),
        ({"upstream": "('not an address',)"}, "'not an address' is no https address"),
        ({"run": "(lambda: None)"}, "is no module-level function"),
    ],
    ids=["leaves an entry", "leaves an attribute", "does not pickle", "summary", "upstream", "lambda"],
)  # fmt: skip
def test_a_bad_shim_is_found_out(contract, changes, says):
    code, out = contract(**changes)
    assert code == 1, out
    assert says in out, out
    if "edits" in changes:
        # Where nothing could be compared within the process, another one tells.
        assert "after A T M R and a revert these differ from a torch never touched" in out, out

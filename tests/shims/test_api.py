"""torchcompat.api on this torch: every row of its table, the backports, and what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from torchcompat.api import backports
from torchcompat.api.rows import ROWS, TABLE

pytestmark = pytest.mark.torch

#: Run on builds that have the names as well: the same program must pass with torch's own.
SMALL = """
import io, math, warnings
from types import SimpleNamespace
import torch
from torchcompat.api import (
    clip_grads_with_norm_, get_safe_globals, get_total_norm, safe_globals, sym_and, sym_or, sym_sum,
)
import torchcompat.api.backports as backports

def refuses(call, *error):
    try:
        call()
    except error:
        return
    raise AssertionError("it did not raise")

# safe_globals: inside the block only, also after an error, and nested.
for context in (safe_globals, backports.safe_globals):
    before = list(get_safe_globals())
    file = io.BytesIO()
    torch.save({"made": SimpleNamespace(a=torch.ones(2))}, file)

    def load():
        file.seek(0)
        return torch.load(file, weights_only=True)

    refuses(load, Exception)
    with context([SimpleNamespace]):
        assert load()["made"].a.sum() == 2
        with context([complex]):
            torch.serialization.add_safe_globals([range])
        assert complex not in get_safe_globals() and SimpleNamespace in get_safe_globals()
    assert range in get_safe_globals() and SimpleNamespace not in get_safe_globals()
    refuses(load, Exception)
    def die():
        with context([SimpleNamespace]):
            raise KeyError
    refuses(die, KeyError)
    refuses(load, Exception)
    assert set(get_safe_globals()) == {*before, range}
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(before)

# The norms and the clipping: as clip_grad_norm_ does both at once, to the last bit.
for norm, clip in ((get_total_norm, clip_grads_with_norm_),
                   (backports.get_total_norm, backports.clip_grads_with_norm_)):
    for kind in (2.0, 1.0, 3.5, math.inf):
        for foreach in (None, False, True):
            made = []
            for _ in range(2):
                torch.manual_seed(0)
                made.append([torch.nn.Parameter(torch.zeros(3, n)) for n in (1, 5, 40)])
                for p in made[-1]:
                    p.grad = torch.randn_like(p) * 9
                made[-1].append(torch.nn.Parameter(torch.zeros(1)))
            want = torch.nn.utils.clip_grad_norm_(made[0], 1.5, kind, foreach=foreach)
            got = norm([p.grad for p in made[1] if p.grad is not None], kind, foreach=foreach)
            clip(made[1], 1.5, got, foreach=foreach)
            assert torch.equal(want, got) and not got.requires_grad
            for a, b in zip(*made):
                assert (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad)
    assert norm([]) == 0.0 and norm(torch.full((4,), 2.0)) == 4.0
    assert not norm(torch.ones(2, requires_grad=True)).requires_grad
    refuses(lambda: norm([torch.tensor([math.inf])], error_if_nonfinite=True), RuntimeError)
    assert norm([torch.tensor([math.inf])]) == math.inf
    clip(torch.nn.Parameter(torch.zeros(1)), 1.0, torch.tensor(3.0))

# Symbolic numbers, which must not be asked for their truth.
from torch.fx.experimental.symbolic_shapes import ShapeEnv
for both, either, total in ((sym_and, sym_or, sym_sum),
                            (backports.sym_and, backports.sym_or, backports.sym_sum)):
    u, w = (ShapeEnv().create_unbacked_symint() for _ in range(2))
    env = ShapeEnv()
    u, w = env.create_unbacked_symint(), env.create_unbacked_symint()
    assert both(True) is True and either(False) is False and total([1, 2.5]) == 3.5
    assert (both(True, False), either(False, True)) == (False, True)
    for combined, text in ((both(u > 3, w > 4), "&"), (either(u > 3, w > 4), "|")):
        assert isinstance(combined, torch.SymBool) and text in str(combined), combined
    added = total([u, w, 2])
    assert isinstance(added, torch.SymInt)
    assert added.node.expr == (u + w + 2).node.expr
"""

EXPORTING = """
import torch, torch.export
from torchcompat import api
from torchcompat.api import is_exporting

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 if is_exporting() else x * 3

class Late(torch.nn.Module):
    def forward(self, x):
        return x * 2 if api.is_exporting() else x * 3

x = torch.ones(2)
assert is_exporting() is False
for model in (Model(), Late()):
    def exported(strict):
        return torch.export.export(model, (x,), strict=strict).module()(x)[0].item()
    def compiled():
        torch._dynamo.reset()
        return torch.compile(model, backend="eager", fullgraph=True)(x)[0].item()
    assert model(x)[0] == 3
    known = getattr(torch.compiler, "is_exporting", None)
    if known is None:  # from 2.7 to 2.11 torch's own says True here: the shim compiler_is_exporting
        assert compiled() == 3
    assert (exported(True), exported(False)) == (2, 2)
    if known is None:
        assert compiled() == 3
    assert model(x)[0] == 3 and is_exporting() is False
"""


#: Asks torch itself, not the resolver, where each name is; then compares what the resolver gives.
#: One interpreter for this and the programs below: importing all these modules takes seconds.
LOOK = """
import importlib, json, sys, traceback, warnings
warnings.simplefilter("ignore")
from torchcompat import api
from torchcompat.api import backports
from torchcompat.api.rows import ROWS
from torchcompat.builds import detect

def ask(home):
    try:
        return vars(importlib.import_module(home.module)).get(home.attribute)
    except ModuleNotFoundError as error:
        assert error.name and home.module.startswith(error.name), error
        return None

rows = {}
for row in ROWS:
    homes = [ask(home) for home in row.homes]
    want = next((found for found in homes if found is not None), getattr(backports, row.name, None))
    got = getattr(api, row.name, None)
    rows[row.name] = {
        "has": [found is not None for found in homes],
        "same": got is want,
        "missing": got is None,
    }
ran = {}
programs = json.loads(sys.stdin.read())
if rows["is_exporting"]["has"] == [True]:
    del programs["EXPORTING"]
for name, program in programs.items():
    try:
        exec(program, {"__name__": "program"})
        ran[name] = ""
    except Exception:
        ran[name] = traceback.format_exc()
print(json.dumps({"line": detect().line, "rows": rows, "ran": ran}))
"""


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        input=json.dumps({"SMALL": SMALL, "EXPORTING": EXPORTING}),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path_factory.mktemp("api"),
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _line(release: str) -> list[int]:
    return [int(part) for part in release.split(".")] if release else []


def _expected(row, path, line) -> bool:
    """Whether some window of the row says that the build has this place."""
    return any(
        _line(home.since) <= line and not (home.gone and line >= _line(home.gone))
        for home in row.homes
        if home.path == path
    )


def test_the_table_is_right_in_both_directions(looked):
    wrong = [
        f"{home} since={home.since or '-'} gone={home.gone or '-'}: found {has}"
        for row in ROWS
        for home, has in zip(row.homes, looked["rows"][row.name]["has"], strict=True)
        if has != _expected(row, home.path, looked["line"])
    ]
    assert not wrong, wrong


def test_each_name_is_the_very_object_of_this_build(looked):
    assert set(looked["rows"]) == set(TABLE)
    assert [name for name, row in looked["rows"].items() if not row["same"]] == []


def test_only_names_without_a_backport_are_missing(looked):
    for row in ROWS:
        here = any(_expected(row, home.path, looked["line"]) for home in row.homes)
        assert looked["rows"][row.name]["missing"] == (not here and not row.backport), row.name


def test_each_backport_is_in_the_table():
    assert set(backports.__all__) == {row.name for row in ROWS if row.backport}


def test_the_backports_that_need_no_compiler(looked):
    assert looked["ran"]["SMALL"] == ""


def test_is_exporting(looked):
    if "EXPORTING" not in looked["ran"]:
        pytest.skip("this build has is_exporting; the test below runs the program with that one")
    assert looked["ran"]["EXPORTING"] == ""


@pytest.mark.slow
def test_the_same_program_passes_with_torchs_own_is_exporting(python):
    python(EXPORTING, timeout=300)

from __future__ import annotations

import json
import re
import sys
import textwrap

import pytest
from conftest import ROOT
from fakes import make_shim
from packaging.version import Version

from torchcompat import Affected, cli
from torchcompat.audit import audit, releases_in
from torchcompat.errors import InputError
from torchcompat.pyproject import torch_ranges
from torchcompat.releases import OLDER, RELEASES, spans

# -- the list of releases ------------------------------------------------------------


def test_the_releases_are_in_order_and_from_the_oldest_tested_one():
    assert sorted(RELEASES, key=Version) == list(RELEASES)
    assert sorted(OLDER, key=Version, reverse=True) == list(OLDER)
    assert Version(OLDER[0]) < Version(RELEASES[0])


def test_nox_tests_each_of_them():
    text = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    listed = [
        re.search(rf"^{name} = (\[.*?\])", text, re.MULTILINE | re.DOTALL)[1]
        for name in ("MATRIX", "PATCHES")
    ]
    found = [release for block in listed for release in re.findall(r'"([\d.]+)"', block)]
    assert sorted(found, key=Version) == list(RELEASES)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ([], ""),
        (["2.5.0"], "2.5.0"),
        (["2.5.0", "2.5.1"], "2.5.0, 2.5.1"),
        (["2.9.1", "2.5.0", "2.5.1", "2.6.0"], "2.5.0 to 2.6.0, 2.9.1"),
        (RELEASES, "2.4.0 to 2.15.0"),
    ],
)
def test_spans(chosen, text):
    assert spans(chosen) == text


# -- ranges --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "first", "last", "count"),
    [
        (">=2.9,<2.16", "2.9.0", "2.15.0", 10),
        (">=2.9, <2.14", "2.9.0", "2.13.0", 7),
        ("~=2.9", "2.9.0", "2.15.0", 10),
        ("~=2.9.0", "2.9.0", "2.9.1", 2),
        ("==2.9.*", "2.9.0", "2.9.1", 2),
        ("!=2.9.*,>=2.8", "2.8.0", "2.15.0", 9),
        ("", "2.4.0", "2.15.0", 18),
        # An alpha as a bound, and the releases around it.
        (">=2.13.0a0", "2.13.0", "2.15.0", 4),
        ("<2.13.0a0", "2.4.0", "2.12.1", 14),
        (">2.9", "2.9.1", "2.15.0", 9),
        # A local segment names a build, and the release is what counts.
        ("==2.13.0+cu130", "2.13.0", "2.13.0", 1),
        ("===2.13.0+cu130", "2.13.0", "2.13.0", 1),
        (">=2.13,!=2.13.0+cu130", "2.13.0", "2.15.0", 4),
    ],
)
def test_a_range_is_decided_release_by_release(text, first, last, count):
    found = releases_in(text)
    assert (found[0], found[-1], len(found)) == (first, last, count)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("banana", "'banana' is not a range of versions; write it like '>=2.9,<2.16'"),
        (">=2.9,<", "'<' in '>=2.9,<' is not a range"),
        (">=2.9;", "is not a range"),
        ("~=2", "is not a range"),
        (">=two", "is not a range"),
        ("2.9", "write '==2.9' for that version alone, '>=2.9' for it and what follows"),
        ("^2.9", "it is Poetry's notation; write '>=2.9,<3'"),
        ("~2.9.1", "it is Poetry's notation; write '>=2.9.1,<2.10'"),
        (">=2.16", "no known release of torch is in '>=2.16': this torchcompat knows 2.4.0 to 2.15.0"),
        ("<2.4", "no known release"),
        (">=2.9,<2.9", "no known release"),
        (" ", "--torch is empty; write it like"),
    ],
)
def test_a_bad_range_gets_one_sentence(capsys, text, says):
    assert cli.main(["audit", "--torch", text]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchcompat: error: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err


# -- what it says --------------------------------------------------------------------

OPEN = make_shim("still_there", affected=Affected(since="2.13.0a0"), opt_in=True)
FIXED = make_shim("fixed", affected=Affected(since="2.5.0", fixed_in=("2.10.0",)))
BRANCH = make_shim("branch", affected=Affected(since="2.9.0", fixed_in=("2.9.1", "2.10.0")))
ONE = make_shim("one", affected=Affected(since="2.10.0", fixed_in=("2.11.0",)))
OLD = make_shim("old", affected=Affected(since=None, fixed_in=("2.6.0",)))
GONE = make_shim("gone", retired="nobody needs it")


@pytest.mark.parametrize(
    ("shim", "range_", "needed_on", "drop_at"),
    [
        (OPEN, ">=2.9,<2.16", "2.13.0 to 2.15.0", None),
        (OPEN, ">=2.9,<2.13", "", None),
        (FIXED, ">=2.9,<2.16", "2.9.0, 2.9.1", "2.10.0"),
        (FIXED, "<2.10", "2.5.0 to 2.9.1", None),
        (FIXED, ">=2.5,!=2.10.*", "2.5.0 to 2.9.1", "2.11.0"),
        (BRANCH, ">=2.9", "2.9.0", "2.9.1"),
        (BRANCH, ">=2.9,!=2.9.0", "", None),
        (ONE, ">=2.4", "2.10.0", "2.11.0"),
        (OLD, ">=2.4", "2.4.0 to 2.5.1", "2.6.0"),
        (OLD, ">=2.6", "", None),
    ],
)
def test_what_a_shim_is_to_a_range(shim, range_, needed_on, drop_at):
    (found,) = audit([range_], [shim]).shims
    assert (spans(found.needed_on), found.drop_at) == (needed_on, drop_at)


def test_the_moves_of_the_lower_bound():
    found = audit([">=2.9"], [OPEN, FIXED, BRANCH, ONE, OLD, GONE])
    assert found.moves == {"2.9.1": ["branch"], "2.10.0": ["fixed"], "2.11.0": ["one"]}
    lines = str(found).splitlines()
    assert lines[0] == "torch >=2.9: known releases 2.9.0 to 2.15.0 (10)"
    assert any(
        re.fullmatch(
            r"still_there \(opt-in\) +2\.13\.0 to 2\.15\.0 +no release has a fix +not yet: 2\.15\.0 has the fault",
            line,
        )
        for line in lines
    )
    assert any(
        re.fullmatch(
            r"fixed +2\.9\.0, 2\.9\.1 +fixed in 2\.10\.0 +once the lower bound is 2\.10\.0", line
        )
        for line in lines
    )
    assert "lower bound >=2.10.0: drop fixed" in lines
    assert lines[-1] == "not needed in this range: old (every build, fixed in 2.6.0)"
    assert "gone" not in str(found)


@pytest.mark.parametrize(
    ("range_", "older", "newer"),
    [
        (">=2.9,<2.16", False, False),
        (">=2.9", False, True),
        ("<2.16", True, False),
        (">=2.3,<3", True, True),
    ],
)
def test_what_the_answer_does_not_cover_is_said(range_, older, newer):
    notes = " ".join(audit([range_], [OPEN]).notes)
    assert ("releases before 2.4.0, such as 2.3.1" in notes) == older
    assert ("newer than 2.15.0" in notes) == newer


def test_nothing_needed():
    assert "no shim is needed" in str(audit([">=2.11,<2.13"], [ONE]))


def test_the_command(capsys):
    assert cli.main(["audit", "--torch", ">=2.9,<2.16"]) == 0
    out = capsys.readouterr().out
    assert "dtensor_alias" in out
    assert "lower bound >=2.10.0: drop dtensor_alias" in out
    assert cli.main(["audit", "--torch", ">=2.9,<2.16", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ranges"] == [">=2.9,<2.16"]
    needed = {shim["key"]: shim for shim in told["needed"]}
    assert needed["dtensor_alias"]["drop_at"] == "2.10.0"
    assert needed["dtensor_alias"]["fixed_in"] == ["2.10.0"]
    assert needed["dtensor_alias"]["upstream"]
    assert needed["sac_profiler"]["drop_at"] is None
    assert "dtensor_alias" in next(m["drops"] for m in told["moves"] if m["lower_bound"] == "2.10.0")


@pytest.mark.parametrize("arguments", [["audit"], ["audit", "--torch", ">=2", "--pyproject", "x"]])
def test_one_source_of_the_range(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2


# -- pyproject.toml ------------------------------------------------------------------

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")


@pytest.fixture
def pyproject(tmp_path):
    def write(text):
        path = tmp_path / "pyproject.toml"
        path.write_text(textwrap.dedent(text))
        return path

    return write


@needs_toml
@pytest.mark.parametrize(
    ("text", "ranges", "where"),
    [
        (
            '[project]\ndependencies = ["numpy", "torch>=2.9,<2.16"]',
            (">=2.9,<2.16",),
            "project.dependencies",
        ),
        ('[project]\ndependencies = ["Torch"]', ("",), "project.dependencies"),
        (
            '[project]\ndependencies = ["torchvision>=0.20", "torch[opt-einsum]==2.13.0+cu130"]',
            ("==2.13.0+cu130",),
            "project.dependencies",
        ),
        (
            """
            [project]
            dependencies = ["torch>=2.4; sys_platform == 'darwin'", "torch>=2.6; sys_platform != 'darwin'"]
            [project.optional-dependencies]
            gpu = ["torch>=2.13"]
            """,
            (">=2.4", ">=2.6"),
            "project.dependencies",
        ),
        (
            '[project.optional-dependencies]\na = ["torch>=2.6"]\nb = ["torch>=2.6"]',
            (">=2.6",),
            "project.optional-dependencies",
        ),
        (
            '[dependency-groups]\ntest = [{include-group = "x"}, "torch==2.9.*"]\nx = []',
            ("==2.9.*",),
            "dependency-groups",
        ),
    ],
)
def test_where_a_project_states_its_range(pyproject, text, ranges, where):
    got, found_in = torch_ranges(pyproject(text))
    assert got == ranges
    assert found_in == where


@needs_toml
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[project]\nname = 'x'", "does not name torch among its dependencies"),
        ("[project]\ndynamic = ['dependencies']", "leaves its dependencies to the build"),
        ("[tool.poetry.dependencies]\ntorch = '^2.4'", "states torch in Poetry's own table, as '^2.4'"),
        (
            "[project]\ndependencies = ['torch @ https://example.org/torch.whl']",
            "names one file and no range",
        ),
        ("[project]\ndependencies = ['torch>=2.9<3']", "'torch>=2.9<3' is no requirement"),
        ("[project\n", "is not TOML"),
    ],
)
def test_a_project_without_a_range_gets_one_sentence(pyproject, capsys, text, says):
    assert cli.main(["audit", "--pyproject", str(pyproject(text))]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.startswith("torchcompat: error: ")


@needs_toml
def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        torch_ranges(tmp_path / "pyproject.toml")
    with pytest.raises(InputError, match=r"is a folder; did you mean .*pyproject\.toml\?"):
        torch_ranges(tmp_path)


@needs_toml
def test_pyproject_on_the_command_line(pyproject, capsys):
    path = pyproject(
        '[project]\ndependencies = ["torch>=2.4,<2.5; python_version < \'3.11\'", "torch>=2.10,<2.11"]'
    )
    assert cli.main(["audit", "--pyproject", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("project.dependencies: torch ")
    assert "known releases 2.4.0, 2.4.1, 2.10.0 (3)" in out
    assert cli.main(["audit", "--pyproject", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["found_in"] == "project.dependencies"


def test_python_3_10_is_told_the_way_out(pyproject, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", None)
    with pytest.raises(InputError, match="takes Python 3.11 or `pip install tomli`; or give the range"):
        torch_ranges(pyproject("[project]"))

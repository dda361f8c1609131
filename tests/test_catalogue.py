"""The catalogue page and the grid picture: current, complete, readable."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from conftest import ROOT
from fakes import make_shim, nothing
from test_evidence import evidence, finding

from torchcompat import Affected, Reproducer
from torchcompat.evidence import from_dict
from torchcompat.registry import Registry
from torchcompat.verify import Ran

sys.path.insert(0, str(ROOT / "tools"))

import catalogue
from cells import Cell, Column, cell, columns
from grid import SHAPES, STYLE, draw

SHIMS = list(Registry(plugins=False))
SVG = "{http://www.w3.org/2000/svg}"


def test_page_and_picture_are_current():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "catalogue.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def column(torch, *findings, emulated=None):
    return Column(torch, from_dict(evidence(torch, *findings, emulated=emulated)))


@pytest.fixture
def folder(tmp_path):
    """Evidence of two builds for the built-in shims, in a folder of its own."""
    path = tmp_path / "evidence"
    path.mkdir()
    for release in ("2.13.0", "2.9.0"):
        (path / f"torch-{release}.json").write_text(
            (ROOT / "evidence" / f"torch-{release}.json").read_text()
        )
    return path


def run(*arguments):
    return catalogue.main([str(argument) for argument in arguments])


def test_check_fails_on_drift_and_changes_nothing(folder, tmp_path, capsys):
    out = tmp_path / "docs"
    asked = ("--evidence", folder, "--out", out)
    assert run("--check", *asked) == 1
    assert not out.exists()
    assert "catalogue.md and grid.svg no longer match" in capsys.readouterr().err
    assert run(*asked) == 0
    assert run("--check", *asked) == 0
    path = folder / "torch-2.13.0.json"
    data = json.loads(path.read_text())
    data["findings"][0] |= {"without": {"result": "passed", "message": "", "seconds": 0.0}}
    path.write_text(json.dumps(data))
    capsys.readouterr()
    before = (out / "catalogue.md").read_text()
    assert run("--check", *asked) == 1
    said = capsys.readouterr().err
    assert "run `python tools/catalogue.py`" in said
    assert re.search(r"^\+.*contradiction on 2\.13\.0", said, re.MULTILINE)
    assert (out / "catalogue.md").read_text() == before
    assert run(*asked) == 0
    assert "contradiction on 2.13.0" in (out / "catalogue.md").read_text()


def test_errors_worded_otherwise_in_another_run_are_no_drift(folder, tmp_path, capsys):
    """CI measures anew, and what a set held first can tell the message of a KeyError."""
    out = tmp_path / "docs"
    asked = ("--evidence", folder, "--out", out)
    run(*asked)
    path = folder / "torch-2.13.0.json"
    data = json.loads(path.read_text())
    one = next(
        found
        for found in data["findings"]
        if found["without"]["message"]
        and found["without"]["message"] in (out / "catalogue.md").read_text()
        and not found["without"]["message"].startswith("AssertionError")
        and found["without"]["result"] == "failed as documented"
    )
    one["without"]["message"] = "KeyError: 'another word'"
    path.write_text(json.dumps(data))
    assert run("--check", *asked) == 1
    assert "+KeyError: 'another word'" in capsys.readouterr().err
    assert run("--check", "--measured-anew", *asked) == 0
    one["without"] |= {"result": "passed", "message": ""}
    path.write_text(json.dumps(data))
    assert run("--check", "--measured-anew", *asked) == 1
    with pytest.raises(SystemExit):
        run("--measured-anew", *asked)


def test_a_damaged_file_is_one_sentence(folder, capsys):
    (folder / "torch-2.13.0.json").write_text("{}")
    assert run("--check", "--evidence", folder) == 1
    assert capsys.readouterr().err.startswith("catalogue: error: ")


@pytest.mark.parametrize(
    ("torch", "measured", "shim", "state"),
    [
        ("2.13.0", ["needed"], {}, Cell.NEEDED),
        ("2.13.0", ["needed", "not run"], {}, Cell.NEEDED),
        ("2.12.0", ["not needed"], {}, Cell.CLEAR),
        ("2.12.0", ["not run"], {}, Cell.NOT_RUN),
        ("2.12.0", [], {}, Cell.NOT_RUN),
        (
            "2.14.0",
            ["not needed"],
            {"affected": Affected(since="2.13.0", fixed_in=("2.14.0",))},
            Cell.FIXED,
        ),
        ("2.14.0", ["not needed"], {"affected": Affected(since=None, fixed_in=("2.14.0",))}, Cell.FIXED),
        ("2.14.0", ["not needed"], {}, Cell.WRONG),
        ("2.12.0", ["needed"], {}, Cell.WRONG),
        ("2.13.0", ["harmful"], {}, Cell.WRONG),
        (
            "2.12.0",
            ["needed"],
            {
                "reproducers": (
                    Reproducer(name="only", run=nothing, expect="bad", affected=Affected(since="2.5.0")),
                )
            },
            Cell.FORCED,
        ),
    ],
)
def test_cells(torch, measured, shim, state):
    assert cell(make_shim(**shim), column(torch, *map(finding, measured))) is state


def test_columns_are_in_order(tmp_path):
    for torch, emulated in (
        ("2.10.0", None),
        ("2.9.1", None),
        ("2.13.0a0+8145d630e8", "2.13.0"),
        ("2.4.0", None),
    ):
        data = evidence(torch, emulated=emulated)
        (tmp_path / f"{torch}.json").write_text(json.dumps(data))
    assert [c.label for c in columns(tmp_path)] == ["2.4.0", "2.9.1", "2.10.0", "2.13.0a0+8145d630e8"]


# -- the page ------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("shim", SHIMS, ids=lambda shim: shim.key)
def test_every_shim_has_a_section_with_all_that_is_known(shim):
    section = re.search(rf"^## {shim.key}\n.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[0]
    for line in shim.symptom.splitlines():
        assert line in section
    for heading in (
        "Symptom",
        "Cause.",
        "Builds.",
        "What the cure changes.",
        "Applied.",
        "It can go",
        "Upstream.",
    ):
        assert f"**{heading}" in section
    assert ("Side effects and notes" in section) == bool(shim.notes)
    assert ("The same patch by hand" in section) == bool(shim.carried_by)
    assert str(shim.affected) in section
    for reproducer in shim.reproducers:
        assert f"| `{reproducer.name}` |" in section
    for url in shim.upstream:
        assert url in section
    assert f"](#{shim.key})" in PAGE


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("SAC's set SAC_IGNORED_OPS, in place.", "SAC's set `SAC_IGNORED_OPS`, in place."),
        ("torch.ops.profiler._enter_{a,b} (and so on)", "`torch.ops.profiler._enter_{a,b}` (and so on)"),
        ("call torchcompat.apply('x', force=True).", "call `torchcompat.apply('x', force=True)`."),
        ("on 2.13.0a0 and 2.9.1, x[..., 0:] too", "on 2.13.0a0 and 2.9.1, `x[..., 0:]` too"),
        ("a <b> * c | d, e.g. this", r"a \<b\> \* c \| d, e.g. this"),
        ("``x`` and `a_b` stay", "`x` and `a_b` stay"),
        ("with force=True only", "with `force=True` only"),
    ],
)
def test_names_become_code_and_the_rest_is_escaped(text, written):
    assert catalogue._prose(text) == written


def test_the_error_as_raised_is_shown_but_not_our_own_comparisons():
    shim = make_shim(symptom="ValueError: bad N")
    raised = finding(
        without={"result": "failed as documented", "message": "ValueError: bad 3", "seconds": 0}
    )
    ours = finding(
        without={"result": "failed as documented", "message": "AssertionError: got 1", "seconds": 0}
    )
    assert "ValueError: bad 3" in catalogue.page([shim], [column("2.13.0", raised)])
    assert "got 1" not in catalogue.page([shim], [column("2.13.0", ours)])


def test_what_a_page_may_show_is_the_same_in_every_run():
    """CI measures anew and then compares the page: a message with a port in it would differ."""
    varying = re.compile(r"\d+\.\d+\.\d+\.\d+|localhost:\d|0x[0-9a-f]{6,}|/tmp/")
    told = [
        f"{found.label}: {result.shim}/{result.reproducer}: {result.without.message}"
        for found in columns(ROOT / "evidence")
        for shim in SHIMS
        for result in found.findings(shim)
        if result.without.ran is Ran.DOCUMENTED
        and not result.without.message.startswith("AssertionError")
        and varying.search(result.without.message)
    ]
    assert not told, "\n".join(told)


# -- the picture ---------------------------------------------------------------------


def picture(*found, shims=None):
    return ET.fromstring(draw(shims or [make_shim()], found))


def test_the_picture_has_a_cell_for_every_shim_on_every_build():
    committed = columns(ROOT / "evidence")
    root = ET.parse(ROOT / "docs" / "grid.svg").getroot()
    titles = {title.text for title in root.iter(f"{SVG}title")}
    for shim in SHIMS:
        if shim.retired is not None:
            continue
        for build in committed:
            name = f"{build.label}, emulated" if build.emulated else build.label
            assert f"{shim.key} on {name}: {cell(shim, build).value}" in titles


def test_the_picture_needs_no_colour_to_be_read():
    shapes = [re.sub(r'class="\w+"', "", shape) for shape in SHAPES.values()]
    assert len(set(shapes)) == len(Cell)
    described = picture(column("2.13.0", finding())).find(f"{SVG}desc").text
    assert described == "demo is needed on 2.13.0."


def _luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _colour(style, selector, what):
    return re.search(rf"{re.escape(selector)}{{[^}}]*\b{what}:(#[0-9a-f]{{6}})", style)[1]


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_in_light_and_dark(dark):
    light_style, _, dark_style = STYLE.partition("@media (prefers-color-scheme:dark)")
    style = dark_style if dark else light_style
    background = _colour(style, ".bg", "fill")
    pairs = [
        ("text", "fill", background, 7),
        (".soft", "fill", background, 4.5),
        (".forced text", "fill", background, 4.5),
        (".needed rect", "fill", background, 3),
        (".needed text", "fill", _colour(style, ".needed rect", "fill"), 4.5),
        (".wrong text", "fill", _colour(style, ".wrong path", "fill"), 4.5),
        (".fixed path", "stroke", background, 3),
        (".clear circle", "fill", background, 3),
        (".notrun rect", "stroke", background, 3),
        (".wrong path", "fill", background, 3),
    ]
    for selector, what, against, least in pairs:
        found = _colour(style, selector, what) if selector != ".needed text" or dark else "#ffffff"
        if selector == ".wrong text" and not dark:
            found = "#ffffff"
        one, two = sorted((_luminance(found), _luminance(against)))
        assert (two + 0.05) / (one + 0.05) >= least, (selector, found, against)


def test_nothing_leaves_the_picture():
    root = ET.parse(ROOT / "docs" / "grid.svg").getroot()
    width, height = float(root.get("width")), float(root.get("height"))
    assert width <= 1000, "GitHub shows a README about 1000 px wide"
    for place in re.findall(r"translate\(([\d.]+) ([\d.]+)\)", (ROOT / "docs" / "grid.svg").read_text()):
        assert 0 < float(place[0]) < width
        assert 0 < float(place[1]) < height


def test_an_emulated_build_says_so():
    root = picture(column("2.13.0a0+8145d630e8", finding(), emulated="2.13.0"))
    heads = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "emulated"]
    assert heads == ["2.13.0a0 emul."]

"""Other owners of the import name, copies, and damaged files, on folders made here."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from test_cli import IGNORED, call

from torchcompat.installation import troubles


def put(site, name, version, files=(), **texts):
    """Write a dist-info folder, and files that its RECORD lists."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for path, text in dict(files).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text)}\n")
    (info / "RECORD").write_text("".join([*lines, f"{info.name}/RECORD,,\n"]))
    for file, text in texts.items():
        (info / file).write_text(text)


OURS = {"torchcompat/__init__.py": "", "torchcompat/cli.py": "x = 1\n"}


@pytest.fixture
def site(tmp_path):
    folder = tmp_path.resolve() / "site"
    folder.mkdir()
    return folder


def test_a_whole_installation_has_no_trouble(site):
    put(site, "torchcompat-shims", "0.1.0", OURS)
    assert troubles([str(site), str(site)], site / "torchcompat") == ()
    assert troubles([], site / "torchcompat") == ()


def test_the_other_distribution_in_the_same_folder(site):
    put(site, "torchcompat-shims", "0.1.0", OURS)
    put(site, "torchcompat", "1.1.4", {"torchcompat/core/__init__.py": ""})
    (found,) = troubles([str(site)], site / "torchcompat")
    assert not found.broken
    assert found.sentence.startswith(
        f"the distribution torchcompat 1.1.4 in {site} is another project's"
    )
    assert "both lie in one folder" in found.sentence
    assert "pip uninstall -y torchcompat torchcompat-shims && pip install torchcompat-shims" in (
        found.sentence
    )


def test_the_other_distribution_elsewhere_is_hidden(site, tmp_path):
    put(site, "torchcompat", "1.1.4", {"torchcompat/core/__init__.py": ""})
    (found,) = troubles([str(site)], tmp_path / "elsewhere" / "torchcompat")
    assert "hides it" in found.sentence


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda site: (site / "torchcompat/cli.py").write_text("x = 2\n"), "1 installed file of"),
        (lambda site: (site / "torchcompat/cli.py").unlink(), "1 installed file of"),
        (
            lambda site: [(site / path).write_text("theirs") for path in OURS],
            "2 installed files of torchcompat-shims 0.1.0 in",
        ),
    ],
    ids=["changed", "missing", "both"],
)
def test_damaged_files(site, harm, said):
    put(site, "torchcompat-shims", "0.1.0", OURS)
    harm(site)
    (found,) = troubles([str(site)], site / "torchcompat")
    assert found.broken
    assert found.sentence.startswith(said)
    assert "torchcompat/cli.py" in found.sentence
    assert "pip install --force-reinstall --no-deps torchcompat-shims" in found.sentence


def test_an_editable_installation_may_change(site, tmp_path):
    direct = {"url": "file:///somewhere", "dir_info": {"editable": True}}
    put(site, "torchcompat-shims", "0.1.0", OURS, **{"direct_url.json": json.dumps(direct)})
    (site / "torchcompat/cli.py").write_text("x = 2\n")
    assert troubles([str(site)], tmp_path / "checkout" / "torchcompat") == ()


def test_two_copies_and_one_that_does_not_run(site, tmp_path):
    other = tmp_path.resolve() / "other"
    put(other, "torchcompat-shims", "0.0.9", OURS)
    put(site, "torchcompat-shims", "0.1.0", OURS)
    found = troubles([str(site), str(other)], other / "torchcompat")
    assert [trouble.broken for trouble in found] == [False, False]
    assert f"is installed 2 times (0.1.0 in {site}, 0.0.9 in {other})" in found[0].sentence
    assert f"comes from {other / 'torchcompat'}, not from the installed" in found[1].sentence


def test_status_says_so(fake_torch, site):
    put(site, "torchcompat", "1.1.4")
    folder = fake_torch("2.12.1", checkpoint=IGNORED)
    done = call("status", path=[folder, site])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"note: the distribution torchcompat 1.1.4 in {site} is another")
    done = call("status", "--json", path=[folder, site])
    assert any("another project's" in problem for problem in json.loads(done.stdout)["problems"])


@pytest.mark.parametrize(
    ("harm", "said", "error"),
    [
        ({"__init__.py": ""}, "1 installed file", ""),
        ({"__init__.py": "", "gate.py": "half a fi"}, "2 installed files", "SyntaxError"),
    ],
    ids=["another __init__", "half a file"],
)
def test_the_command_line_tells_of_damage_to_itself(tmp_path, fake_torch, harm, said, error):
    site = tmp_path / "site"
    shutil.copytree(
        ROOT / "torchcompat", site / "torchcompat", ignore=shutil.ignore_patterns("__pycache__")
    )
    files = {
        str(path.relative_to(site)): path.read_text() for path in (site / "torchcompat").rglob("*.py")
    }
    put(site, "torchcompat-shims", "0.1.0", files)
    for name, text in harm.items():
        (site / "torchcompat" / name).write_text(text)
    folder = fake_torch("2.12.1", checkpoint=IGNORED)
    done = subprocess.run(
        [sys.executable, "-m", "torchcompat", "status"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(site)])},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    # Where this interpreter has torchcompat installed as well, that is told first.
    assert f"note: {said} of torchcompat-shims 0.1.0" in done.stdout
    assert error in done.stderr
    assert ("not_affected" in done.stdout) == (error == "")

"""examples/plugin: found through its entry point, and treated like a built-in shim."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT
from test_cli import call

PLUGIN = ROOT / "examples" / "plugin"
KEY = "example_one_hot_int32"


@pytest.fixture
def installed(tmp_path):
    """The paths that make the plugin look installed: its source, and what an install writes."""
    text = (PLUGIN / "pyproject.toml").read_text()
    (name,) = re.findall(r'^name = "(.*)"$', text, re.MULTILINE)
    (entry,) = re.findall(r'^\[project\.entry-points\."torchcompat\.shims"\]\n(.*)$', text, re.MULTILINE)
    info = tmp_path / "site" / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchcompat.shims]\n" + entry.replace('"', "") + "\n")
    return [PLUGIN, tmp_path / "site"]


def test_it_is_listed_and_explained_with_its_distribution(installed):
    done = call("list", "--json", path=installed)
    assert done.stderr == ""
    (shim,) = [shim for shim in json.loads(done.stdout) if shim["key"] == KEY]
    assert shim["distribution"] == "example-shims"
    assert shim["opt_in"]
    assert "From       example-shims" in call("explain", KEY, path=installed).stdout
    without = call("explain", KEY, path=installed, env={"TORCHCOMPAT_NO_PLUGINS": "1"})
    assert without.returncode == 2


@pytest.mark.torch
def test_it_is_verified(installed):
    done = call("verify", KEY, path=installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{KEY}/int32_indices: needed (gate IN" in done.stdout


@pytest.mark.torch
@pytest.mark.slow
def test_it_keeps_the_contract(installed):
    """Two of the orders; the others are the plugin's own test run."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*installed, ROOT]))}
    file = str(PLUGIN / "tests" / "test_contract.py")
    tests = [
        "test_the_declaration_is_complete",
        "test_the_edits_name_targets_that_the_scan_finds",
        "test_every_order_of_events[A T M R]",
        "test_every_order_of_events[T M A]",
    ]
    chosen = [f"{file}::TestOurShims::{test}" for test in tests]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--rootdir",
            str(PLUGIN),
            "-p",
            "no:cacheprovider",
            *chosen,
        ],
        capture_output=True,
        text=True,
        env=env,
        cwd=PLUGIN,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr

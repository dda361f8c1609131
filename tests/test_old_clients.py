"""downstream/old.json: its rows name what is there. `nox -s downstream-old` runs them."""

from __future__ import annotations

import json
import re

import pytest
from conftest import ROOT

from torchcompat import TorchBuild, Verdict
from torchcompat.registry import Registry
from torchcompat.releases import RELEASES

FOLDER = ROOT / "downstream"
CASES = json.loads((FOLDER / "old.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_row_names_what_is_there(case):
    source = (FOLDER / "old" / case["script"]).read_text(encoding="utf-8")
    assert "torchcompat" not in source
    release = case["torch"].removeprefix("torch==")
    assert release in RELEASES
    (shim,) = [shim for shim in Registry(plugins=False) if shim.key == case["shim"]]
    assert shim.affected.verdict(TorchBuild.parse(release)) is Verdict.IN
    assert ["--no-deps", case["package"]] in case["install"]
    re.compile(case["error"])


def test_every_script_is_in_a_row_and_the_names_are_unique():
    scripts = {path.name for path in (FOLDER / "old").glob("*.py")} - {"check.py"}
    assert scripts == {case["script"] for case in CASES}
    assert len({case["name"] for case in CASES}) == len(CASES) >= 8

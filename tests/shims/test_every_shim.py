"""The four-way check: every reproducer of every shim, without and with it, on this torch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from torchcompat.registry import Registry
from torchcompat.verify import Conclusion, verify

SHIMS = [shim for shim in Registry(plugins=False) if shim.retired is None]
CASES = [(shim.key, reproducer.name) for shim in SHIMS for reproducer in shim.reproducers]

# Read here: the clean_environment fixture takes our variables away from the tests.
EVIDENCE = os.environ.get("TORCHCOMPAT_EVIDENCE")

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("verify")]


@pytest.fixture(scope="module")
def findings(request):
    found = verify(SHIMS, device=request.config.getoption("--device"))
    folder = EVIDENCE
    if folder:
        path = Path(folder) / f"torch-{found.facts['torch'].partition('+')[0]}.json"
        if found.emulated:
            path = path.with_name(f"emulated-{found.facts['torch']}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found.as_dict(), indent=2) + "\n", encoding="utf-8")
    return {(finding.shim, finding.reproducer): finding for finding in found.findings}


@pytest.mark.parametrize(("key", "reproducer"), CASES, ids=["/".join(case) for case in CASES])
def test_four_way(findings, key, reproducer):
    finding = findings[key, reproducer]
    if finding.conclusion is Conclusion.NOT_RUN:
        pytest.skip(f"NOT RUN: {finding.advice}")
    story = "\n".join(
        f"{name}: {run.ran}: {run.message}\n{run.log}"
        for name, run in (("without", finding.without), ("with", finding.cured))
    )
    assert finding.conclusion.is_right, f"{finding.conclusion}: {finding.advice}\n{story}"

"""The four-way check: every reproducer of every shim, without and with it, on this torch."""

from __future__ import annotations

import os

import pytest

from torchcompat.evidence import write
from torchcompat.registry import Registry
from torchcompat.verify import Conclusion, verify

SHIMS = [shim for shim in Registry(plugins=False) if shim.retired is None]
CASES = [(shim.key, reproducer.name) for shim in SHIMS for reproducer in shim.reproducers]

# Read here: the clean_environment fixture takes our variables away from the tests.
EVIDENCE = os.environ.get("TORCHCOMPAT_EVIDENCE")

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def findings(request):
    found = verify(SHIMS, device=request.config.getoption("--device"))
    if EVIDENCE:
        write(found, EVIDENCE)
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

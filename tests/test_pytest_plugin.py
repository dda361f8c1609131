"""The pytest plugin, in pytest runs of its own over a tiny package named torch."""

from __future__ import annotations

import os
import re
import sys

import pytest
from conftest import ROOT

pytest_plugins = ["pytester"]

CHECKPOINT = """
class _CachedTorchDispatchMode:
    def __torch_dispatch__(self, func, *args):
        return self.func_counter[func]

SAC_IGNORED_OPS = {"detach"}
"""
INIT = """
class _Packet:
    def overloads(self):
        return ["default"]

    default = "range op"

class _Profiler:
    _record_function_enter = _record_function_enter_new = _record_function_exit = _Packet()

class ops:
    profiler = _Profiler()
"""
HEAD = """
import pytest, sys

def ignored():
    from torch.utils.checkpoint import SAC_IGNORED_OPS
    return set(SAC_IGNORED_OPS)
"""


@pytest.fixture
def run(pytester, fake_torch, monkeypatch):
    """Run pytest on a test file in a process, with a fake torch of some version."""

    def start(source, *arguments, version="2.13.0", checkpoint=CHECKPOINT, torch=True):
        path = [str(ROOT)]
        if torch:
            path.insert(0, str(fake_torch(version, checkpoint=checkpoint, init=INIT)))
        for name in list(os.environ):
            if name.startswith(("TORCHCOMPAT_", "PYTEST_")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        pytester.makepyfile(test_it=HEAD + source)
        pytester.makeini("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
        return pytester.runpytest_subprocess("-p", PLUGIN, "-rs", *arguments)

    return start


# By name: without autoload the runs are quick, and work where the package is not installed.
PLUGIN = "torchcompat.pytest_plugin"


def test_the_entry_point_is_declared():
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(
        r'\[project\.entry-points\.pytest11\]\ntorchcompat = "torchcompat\.pytest_plugin"\n', text
    )


def test_it_loads_nothing_until_it_is_used(run):
    result = run(
        """
def test_nothing():
    ours = sorted(name for name in sys.modules if name.startswith(("torch.", "torchcompat")))
    assert ours == ["torchcompat", "torchcompat.pytest_plugin"]
    assert "torch" not in sys.modules
"""
    )
    result.assert_outcomes(passed=1)
    assert "torchcompat:" not in result.stdout.str()


def test_the_option_applies_for_the_whole_run(run):
    result = run(
        """
def test_one():
    assert "range op" in ignored()

def test_two():
    assert "range op" in ignored()
""",
        "--torchcompat",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["torchcompat: torch 2.13.0: pending sac_profiler*"])


def test_the_option_does_not_swallow_a_path(run):
    result = run("def test_one():\n    assert 'range op' in ignored()\n", "--torchcompat", "test_it.py")
    result.assert_outcomes(passed=1)


def test_the_option_takes_keys(run):
    source = "def test_one():\n    assert 'range op' not in ignored()\n"
    result = run(source, "--torchcompat=dtensor_alias")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["torchcompat: torch 2.13.0: no shim is needed"])
    result = run(source, "--torchcompat=sac_profilr")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--torchcompat: there is no shim 'sac_profilr'; did you mean 'sac_profiler'*"]
    )


def test_the_option_is_taken_back_at_the_end(run):
    result = run(
        """
import atexit, torch.utils.checkpoint

def test_one():
    assert "range op" in ignored()
    atexit.register(lambda: print("AT THE END", sorted(ignored())))
""",
        "--torchcompat",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["AT THE END ['detach']"])


def test_the_marker_applies_for_one_test_even_if_it_fails(run):
    result = run(
        """
@pytest.fixture
def seen():
    assert "range op" in ignored()
    yield
    assert "range op" in ignored(), "fixtures end before the shim does"

@pytest.mark.torchcompat("sac_profiler")
def test_with(seen):
    assert "range op" in ignored()

def test_without():
    assert "range op" not in ignored()

@pytest.mark.torchcompat("sac_profiler")
def test_fails():
    assert "range op" not in ignored()

def test_after_a_failure():
    assert "range op" not in ignored()

@pytest.fixture
def broken_end():
    yield
    raise RuntimeError("a fixture fails at its end")

@pytest.mark.torchcompat("sac_profiler")
def test_broken_end(broken_end):
    assert "range op" in ignored()

@pytest.fixture
def broken_start():
    raise RuntimeError("a fixture fails at its start")

@pytest.mark.torchcompat("sac_profiler")
def test_broken_start(broken_start):
    pass

def test_after_errors():
    assert "range op" not in ignored()
"""
    )
    result.assert_outcomes(passed=5, failed=1, errors=2)


def test_what_the_run_applies_a_test_does_not_take_back(run):
    result = run(
        """
@pytest.mark.torchcompat("sac_profiler")
def test_with():
    assert "range op" in ignored()

def test_after():
    assert "range op" in ignored()
""",
        "--torchcompat",
    )
    result.assert_outcomes(passed=2)


def test_markers_on_classes_and_force(run):
    result = run(
        """
@pytest.mark.torchcompat("sac_profiler", force=True)
class TestAll:
    def test_one(self):
        assert "range op" in ignored()

def test_after():
    assert "range op" not in ignored()
""",
        version="2.12.1",
    )
    result.assert_outcomes(passed=2)


AFFECTED = """
@pytest.mark.torch_affected("sac_profiler")
def test_fault():
    pass
"""


@pytest.mark.parametrize(
    ("version", "checkpoint", "outcome", "reason"),
    [
        ("2.13.0", CHECKPOINT, "passed", ""),
        ("2.13.0.dev20260601+cu130", CHECKPOINT, "passed", ""),
        ("2.12.1", CHECKPOINT, "skipped", "2.12.1 is older than 2.13.0a0"),
        ("2.13.0", CHECKPOINT.replace('"detach"', '"range op"'), "skipped", "already holds"),
        ("2.13.0.dev20260601", CHECKPOINT.replace("func_counter", "policy_fn"), "skipped", "policy"),
        ("2.13.0", CHECKPOINT.replace("func_counter", "other"), "passed", ""),
        ("2.13.0.dev20260601", CHECKPOINT.replace("func_counter", "other"), "skipped", "differently"),
        ("2.13.0", "raise ImportError('broken here')", "skipped", "cannot be imported here"),
    ],
)
def test_torch_affected(run, version, checkpoint, outcome, reason):
    result = run(AFFECTED, version=version, checkpoint=checkpoint)
    result.assert_outcomes(**{outcome: 1})
    if reason:
        result.stdout.fnmatch_lines([f"SKIPPED*sac_profiler: *{reason}*"])


def test_a_fault_that_is_cured_still_counts(run):
    run(AFFECTED, "--torchcompat").assert_outcomes(passed=1)


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs an environment to leave torch out of")
def test_without_torch(run):
    hide = "sys.modules['torch'] = None\n"
    result = run(hide + AFFECTED + "\ndef test_other():\n    pass\n", torch=False)
    assert result.ret == 0
    assert result.parseoutcomes()["skipped"] == 1


@pytest.mark.parametrize(
    ("marker", "says"),
    [
        (
            "torchcompat('sac_profilr')",
            "marker torchcompat: there is no shim 'sac_profilr'; did you mean",
        ),
        ("torch_affected()", "marker torch_affected: name at least one shim, like"),
        ("torch_affected('sac_profiler', force=True)", "marker torch_affected: it takes no force"),
    ],
)
def test_a_wrong_marker_stops_the_run_with_one_sentence(run, marker, says):
    result = run(f"@pytest.mark.{marker}\ndef test_one():\n    pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*test_it.py::test_one: {says}*"])


def test_the_fixture(run):
    result = run(
        """
def test_with(torchcompat_applied):
    assert "range op" not in ignored()
    report = torchcompat_applied("sac_profiler")
    assert report["sac_profiler"].state == "applied"
    assert "range op" in ignored()
    assert False, "reverted after a failure too"

def test_after():
    assert "range op" not in ignored()
"""
    )
    result.assert_outcomes(passed=1, failed=1)


def test_a_shim_that_cannot_be_applied_is_an_error_of_its_test(run):
    result = run(
        """
@pytest.mark.torchcompat("sac_profiler")
def test_with():
    pass

def test_after():
    pass
""",
        checkpoint=CHECKPOINT.replace('{"detach"}', '["detach"]') + "\n",
    )
    # Nothing has imported the module yet: it is pending, and the test passes.
    result.assert_outcomes(passed=2)
    result = run(
        """
import torch.utils.checkpoint

@pytest.mark.torchcompat("sac_profiler")
def test_with():
    pass

def test_after():
    pass
""",
        checkpoint=CHECKPOINT.replace('{"detach"}', '["detach"]') + "\n",
    )
    result.assert_outcomes(passed=1, errors=1)
    assert "could not be applied" in result.stdout.str()


def test_under_xdist(run):
    pytest.importorskip("xdist")
    result = run(
        """
@pytest.mark.parametrize("number", range(6))
def test_run(number):
    assert "range op" in ignored()
    assert "PYTEST_XDIST_WORKER" in __import__("os").environ

@pytest.mark.torchcompat("sac_profiler")
@pytest.mark.torch_affected("sac_profiler")
def test_marked():
    assert "range op" in ignored()
""",
        "--torchcompat",
        *("-p", "xdist", "-n2"),
    )
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines(["torchcompat: torch 2.13.0: pending sac_profiler*"])


def test_installed_and_under_exec_with_warnings_as_errors(run, pytester, tmp_path, monkeypatch):
    """torchcompat is imported before pytest then, which must not upset pytest."""
    run("def test_one():\n    assert 'range op' in ignored()\n").assert_outcomes(failed=1)
    info = tmp_path / "site" / "torchcompat_shims-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchcompat-shims\nVersion: 0.1.0\n")
    (info / "RECORD").write_text("torchcompat/__init__.py,,\ntorchcompat/pytest_plugin.py,,\n")
    (info / "entry_points.txt").write_text("[pytest11]\ntorchcompat = torchcompat.pytest_plugin\n")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}{os.pathsep}{os.environ['PYTHONPATH']}")
    result = pytester.run(
        *(sys.executable, "-m", "torchcompat", "exec", "--", sys.executable, "-m", "pytest"),
        *("-Werror", "--torchcompat"),
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["torchcompat: torch 2.13.0: *"])

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from torchcompat import import_hooks, lifecycle, session
from torchcompat.builds import TorchBuild
from torchcompat.engine import Engine
from torchcompat.registry import Registry

ROOT = Path(__file__).parent.parent
TORCH_INSTALLED = find_spec("torch") is not None


def pytest_configure(config):
    """Spread tests by file, so that a file's costly fixture is made once, and in the files' order.

    Contract and verification take longest, and come first. (xdist's groups do nothing on pytest 9.2,
    and an option in addopts makes other plugins believe that xdist is always active.)
    """
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    if TORCH_INSTALLED:
        return
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="torch is not installed in this environment"))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("TORCHCOMPAT_"):
            monkeypatch.delenv(name)


def child_environment(*path) -> dict[str, str]:
    """The environment for a process of its own, with ``path`` to import from and none of our variables."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHCOMPAT_")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return environment


def make_module(name: str, source: str = "") -> ModuleType:
    """A loaded module whose functions really were defined in it."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    exec(compile(textwrap.dedent(source), f"<{name}>", "exec"), module.__dict__)
    return module


class FakeLib:
    """Stands in for torch in tests that need none: a root module and what is put under it."""

    def __init__(self, monkeypatch) -> None:
        self._monkeypatch = monkeypatch
        self.build: TorchBuild | None = TorchBuild.parse("2.13.0")
        self.root = self.add("fakelib")
        monkeypatch.setattr(import_hooks, "ROOT", "fakelib")
        for module in (session, lifecycle):
            monkeypatch.setattr(module, "detect", lambda: self.build)
        monkeypatch.setattr("torchcompat.engine.detect", lambda: self.build)

    def add(self, name: str, source: str = "") -> ModuleType:
        module = make_module(name, source)
        self._monkeypatch.setitem(sys.modules, name, module)
        return module

    def engine(self, *shims) -> Engine:
        registry = Registry(builtin=(), plugins=False)
        for shim in shims:
            registry.register(shim)
        return Engine(registry)


@pytest.fixture
def fakelib(monkeypatch):
    lib = FakeLib(monkeypatch)
    yield lib
    assert import_hooks._finder not in sys.meta_path, "a test left a waiter behind"


@pytest.fixture
def python(tmp_path):
    """Run Python source in a fresh process; returns the completed process."""

    def run(source, *, path=(), env=(), check=True, cwd=None, timeout=120):
        environment = child_environment(*path, ROOT)
        environment["GLOO_SOCKET_IFNAME"] = "lo"
        environment["OMP_NUM_THREADS"] = "1"
        environment.update(env)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=cwd or tmp_path,
            timeout=timeout,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def two_ranks(python):
    """Run Python source on two ranks, on a gloo group and with a mesh over both, to its end."""

    def run(source):
        begin, end = map(textwrap.dedent, (TWO_RANKS, TWO_RANKS_END))
        done = python(begin + textwrap.dedent(source) + end)
        assert done.stdout.splitlines()[-1] == "right"  # gloo talks too

    return run


TWO_RANKS = """
    import os
    import tempfile
    import torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    import torchcompat

    store = tempfile.mktemp()
    second = os.fork()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0 if second else 1, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
"""
TWO_RANKS_END = """
    torchcompat.apply("gloo_destroy_hang")
    dist.destroy_process_group()
    if not second:
        os._exit(0)
    assert os.waitpid(second, 0)[1] == 0
    print("right")
"""


@pytest.fixture
def fake_torch(tmp_path):
    """A folder with a tiny package named torch, for processes that must not see the real one."""

    def write(version="2.13.0", checkpoint="", init=""):
        folder = tmp_path / "fake-torch"
        utils = folder / "torch" / "utils"
        utils.mkdir(parents=True, exist_ok=True)
        (folder / "torch" / "version.py").write_text(
            f"__version__ = {version!r}\ngit_version = None\ncuda = None\n"
        )
        (folder / "torch" / "__init__.py").write_text(
            "from .version import __version__\n" + textwrap.dedent(init)
        )
        (utils / "__init__.py").write_text("")
        (utils / "checkpoint.py").write_text(textwrap.dedent(checkpoint))
        return folder

    return write


@pytest.fixture
def figure(record_property):
    """Report a count for the reliability table; counts of one name are added up."""
    return lambda name, count: record_property(f"figure {name}", count)


def pytest_terminal_summary(terminalreporter):
    totals: dict[str, int] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call" and report.outcome == "passed":
                if "test_orders.py" in report.nodeid and "test_every_order_of_events" in report.nodeid:
                    name = "orders of import, apply and revert, with every shim"
                    totals[name] = totals.get(name, 0) + 1
                for name, count in report.user_properties:
                    if name.startswith("figure "):
                        totals[name[7:]] = totals.get(name[7:], 0) + count
    if totals:
        terminalreporter.section("reliability")
    for name, count in sorted(totals.items()):
        terminalreporter.write_line(f"{count:>9,} {name}")


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda also runs the reproducers that need a GPU, and fails where there is none",
    )

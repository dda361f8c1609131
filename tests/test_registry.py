from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT
from fakes import make_shim

from torchcompat import (
    Affected,
    DuplicateShimError,
    Reproducer,
    ShimDefinitionError,
    TorchCompatWarning,
    UnknownShimError,
)
from torchcompat.registry import DISTRIBUTION, Registry


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install a tiny distribution with an entry point; its module is one file."""

    def install(distribution, source, target="SHIM"):
        module = distribution.replace("-", "_") + "_module"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[torchcompat.shims]\nours = {module}:{target}\n")
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield install
    for name in set(sys.modules) - before:
        if name.endswith("_module"):
            del sys.modules[name]


def test_the_built_in_shims():
    registry = Registry(plugins=False)
    assert "sac_profiler" in registry
    assert all(shim.distribution == DISTRIBUTION for shim in registry)
    with pytest.raises(ShimDefinitionError, match="is built in and stays"):
        registry.unregister("sac_profiler")
    with pytest.raises(DuplicateShimError, match="already taken by torchcompat-shims"):
        registry.register(make_shim("sac_profiler"))


def test_register_and_unregister():
    registry = Registry(builtin=(), plugins=False)
    registry.register(make_shim(), distribution="nemo")
    assert registry.get("demo").distribution == "nemo"
    registry.unregister("demo")
    assert "demo" not in registry
    with pytest.raises(UnknownShimError, match="known shims: none"):
        registry.get("demo")
    with pytest.raises(ShimDefinitionError, match="takes a torchcompat.Shim, not a str"):
        registry.register("demo")


ONE = "from fakes import make_shim\nSHIM = make_shim({key!r})\n"


@pytest.mark.parametrize(
    ("source", "target", "keys"),
    [
        (ONE.format(key="plugged"), "SHIM", ("plugged",)),
        ("from fakes import make_shim\ndef shims(): return make_shim('made')", "shims", ("made",)),
        (
            "from fakes import make_shim\nALL = [make_shim('one'), make_shim('two')]",
            "ALL",
            ("one", "two"),
        ),
    ],
)
def test_what_an_entry_point_may_give(plugin, source, target, keys):
    plugin("acme-patches", source, target)
    registry = Registry(builtin=())
    assert registry.keys() == keys
    assert registry.get(keys[0]).distribution == "acme-patches"
    assert registry.problems == ()


def test_a_plugin_that_fails_to_import(plugin):
    plugin("acme-broken", "import no_such_module")
    plugin("acme-good", ONE.format(key="good"))
    registry = Registry()
    with pytest.warns(TorchCompatWarning, match="plugin 'ours' of acme-broken could not be loaded"):
        keys = registry.keys()
    assert {"good", "sac_profiler"} <= set(keys)
    (problem,) = registry.problems
    assert "ModuleNotFoundError: No module named 'no_such_module'" in problem
    assert "TORCHCOMPAT_NO_PLUGINS=1" in problem
    registry.keys()  # said once


def test_two_plugins_with_one_key(plugin):
    plugin("acme-a", ONE.format(key="same"))
    plugin("acme-b", ONE.format(key="same"))
    registry = Registry(builtin=())
    with pytest.warns(TorchCompatWarning, match="'same' from acme-b is already taken by acme-a"):
        assert registry.keys() == ("same",)
    assert registry.get("same").distribution == "acme-a"


def test_a_plugin_cannot_take_a_built_in_key(plugin):
    plugin("acme-thief", ONE.format(key="sac_profiler"))
    registry = Registry()
    with pytest.warns(TorchCompatWarning, match="already taken by torchcompat-shims"):
        assert registry.get("sac_profiler").distribution == DISTRIBUTION


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("SHIM = 5", "SHIM", "gives a int"),
        ("SHIM = ['text']", "SHIM", "takes a torchcompat.Shim, not a str"),
        ("def f(): raise RuntimeError('inside')", "f", "RuntimeError: inside"),
        ("x = 1", "missing", "AttributeError"),
    ],
)
def test_an_entry_point_that_gives_no_shim(plugin, source, target, says):
    plugin("acme-odd", source, target)
    registry = Registry(builtin=())
    with pytest.warns(TorchCompatWarning, match=says):
        assert registry.keys() == ()


def test_no_plugins(plugin, monkeypatch):
    plugin("acme-good", "raise SystemExit('imported')")
    monkeypatch.setenv("TORCHCOMPAT_NO_PLUGINS", "1")
    assert Registry(builtin=()).keys() == ()


def test_a_plugin_that_asks_while_it_is_loaded(plugin):
    plugin(
        "acme-curious",
        """
        from fakes import make_shim
        import torchcompat.registry as r
        seen = r.THE_REGISTRY.keys()
        SHIM = make_shim("curious")
        """,
    )
    import torchcompat.registry as module

    registry = module.THE_REGISTRY = Registry(builtin=())
    try:
        assert registry.keys() == ("curious",)
    finally:
        del module.THE_REGISTRY


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key": "Not-Snake"}, "snake_case"),
        ({"reproducers": ()}, "has no reproducer"),
        ({"modules": ()}, "names no module"),
        ({"modules": "torch"}, "modules is a tuple"),
        (
            {"reproducers": (Reproducer(name="a", run=print, expect="x"),) * 2},
            "two reproducers of one name",
        ),
    ],
)
def test_an_incomplete_declaration(changes, says):
    with pytest.raises(ShimDefinitionError, match=says):
        make_shim(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device": "tpu"}, "cpu or cuda"),
        ({"ranks": -1}, "negative"),
    ],
)
def test_an_impossible_reproducer(changes, says):
    with pytest.raises(ShimDefinitionError, match=says):
        Reproducer(**{"name": "a", "run": print, "expect": "x", **changes})


def test_a_pattern_is_checked_when_the_shim_is_registered():
    bad = make_shim(reproducers=(Reproducer(name="a", run=print, expect="("),))
    registry = Registry(builtin=(), plugins=False)
    with pytest.raises(ShimDefinitionError, match="'a': expect is no regular expression"):
        registry.register(bad)
    assert registry.keys() == ()


def test_every_built_in_shim_is_complete():
    for shim in Registry(plugins=False):
        shim.check()
        for text in (shim.summary, shim.symptom, shim.cause, shim.cure, shim.removable_when):
            assert text.strip(), shim.key
        assert all(url.startswith("https://") for url in shim.upstream), shim.key
        assert isinstance(shim.affected, Affected)
        assert type(shim).__module__ == "torchcompat.shim"
        assert shim.summary[-1] != ".", shim.key


def test_the_index_says_what_the_shims_say():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "index.py"), "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_only_what_is_looked_at_is_loaded(python, fake_torch):
    torch = fake_torch("2.13.0")
    python(
        """
        import sys, torch, torchcompat
        torchcompat.apply_all()
        states = {key: str(outcome.state) for key, outcome in torchcompat.status().items()}
        loaded = {n.rpartition(".")[2] for n in sys.modules if n.startswith("torchcompat.shims.")}
        unloaded = ("not_affected", "pending", "opt_in")
        assert not {key for key in loaded & set(states) if states[key] in unloaded}, loaded
        assert not {k for k, state in states.items() if state not in unloaded} - loaded, states
        assert states["sac_profiler"] == "pending", states
        import torch.utils.checkpoint
        assert "torchcompat.shims.sac_profiler" in sys.modules
        """,
        path=[torch],
    )

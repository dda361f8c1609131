from __future__ import annotations

import importlib
import sys
import textwrap
import threading
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

import pytest

from torchcompat import import_hooks
from torchcompat.import_hooks import is_ready, when_ready


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A package ``hookroot`` on disk whose root imports ``hookroot.early`` in its middle."""
    folder = tmp_path / "hookroot"
    folder.mkdir()

    def write(name, source):
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    write("__init__", "state = 'begun'\nfrom . import early\nstate = 'complete'\n")
    write("early", "value = 1\n")
    write("later", "value = 2\n")
    write("broken", "raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(import_hooks, "ROOT", "hookroot")
    yield write
    for name in [n for n in sys.modules if n.partition(".")[0] == "hookroot"]:
        del sys.modules[name]
    left, import_hooks._waiting = import_hooks._waiting.waiters, import_hooks._Waiting()
    if import_hooks._finder in sys.meta_path:
        sys.meta_path.remove(import_hooks._finder)
    assert all(waiter.modules & {"hookroot.broken", "hookroot.later"} for waiter in left)


def test_a_module_inside_the_root_waits_for_the_whole_root(package):
    seen = []
    when_ready(["hookroot.early"], lambda: seen.append(sys.modules["hookroot"].state))
    assert seen == []
    import hookroot

    assert seen == ["complete"]
    assert hookroot.state == "complete"


def test_before_after_and_both(package):
    calls = []
    when_ready(["hookroot.later"], lambda: calls.append("before"))
    importlib.import_module("hookroot")
    assert calls == []
    importlib.import_module("hookroot.later")
    assert calls == ["before"]
    when_ready(["hookroot.later"], lambda: calls.append("after"))
    assert calls == ["before", "after"]
    assert import_hooks._finder not in sys.meta_path


def test_nothing_of_ours_stays_on_the_module(package):
    when_ready(["hookroot.later"], lambda: None)
    import hookroot.later as module

    spec = module.__spec__
    assert type(spec) is ModuleSpec
    assert type(spec.loader) is type(module.__loader__) is SourceFileLoader
    assert spec._initializing is False
    assert importlib.reload(module).value == 2


def test_the_callback_sees_a_complete_module(package):
    seen = []
    when_ready(["hookroot.later"], lambda: seen.append(is_ready(["hookroot.later"])))
    importlib.import_module("hookroot.later")
    assert seen == [True]


def test_a_failing_import_keeps_waiting_and_may_be_tried_again(package):
    calls = []
    when_ready(["hookroot.broken"], lambda: calls.append(1))
    with pytest.raises(RuntimeError, match="no"):
        importlib.import_module("hookroot.broken")
    assert calls == []
    package("broken", "value = 'mended'\n")
    assert importlib.import_module("hookroot.broken").value == "mended"
    assert calls == [1]


def test_a_root_that_fails_and_is_imported_again(package):
    calls = []
    package("__init__", "from . import early\nraise RuntimeError('half')\n")
    when_ready(["hookroot.early"], lambda: calls.append(1))
    with pytest.raises(RuntimeError, match="half"):
        importlib.import_module("hookroot")
    assert "hookroot.early" in sys.modules, "what Python leaves behind"
    assert calls == []
    package("__init__", "# mended, and of another length\nfrom . import early\n")
    importlib.import_module("hookroot")
    assert calls == [1]


def test_registered_in_the_middle_of_the_import_it_waits_for(package):
    package(
        "__init__",
        """
        from . import early
        from torchcompat.import_hooks import when_ready
        calls = []
        when_ready(["hookroot.early"], lambda: calls.append(finished))
        assert not calls
        finished = True
        """,
    )
    assert importlib.import_module("hookroot").calls == [True]


def test_an_import_under_way_in_another_thread(package):
    package(
        "later",
        """
        import threading
        entered, leave = threading.Event(), threading.Event()
        entered.set()
        assert leave.wait(20)
        done = True
        """,
    )
    importlib.import_module("hookroot")
    thread = threading.Thread(target=importlib.import_module, args=("hookroot.later",))
    thread.start()
    while "hookroot.later" not in sys.modules or not hasattr(sys.modules["hookroot.later"], "leave"):
        pass
    module = sys.modules["hookroot.later"]
    assert module.entered.wait(20)
    calls = []
    when_ready(["hookroot.later"], lambda: calls.append(module.done))
    assert calls == []
    module.leave.set()
    thread.join(20)
    assert calls == [True]


def test_cancel(package):
    calls = []
    waiter = when_ready(["hookroot.later"], lambda: calls.append(1))
    waiter.cancel()
    waiter.cancel()
    importlib.import_module("hookroot.later")
    assert calls == []
    assert import_hooks._finder not in sys.meta_path


def test_several_waiters_and_several_modules(package):
    calls = []
    when_ready(["hookroot.early", "hookroot.later"], lambda: calls.append("both"))
    when_ready(["hookroot.early"], lambda: calls.append("early"))
    importlib.import_module("hookroot")
    assert calls == ["early"]
    importlib.import_module("hookroot.later")
    assert calls == ["early", "both"]


def test_a_module_loaded_past_the_import_system_is_seen_by_poll(package, monkeypatch):
    calls = []
    importlib.import_module("hookroot")
    when_ready(["hookroot.virtual"], lambda: calls.append(1))
    from conftest import make_module

    monkeypatch.setitem(sys.modules, "hookroot.virtual", make_module("hookroot.virtual"))
    assert calls == []
    import_hooks.poll()
    assert calls == [1]


def test_find_spec_without_an_import_does_no_harm(package):
    calls = []
    when_ready(["hookroot.later"], lambda: calls.append(1))
    assert importlib.util.find_spec("hookroot.later") is not None
    assert importlib.util.find_spec("hookroot.nothing") is None
    assert calls == []
    importlib.import_module("hookroot.later")
    assert calls == [1]


class _Asker:
    """A finder of the kind that asks everybody else, ours included."""

    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


def test_another_finder_that_asks_back(package, monkeypatch):
    calls = []
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    when_ready(["hookroot.later"], lambda: calls.append(1))
    sys.meta_path.insert(1, _Asker())
    importlib.import_module("hookroot.later")
    assert calls == [1]


def test_a_spec_that_cannot_be_watched(package, monkeypatch):
    class Rigid(ModuleSpec):
        __slots__ = ("extra",)

        def __setattr__(self, name, value):
            if name == "__class__":
                raise TypeError("another layout")
            super().__setattr__(name, value)

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "hookroot.later":
                return None
            found = importlib.machinery.PathFinder.find_spec(name, path)
            return Rigid(name, found.loader, origin=found.origin)

    calls = []
    importlib.import_module("hookroot")
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    when_ready(["hookroot.later"], lambda: calls.append(1))
    importlib.import_module("hookroot.later")
    import_hooks.poll()
    assert calls == [1]


def test_many_threads_import_and_wait_at_once(package):
    for number in range(20):
        package(f"m{number}", "import time\ntime.sleep(0.001)\nvalue = 1\n")
    calls, lock, threads = [], threading.Lock(), []

    def note(number):
        with lock:
            calls.append(number)

    for number in range(20):
        name = f"hookroot.m{number}"
        threads.append(threading.Thread(target=importlib.import_module, args=(name,)))
        threads.append(
            threading.Thread(target=lambda n=name, i=number: when_ready([n], lambda: note(i)))
        )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(calls) == list(range(20)), "each waiter once, none lost"


def test_an_import_under_way_skips_no_finder_when_ours_leaves(package, monkeypatch, tmp_path):
    (tmp_path / "hook_neighbour.py").write_text("value = 1\n")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    waiter = when_ready(["hookroot.never"], lambda: None)

    class Cancels:
        def find_spec(self, name, path=None, target=None):
            waiter.cancel()

    # Right before the last finder, which a list made shorter in place would not come to.
    sys.meta_path[:] = [import_hooks._finder, Cancels(), PathFinder]
    assert importlib.import_module("hook_neighbour").value == 1
    del sys.modules["hook_neighbour"]
    assert import_hooks._finder not in sys.meta_path

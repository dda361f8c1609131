from __future__ import annotations

import logging
import sys
import threading
from dataclasses import replace

import pytest
from conftest import make_module
from fakes import make_shim

from torchcompat import (
    Affected,
    ApplyError,
    GateError,
    RevertError,
    State,
    TorchCompatWarning,
    TorchNotFoundError,
    UnknownShimError,
    Verdict,
    absent,
    drifted,
    present,
)
from torchcompat.builds import TorchBuild
from torchcompat.edits import AddItems, Call, ReplaceAttr

OPS = """
    def broken():
        return "bad"

    def other():
        return "bad"

    ignored = {1}
"""


@pytest.fixture
def ops(fakelib):
    return fakelib.add("fakelib.ops", OPS)


def snapshot(module):
    return dict(vars(module)), set(module.ignored)


def test_apply_status_revert(fakelib, ops):
    engine, before = fakelib.engine(make_shim()), snapshot(ops)
    outcome = engine.apply("demo")
    assert outcome.state is State.APPLIED
    assert outcome.verdict is Verdict.IN
    assert outcome.edits == ("replaced fakelib.ops:broken",)
    assert ops.broken() == "good"
    assert engine.apply("demo") == outcome, "applying again changes nothing"
    assert engine.status()["demo"] == outcome
    assert engine.revert("demo").state is State.REVERTED
    assert snapshot(ops) == before
    assert engine.revert("demo").state is State.REVERTED
    assert engine.apply("demo").state is State.APPLIED
    engine.revert_all()
    assert snapshot(ops) == before


def test_gate_out_and_force(fakelib, ops):
    fakelib.build = TorchBuild.parse("2.12.1")
    engine = fakelib.engine(make_shim())
    outcome = engine.apply("demo")
    assert outcome.state is State.NOT_AFFECTED
    assert "older than 2.13.0" in outcome.reason
    assert ops.broken() == "bad"
    outcome = engine.apply("demo", force=True)
    assert (outcome.state, outcome.forced, outcome.verdict) == (State.APPLIED, True, Verdict.OUT)
    engine.revert_all()


@pytest.mark.parametrize("raw", ["2.13.0a0+8145d630e8", "Unknown"])
def test_edge_and_unknown_are_decided_by_the_probe(fakelib, ops, raw):
    fakelib.build = TorchBuild.parse(raw)
    engine = fakelib.engine(make_shim())
    assert engine.apply("demo").state is State.APPLIED
    engine.revert_all()
    ops.broken = make_module("fakelib.ops", "def broken(): return 'good'").broken
    assert engine.apply("demo").state is State.ALREADY_FIXED


def test_a_cure_that_is_in_place_is_not_repeated_even_by_force(fakelib, ops):
    shim = make_shim(probe=lambda: absent("a framework did it", cured=True))
    assert fakelib.engine(shim).apply("demo", force=True).state is State.ALREADY_FIXED


def test_drift_is_refused_even_by_force(fakelib, ops):
    before = snapshot(ops)
    engine = fakelib.engine(make_shim(probe=lambda: drifted("it is written differently")))
    with pytest.raises(ApplyError, match=r"'demo' could not be applied: .*written differently"):
        engine.apply("demo", force=True)
    assert engine.status()["demo"].state is State.UNSUPPORTED
    assert snapshot(ops) == before


def _boom(*_):
    raise ValueError("boom")


HALF_WAY = {
    "the probe raises": ({"probe": _boom}, State.FAILED, "its probe raised ValueError: boom"),
    "edits() raises": ({"edits": _boom}, State.FAILED, "ValueError: boom; torch is as it was"),
    "the second edit cannot be made": (
        {"edits": lambda: [_good("broken"), Call("x:y", _boom)]},
        State.FAILED,
        "ValueError: boom",
    ),
    "the second target is gone": (
        {"edits": lambda: [_good("broken"), _good("gone")]},
        State.UNSUPPORTED,
        "fakelib.ops:gone does not exist",
    ),
    "the factory raises": (
        {"edits": lambda: [_good("broken"), ReplaceAttr("fakelib.ops:other", _boom)]},
        State.FAILED,
        "boom",
    ),
    "the fault is still there": (
        {"edits": lambda: [_good("other"), AddItems("fakelib.ops:ignored", lambda: [2])]},
        State.FAILED,
        "after the edits the probe still says: it says bad",
    ),
    "the probe is no probe": ({"probe": lambda: True}, State.FAILED, "a probe returns present"),
}


def _good(name):
    return ReplaceAttr(f"fakelib.ops:{name}", lambda original: lambda: "good")


@pytest.mark.parametrize("case", HALF_WAY)
def test_a_shim_that_fails_leaves_everything_as_it_was(fakelib, ops, case):
    changes, state, says = HALF_WAY[case]
    engine, before = (
        fakelib.engine(make_shim(**changes), make_shim("healthy", "fakelib.ops:other")),
        None,
    )
    before = snapshot(ops)
    with pytest.raises(ApplyError) as caught:
        engine.apply("demo")
    assert says in str(caught.value)
    assert snapshot(ops) == before
    assert engine.status()["demo"].state is state
    report = engine.apply_all()
    assert report["demo"].state is state, "one bad shim does not stop the others"
    assert report.applied == ("healthy",)
    assert report.troubled == ("demo",)
    engine.revert_all()
    assert snapshot(ops) == before


def test_the_journal_is_in_the_error(fakelib, ops):
    engine = fakelib.engine(make_shim(edits=lambda: [_good("broken"), Call("x:y", _boom, print)]))
    with pytest.raises(ApplyError) as caught:
        engine.apply("demo")
    assert caught.value.journal == ("undone: replaced fakelib.ops:broken", "undone: changed x:y")


def test_after_a_failure_the_next_apply_works(fakelib, ops):
    trouble = [True]

    def edits():
        if trouble:
            trouble.pop()
            raise OSError("once")
        return [_good("broken")]

    engine = fakelib.engine(make_shim(edits=edits))
    with pytest.raises(ApplyError):
        engine.apply("demo")
    assert engine.apply("demo").state is State.APPLIED
    engine.revert_all()


def test_an_interrupt_between_edits(fakelib, ops):
    def interrupt():
        raise KeyboardInterrupt

    before = snapshot(ops)
    engine = fakelib.engine(make_shim(edits=lambda: [_good("broken"), Call("x:y", interrupt)]))
    with pytest.raises(KeyboardInterrupt):
        engine.apply("demo")
    assert snapshot(ops) == before
    assert engine.status()["demo"].state is State.FAILED
    assert engine._session is None
    assert engine._lock.acquire(blocking=False)
    engine._lock.release()


def test_two_shims_on_one_target(fakelib, ops):
    first, second = make_shim("first"), make_shim("second", probe=lambda: present("always"))
    engine = fakelib.engine(first, second)
    engine.apply("first")
    with pytest.raises(ApplyError, match="already held by the shim 'first'"):
        engine.apply("second")
    assert engine.status()["second"].state is State.CONFLICT
    assert ops.broken() == "good"
    engine.revert_all()


def test_declared_order_lets_two_shims_share_and_reverts_backwards(fakelib, ops):
    def louder(original):
        return lambda: original() + "!"

    second = make_shim(
        "second",
        after=("first",),
        probe=lambda: absent("loud", cured=True) if ops.broken().endswith("!") else present("quiet"),
        edits=lambda: [ReplaceAttr("fakelib.ops:broken", louder)],
    )
    before = snapshot(ops)
    engine = fakelib.engine(make_shim("first"), second)
    engine.apply_all()
    assert ops.broken() == "good!"
    with pytest.raises(RevertError, match="is now held by"):
        engine.revert("first")
    engine.revert_all()
    assert snapshot(ops) == before


def test_a_foreign_patch_is_named(fakelib, ops):
    ops.broken = lambda: "bad"  # defined here, not in fakelib
    with pytest.raises(ApplyError, match="already held by a function of test_engine"):
        fakelib.engine(make_shim()).apply("demo")


def test_a_foreign_patch_on_top_of_ours(fakelib, ops):
    engine = fakelib.engine(make_shim())
    engine.apply("demo")
    ours = ops.broken
    ops.broken = lambda: "good, they say"
    status = engine.status()["demo"]
    assert status.state is State.CONFLICT
    assert "taken over by test_engine" in status.reason
    with pytest.raises(RevertError, match="take that patch back first"):
        engine.revert("demo")
    ops.broken = ours
    assert engine.status()["demo"].state is State.APPLIED
    engine.revert("demo")


def test_a_reloaded_module_is_cured_again(fakelib, ops):
    engine = fakelib.engine(make_shim())
    engine.apply("demo")
    exec(compile("def broken(): return 'bad'", "<x>", "exec"), vars(ops))
    assert engine.status()["demo"].state is State.CONFLICT
    assert engine.apply("demo").state is State.APPLIED
    assert ops.broken() == "good"
    engine.revert("demo")


def test_opt_in_is_only_applied_by_name(fakelib, ops, monkeypatch):
    engine = fakelib.engine(make_shim(opt_in=True))
    report = engine.apply_all()
    assert report["demo"].state is State.OPT_IN
    assert "torchcompat.apply('demo')" in report["demo"].reason
    assert engine.apply("demo").state is State.APPLIED
    assert engine.apply_all()["demo"].state is State.APPLIED
    engine.revert_all()
    assert engine.apply_all(only=["demo"])["demo"].state is State.APPLIED
    engine.revert_all()
    monkeypatch.setenv("TORCHCOMPAT_ONLY", "demo")
    assert engine.apply_all()["demo"].state is State.APPLIED
    engine.revert_all()


def test_only_and_skip(fakelib, ops):
    engine = fakelib.engine(make_shim("one"), make_shim("two", "fakelib.ops:other"))
    assert engine.apply_all(skip=["one"]).applied == ("two",)
    engine.revert_all()
    assert engine.apply_all(only=["one"]).applied == ("one",)
    engine.revert_all()
    with pytest.raises(UnknownShimError, match="did you mean 'one'"):
        engine.apply_all(only=["onee"])


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TORCHCOMPAT_DISABLE", "demo", "TORCHCOMPAT_DISABLE names it"),
        ("TORCHCOMPAT_DISABLE", "*", "switches every shim off"),
        ("TORCHCOMPAT_ONLY", "two", "TORCHCOMPAT_ONLY does not name it"),
    ],
)
def test_the_environment_has_the_last_word(fakelib, ops, monkeypatch, name, value, says):
    engine = fakelib.engine(make_shim(), make_shim("two", "fakelib.ops:other"))
    monkeypatch.setenv(name, value)
    outcome = engine.apply("demo", force=True)
    assert outcome.state is State.DISABLED
    assert says in outcome.reason
    assert engine.plan("2.13.0")["demo"].state is State.DISABLED
    monkeypatch.delenv(name)
    assert engine.apply("demo").state is State.APPLIED
    engine.revert_all()


def test_an_unknown_key_in_the_environment_warns_with_its_near_miss(fakelib, ops, monkeypatch):
    monkeypatch.setenv("TORCHCOMPAT_DISABLE", "dmo")
    engine = fakelib.engine(make_shim())
    with pytest.warns(TorchCompatWarning, match="TORCHCOMPAT_DISABLE: there is no shim 'dmo'.*'demo'"):
        engine.apply_all()
    engine.apply_all()  # said once
    engine.revert_all()


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_strict(fakelib, ops, monkeypatch, by):
    engine = fakelib.engine(
        make_shim(probe=_boom), make_shim("worse", probe=_boom), make_shim("ok", "fakelib.ops:other")
    )
    if by == "environment":
        monkeypatch.setenv("TORCHCOMPAT_STRICT", "1")
    with pytest.raises(ApplyError, match=r"'demo' .*and so could not: worse"):
        engine.apply_all(strict=True if by == "argument" else None)
    assert engine.status().applied == ("ok",)
    engine.apply_all(strict=False)
    engine.revert_all()


def test_retired(fakelib, ops):
    engine = fakelib.engine(make_shim(retired="torch 2.14 is the oldest supported", reproducers=()))
    assert engine.apply("demo", force=True).state is State.RETIRED


def test_no_torch(fakelib, ops):
    fakelib.build = None
    engine = fakelib.engine(make_shim())
    with pytest.raises(TorchNotFoundError, match="pip install torch"):
        engine.apply("demo")
    report = engine.apply_all()
    assert report["demo"].state is State.NOT_AFFECTED
    assert "torch is not installed" in str(report)
    assert engine.plan()["demo"].state is State.NOT_AFFECTED


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("2.0.0", "older than 2.4, the oldest that torchcompat is tested with"),
        ("Unknown", "cannot be read"),
    ],
)
def test_an_unusual_torch_is_said_so(fakelib, ops, raw, says):
    fakelib.build = TorchBuild.parse(raw)
    assert says in str(fakelib.engine(make_shim()).status())


def test_plan(fakelib, ops):
    engine = fakelib.engine(make_shim(), make_shim("by_name", "fakelib.ops:other", opt_in=True))
    plan = engine.plan("2.13.0")
    assert (plan["demo"].state, plan["by_name"].state) == (State.PENDING, State.OPT_IN)
    assert "once the probe confirms it" in plan["demo"].reason
    assert "if the probe finds it" in engine.plan("2.13.0.dev20260601")["demo"].reason
    assert engine.plan(TorchBuild.parse("Unknown"))["demo"].verdict is Verdict.UNKNOWN
    assert engine.plan("2.12.1")["demo"].state is State.NOT_AFFECTED
    with pytest.raises(GateError, match="'banana' is not a version of torch; write it as"):
        engine.plan("banana")
    assert ops.broken() == "bad"


def test_irreversible_edits_say_so(fakelib, ops):
    shim = make_shim(edits=lambda: [_good("broken"), Call("x:y", lambda: None)])
    engine = fakelib.engine(shim)
    outcome = engine.apply("demo")
    assert not outcome.reversible
    assert outcome.edits[1] == "changed x:y (cannot be taken back)"
    with pytest.raises(RevertError, match="no way back"):
        engine.revert("demo")
    with pytest.raises(RevertError):
        engine.revert_all()
    assert engine.status()["demo"].state is State.APPLIED


def test_the_context_manager_reverts_only_what_it_applied(fakelib, ops):
    engine = fakelib.engine(make_shim("one"), make_shim("two", "fakelib.ops:other"))
    engine.apply("one")
    with engine.applied("one", "two") as report:
        assert report.applied == ("one", "two")
        assert ops.other() == "good"
    assert engine.status().applied == ("one",)
    with pytest.raises(ZeroDivisionError), engine.applied("two"):
        raise ZeroDivisionError
    assert ops.other() == "bad"
    engine.revert_all()


def test_fingerprint(fakelib, ops):
    shim = make_shim()
    engine = fakelib.engine(shim)
    nothing = engine.fingerprint()
    engine.apply("demo")
    applied = engine.fingerprint()
    assert nothing != applied
    assert applied.startswith("torchcompat-1-")
    engine.revert("demo")
    assert engine.fingerprint() == nothing
    newer = fakelib.engine(replace(shim, revision=2))
    newer.apply("demo")
    assert newer.fingerprint() != applied
    newer.revert("demo")


def test_subscribers(fakelib, ops):
    engine, events = fakelib.engine(make_shim()), []

    def note(event):
        events.append((event.before, event.outcome.state))
        assert engine.status()["demo"].state is event.outcome.state, "no lock is held"

    leave = engine.subscribe(note)
    engine.apply("demo")
    engine.apply("demo")
    engine.revert("demo")
    leave()
    leave()
    engine.apply("demo")
    assert events == [(None, State.APPLIED), (State.APPLIED, State.REVERTED)]
    engine.subscribe(_boom)
    with pytest.warns(TorchCompatWarning, match="a subscriber raised ValueError: boom"):
        engine.revert("demo")
    assert ops.broken() == "bad"


def test_one_info_line(fakelib, ops, caplog):
    engine = fakelib.engine(make_shim(), make_shim("two", "fakelib.ops:other", opt_in=True))
    with caplog.at_level(logging.INFO, "torchcompat"):
        engine.apply_all()
    assert [record.getMessage() for record in caplog.records] == [
        "torch 2.13.0: applied demo; <torchcompat report on torch 2.13.0: 1 applied, 1 opt_in>"
    ]
    engine.revert_all()


def test_pending_until_the_module_arrives(fakelib):
    engine, events = fakelib.engine(make_shim()), []
    engine.subscribe(lambda event: events.append(event.outcome.state))
    outcome = engine.apply("demo")
    assert outcome.state is State.PENDING
    assert "waits for fakelib.ops to be imported" in outcome.reason
    ops = fakelib.add("fakelib.ops", OPS)
    assert engine.status()["demo"].state is State.APPLIED
    assert ops.broken() == "good"
    assert events == [State.PENDING, State.APPLIED]
    engine.revert_all()


def test_a_pending_shim_can_be_reverted(fakelib):
    engine = fakelib.engine(make_shim())
    engine.apply("demo")
    assert engine.revert("demo").state is State.REVERTED
    ops = fakelib.add("fakelib.ops", OPS)
    assert engine.status()["demo"].state is State.REVERTED
    assert ops.broken() == "bad"


def test_what_was_asked_by_name_or_force_survives_apply_all_while_pending(fakelib):
    fakelib.build = TorchBuild.parse("2.12.0")
    engine = fakelib.engine(make_shim(opt_in=True))
    assert engine.apply("demo", force=True).state is State.PENDING
    assert engine.apply_all()["demo"].state is State.PENDING
    fakelib.add("fakelib.ops", OPS)
    assert engine.status()["demo"].state is State.APPLIED
    engine.revert_all()


def test_trouble_on_arrival_warns_and_does_not_raise(fakelib):
    engine = fakelib.engine(make_shim(probe=_boom))
    engine.apply("demo")
    fakelib.add("fakelib.ops", OPS)
    with pytest.warns(TorchCompatWarning, match="demo: failed .its probe raised ValueError: boom"):
        engine.status()


def test_late_holders_warn(fakelib, ops, monkeypatch):
    user = make_module("some_framework")
    user.broken = ops.broken
    monkeypatch.setitem(sys.modules, "some_framework", user)
    engine = fakelib.engine(make_shim())
    with pytest.warns(TorchCompatWarning, match=r"demo was applied late: some_framework:broken"):
        outcome = engine.apply("demo")
    assert outcome.late == ("some_framework:broken",)
    engine.revert_all()


def test_dynamo_is_reset_only_where_it_is_loaded(fakelib, ops, monkeypatch):
    for name in [n for n in sys.modules if n.startswith("torch._dynamo")]:
        monkeypatch.delitem(sys.modules, name)
    engine = fakelib.engine(make_shim(dynamo_reset=True))
    assert "torch._dynamo" not in engine.apply("demo").reason
    engine.revert("demo")
    dynamo = make_module("torch._dynamo", "calls = []\ndef reset(): calls.append(1)")
    monkeypatch.setitem(sys.modules, "torch._dynamo", dynamo)
    assert "torch._dynamo was reset" in engine.apply("demo").reason
    engine.revert("demo")
    assert dynamo.calls == [1, 1]


def test_many_threads_apply_and_revert(fakelib, ops):
    before = snapshot(ops)
    engine = fakelib.engine(make_shim("one"), make_shim("two", "fakelib.ops:other"))
    errors = []

    def work(number):
        try:
            for _ in range(50):
                (engine.apply_all if number % 2 else engine.revert_all)()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    engine.revert_all()
    assert snapshot(ops) == before


def test_a_callback_does_not_wait_for_a_lock_whose_holder_waits_for_the_import(fakelib, monkeypatch):
    """Thread A holds the engine and waits; thread B's import must not wait for A in turn."""
    monkeypatch.setattr("torchcompat.session.PATIENCE", 0.05)
    inside, go = threading.Event(), threading.Event()

    def slow_probe():
        inside.set()
        assert go.wait(30), "deadlock"
        return absent("never mind")

    fakelib.add("fakelib.slow")
    engine = fakelib.engine(make_shim("slow", "fakelib.slow:x", probe=slow_probe), make_shim("demo"))
    engine.apply("demo")
    holder = threading.Thread(target=engine.apply, args=("slow",))
    holder.start()
    assert inside.wait(30)
    ops = fakelib.add("fakelib.ops", OPS)
    from torchcompat import import_hooks

    import_hooks.poll()  # what the end of an import does; returns although the lock is held
    assert ops.broken() == "bad"
    go.set()
    holder.join(30)
    assert ops.broken() == "good", "the holder did it on release"
    engine.revert_all()


def test_unaffected_by_an_affected_override(fakelib, ops):
    engine = fakelib.engine(make_shim(affected=Affected(since=None)))
    assert engine.apply("demo").state is State.APPLIED
    engine.revert_all()

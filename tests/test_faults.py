"""Whatever goes wrong in an apply or revert, and wherever: torch is whole, and the next one works."""

from __future__ import annotations

import contextlib
import dis
import random
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_module
from fakes import make_shim
from figures import SCALE, scaled

import torchcompat
from torchcompat import ApplyError, RevertError, State, absent, import_hooks, present
from torchcompat.edits import AddAttr, AddEntries, AddItems, Call, ReplaceAttr

PLACES: list[str] = []
OPS = """
    def broken():
        return "bad"

    def other():
        return "bad"

    class Base:
        def method(self):
            return "bad"

        @staticmethod
        def free():
            return "bad"

    class Derived(Base):
        pass

    ignored = {1}
    table = {"a": 1}
    flags = {"on": False}
"""


def good(original):
    return lambda *args: "good"


class World:
    """A fresh library, an engine, and two shims that make seven and two edits."""

    def __init__(self, fakelib, *, loaded=True, still_bad=False):
        self.fakelib = fakelib
        sys.modules.pop("fakelib.ops", None)
        sys.modules.pop("fakelib.user", None)
        self.module = make_module("fakelib.ops", OPS)
        self.user = make_module("fakelib.user")
        self.user.broken = self.module.broken  # an alias inside the library
        self.before = self.picture()
        if loaded:
            self.arrive()

        def probe():
            bad = still_bad or self.module.broken() == "bad"
            return present("it says bad") if bad else absent("it says good", cured=True)

        def switch(on):
            return lambda: self.module.flags.update(on=on)

        self.engine = fakelib.engine(
            make_shim("many", "fakelib.ops:broken", probe=probe, edits=lambda: [
                ReplaceAttr("fakelib.ops:broken", good, aliases=("fakelib.user:broken",)),
                AddItems("fakelib.ops:ignored", lambda: [1, 2, 3]),
                AddEntries("fakelib.ops:table", lambda: {"a": 2, "b": 3}, replace=True),
                ReplaceAttr("fakelib.ops:Derived.method", good),
                ReplaceAttr("fakelib.ops:Base.free", good),
                AddAttr("fakelib.ops:added", lambda: 5),
                Call("fakelib.ops flags", switch(True), switch(False)),
            ]),
            make_shim("two", "fakelib.ops:other", edits=lambda: [
                ReplaceAttr("fakelib.ops:other", good), AddItems("fakelib.ops:ignored", lambda: [4]),
            ]),
        )  # fmt: skip

    def arrive(self):
        sys.modules["fakelib.ops"], sys.modules["fakelib.user"] = self.module, self.user

    def picture(self):
        owners = (self.module, self.user, self.module.Base, self.module.Derived)
        held = tuple(type(c)(c) for c in (self.module.ignored, self.module.table, self.module.flags))
        return [dict(vars(owner)) for owner in owners], held

    def edits(self, key):
        """Which edits of a shim are in place."""
        m = self.module
        if key == "two":
            return {m.other() == "good", 4 in m.ignored}
        done = [m.broken(), self.user.broken(), m.Derived().method(), m.Base.free()]
        return {
            *(said == "good" for said in done), {2, 3} <= m.ignored, 2 in m.ignored,
            m.table == {"a": 2, "b": 3}, "b" in m.table, hasattr(m, "added"), m.flags["on"],
        }  # fmt: skip

    def check(self):
        """Nothing is half done, and the status says what is so; then everything works again."""
        free = []
        asker = threading.Thread(target=lambda: free.append(self.engine._lock.acquire(timeout=1) and self.engine._lock.release()))  # fmt: skip
        asker.start()
        asker.join()
        assert free == [None], "the lock is still held"
        self.after_any()

    def after_any(self):
        report = self.engine.status()
        for key in ("many", "two"):
            assert self.edits(key) == {report[key].state is State.APPLIED}, (key, str(report[key]))
        if not report.applied:
            assert self.picture() == self.before
        self.arrive()
        assert self.engine.apply("many").state is State.APPLIED
        assert self.engine.apply_all().applied == ("many", "two")
        assert self.edits("many") == self.edits("two") == {True}
        self.engine.revert_all()
        assert self.picture() == self.before
        assert self.engine.status().applied == ()

    def close(self):
        for waiter in import_hooks._waiting.waiters:
            waiter.cancel()
        sys.modules.pop("fakelib.ops", None)
        sys.modules.pop("fakelib.user", None)


# -- an interrupt wherever Python can deliver one --------------------------------------

#: CPython looks for signals after a call, at the start of a function and on jumping back.
#: Elsewhere none can fall, as between taking a lock in a ``with`` and being inside of it.
ASKS = ("CALL", "RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "JUMP_ABSOLUTE")
LOOPS = ("same_name_holders",)  # it only reads, once for every loaded module
FILES = (str(Path(torchcompat.__file__).parent), contextlib.__file__)


def interrupted(work, at):
    """Run work with an interrupt at the given steps of our own code; how many steps it was."""
    step, left = 0, list(at)
    before: dict[int, str] = {}  # by id: a frame that is kept alive keeps its locks

    def trace(frame, event, _):
        nonlocal step
        if not frame.f_code.co_filename.startswith(FILES) or frame.f_code.co_name in LOOPS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call":
            before[id(frame)] = "RESUME"
        elif event == "return":
            before.pop(id(frame), None)
        elif event == "opcode":
            asked = before.get(id(frame), "RESUME").startswith(ASKS)
            before[id(frame)] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            step += asked
            if asked and left and step >= left[0]:
                del left[0]
                PLACES.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return trace

    held = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except (KeyboardInterrupt, ApplyError):
        pass
    finally:
        sys.settrace(held)
    return step


def reload(world):
    exec(compile("def broken(): return 'bad'", "<again>", "exec"), vars(world.module))
    world.before[0][0]["broken"] = world.module.broken


def import_(world):
    world.arrive()
    import_hooks.poll()  # what the end of an import does


SCENES = {
    "apply": ({}, lambda w: None, lambda w: w.engine.apply("many")),
    "an apply that fails": ({"still_bad": True}, lambda w: None, lambda w: w.engine.apply("many")),
    "apply_all": ({}, lambda w: None, lambda w: w.engine.apply_all()),
    "revert": ({}, lambda w: w.engine.apply("many"), lambda w: w.engine.revert("many")),
    "revert_all": ({}, lambda w: w.engine.apply_all(), lambda w: w.engine.revert_all()),
    "wait": ({"loaded": False}, lambda w: None, lambda w: w.engine.apply("many")),
    "arrive": ({"loaded": False}, lambda w: w.engine.apply_all(), import_),
}


def play(fakelib, scene, at):
    options, prepare, work = SCENES[scene]
    world = World(fakelib, **options)
    try:
        prepare(world)
        steps = interrupted(lambda: work(world), at)
        if options.get("still_bad"):
            assert world.picture() == world.before
            assert world.engine.status()["many"].state in (State.FAILED, State.PENDING)
            free = world.engine._lock
            assert free.acquire(blocking=False)
            free.release()
            assert not free._is_owned()
        else:
            world.check()
    except AssertionError as error:
        raise AssertionError(f"{scene}, interrupted at {at}, {PLACES[-len(at) :]}: {error}") from error
    finally:
        world.close()
    return steps


@pytest.mark.parametrize("scene", SCENES)
def test_an_interrupt_wherever_one_can_fall(fakelib, scene, figure):
    """At every point at full scale; in the everyday run at some, others for every scene."""
    points = range(1, play(fakelib, scene, []) + 1)
    if SCALE < 20:
        points = random.Random(scene).sample(points, min(len(points), scaled(25)))
    for n in points:
        play(fakelib, scene, [n])
    figure("faults injected: an interrupt in an apply, revert or arrival", len(points))


# -- everything else that can go wrong, at each edit ---------------------------------


class Trouble(Exception):
    pass


def spoiled(edit, where, kind):
    """An edit whose change raises before or after it is made, or in undoing it."""

    class Spoiled:
        target, reversible = edit.target, edit.reversible

        def prepare(self):
            if where == "prepare":
                raise kind
            change = edit.prepare()
            commit, undo = change.commit, change.undo

            def spoiled_commit():
                if where == "before":
                    raise kind
                commit()
                if where in ("after", "undo"):
                    raise kind

            def spoiled_undo():
                undo()
                if where == "undo" and not undone:
                    undone.append(1)
                    raise KeyboardInterrupt

            undone: list[int] = []
            change.commit, change.undo = spoiled_commit, spoiled_undo
            return change

    return Spoiled()


def raising(original):
    raise Trouble("spoiled")


@pytest.mark.parametrize("where", ["prepare", "before", "after", "undo"])
@pytest.mark.parametrize("kind", [Trouble("spoiled"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_each_edit_raises(fakelib, where, kind, figure):
    world, count = World(fakelib), 0
    shim = world.engine.registry.get("many")
    for n, edit in enumerate(shim.edits()):
        world = World(fakelib)
        healthy = world.engine.registry.get("many").edits
        broken = lambda n=n, healthy=healthy: [  # noqa: E731
            spoiled(edit, where, kind) if i == n else edit for i, edit in enumerate(healthy())
        ]
        trouble = [broken]

        def edits(trouble=trouble, healthy=healthy):
            return trouble.pop()() if trouble else healthy()

        registry = world.engine.registry
        registry._entries["many"] = replace(registry.get("many"), edits=edits)
        expected = ApplyError if isinstance(kind, Exception) and where != "undo" else BaseException
        with pytest.raises(expected):
            world.engine.apply("many")
        assert world.picture() == world.before, (n, edit)
        outcome = world.engine.status()["many"]
        assert outcome.state is State.FAILED
        assert "torch is as it was" in outcome.reason
        assert type(kind).__name__ in outcome.reason
        world.check()
        world.close()
        count += 1
    figure("faults injected: an edit raises, before or after it is made", count)


def test_an_undo_that_cannot_be_made_is_said_and_not_called_whole(fakelib, figure):
    def stuck():
        raise Trouble("stuck")

    world = World(fakelib)
    registry = world.engine.registry
    edits = lambda: [  # noqa: E731
        ReplaceAttr("fakelib.ops:other", good), Call("the flag", lambda: None, stuck)
    ]  # fmt: skip
    registry._entries["two"] = replace(registry.get("two"), edits=edits)
    world.engine.apply("two")
    with pytest.raises(
        RevertError, match=r"could not be undone: the flag \(stuck\); start a new process"
    ):
        world.engine.revert("two")
    assert world.module.other() == "bad", "the others are undone"
    outcome = world.engine.status()["two"]
    assert (outcome.state, "as it was" in outcome.reason) == (State.FAILED, False)
    registry._entries["two"] = replace(registry.get("two"), edits=lambda: [*edits(), Call("x", stuck)])
    with pytest.raises(ApplyError, match=r"Trouble: stuck; and in undoing it, could not be undone: the"):
        world.engine.apply("two")
    assert "as it was" not in world.engine.status()["two"].reason
    assert world.picture() == world.before
    world.close()
    figure("faults injected: an undo raises", 2)


def later(first, then):
    """A probe that raises at its n-th call."""
    calls = [first]

    def probe(*_):
        calls[0] -= 1
        if calls[0] == 0:
            raise Trouble("spoiled")
        return then()

    return probe


@pytest.mark.parametrize("call", [1, 2], ids=["the probe", "the closing probe"])
def test_a_probe_raises(fakelib, call, figure):
    world = World(fakelib)
    registry = world.engine.registry
    healthy = registry.get("many").probe
    registry._entries["many"] = replace(registry.get("many"), probe=later(call, healthy))
    report = world.engine.apply_all()
    assert report["many"].state is State.FAILED
    assert report.applied == ("two",)
    assert {*world.edits("many")} == {False}
    world.check()
    # Applied, overwritten, and then its probe raises: still nothing comes out of apply_all().
    world.engine.apply("many")
    ours, world.module.broken = world.module.broken, lambda: "bad"
    registry._entries["many"] = replace(registry.get("many"), probe=later(1, healthy))
    assert world.engine.apply_all()["many"].state is State.CONFLICT
    world.module.broken = ours
    world.engine.revert_all()
    assert world.picture() == world.before
    world.close()
    figure("faults injected: a probe raises", 2)


def test_a_subscriber_raises(fakelib, figure):
    for kind in (Trouble("spoiled"), KeyboardInterrupt()):
        world = World(fakelib)
        leave = world.engine.subscribe(later(1, lambda: None) if isinstance(kind, Trouble) else _press)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                world.engine.apply("many")
            except KeyboardInterrupt:
                assert isinstance(kind, KeyboardInterrupt)
        assert bool(caught) == isinstance(kind, Trouble)
        assert world.edits("many") == {True}
        assert world.engine.status()["many"].state is State.APPLIED
        leave()
        world.check()
        world.close()
    figure("faults injected: a subscriber raises", 2)


def _press(event):
    raise KeyboardInterrupt


def test_a_foreign_patch_that_goes_away_again_gives_ours_back(fakelib, figure):
    """Theirs has the fault, so an apply is tried again; ours must not be forgotten for it."""
    world = World(fakelib)
    world.engine.apply("many")
    ours, world.module.broken = world.module.broken, lambda: "bad"
    for _ in range(2):
        assert world.engine.apply_all()["many"].state is State.CONFLICT
    world.module.broken = ours
    assert world.engine.status()["many"].state is State.APPLIED
    world.engine.revert_all()
    assert world.picture() == world.before
    world.close()
    figure("faults injected: a foreign patch comes and goes", 2)


def test_a_reload_drops_one_edit_of_many(fakelib, figure):
    """What is left of the first apply goes before the second, so nothing is edited twice."""
    world = World(fakelib)
    world.engine.apply("many")
    reload(world)
    assert world.engine.status()["many"].state is State.CONFLICT
    assert world.engine.apply("many").state is State.APPLIED
    world.engine.revert("many")
    world.user.broken = world.before[0][1]["broken"]
    assert world.picture() == world.before
    world.close()
    figure("faults injected: a reload", 1)


def test_one_shim_on_another_both_stay_applied(fakelib, figure):
    """Declared with ``after``; each is looked at by itself, and a foreign patch still shows."""
    world = World(fakelib)
    upper = make_shim(
        "upper", "fakelib.ops:other", after=("two",),
        probe=lambda: absent("loud", cured=True) if world.module.other()[-1] == "!" else present("low"),
        edits=lambda: [ReplaceAttr("fakelib.ops:other", lambda original: lambda: original() + "!")],
    )  # fmt: skip
    world.engine.registry.register(upper)
    for _ in range(2):
        assert world.engine.apply_all(strict=True).applied == ("many", "two", "upper")
    with pytest.raises(RevertError, match="now held by the shim 'upper'; revert that first"):
        world.engine.revert("two")
    world.module.ignored.discard(4)
    assert world.engine.status().applied == ("many", "upper")
    world.module.ignored.add(4)
    theirs, world.module.other = world.module.other, lambda: "bad"
    assert world.engine.status().applied == ("many",), "both are covered"
    world.module.other = theirs
    world.engine.revert_all()
    assert world.picture() == world.before
    world.close()
    figure("faults injected: a foreign patch comes and goes", 1)


@pytest.mark.parametrize("how", ["half-imported", "failing", "gone again"])
def test_a_target_module_that_is_not_whole(fakelib, how, figure):
    world = World(fakelib, loaded=False)
    assert set(world.engine.apply_all().keys_in(State.PENDING)) == {"many", "two"}
    if how == "half-imported":
        world.module.__spec__._initializing = True
        world.arrive()
    elif how == "failing":
        world.arrive()
        del sys.modules["fakelib.ops"]
    else:
        sys.modules["fakelib.ops"] = None
    for _ in range(2):
        import_hooks.poll()
        report = world.engine.apply_all()
        assert set(report.keys_in(State.PENDING)) == {"many", "two"}
        assert world.picture() == world.before
    world.module.__spec__._initializing = False
    world.check()
    world.close()
    figure("faults injected: a target module is not whole", 1)


def test_the_lock_is_held_elsewhere(fakelib, figure):
    """An arrival does not wait for it for long, and its holder does the work."""
    world = World(fakelib, loaded=False)
    world.engine.apply_all()
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with world.engine._locked():
            inside.set()
            leave.wait(30)

    holder = threading.Thread(target=hold)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchcompat.session.PATIENCE", 0.05)
        holder.start()
        inside.wait(30)
        import_(world)
        assert world.picture() == world.before
    leave.set()
    holder.join(30)
    assert world.edits("many") == {True}
    world.check()
    world.close()
    figure("faults injected: the lock is held elsewhere", 1)

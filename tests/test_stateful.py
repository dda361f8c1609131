"""Random sequences of everything that can happen to an engine, against a plain model."""

from __future__ import annotations

import sys
import warnings

from conftest import make_module
from fakes import make_shim
from figures import SCALE, scaled
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from torchcompat import (
    Affected,
    ApplyError,
    DuplicateShimError,
    RevertError,
    State,
    absent,
    import_hooks,
    present,
)
from torchcompat.edits import AddEntries, AddItems, Call, ReplaceAttr

A = "\n".join(f"def f{n}():\n    return 'bad'" for n in range(4)) + "\nignored = {1}\ntable = {'x': 1}\n"
B = "def f4():\n    return 'bad'\ndef f5():\n    return 'bad'\nflags = {'on': False}\n"
USER = "held = None\n"

#: Which function each shim replaces, and in which module that is.
TARGETS = {"a": "f0", "b": "f1", "c": "f0", "d": "f0", "e": "f4", "f": "f5", "o": "f2", "x": "f3"}
HOMES = {f"f{n}": "fakelib.a" if n < 4 else "fakelib.b" for n in range(6)}
KEYS = sorted(TARGETS)
keys = st.sampled_from(KEYS)
functions = st.sampled_from(["f0", "f0", "f0", "f1", "f1", "f2", "f4", "f5"])


class World:
    """The library, the engine, and shims whose every edit can be looked at."""

    def __init__(self, fakelib):
        self.modules = {
            "fakelib.a": make_module("fakelib.a", A),
            "fakelib.b": make_module("fakelib.b", B),
            "fakelib.user": make_module("fakelib.user", USER),
        }
        self.a, self.b, self.user = self.modules.values()
        self.user.held = self.a.f0  # an alias, known to the shim a
        sys.modules["fakelib.user"] = self.user
        self.engine = fakelib.engine()
        self.trouble = False

    def picture(self):
        plain = {n: {k: v for k, v in vars(m).items() if k[0] != "_"} for n, m in self.modules.items()}
        return plain, set(self.a.ignored), dict(self.a.table), dict(self.b.flags)

    def live(self, function):
        return getattr(self.modules[HOMES[function]], function)

    def shim(self, key):
        function = TARGETS[key]
        target = f"{HOMES[function]}:{function}"

        def replaced(original):
            return lambda: original() + "+d" if key == "d" else key

        def edits():
            first = ReplaceAttr(target, replaced, aliases=("fakelib.user:held",) if key == "a" else ())
            more = {
                "a": lambda: [AddItems("fakelib.a:ignored", lambda: [1, 10, 11])],
                "b": lambda: [AddEntries("fakelib.a:table", lambda: {"b": 1, "x": 2}, replace=True)],
                "f": lambda: [
                    Call("flags", lambda: self.switch(on=True), lambda: self.switch(on=False))
                ],
            }
            return [first, *more.get(key, list)()]

        def probe():
            said = self.live(function)()
            here = {"c": said != "c", "d": "+d" not in said}.get(key, said == "bad")
            return present("the fault") if here else absent("the cure", cured=True)

        return make_shim(
            key, target, probe=probe, edits=edits, opt_in=key == "o", after=("a",) if key == "d" else (),
            affected=Affected(since="2.14.0" if key == "x" else "2.13.0"),
        )  # fmt: skip

    def switch(self, *, on):
        self.b.flags["on"] = on
        if on and self.trouble:
            raise OSError("half-way")


class Model:
    """What ought to be so, written without journals, locks or hooks."""

    def __init__(self):
        self.known: list[str] = []
        self.loaded: set[str] = set()
        self.stacks = {function: ["orig"] for function in HOMES}
        self.on: dict[str, bool] = {}  # key: whether it was forced, in the order of applying
        self.waiting: dict[str, bool] = {}
        self.noted: dict[str, State] = {}
        self.disabled: set[str] = set()
        self.trouble = self.robbed = False

    def says(self, function):
        said = "bad"
        for holder in self.stacks[function]:
            said = {"orig": "bad", "bad": "bad", "fine": "fine", "d": f"{said}+d"}.get(holder, holder)
        return said

    def is_foreign(self, function):
        return self.stacks[function][-1] in ("bad", "fine")

    def state(self, key):
        if key in self.on:
            stack = self.stacks[TARGETS[key]]
            whole = stack[-1] == key or (key == "a" and stack[-2:] == ["a", "d"])
            return State.APPLIED if whole and not (key == "a" and self.robbed) else State.CONFLICT
        if key in self.noted:
            return self.noted[key]
        early = self.early(key, named=False)
        return early or (State.NOT_AFFECTED if key == "x" else State.PENDING)

    def early(self, key, *, named):
        if key in self.disabled:
            return State.DISABLED
        return State.OPT_IN if key == "o" and not named else None

    def apply(self, key, *, named, force):
        function = TARGETS[key]
        if key in self.on:
            said = self.says(function)
            faulty = "+d" not in said if key == "d" else said != "c" if key == "c" else said == "bad"
            if self.state(key) is State.APPLIED or not faulty or self.is_foreign(function):
                return self.state(key)
            del self.on[key]  # a reload has dropped it; the rest is taken back
            self.noted[key] = State.CONFLICT
        if key in self.waiting:
            named, force = True, force or self.waiting.pop(key)
        self.noted[key] = state = self.decide(key, named=named, force=force)
        return state

    def decide(self, key, *, named, force):
        function = TARGETS[key]
        early = self.early(key, named=named)
        if early is not None:
            return early
        if key == "x" and not force:
            return State.NOT_AFFECTED
        if HOMES[function] not in self.loaded:
            self.waiting[key] = force
            return State.PENDING
        said = self.says(function)
        faulty = "+d" not in said if key == "d" else said != "c" if key == "c" else said == "bad"
        if not faulty:
            return State.ALREADY_FIXED
        rivals = {k for k in self.on if TARGETS[k] == function} - ({"a"} if key == "d" else set())
        if self.is_foreign(function) or rivals:
            return State.CONFLICT
        if key == "f" and self.trouble:
            return State.FAILED
        self.stacks[function].append(key)
        self.on[key] = force
        return State.APPLIED

    def revert(self, key):
        if key in self.on:
            if self.state(key) is State.CONFLICT or (key == "a" and "d" in self.on):
                return None
            del self.on[key]
            self.stacks[TARGETS[key]].pop()
            self.noted[key] = State.REVERTED
        elif key in self.waiting:
            del self.waiting[key]
            self.noted[key] = State.REVERTED
        return self.state(key)

    def arrive(self):
        for key in [k for k in self.waiting if HOMES[TARGETS[k]] in self.loaded]:
            if key in self.waiting:
                self.apply(key, named=True, force=False)


class Machine(RuleBasedStateMachine):
    fakelib = None
    steps = 0

    @initialize(
        chosen=st.permutations(KEYS),
        left=st.integers(0, 3),
        loaded=st.sets(st.sampled_from(["fakelib.a", "fakelib.b"])),
    )
    def begin(self, chosen, left, loaded):
        self.world, self.model = World(type(self).fakelib), Model()
        self.foreign: list[tuple[str, object]] = []
        self.before = self.world.picture()
        for name in sorted(loaded):
            self.import_module(name)
        for key in chosen[left:]:
            self.register(key)

    def does(self, call, *expected_errors):
        """Do something; what it returned, or None where it raised an expected error."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # trouble on arrival warns
            try:
                return call()
            except expected_errors:
                return None

    @rule(key=keys)
    def register(self, key):
        fresh = key not in self.model.known
        done = self.does(
            lambda: self.world.engine.registry.register(self.world.shim(key)), DuplicateShimError
        )
        assert (done is not None) == fresh
        if fresh:
            self.model.known.append(key)

    @precondition(lambda self: self.model.known)
    @rule(data=st.data(), force=st.booleans())
    def apply(self, data, force):
        key = data.draw(st.sampled_from(self.model.known))
        outcome = self.does(lambda: self.world.engine.apply(key, force=force), ApplyError)
        state = self.model.apply(key, named=True, force=force)
        assert state.is_trouble if outcome is None else outcome.state is state

    @rule()
    def apply_all(self):
        report = self.does(self.world.engine.apply_all)
        for key in self.model.known:
            self.model.apply(key, named=False, force=False)
        assert {k: o.state for k, o in report.items()} == {
            k: self.model.state(k) for k in self.model.known
        }

    @precondition(lambda self: self.model.known)
    @rule(data=st.data())
    def revert(self, data):
        key = data.draw(st.sampled_from(self.model.known))
        outcome = self.does(lambda: self.world.engine.revert(key), RevertError)
        state = self.model.revert(key)
        assert (None if outcome is None else outcome.state) is state

    @rule()
    def revert_all(self):
        report = self.does(self.world.engine.revert_all, RevertError)
        for key in [*reversed(self.model.on), *self.model.waiting]:
            self.model.revert(key)
        assert (report is None) == bool(self.model.on), "it raises if, and only if, something is left"

    @rule(name=st.sampled_from(["fakelib.a", "fakelib.b"]))
    def import_module(self, name):
        sys.modules[name] = self.world.modules[name]
        self.does(import_hooks.poll)
        self.model.loaded.add(name)
        self.model.arrive()

    @rule(function=functions, kind=st.sampled_from(["bad", "fine"]))
    def foreign_patch(self, function, kind):
        self.foreign.append((function, self.world.live(function)))
        setattr(self.world.modules[HOMES[function]], function, lambda: kind)
        self.model.stacks[function].append(kind)

    @precondition(lambda self: self.foreign)
    @rule()
    def foreign_leaves(self):
        function, theirs = self.foreign.pop()
        setattr(self.world.modules[HOMES[function]], function, theirs)
        assert self.model.stacks[function].pop() in ("bad", "fine")

    @precondition(lambda self: "a" in self.model.on)
    @rule()
    def foreign_takes_an_item(self):
        self.world.a.ignored.discard(10)
        self.model.robbed = True

    @precondition(lambda self: self.model.robbed)
    @rule()
    def foreign_gives_it_back(self):
        self.world.a.ignored.add(10)
        self.model.robbed = False

    @precondition(lambda self: not any(function == "f1" for function, _ in self.foreign))
    @rule()
    def reload(self):
        """Torch's own function is new: what was on it is gone."""
        exec(compile("def f1():\n    return 'bad'", "<again>", "exec"), vars(self.world.a))
        self.before[0]["fakelib.a"]["f1"] = self.world.a.f1
        self.model.stacks["f1"] = ["orig"]

    @rule(on=st.booleans())
    def trouble(self, on):
        self.world.trouble = self.model.trouble = on

    @rule(chosen=st.sets(keys, max_size=3))
    def environment(self, chosen):
        chosen &= set(self.model.known)
        self.monkeypatch.setenv("TORCHCOMPAT_DISABLE", ",".join(sorted(chosen)))
        self.model.disabled = chosen

    @invariant()
    def status_tells_the_truth(self):
        type(self).steps += 1
        report = self.does(self.world.engine.status)
        assert {k: str(o.state) for k, o in report.items()} == {
            k: str(self.model.state(k)) for k in self.model.known
        }
        for function in HOMES:
            assert self.world.live(function)() == self.model.says(function), function
        on = self.model.on
        assert {10, 11} & self.world.a.ignored == ({10, 11} if "a" in on else set()) - (
            {10} if self.model.robbed else set()
        )
        assert self.world.a.table == ({"x": 2, "b": 1} if "b" in on else {"x": 1})
        assert self.world.b.flags["on"] == ("f" in on)
        if "a" in on:
            assert self.world.user.held() == "a", "the alias goes with it"
        if not on and not self.foreign:
            assert self.world.picture() == self.before

    def teardown(self):
        """Whatever has happened: once the others have gone, torch is what it was."""
        if not hasattr(self, "world"):
            return
        self.monkeypatch.delenv("TORCHCOMPAT_DISABLE", raising=False)
        self.model.disabled, self.world.trouble = set(), False
        while self.foreign:
            self.foreign_leaves()
        if self.model.robbed:
            self.foreign_gives_it_back()
        self.does(self.world.engine.apply_all)
        self.does(self.world.engine.revert_all)
        assert self.world.picture() == self.before
        for waiter in import_hooks._waiting.waiters:
            waiter.cancel()
        for name in self.world.modules:
            sys.modules.pop(name, None)


def test_random_sequences(fakelib, monkeypatch, figure):
    Machine.fakelib, Machine.monkeypatch, Machine.steps = fakelib, monkeypatch, 0
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=scaled(60),
            stateful_step_count=50,
            deadline=None,
            database=None,
            derandomize=SCALE == 1,
            suppress_health_check=list(HealthCheck),
        ),
    )
    figure("steps of the stateful test", Machine.steps)

from __future__ import annotations

import functools
import pickle

import pytest

from torchcompat.edits import AddAttr, AddEntries, AddItems, Call, Edit, ReplaceAttr
from torchcompat.errors import ConflictError, TargetDriftError, TorchCompatError
from torchcompat.journal import Journal
from torchcompat.targets import lookup, replacement_drift

SOURCE = """
    import contextlib

    def plain():
        return "original"

    @contextlib.contextmanager
    def managed():
        yield

    class Base:
        def method(self):
            return "base"

        @classmethod
        def made(cls):
            return cls.__name__

        @staticmethod
        def fixed():
            return "fixed"

    class Child(Base):
        pass

    items = {1, 2}
    frozen = frozenset(items)
    table = {"a": 1}
    VALUE = 3
"""


@pytest.fixture
def lib(fakelib):
    return fakelib.add("fakelib.things", SOURCE)


def twice(original):
    @functools.wraps(original, updated=())
    def replacement(*args):
        return original(*args) * 2

    return replacement


def commit(*edits):
    journal = Journal()
    for edit in edits:
        assert isinstance(edit, Edit)
        journal.commit(edit.prepare())
    return journal


def test_replace_a_function_and_its_aliases(lib, fakelib):
    other = fakelib.add("fakelib.other")
    other.borrowed = lib.plain
    late = fakelib.add("fakelib.late")
    original, before = lib.plain, dict(vars(lib))
    edit = ReplaceAttr(
        "fakelib.things:plain",
        twice,
        aliases=("fakelib.other:borrowed", "fakelib.late:plain", "fakelib.absent:plain"),
    )
    journal = commit(edit)
    assert lib.plain() == other.borrowed() == "originaloriginal"
    late.plain = lib.plain  # imported after us: holds our object
    assert journal.describe() == (
        "replaced fakelib.things:plain (and where it was imported: fakelib.other:borrowed)",
    )
    journal.rollback()
    assert dict(vars(lib)) == before
    assert other.borrowed is original
    assert late.plain is original, "a copy taken after the edit is put back too"


def test_an_alias_that_holds_something_else_is_left_alone(lib, fakelib):
    other = fakelib.add("fakelib.other", "def plain(): return 'another'")
    own = other.plain
    journal = commit(ReplaceAttr("fakelib.things:plain", twice, aliases=("fakelib.other:plain",)))
    assert other.plain is own
    journal.rollback()
    assert other.plain is own


@pytest.mark.parametrize("owner", ["Base", "Child"])
def test_replace_on_a_class_and_on_a_subclass(lib, owner):
    before = dict(vars(lib.Base)), dict(vars(lib.Child))
    journal = commit(ReplaceAttr(f"fakelib.things:{owner}.method", twice))
    assert lib.Child().method() == "basebase"
    assert lib.Base().method() == ("basebase" if owner == "Base" else "base")
    journal.rollback()
    assert (dict(vars(lib.Base)), dict(vars(lib.Child))) == before
    assert "method" not in vars(lib.Child), "an inherited attribute must not stick to the subclass"


@pytest.mark.parametrize("name", ["made", "fixed"])
def test_descriptors_are_unwrapped_and_wrapped_again(lib, name):
    before = dict(vars(lib.Base))
    plain = getattr(lib.Child, name)()
    journal = commit(ReplaceAttr(f"fakelib.things:Base.{name}", twice))
    assert getattr(lib.Child, name)() == plain * 2, "a classmethod still sees the subclass"
    assert type(vars(lib.Base)[name]) is type(before[name])
    journal.rollback()
    assert dict(vars(lib.Base)) == before


def test_a_wrapped_standard_library_decorator_is_no_foreign_patch(lib):
    commit(ReplaceAttr("fakelib.things:managed", lambda original: original)).rollback()


def test_a_foreign_patch_is_a_conflict(lib):
    lib.plain = twice(lib.plain)
    with pytest.raises(ConflictError, match="a function of test_edits"):
        ReplaceAttr("fakelib.things:plain", twice).prepare()


def test_late_holders_outside_are_named(lib, fakelib, monkeypatch):
    import sys

    from conftest import make_module

    user = make_module("some_framework")
    user.plain = lib.plain
    monkeypatch.setitem(sys.modules, "some_framework", user)
    journal = commit(ReplaceAttr("fakelib.things:plain", twice))
    journal.rollback()
    change = ReplaceAttr("fakelib.things:plain", twice).prepare()
    assert change.late_holders() == ["some_framework:plain"]


def test_add_a_missing_attribute(lib):
    before = dict(vars(lib))
    journal = commit(AddAttr("fakelib.things:new_name", lambda: 5))
    assert lib.new_name == 5
    journal.rollback()
    assert dict(vars(lib)) == before
    with pytest.raises(ConflictError):
        AddAttr("fakelib.things:VALUE", lambda: 5).prepare()


def test_a_set_keeps_its_identity_and_only_our_items_leave(lib):
    held_elsewhere = lib.items
    journal = commit(AddItems("fakelib.things:items", lambda: [2, 3]))
    lib.items.add(4)
    assert held_elsewhere == {1, 2, 3, 4}
    assert held_elsewhere is lib.items
    journal.rollback()
    assert lib.items == {1, 2, 4}, "2 was there before, 4 is somebody else's"


def test_a_set_that_was_replaced_or_robbed_is_no_longer_ours(lib):
    journal = commit(AddItems("fakelib.things:items", lambda: [3]))
    assert journal.foreign_holder() is None
    lib.items.discard(3)
    assert "removed 3" in journal.foreign_holder()[1]
    lib.items = {1, 2, 3}
    assert "put in its place" in journal.foreign_holder()[1]


def test_entries_of_a_dict(lib):
    journal = commit(AddEntries("fakelib.things:table", lambda: {"b": 2}))
    lib.table["c"] = 3
    journal.rollback()
    assert lib.table == {"a": 1, "c": 3}
    with pytest.raises(ConflictError, match=r"table\[a\]"):
        AddEntries("fakelib.things:table", lambda: {"a": 2}).prepare()
    journal = commit(AddEntries("fakelib.things:table", lambda: {"a": 2}, replace=True))
    assert lib.table["a"] == 2
    journal.rollback()
    assert lib.table["a"] == 1


def test_what_was_computed_from_the_entries_is_dropped_after_each_change(lib):
    seen = []
    journal = commit(
        AddEntries(
            "fakelib.things:table", lambda: {"b": 2}, settle=lambda: seen.append("b" in lib.table)
        )
    )
    assert seen == [True]
    journal.rollback()
    assert seen == [True, False]


def test_an_entry_that_somebody_overwrote_is_left_to_them(lib):
    journal = commit(AddEntries("fakelib.things:table", lambda: {"b": 2}))
    lib.table["b"] = "theirs"
    assert journal.foreign_holder() is not None
    journal.rollback()
    assert lib.table["b"] == "theirs"


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (ReplaceAttr("fakelib.things:gone", twice), "does not exist"),
        (ReplaceAttr("fakelib.missing:plain", twice), "fakelib.missing is not loaded"),
        (ReplaceAttr("fakelib.things:Nope.method", twice), "no 'Nope' on the way"),
        (AddItems("fakelib.things:frozen", lambda: [3]), "is a frozenset, not a set"),
        (AddItems("fakelib.things:table", lambda: [3]), "is a dict, not a set"),
        (AddEntries("fakelib.things:items", dict), "is a set, not a mapping"),
    ],
)
def test_drift_says_what_is_there_instead(lib, edit, says):
    with pytest.raises(TargetDriftError, match=says):
        edit.prepare()


@pytest.mark.parametrize(
    "target", ["fakelib.things", "fakelib.things:", ":plain", "fakelib.things:a..b"]
)
def test_a_malformed_target(lib, target):
    with pytest.raises(TorchCompatError, match="module:attribute.path"):
        ReplaceAttr(target, twice).prepare()


def test_lookup_gives_descriptors_unbound_and_never_imports(lib):
    assert isinstance(lookup("fakelib.things:Child.made"), classmethod)
    assert lookup("fakelib.things:nope", None) is None
    assert lookup("this:d", None) is None  # nobody imports that one on the way
    with pytest.raises(TargetDriftError):
        lookup("fakelib.things:nope")


def test_a_call_can_be_final():
    done = []
    final, reversible = Call("a:b", lambda: done.append(1)), Call("a:b", lambda: None, done.clear)
    assert (final.reversible, reversible.reversible) == (False, True)
    journal = commit(final)
    assert journal.describe() == ("changed a:b (cannot be taken back)",)
    journal.rollback()
    assert done == [1]
    commit(reversible).rollback()
    assert done == []


class Interrupted:
    """A change whose first undo is interrupted."""

    target = "x:y"
    interruptions = 1
    undone = 0

    def commit(self):
        pass

    def undo(self):
        if self.interruptions:
            self.interruptions -= 1
            raise KeyboardInterrupt
        self.undone += 1


def test_an_interrupt_during_rollback_is_held_back_until_all_is_undone(lib):
    journal = commit(ReplaceAttr("fakelib.things:plain", twice))
    change = Interrupted()
    journal.commit(change)
    with pytest.raises(KeyboardInterrupt):
        journal.rollback()
    assert change.undone == 1
    assert lib.plain() == "original"


def test_an_undo_that_fails_does_not_stop_the_others(lib):
    def fail():
        raise ValueError("stuck")

    journal = commit(ReplaceAttr("fakelib.things:plain", twice), Call("x:y", lambda: None, fail))
    assert journal.rollback() == ("x:y (stuck)",)
    assert lib.plain() == "original"


def test_errors_survive_pickling():
    from torchcompat import errors

    made = [
        errors.UnknownShimError("a", ("b",)),
        errors.DuplicateShimError("a", "b", "c"),
        errors.TargetDriftError("a:b", "is gone"),
        errors.ConflictError("a:b", "c"),
        errors.ApplyError("a", "why", ("x",)),
        errors.RevertError("a", "why"),
        errors.TorchNotFoundError(),
        errors.GateError("x"),
    ]
    for error in made:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))
        assert isinstance(copy, errors.TorchCompatError)


def _two(first, second=None):
    return first, second


def _named_only(first, *, option):
    return first, option


@pytest.mark.parametrize(
    ("raw", "new", "says"),
    [
        (_two, lambda first, second=None: 0, None),
        (_two, lambda *args, **kwargs: 0, None),
        (_two, lambda first, *rest: 0, None),
        (_two, lambda first, second=None, third=None: 0, None),
        (_two, lambda second, first=None: 0, "takes other arguments than the cure knows: first"),
        (_two, lambda first: 0, "knows: second"),
        (_two, lambda first, second, third: 0, "knows: third"),
        (_named_only, lambda first, *, option: 0, None),
        (_named_only, lambda first, **more: 0, None),
        (_named_only, lambda first: 0, "knows: option"),
        (len, lambda anything: 0, "knows: obj"),
        (staticmethod(_two), staticmethod(lambda first, second=None: 0), None),
        (None, lambda first: 0, "is a NoneType, not a function"),
        (int, lambda first: 0, "is a type, not a function"),
        (functools.partial(_two), lambda first, second=None: 0, "is a partial, not a function"),
        ({}, {"a": 1}, None),
        (_two, {}, "is a function, and the cure a dict"),
    ],
)
def test_a_replacement_takes_the_arguments_of_what_it_replaces(raw, new, says):
    found = replacement_drift(raw, new)
    assert found is None if says is None else says in found


def test_torchs_decorators_around_a_replacement_hide_nothing():
    def make(original):
        @functools.wraps(original, updated=())
        def replaced(other):
            return original(other)

        @functools.wraps(replaced)
        def decorated(*args, **kwargs):
            return replaced(*args, **kwargs)

        return decorated

    assert "knows: first" in replacement_drift(_two, make(_two))

"""Records behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from torchcompat.records import Record


@dataclass(eq=False, repr=False)
class Ours(Record):
    """With a default, and a field that does not count."""

    name: str
    size: int = 1
    note: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Theirs:
    """The same, as the standard library writes it."""

    name: str
    size: int = 1
    note: str = field(default="", compare=False, repr=False)


@dataclass(eq=False, repr=False)
class Other(Record):
    """Equal fields, and another class."""

    name: str
    size: int = 1


def both(*args, **kwargs):
    return Ours(*args, **kwargs), Theirs(*args, **kwargs)


def test_what_it_says_and_how_it_compares():
    ours, theirs = both("a", 2, note="x")
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours") == "Ours(name='a', size=2)"
    for kind in (Ours, Theirs):
        assert kind("a", 2, "x") == kind("a", 2, "y")
        assert kind("a", 2) != kind("a", 3)
        assert kind("a") != ("a", 1, "")
        assert len({kind("a", 1, "x"), kind("a"), kind("b")}) == 2
    assert Ours("a") != Other("a")


def test_no_field_is_set_again():
    for record in both("a"):
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
            record.name = "b"
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
            del record.name
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
            record.other = 1
        assert record.name == "a"


def test_copies_replacements_and_pickles():
    for record in both("a", note="x"):
        for again in (
            copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record)), replace(record)
        ):  # fmt: skip
            assert again == record
            assert again is not record
            assert again.note == "x"
        assert replace(record, size=5) == type(record)("a", 5)
    assert [f.name for f in fields(Ours)] == ["name", "size", "note"]


@pytest.mark.parametrize("arguments", [{}, {"name": "a", "nmae": "b"}])
def test_wrong_arguments(arguments):
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError, match="name|nmae"):
            kind(**arguments)

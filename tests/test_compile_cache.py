"""SaltCompileCache on a stand-in for inductor's key maker."""

from __future__ import annotations

import pytest

from torchcompat.compile_cache import SaltCompileCache
from torchcompat.errors import TargetDriftError

TARGET = "fakelib.codecache:Details.__init__"


@pytest.fixture
def details(fakelib):
    source = """
    class Details:
        def __init__(self, graph):
            self.graph = graph
    """
    return fakelib.add("fakelib.codecache", source).Details


def test_two_salts_share_the_key_and_leave_one_by_one(details):
    before = details.__init__
    first, second = (SaltCompileCache(key, target=TARGET).prepare() for key in ("b", "a"))
    first.commit()
    second.commit()
    assert vars(details("g")) == {"graph": "g", "torchcompat": ["a:1", "b:1"]}
    assert first.claims() != second.claims()
    first.undo()
    assert details("g").torchcompat == ["a:1"]
    assert second.holder() is None
    second.undo()
    second.undo()
    assert details.__init__ is before
    assert vars(details("g")) == {"graph": "g"}


def test_a_new_revision_is_another_key(details):
    change = SaltCompileCache("a", revision=2, target=TARGET).prepare()
    change.commit()
    assert details("g").torchcompat == ["a:2"]
    change.undo()


def test_somebody_else_s_patch_is_seen_and_kept(details):
    change = SaltCompileCache("a", target=TARGET).prepare()
    change.commit()
    ours = details.__init__

    def theirs(self, graph):
        ours(self, graph)
        self.more = True

    details.__init__ = theirs
    assert "theirs" in change.holder()
    change.undo()
    assert details.__init__ is theirs
    assert details("g").torchcompat == []


def test_a_codecache_that_is_written_differently(fakelib):
    fakelib.add("fakelib.codecache", "class Details: pass")
    with pytest.raises(TargetDriftError, match="is no function of its own"):
        SaltCompileCache("a", target=TARGET).prepare()

"""The child side of :class:`torchcompat.testing.ShimContract`: orders of events.

Run as ``python -c "from torchcompat.contract import main; main()" JSON``. Two pictures of
the owners that the shims edit are taken: one of the live objects, to compare within the
process, and one in words, to compare with a process that never applied anything.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import random
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from .errors import TorchCompatError
from .shim import Shim
from .targets import lookup, owner_of

__all__ = ["main"]


def main() -> None:
    """Play the orders that the first argument describes; a line of JSON for each."""
    asked = json.loads(sys.argv[1])
    for name in asked["setup"]:
        import_module(name)
    from .default import registry

    shims = [registry.get(key) for key in asked["keys"]]
    orders = [tuple(order) for order in asked["orders"]]
    if len(orders) == 1:
        player = _Player(shims)
        for word in orders[0]:
            player.do(word)
        print(json.dumps(player.finish()))
    else:
        _play_tree(_Player(shims), orders)
        sys.stdout.flush()
        os._exit(0)  # the interpreter's end takes torch apart module by module, for seconds


def _play_tree(player: _Player, orders: list[tuple[str, ...]]) -> None:
    """Play orders that share what they begin with in one process, and fork where they part.

    Importing torch takes seconds; so the many orders that begin with it share one import.
    """
    done = len(player.played)
    for order in sorted({order for order in orders if len(order) == done}):
        _forked(order, player.finish)
    for word in sorted({order[done] for order in orders if len(order) > done}):
        rest = [order for order in orders if len(order) > done and order[done] == word]
        _forked(rest[0], functools.partial(_branch, player, word, rest))


def _branch(player: _Player, word: str, orders: list[tuple[str, ...]]) -> None:
    player.do(word)
    _play_tree(player, orders)


def _forked(order: tuple[str, ...], work: Callable[[], dict[str, Any] | None]) -> None:
    """Do work in a forked child, and print its answer, or how it failed."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        if status:
            print(json.dumps({"order": order, "error": f"the process ended with status {status}"}))
        return
    try:
        answer = work()
        if answer is not None:
            print(json.dumps({"order": order, "answer": answer}))
    except BaseException:
        print(json.dumps({"order": order, "error": traceback.format_exc()[-3000:]}))
    finally:
        sys.stdout.flush()
        os._exit(0)


class _Player:
    def __init__(self, shims: list[Shim]) -> None:
        self.shims = shims
        self.keys = [shim.key for shim in shims]
        self.modules = sorted({name for shim in shims for name in shim.modules})
        self.refused: dict[str, str] = {}
        self.problems: list[str] = []
        self.missing: set[str] = set()
        self.had_a_turn: set[str] = set()
        self.played: list[str] = []
        self.before: dict[Any, Any] | None = None
        self.pickles: dict[str, str] = {}
        self.words: dict[str, Callable[[], object]] = {
            "T": lambda: import_module("torch"),
            "M": self._load,
            "A": self._apply,
            "L": self._apply_all,
            "R": self._revert,
            "X": self._revert_all,
        }

    def do(self, word: str) -> None:
        """Do a word; a picture is taken once everything is loaded and nothing applied."""
        if word[0] == "S":
            self._shuffle(word)
        else:
            self.words[word]()
        if word == "M" and not set(self.played) & set("AL"):
            self.before, self.pickles = self._live(), self._pickles()
        self.played.append(word)

    def finish(self) -> dict[str, Any]:
        """Say what came of the words that were done."""
        import torchcompat

        order, before, pickles = self.played, self.before, self.pickles
        report = torchcompat.status()
        states = {key: str(report[key].state) for key in self.keys}
        answer: dict[str, Any] = {"states": states, "refused": self.refused, "problems": self.problems}
        reverted = [word[0] for word in order if word[0] in "ALRXS"][-1:] in (["R"], ["X"], ["S"])
        if "M" not in order:
            self._load()
        if not reverted and order and set(order) & set("AL"):
            answer["problems"] += self._broken_pickles(pickles)
            self._revert()
        answer["words"] = self._in_words()
        if before is not None:
            answer["problems"] += self._changed(before, pickles)
            self._apply()
            self._revert()
            answer["problems"] += self._changed(before, pickles)
        return answer

    # -- words -----------------------------------------------------------------------

    def _load(self) -> None:
        for name in self.modules:
            try:
                import_module(name)
            except ImportError:
                self.missing.add(name)  # this torch does not have it yet, or no longer

    def _apply(self) -> None:
        for key in self.keys:
            self._apply_one(key)

    def _apply_one(self, key: str) -> None:
        import torchcompat

        try:
            torchcompat.apply(key, force=True)
        except torchcompat.ApplyError as error:
            self.refused[key] = str(error)

    def _apply_all(self) -> None:
        import torchcompat

        torchcompat.apply_all(only=self.keys)

    def _revert(self) -> None:
        import torchcompat

        for key in reversed(self.keys):
            if torchcompat.status()[key].reversible:
                torchcompat.revert(key)

    def _revert_all(self) -> None:
        import torchcompat

        if all(torchcompat.status()[key].reversible for key in self.keys):
            torchcompat.revert_all()
        else:
            self._revert()

    def _shuffle(self, word: str) -> None:
        """Apply and revert single shims in the random order that the word is the seed of.

        Everything that can be is reverted at the end, in a random order too.
        """
        draw = random.Random(word)
        turns = self.shims * 4  # each is applied and reverted twice
        draw.shuffle(turns)
        for shim in turns:
            self._flip(shim)
        while left := self._on_top():
            self._flip(draw.choice(left))
        # One that must go below others may never have had its turn.
        for shim in self.shims:
            if shim.key not in self.had_a_turn:
                self._flip(shim)
                self._flip(shim)

    def _flip(self, shim: Shim) -> None:
        """Apply a shim, or revert it; no other shim's state may change by that."""
        import torchcompat

        before, held = torchcompat.status(), self._held()
        if _is_covered(shim, held):
            return
        self.had_a_turn.add(shim.key)
        if shim.key not in held:
            self._apply_one(shim.key)
        elif before[shim.key].reversible:
            torchcompat.revert(shim.key)
        now = torchcompat.status()
        self.problems += [
            f"{key} was {before[key].state}, and is {now[key].state} since {shim.key} is "
            f"{now[shim.key].state}"
            for key in self.keys
            if key != shim.key and now[key].state is not before[key].state
        ]

    def _held(self) -> dict[str, Shim]:
        """The shims that are applied, or wait for modules that this torch may not have."""
        import torchcompat

        from .default import engine

        keys = {*torchcompat.status().applied, *engine.waiting()}
        return {shim.key: shim for shim in self.shims if shim.key in keys}

    def _on_top(self) -> list[Shim]:
        """The shims that are held and may be reverted."""
        import torchcompat

        report, held = torchcompat.status(), self._held()
        return [
            shim for key, shim in held.items() if report[key].reversible and not _is_covered(shim, held)
        ]

    # -- pictures --------------------------------------------------------------------

    def _targets(self) -> Iterator[str]:
        """What the shims edit here, aliases included."""
        for shim in self.shims:
            if self.missing.intersection(shim.modules):
                continue
            try:
                edits = shim.edits()
            except (TorchCompatError, AttributeError, ImportError, KeyError):
                continue  # not a torch that the edits are for: apply has refused it
            for edit in edits:
                yield edit.target
                yield from getattr(edit, "aliases", ())

    def _owners(self) -> dict[str, Any]:
        """Every module of the shims, their classes, and what holds the targets."""
        found: dict[str, Any] = {}
        for name in self.modules:
            module = sys.modules.get(name)
            if module is None:
                continue
            found[name] = module
            for attr, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    found[f"{name}:{attr}"] = value
        for target in self._targets():
            try:
                owner, _ = owner_of(target)
            except TorchCompatError:
                continue
            if hasattr(owner, "__dict__"):
                found[f"owner of {target}"] = owner
        return found

    def _live(self) -> dict[str, dict[str, Any]]:
        return {name: _members(owner) for name, owner in self._owners().items()} | {
            f"in {target}": {"": _contents(lookup(target, None))} for target in self._targets_here()
        }

    def _targets_here(self) -> list[str]:
        return [target for target in self._targets() if ":" in target]

    def _changed(self, before: dict[str, dict[str, Any]], pickles: dict[str, str]) -> list[str]:
        now = self._live()
        problems = [
            f"{owner}: {name} is not what it was"
            for owner, members in before.items()
            for name in sorted({*members, *now.get(owner, {})}, key=str)
            if not _same(members.get(name, _NONE), now.get(owner, {}).get(name, _NONE))
        ]
        after = self._pickles()
        problems += [f"{t}: pickles otherwise than before" for t in pickles if pickles[t] != after[t]]
        return problems

    def _pickles(self) -> dict[str, str]:
        return {target: _pickled(lookup(target, None)) for target in self._targets_here()}

    def _broken_pickles(self, before: dict[str, str]) -> list[str]:
        """What pickled by reference must still do so while the shims are applied."""
        problems = []
        for target, kind in before.items():
            live = lookup(target, None)
            if kind.startswith("bytes") and callable(live):
                if not _pickled(live).startswith("bytes"):
                    problems.append(f"{target}: no longer pickles ({_pickled(live)})")
                elif pickle.loads(pickle.dumps(live)) is not live:
                    problems.append(f"{target}: pickles as another object")
        return problems

    def _in_words(self) -> dict[str, str]:
        """A digest of each owner's members that is the same in every process."""
        found = {}
        for name, owner in self._owners().items():
            # What is imported on the way differs from order to order and is no edit.
            said = sorted(
                f"{attr}={_words(value)}"
                for attr, value in _members(owner).items()
                if not isinstance(value, types.ModuleType)
            )
            found[name] = hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
        return found


def _is_covered(shim: Shim, held: dict[str, Shim]) -> bool:
    """Whether a shim that is declared to come after this one is in place."""
    return any(shim.key in other.after for other in held.values())


class _None:
    pass


_NONE = _None()


def _members(owner: Any) -> dict[str, Any]:
    return {
        name: _contents(value)
        for name, value in list(vars(owner).items())
        if not name.startswith("__") or isinstance(owner, type)
    }


def _contents(value: Any) -> Any:
    """A copy of a set or dict, so that a change in place is seen."""
    if isinstance(value, (set, frozenset)):
        return set(value)
    return dict(value) if type(value) is dict else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, set) and isinstance(b, set):
        return a == b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(a[key] is b[key] for key in a)
    return a is b


def _pickled(value: Any) -> str:
    try:
        return f"bytes {hashlib.sha256(pickle.dumps(value)).hexdigest()}"
    except Exception as error:  # pickling raises whatever the object likes
        return type(error).__name__


def _words(value: Any) -> str:
    if isinstance(value, (classmethod, staticmethod)):
        return f"{type(value).__name__} {_words(value.__func__)}"
    if isinstance(value, property):
        return f"property {_words(value.fget)}"
    if isinstance(value, types.FunctionType):
        code = value.__code__
        return f"{value.__globals__.get('__name__')}.{getattr(code, 'co_qualname', code.co_name)}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if isinstance(value, (set, frozenset)):
        return f"set {sorted(_plain(item) for item in value)}"
    if isinstance(value, dict):
        return f"dict {sorted(_plain(key) for key in value)}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} {[_plain(item) for item in value]}"
    if isinstance(value, str):
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # a dataclass's own docstring has them
    if isinstance(value, (int, float, bool, type(None))):
        return repr(value)
    return type(value).__qualname__


def _plain(item: Any) -> str:
    """Text without addresses."""
    text = str(item)
    return type(item).__qualname__ if " at 0x" in text else text

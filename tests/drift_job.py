"""Run by tests/test_drift.py: torch is changed, each time in a fork, and the shims look at it.

Prints a line of JSON for each case: what was changed, and what became of each shim.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
import traceback
import types
import warnings
from importlib import import_module

import torchcompat
from torchcompat.registry import Registry
from torchcompat.targets import lookup, owner_of

NOWHERE = object()
SHIMS = [shim for shim in Registry(plugins=False) if shim.retired is None]


class Lazy:
    """An object that can be neither looked at nor called."""

    def __getattr__(self, name):
        raise RuntimeError(f"{name} is not there yet")

    def __call__(self, *args, **kwargs):
        raise RuntimeError("not yet")


def stranger(target, value):
    """A function of torch's own, of the same name and another signature and body."""
    home = sys.modules[target.partition(":")[0]]
    name = target.rpartition(".")[2].rpartition(":")[2]
    scope: dict[str, object] = {}
    source = f"def {name}(renamed, *, something_new):\n    return [renamed, something_new]\n"
    exec(compile(source, "<drift>", "exec"), vars(home), scope)
    new = scope[name]
    return type(value)(new) if isinstance(value, (classmethod, staticmethod)) else new


VALUES = {
    "None": lambda target, value: None,
    "a number": lambda target, value: 3.5,
    "a class": lambda target, value: type("Other", (), {}),
    "a property": lambda target, value: property(lambda self: value),
    "a lazy object": lambda target, value: Lazy(),
    "a partial": lambda target, value: functools.partial(value),
    "another signature": stranger,
    "a list": lambda target, value: list(value),
    "a frozenset": lambda target, value: frozenset(value),
    "a read-only mapping": lambda target, value: types.MappingProxyType(dict.fromkeys(value)),
    "a dict of a set, or a set of a dict": lambda target, value: (
        set(value) if isinstance(value, dict) else dict.fromkeys(value)
    ),
}
CONTAINERS = ("a list", "a frozenset", "a read-only mapping", "a dict of a set, or a set of a dict")
CALLABLES = ("a partial", "another signature")


def fits(kind, value):
    """Whether a change of this kind makes something else of a value."""
    value = getattr(value, "__func__", value)
    if kind in CONTAINERS:
        return isinstance(value, (set, dict))
    return callable(value) if kind in CALLABLES else True


def renamed(target):
    owner, name = owner_of(target)
    value = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
    delattr(owner, name)
    setattr(owner, f"{name}_v2", value)


def put(kind, target):
    owner, name = owner_of(target)
    setattr(owner, name, VALUES[kind](target, lookup(target)))


def lazy_module(name):
    class LazyModule(types.ModuleType):
        def __getattr__(self, attr):
            raise RuntimeError(f"{attr} is not there yet")

    return LazyModule(name)


MODULES = {
    "missing": lambda name: sys.modules.pop(name),
    "blocked": lambda name: sys.modules.__setitem__(name, None),
    "empty": lambda name: sys.modules.__setitem__(name, types.ModuleType(name)),
    "a lazy module": lambda name: sys.modules.__setitem__(name, lazy_module(name)),
    "a lazy object": lambda name: sys.modules.__setitem__(name, Lazy()),
}


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from texts(item)


def targets():
    """Every target that a shim edits or its probe names, by shim: (edited, named)."""
    for shim in SHIMS:
        home = sys.modules[shim.probe.__module__]
        named = {text for value in vars(home).values() for text in texts(value) if is_target(text)}
        edited = set()
        try:
            for edit in shim.edits():
                edited.update([edit.target] if is_target(edit.target) else [])
                named.update(getattr(edit, "aliases", ()))
        except Exception:
            pass  # not a torch that its edits are for; the probe must say so
        yield shim.key, {t for t in edited if present(t)}, {t for t in named if present(t)}


def is_target(text):
    return text.startswith("torch") and text.count(":") == 1 and " " not in text and text[-1] != ":"


def present(target):
    return loaded(target) and lookup(target, NOWHERE) is not NOWHERE


def loaded(target):
    return target.partition(":")[0] in sys.modules


def outcome():
    """Apply all, then each by force; every error but ApplyError is a defect."""
    states, raised = {}, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torchcompat.apply_all()
        except BaseException:
            raised.append(f"apply_all: {traceback.format_exc()[-600:]}")
        for shim in SHIMS:
            try:
                states[shim.key] = str(torchcompat.apply(shim.key, force=True).state)
            except torchcompat.ApplyError:
                states[shim.key] = "refused"
            except BaseException:
                raised.append(f"apply {shim.key}: {traceback.format_exc()[-600:]}")
        try:
            torchcompat.status()
            torchcompat.fingerprint()
            torchcompat.revert_all()
        except torchcompat.RevertError as error:
            if "no way back" not in str(error):
                raised.append(str(error))
        except BaseException:
            raised.append(f"revert_all: {traceback.format_exc()[-600:]}")
    return {"states": states, "raised": raised}


def case(what, change):
    """Change torch in a fork, look at it there, and print what came of it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        try:
            change()
        except Exception as error:  # a slot that cannot be written is no drift
            print(json.dumps({**what, "skipped": repr(error)}))
        else:
            print(json.dumps({**what, **outcome()}))
    except BaseException:
        print(json.dumps({**what, "states": {}, "raised": [traceback.format_exc()]}))
    finally:
        sys.stdout.flush()
        os._exit(0)


def cases():
    """Every case: what is changed and how, and the shims that edit just that."""
    found = list(targets())
    for target in sorted({t for _, edited, named in found for t in edited | named}):
        shims = [key for key, edited, _ in found if target in edited]
        what = {"target": target, "shims": shims}
        for kind in [kind for kind in VALUES if fits(kind, lookup(target))]:
            yield {**what, "kind": kind}, functools.partial(put, kind, target)
        yield {**what, "kind": "renamed"}, functools.partial(renamed, target)
    for name in sorted({name for shim in SHIMS for name in shim.modules if name in sys.modules}):
        for kind, change in MODULES.items():
            here = [key for key, edited, _ in found if any(t.startswith(f"{name}:") for t in edited)]
            yield {"target": name, "kind": kind, "shims": here}, functools.partial(change, name)


def main():
    import_module("torch")
    for name in sorted({name for shim in SHIMS for name in shim.modules}):
        try:
            import_module(name)
        except ImportError:
            continue
    import torch._dynamo  # noqa: F401

    torchcompat.status()
    every = list(cases())
    count = float(sys.argv[1]) * len(every)
    chosen = every if count >= len(every) else random.Random(1).sample(every, int(count))
    case({"target": "", "kind": "nothing", "shims": []}, lambda: None)
    for what, change in chosen:
        case(what, change)


if __name__ == "__main__":
    main()

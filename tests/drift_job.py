"""Run by tests/test_drift.py: torch is changed, each time in a fork, and the shims look at it.

Prints a line of JSON for each case: what was changed, and what became of each shim.
"""

from __future__ import annotations

import functools
import json
import os
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
    "a number": lambda target, value: 3,
    "a class": lambda target, value: type("Other", (), {}),
    "a property": lambda target, value: property(lambda self: value),
    "a lazy object": lambda target, value: Lazy(),
    "a partial": lambda target, value: functools.partial(value) if callable(value) else None,
    "another signature": stranger,
    "a list": lambda target, value: list(value) if isinstance(value, (set, dict)) else [value],
    "a frozenset": lambda target, value: frozenset(value) if isinstance(value, (set, dict)) else value,
    "a read-only mapping": lambda target, value: types.MappingProxyType(
        dict(value) if isinstance(value, dict) else {}
    ),
    "a dict or set": lambda target, value: dict.fromkeys(value)
    if isinstance(value, (set, frozenset))
    else {value}
    if callable(value) and value.__hash__
    else set(value),
}


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
                edited.update({edit.target, *getattr(edit, "aliases", ())} if is_target(edit.target) else ())
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


def main():
    import_module("torch")
    for name in sorted({name for shim in SHIMS for name in shim.modules}):
        try:
            import_module(name)
        except ImportError:
            continue
    import torch._dynamo  # noqa: F401
    torchcompat.status()
    found = list(targets())
    case({"target": "", "kind": "nothing", "shims": []}, lambda: None)
    seen = sorted({t for _, edited, named in found for t in edited | named})
    for target in seen:
        shims = [key for key, edited, named in found if target in edited | named]
        for kind in VALUES:
            case({"target": target, "kind": kind, "shims": shims}, functools.partial(put, kind, target))
        case({"target": target, "kind": "renamed", "shims": shims}, functools.partial(renamed, target))
    for name in sorted({name for shim in SHIMS for name in shim.modules if name in sys.modules}):
        for kind, change in MODULES.items():
            shims = [shim.key for shim in SHIMS if name in shim.modules]
            case({"target": name, "kind": kind, "shims": shims}, functools.partial(change, name))


if __name__ == "__main__":
    main()

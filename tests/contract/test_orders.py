"""Every order in which a program may import torch, apply and revert, each in a child process.

The words: T imports torch, M imports the shims' modules, A applies each shim by name,
L applies all, R reverts each, X reverts all. After every order the shims must be applied
or not as its last word says, and after a revert the edited modules are as they were.
"""

from __future__ import annotations

import json

import pytest

from torchcompat.registry import Registry

pytestmark = pytest.mark.torch

ORDERS = [
    "T M A",
    "T M L",
    "T A M",
    "A T M",
    "L T M",
    "A M",
    "M A",
    "T M A A",
    "A A T M",
    "L A T M",
    "T M A R",
    "T M L X",
    "T M A R A",
    "T M A R A R",
    "A R T M",
    "A X T M A",
    "T M R A",
    "T M A L R",
    "A T M R",
    "L T M X L",
]
SHIMS = [shim for shim in Registry(plugins=False) if shim.retired is None]

DRIVER = """
import json, sys, warnings
from importlib import import_module
import torchcompat
from torchcompat.registry import Registry

order = {order!r}.split()
shims = [shim for shim in Registry(plugins=False) if shim.retired is None]
keys = [shim.key for shim in shims]
names = sorted({{name for shim in shims for name in shim.modules}})

def load():
    for name in names:
        try:
            import_module(name)
        except ImportError:
            pass  # this torch does not have it yet, or no longer

def contents(value):
    return set(value) if isinstance(value, set) else dict(value) if isinstance(value, dict) else value

def members(owner):
    return {{k: contents(v) for k, v in vars(owner).items() if not k.startswith("__")}}

def snapshot():
    found = {{}}
    for name in names:
        module = sys.modules.get(name)
        if module is None:
            continue
        found[name] = members(module)
        for k, v in list(vars(module).items()):
            if isinstance(v, type) and v.__module__ == name:
                found[name, k] = members(v)
    return found

def apply(key):
    try:
        torchcompat.apply(key, force=True)
    except torchcompat.ApplyError as error:
        refused[key] = str(error)

def revert():
    for key in reversed(keys):
        torchcompat.revert(key)

refused = {{}}
words = {{
    "T": lambda: import_module("torch"),
    "M": load,
    "A": lambda: [apply(key) for key in keys],
    "L": lambda: torchcompat.apply_all(only=keys),
    "R": revert,
    "X": torchcompat.revert_all,
}}
before = None
for word in order:
    words[word]()
    if word == "M" and not set(order[: order.index("M")]) & set("AL"):
        before = snapshot()
report = torchcompat.status()
states = {{key: report[key].state.value for key in keys}}
if [word for word in order if word in "ALRX"][-1] in "RX" and before is not None:
    assert snapshot() == before, "torch is not as it was"
    words["A"]()
    torchcompat.revert_all()
    assert snapshot() == before, "not even the second time"
print(json.dumps([states, refused]))
"""


@pytest.mark.parametrize("order", ORDERS)
def test_order(python, order):
    states, refused = json.loads(python(DRIVER.format(order=order)).stdout.splitlines()[-1])
    last = [word for word in order.split() if word in "ALRX"][-1]
    right = {
        "A": ("applied", "already_fixed", "pending"),
        "L": ("applied", "already_fixed", "pending", "not_affected"),
        "R": ("reverted", "already_fixed", "not_affected"),
        "X": ("reverted", "already_fixed", "not_affected"),
    }[last]
    verdicts = {shim.key: shim for shim in SHIMS}
    assert set(states) == set(verdicts)
    for key, state in states.items():
        if key in refused and state in ("unsupported", "conflict"):
            continue  # forced on a build whose code it does not know: refusing is right
        assert state in right, f"{key}: {state} after {order}"

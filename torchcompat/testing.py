"""Contract tests for shims, built-in or your own: inherit, name the keys, and run pytest.

    from torchcompat.testing import ShimContract

    class TestOurShims(ShimContract):
        keys = ("our_shim",)

Needs pytest and a torch. Every test starts processes of its own, so that nothing that
it does to torch reaches the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, ClassVar

__all__ = ["ORDERS", "ShimContract"]

#: Every order in which a program may import torch, apply and revert. T imports torch, M the
#: shims' modules, A applies each shim by name, L applies all, R reverts each, X reverts all.
#: S and a seed applies and reverts single shims in a random order, and at last reverts all.
ORDERS: tuple[str, ...] = (
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
    "T M A X X A R",
    "T M S1",
    "T M S2",
    "T M A S3",
    "A T M S4 A R",
)

_APPLIED = ("applied", "already_fixed", "pending")
_RIGHT: dict[str, tuple[str, ...]] = {
    "A": _APPLIED,
    "L": (*_APPLIED, "not_affected"),
    "R": ("reverted", "already_fixed", "not_affected", "opt_in"),
    "X": ("reverted", "already_fixed", "not_affected", "opt_in"),
    "S": ("reverted", "already_fixed", "not_affected", "opt_in"),
}
#: Forced on a build whose code it does not know, a shim refuses, and that is right: at once,
#: or, where its modules were not loaded yet, when they are.
_REFUSALS = ("unsupported", "conflict")


class ShimContract:
    """What holds for every shim. Inherit it in a test module; the name begins with ``Test``.

    Attributes:
        keys: the shims.
        setup_modules: modules to import first, where your shims are registered by an
            import and not by an entry point.
        timeout: seconds for one process, which may play all orders.
        orders: the orders of events to play.
    """

    keys: ClassVar[tuple[str, ...]] = ()
    setup_modules: ClassVar[tuple[str, ...]] = ()
    timeout: ClassVar[float] = 300.0
    orders: ClassVar[tuple[str, ...]] = ORDERS

    _played: ClassVar[dict[tuple[Any, ...], dict[str, Any]]] = {}

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Make one test of each order, and one of each key."""
        if "order" in metafunc.fixturenames:
            metafunc.parametrize("order", type(self).orders)
        if "key" in metafunc.fixturenames:
            metafunc.parametrize("key", type(self).keys)

    def test_the_declaration_is_complete(self, key: str) -> None:
        """What lists, explain and reports show is there and has the right form."""
        shim = self._registry().get(key)
        _check("\n" not in shim.summary and 0 < len(shim.summary) <= 100, "summary is one line")
        for name in ("symptom", "cause", "cure", "removable_when"):
            _check(bool(getattr(shim, name).strip()), f"{name} says nothing")
        for url in shim.upstream:
            _check(url.startswith("https://"), f"upstream {url!r} is no https address")
        names = {reproducer.name for reproducer in shim.reproducers}
        _check(all(name.isidentifier() for name in names), f"reproducers have plain names: {names}")
        for function in (shim.probe, shim.edits, *(r.run for r in shim.reproducers)):
            found = getattr(sys.modules.get(function.__module__), function.__name__, None)
            _check(
                found is function,
                f"{function.__qualname__} is no module-level function, and so cannot be sent to a "
                f"child process",
            )

    def test_the_edits_name_targets_that_the_scan_finds(self, key: str) -> None:
        """``torchcompat scan`` reads the targets of the edits from their code."""
        from .scan.replaces import edit_targets

        shim = self._registry().get(key)
        for target in edit_targets(shim):
            module = target.partition(":")[0]
            inside = any(module == name or module.startswith(f"{name}.") for name in shim.modules)
            outside = any(name.startswith(f"{module}.") for name in shim.modules)
            _check(inside or outside, f"{target} is in none of its modules: {shim.modules}")

    def test_every_order_of_events(self, order: str) -> None:
        """The shims are applied, or not, as the order's last word says; torch is as it was."""
        _check(bool(self.keys), "name the keys of your shims: keys = ('our_shim',)")
        answer = self._play(order.split())
        _check(not answer["problems"], f"after {order}: {'; '.join(answer['problems'])}")
        last = [word[0] for word in order.split() if word[0] in "ALRXS"][-1]
        for key, state in answer["states"].items():
            by_name = any(word[0] in "AS" for word in order.split())
            forced = key in answer["refused"] or (by_name and self._is_out(key))
            refused = forced and state in _REFUSALS
            _check(refused or state in _RIGHT[last], f"{key} is {state} after {order}")
        pristine = self._untouched()
        changed = [name for name, text in pristine.items() if answer["words"].get(name) != text]
        _check(
            not changed, f"after {order} and a revert these differ from a torch never touched: {changed}"
        )

    def test_the_reproducers_agree_with_the_gate(self, key: str) -> None:
        """Each fails without the shim and passes with it where the gate says so, and nowhere else."""
        import pytest

        from .verify import Conclusion, verify

        found = verify([self._registry().get(key)]).findings
        wrong = [
            f"{f.reproducer}: {f.conclusion}: {f.advice} (without: {f.without.message}; "
            f"with: {f.cured.message})"
            for f in found
            if not f.conclusion.is_right
        ]
        _check(not wrong, "; ".join(wrong))
        if all(finding.conclusion is Conclusion.NOT_RUN for finding in found):
            pytest.skip(f"NOT RUN: {'; '.join(finding.advice for finding in found)}")

    # -- processes -------------------------------------------------------------------

    def _registry(self) -> Any:
        from importlib import import_module

        for name in self.setup_modules:
            import_module(name)
        from .default import registry

        return registry

    def _is_out(self, key: str) -> bool:
        from .builds import detect
        from .gate import Verdict

        build = detect()
        return build is not None and self._registry().get(key).affected.verdict(build) is Verdict.OUT

    def _untouched(self) -> dict[str, str]:
        words: dict[str, str] = self._play(["T", "M"])["words"]
        return words

    def _play(self, order: list[str]) -> dict[str, Any]:
        """Play an order, or look it up: where fork is to be had, all are played at once."""
        wanted = (self.keys, self.setup_modules, sys.executable)
        if not hasattr(os, "fork") or sys.platform == "darwin":
            alone: dict[str, Any] = json.loads(self._child([order])[-1])
            return alone
        if wanted not in self._played:
            lines = self._child([*(order.split() for order in self.orders), ["T", "M"]])
            self._played[wanted] = {
                " ".join(said["order"]): said for said in map(json.loads, lines) if "order" in said
            }
        nothing = {"error": "its process said nothing"}
        said: dict[str, Any] = self._played[wanted].get(" ".join(order), nothing)
        _check("error" not in said, f"{' '.join(order)} failed: {said.get('error')}")
        answer: dict[str, Any] = said["answer"]
        return answer

    def _child(self, orders: list[list[str]]) -> list[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHCOMPAT_")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        asked = {"keys": self.keys, "setup": self.setup_modules, "orders": orders}
        done = subprocess.run(
            [sys.executable, "-c", "from torchcompat.contract import main; main()", json.dumps(asked)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=self.timeout,
            check=False,
        )
        _check(done.returncode == 0, f"the orders failed: {done.stderr[-3000:]}")
        return [line for line in done.stdout.splitlines() if line.startswith("{")]


def _check(holds: bool, complaint: str) -> None:
    # Not assert: python -O would take it away.
    if not holds:
        raise AssertionError(complaint)

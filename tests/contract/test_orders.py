"""The contract that every built-in shim keeps; see :class:`torchcompat.testing.ShimContract`."""

from __future__ import annotations

import os

import pytest

from torchcompat.registry import Registry
from torchcompat.testing import ORDERS, ShimContract

pytestmark = pytest.mark.torch

# Read here: the clean_environment fixture takes our variables away from the tests.
SHORT = os.environ.get("TORCHCOMPAT_TEST_ORDERS") == "short"


class TestBuiltInShims(ShimContract):
    orders = (
        ("T M A R A R", "T M L X", "T M R A", "L T M X L", "T M S1", "T M A S2") if SHORT else ORDERS
    )
    timeout = 900.0
    keys = tuple(shim.key for shim in Registry(plugins=False) if shim.retired is None)

    # tests/shims/test_every_shim.py runs them all in one verifying process.
    test_the_reproducers_agree_with_the_gate = None


def test_there_are_enough_orders():
    assert len(set(ORDERS)) >= 17
    firsts = {order.split()[0] for order in ORDERS}
    assert firsts == {"T", "A", "L", "M"}

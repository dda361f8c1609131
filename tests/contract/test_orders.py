"""The contract that every built-in shim keeps; see :class:`torchcompat.testing.ShimContract`."""

from __future__ import annotations

import pytest

from torchcompat.registry import Registry
from torchcompat.testing import ORDERS, ShimContract

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("contract")]


class TestBuiltInShims(ShimContract):
    timeout = 900.0
    keys = tuple(shim.key for shim in Registry(plugins=False) if shim.retired is None)

    # tests/shims/test_every_shim.py runs them all in one verifying process.
    test_the_reproducers_agree_with_the_gate = None


def test_there_are_enough_orders():
    assert len(set(ORDERS)) >= 17
    firsts = {order.split()[0] for order in ORDERS}
    assert firsts == {"T", "A", "L", "M"}

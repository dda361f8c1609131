"""The limits of a TCPStore, and the server that the shims leave it with."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch

STORE = """
import os
from datetime import timedelta
import torch.distributed as dist
import torchcompat

LIMIT = 8 << 20

def pair(*last, **named):
    patience = timedelta(seconds=60)
    server = dist.TCPStore("127.0.0.1", 0, 1, True, patience, *last, **named)
    return server, dist.TCPStore("127.0.0.1", server.port, None, False, patience)
"""


def test_the_limit_is_exact(python):
    """Values of 8 MiB arrive by every way of setting them, and the next larger ones are refused."""
    out = python(
        STORE
        + """
torchcompat.apply("tcp_store_full_reads")  # on 2.7 large values get lost at random
torchcompat.apply("tcp_store_value_limit")
server, client = pair()
ways = {
    "set": lambda value: client.set("key", value),
    "append": lambda value: (client.delete_key("key"), client.append("key", value)),
    "multi_set": lambda value: client.multi_set(["small", "key"], ["1", value]),
}
for way, write in ways.items():
    write("x" * LIMIT)
    assert client.get("key") == b"x" * LIMIT, way
    if not server.libuvBackend:
        continue
    try:
        write("x" * (LIMIT + 1))
    except ValueError as error:
        assert str(LIMIT + 1) in str(error), error
    else:
        raise SystemExit(f"{way}: {LIMIT + 1} bytes were sent")
    client.set("other", way)
    assert client.get("other") == way.encode()
print("exact")
"""
    ).stdout
    assert out.split() == ["exact"]


def test_the_server_without_libuv(python):
    """It has no limit; an argument asks in vain for the other one, the environment does not."""
    out = python(
        STORE
        + """
on = dist.TCPStore.__init__
assert pair()[0].libuvBackend
torchcompat.apply("tcp_store_full_reads", force=True)
torchcompat.apply("tcp_store_value_limit")
for arguments, named in (
    ((), {}),
    ((), {"use_libuv": True}),
    ((True, False, None, True), {}),
    ((), {"use_libuv": False, "multi_tenant": True}),
):
    server, client = pair(*arguments, **named)
    assert not server.libuvBackend
    client.set("key", "x" * (LIMIT + 1))
    assert len(client.get("key")) == LIMIT + 1
os.environ["USE_LIBUV"] = "1"
assert pair()[0].libuvBackend
assert not pair(use_libuv=False)[0].libuvBackend
os.environ["USE_LIBUV"] = "0"
assert not pair()[0].libuvBackend
torchcompat.revert("tcp_store_full_reads")
assert dist.TCPStore.__init__ == on
assert pair()[0].libuvBackend
print("as asked for")
"""
    ).stdout
    assert out.strip() == "as asked for"

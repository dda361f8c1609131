"""A message that fills the TCPStore server's buffer cuts a rank off from its store."""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_TCP = "torch.distributed:TCPStore"
_INIT = "torch.distributed:TCPStore.__init__"
_READ = 1 << 16  # bytes that the server reads at once
_HEADER = 21  # bytes of a message that sets "key": what it is, both lengths, and "/key"
_BEFORE_USE_LIBUV = 8  # positional arguments of a TCPStore before use_libuv


def probe() -> Probe:
    """Look whether a TCPStore can be asked for either server.

    The fault is in C++, and nothing in Python shows it. So a pre-release of 2.8 that has the
    fix gets the other server too, which is right there as well.
    """
    if is_replaced(_INIT):
        return absent("TCPStores get the server without libuv, by this shim", cured=True)
    if not hasattr(lookup(_TCP, None), "libuvBackend"):
        return drifted("a TCPStore does not tell which kind it is")
    if "use_libuv" not in (lookup(_INIT, None).__doc__ or ""):
        return drifted("a TCPStore does not take use_libuv")
    return present("TCPStores get the server on libuv")


def edits() -> Sequence[Edit]:
    """Make TCPStores without libuv, unless the environment asks for it.

    Torch's own rendezvous passes its default on as an argument, so an argument does not tell
    what somebody wants; USE_LIBUV does.
    """

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original, updated=())
        def __init__(self: Any, *arguments: Any, **named: Any) -> None:
            if os.environ.get("USE_LIBUV") != "1":
                arguments, named = arguments[:_BEFORE_USE_LIBUV], {**named, "use_libuv": False}
            original(self, *arguments, **named)

        return __init__

    return [ReplaceAttr(_INIT, make)]


def _filled(client: Any) -> None:
    value = b"x" * (_READ - _HEADER)
    for _ in range(5):
        client.set("key", value)
        # What came next at once would go into the same read, which then is another size.
        time.sleep(0.1)
        if client.get("key") != value:
            raise AssertionError("the store returned another value")


def direct() -> None:
    """A client of a TCPStore sets values whose messages are as long as one read."""
    _server, client = reproduce.tcp_store()
    _filled(client)


def rendezvous() -> None:
    """The same with the store that ``init_process_group`` would get."""
    from torch.distributed.rendezvous import rendezvous as meet

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store, _, _ = next(meet(f"tcp://127.0.0.1:{port}?rank=0&world_size=1"))
    _filled(store)


SHIM = Shim(
    key="tcp_store_full_reads",
    summary="a TCPStore message of 64 KiB, and many a larger one, cuts a rank off from its store",
    symptom=(
        "DistNetworkError: failed to recv, got 0 bytes, or Broken pipe, or Connection reset by peer, "
        "from store.set or from whatever uses the store next, such as new_group or a barrier. It always "
        "comes with a message of exactly 64 KiB, and with larger ones by chance: in about half of the "
        "cases with values of 4 MiB and more."
    ),
    cause=(
        "The server on libuv reads up to 64 KiB at once. Where a read was full and there is nothing "
        "more yet, libuv reports 0 bytes, and from 2.7 on the server takes that for the client's end "
        "and closes the connection."
    ),
    cure=(
        "TCPStores that this process makes get torch's other server, without libuv, which was the "
        "default before 2.4. With USE_LIBUV=1 in the environment they are left alone."
    ),
    upstream=("https://github.com/pytorch/pytorch/pull/145757",),
    affected=Affected(since="2.7.0", fixed_in=("2.8.0",)),
    modules=("torch.distributed",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=run.__name__,
            run=run,
            expect=r"DistNetworkError: (failed to recv|Connection reset by peer|Broken pipe)",
            preload=("torch.distributed",),
        )
        for run in (direct, rendezvous)
    ),
    removable_when="the oldest torch you support is 2.8",
    notes=(
        "The server counts, so what torchrun's agent makes is cured only where the agent runs under the "
        "shim too, or with USE_LIBUV=0. The server without libuv takes longer to connect thousands of "
        "ranks."
    ),
)

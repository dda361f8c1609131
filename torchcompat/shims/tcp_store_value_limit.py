"""A value of more than 8 MiB cuts a rank off from its TCPStore."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_TCP = "torch.distributed:TCPStore"
_WRITERS = (
    "torch.distributed:Store.set",
    "torch.distributed:Store.append",
    "torch.distributed:Store.compare_set",
    "torch.distributed:Store.multi_set",
)
_LIMIT = 8 << 20  # bytes; measured, torch names it nowhere in Python


def probe() -> Probe:
    """Look whether TCPStores come in two kinds, of which libuv's has the limit."""
    if all(map(is_replaced, _WRITERS)):
        return absent("a value that is too large is refused before it is sent, by this shim", cured=True)
    if not all(callable(lookup(target, None)) for target in _WRITERS):
        return drifted("stores are written to by other methods")
    if not hasattr(lookup(_TCP, None), "libuvBackend"):
        return drifted("a TCPStore does not tell which kind it is")
    return present("nothing checks the size of a value before it is sent")


def edits() -> Sequence[Edit]:
    """Refuse such a value where it is given, while the connection is still whole."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def write(self: Any, *arguments: Any, **named: Any) -> Any:
            sizes = list(map(_size, _flat((*arguments, *named.values()))))
            if max(sizes, default=0) > _LIMIT and _on_libuv(self):
                raise ValueError(
                    f"a TCPStore takes values of up to {_LIMIT} bytes, and this one has {max(sizes)}: "
                    f"send it in parts, by a collective such as broadcast_object_list, or through a "
                    f"TCPStore that was made with use_libuv=False"
                )
            return original(self, *arguments, **named)

        return write

    return [ReplaceAttr(target, make) for target in _WRITERS]


def _flat(arguments: Iterable[Any]) -> Iterable[Any]:
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from argument
        else:
            yield argument


def _size(value: Any) -> int:
    # Encoding costs time; where text is short, its length tells enough.
    if isinstance(value, str) and len(value) > _LIMIT // 4:
        return len(value.encode())
    return len(value) if isinstance(value, (str, bytes, bytearray)) else 0


def _on_libuv(store: Any) -> bool:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return bool(getattr(store, "libuvBackend", False))


def _written(write: Callable[[Any, bytes], object]) -> None:
    prefixed: Any = lookup("torch.distributed:PrefixStore")
    _server, client = reproduce.tcp_store()
    store = prefixed("outer", prefixed("inner", client))
    # Not of _LIMIT bytes: on 2.7 such a value may get lost by another fault, tcp_store_full_reads.
    write(store, b"x")
    if store.get("key") != b"x":
        raise AssertionError("a value that is small enough did not arrive")
    with contextlib.suppress(ValueError):
        write(store, b"x" * (_LIMIT + 1))
    store.set("other", "value")
    if store.get("other") != b"value":
        raise AssertionError("the store lost a value")


def usable() -> None:
    """After a value that is too large the store goes on working."""
    _written(lambda store, value: store.set("key", value))


def several() -> None:
    """The same for values that are set together."""
    _written(lambda store, value: store.multi_set(["small", "key"], ["1", value]))


SHIM = Shim(
    key="tcp_store_value_limit",
    summary="a value of more than 8 MiB cuts a rank off from its TCPStore",
    symptom=(
        "DistNetworkError: Connection reset by peer, from store.set; after it Broken pipe from whatever "
        "uses the store, such as new_group or a barrier"
    ),
    cause=(
        "The TCPStore that torch makes by default, on libuv, closes the connection of a client that "
        "sends more than 8 MiB, and the client does not connect again."
    ),
    cure=(
        "A ValueError that names the size and the ways out, before anything is sent; the connection "
        "remains. Stores of other kinds, which have no such limit, are left alone."
    ),
    upstream=("https://github.com/pytorch/pytorch/pull/105870",),
    affected=Affected(since="2.4.0"),
    modules=("torch.distributed",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=name,
            run=run,
            expect=r"DistNetworkError: (Connection reset by peer|Broken pipe)",
            preload=("torch.distributed",),
        )
        for name, run in (("usable", usable), ("several", several))
    ),
    removable_when="torch refuses such a value itself, or takes it",
    notes="Only values that Python gives are seen; torch's own, from C++, are small.",
)

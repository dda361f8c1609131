"""destroy_process_group hangs on gloo, now and then."""

from __future__ import annotations

import functools
import os
import select
import signal
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..gloo import gloo_in
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_DESTROY = "torch.distributed.distributed_c10d:destroy_process_group"
_WORLD = "torch.distributed.distributed_c10d:_world"
_GLOO = "torch.distributed.distributed_c10d:ProcessGroupGloo"
_ROUNDS = 40  # without the cure about every third hangs
_PATIENCE = 10.0  # seconds; a round takes 0.03


def probe() -> Probe:
    """Look whether what a process group works with can be reached.

    The fault is in C++, and nothing in Python shows it. So a pre-release of 2.8 that has the
    fix is cured too, which does no harm there.
    """
    if is_replaced(_DESTROY):
        return absent("a group's gloo goes after the group, by this shim", cured=True)
    for target in (_DESTROY, _WORLD, _GLOO):
        if lookup(target, None) is None:
            return drifted(f"{target.partition(':')[2]} is not where it was")
    return present("the last owner of gloo's threads may wait for them with the interpreter's lock")


def edits() -> Sequence[Edit]:
    """Let the Python object of gloo's backend be the last to own it.

    Its type gives the interpreter's lock away before it waits for the threads, and that of the
    process group does not.
    """

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original, updated=())
        def destroy_process_group(group: Any = None) -> None:
            for one in _to_destroy(group):
                # Not only until the end of this call: others may hold the group for longer.
                last = weakref.finalize(one, _forget, tuple(_gloo_of(one)))
                last.atexit = False
            original(group)

        return destroy_process_group

    return [ReplaceAttr(_DESTROY, make, aliases=("torch.distributed:destroy_process_group",))]


def _to_destroy(group: Any) -> list[Any]:
    """Return the groups that go with one; with the default one, or None, all go."""
    known: Any = lookup(_WORLD).pg_map
    everything = group is None or group is lookup(_WORLD).default_pg
    return list(known) if everything else [one for one in known if one is group]


def _gloo_of(group: Any) -> Iterator[Any]:
    """Yield the gloo backend of a group as Python objects, and before it what wraps it."""
    for device in group._device_types:
        backend = group._get_backend(device)
        gloo = gloo_in(backend)
        if gloo is not None:
            yield gloo
            yield backend  # a tuple drops its last item first


def _forget(backends: tuple[Any, ...]) -> None:
    """Be the last to hold these."""


def rounds() -> None:
    """Groups are made, used and destroyed one after the other, in a process that may hang."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            _make_use_destroy(writer)
        finally:
            os._exit(1)  # the pipe says how far it came
    os.close(writer)
    done = 0
    try:
        while select.select([reader], [], [], _PATIENCE)[0]:
            found = os.read(reader, 4096)
            if not found:
                break
            done += len(found)
        else:
            raise AssertionError(f"destroy_process_group does not return, in round {done + 1}")
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if done < _ROUNDS:
        raise RuntimeError(f"the process ended in round {done + 1}")


def _make_use_destroy(writer: int) -> None:
    import torch
    import torch.distributed as dist

    for _ in range(_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
            group = dist.new_group([0])
            dist.all_reduce(torch.ones(4), group=group)
            dist.destroy_process_group(group)
            del group
            dist.all_reduce(torch.ones(4))
            dist.destroy_process_group()
        os.write(writer, b".")


SHIM = Shim(
    key="gloo_destroy_hang",
    summary="destroy_process_group hangs on gloo now and then, most of all right after a collective",
    symptom=(
        "A process hangs in dist.destroy_process_group(), or wherever a destroyed gloo group is let go "
        "of, at the end of a run or between tests: about once in 35 times right after a collective, and "
        "once in 3 where a second group is destroyed too. Its native stack is in ~ProcessGroupGloo, in "
        "a join of a thread."
    ),
    cause=(
        "The destructor of a ProcessGroup waits for gloo's threads while it holds the interpreter's "
        "lock; a thread that has just finished a collective may be the last owner of its tensor, and "
        "needs the lock to let go of it."
    ),
    cure=(
        "destroy_process_group keeps the backend of each gloo group until the group is gone: the "
        "backend's own Python type gives the lock away while it waits."
    ),
    upstream=("https://github.com/pytorch/pytorch/pull/154976",),
    affected=Affected(since="2.4.0", fixed_in=("2.8.0",)),
    modules=("torch.distributed.distributed_c10d",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="rounds",
            run=rounds,
            expect=r"AssertionError: destroy_process_group does not return",
            preload=("torch.distributed",),
        ),
    ),
    removable_when="the oldest torch you support is 2.8",
    notes="Groups that are never destroyed are not looked after: those go with the interpreter.",
)

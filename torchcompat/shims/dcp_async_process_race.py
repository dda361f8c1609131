"""Concurrent asynchronous checkpoints each start a background process of their own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_EXECUTOR = "torch.distributed.checkpoint._async_process_executor"
_SAVE = f"{_EXECUTOR}:_ProcessBasedAsyncCheckpointExecutor._execute_save_impl"


def probe() -> Probe:
    """Look whether the save that creates the process takes a lock."""
    if is_replaced(_SAVE):
        return absent("one save at a time may create the process, by this shim", cured=True)
    raw = lookup(_SAVE, None)
    save = getattr(raw, "__func__", raw)
    if not isinstance(raw, staticmethod) or not inspect.isfunction(save):
        return drifted("the process-based executor is written differently")
    code = inspect.unwrap(save).__code__
    names = {*code.co_names, *code.co_varnames, *code.co_freevars}
    if "_CHECKPOINT_PROCESS" not in names:
        return drifted("the process is kept elsewhere than in _CHECKPOINT_PROCESS")
    if any("lock" in name.lower() for name in names):
        return absent("the save takes a lock")
    return present("the save looks for the process and creates it without a lock")


def edits() -> Sequence[Edit]:
    """Let one save at a time through: the process serves one request at a time anyway."""
    import functools
    import threading

    lock = threading.Lock()

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def _execute_save_impl(**kwargs: Any) -> Any:
            with lock:
                return original(**kwargs)

        return _execute_save_impl

    return [ReplaceAttr(_SAVE, make)]


def two_saves() -> None:
    """Two saves from two threads; the stand-in for the process waits until both create one."""
    import os
    import threading

    import torch.distributed.checkpoint._async_process_executor as executor

    created = []
    both = threading.Barrier(2)

    class Process:
        """Takes the constructor's place; the real one starts an interpreter."""

        def __init__(self, pg_init_info: Any) -> None:
            created.append(self)
            try:
                both.wait(timeout=0.5)
            except threading.BrokenBarrierError:
                return  # nobody else is creating one: as it should be

        def save(self, **_: Any) -> str:
            return f"saved by process {created.index(self)}"

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    executor._AsyncCheckpointProcess = Process  # type: ignore[assignment, misc, unused-ignore]
    saves = [executor._ProcessBasedAsyncCheckpointExecutor().execute_save({}) for _ in range(2)]
    results: Any = [save.result() for save in saves]
    if len(created) != 1:
        raise AssertionError(f"{len(created)} background processes were created for two saves")
    if results != ["saved by process 0"] * 2:
        raise AssertionError(f"the saves returned {results}")


SHIM = Shim(
    key="dcp_async_process_race",
    summary="two concurrent process-based async_save calls create two background processes",
    symptom=(
        "No error of its own: two checkpoint daemons, the first of which is lost; with more than one "
        "rank their process groups can wait for each other."
    ),
    cause=(
        "The process-based executor of torch.distributed.checkpoint looks for its background process "
        "and creates it without a lock, on a thread for each save."
    ),
    cure="_execute_save_impl runs under one lock: the second save waits, and finds the process.",
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/checkpoint/"
        "_async_process_executor.py",
    ),
    affected=Affected(since="2.7.0"),
    modules=("torch.distributed.checkpoint._async_process_executor",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="two_saves",
            run=two_saves,
            expect="AssertionError: 2 background processes were created for two saves",
            ranks=1,
            runnable=Affected(since="2.7.0"),
            needs="the process-based executor",
        ),
    ),
    removable_when="the oldest torch you support creates the process under a lock",
    carried_by=("NVIDIA-NeMo/Automodel",),
    notes=(
        "Saves that overlap are written one after the other. They were before, too: the process takes "
        "one request at a time, and two threads reading its pipe could take each other's answers."
    ),
)

"""The child side of verify: a process that imports torch once, then forks for every job.

Importing torch takes seconds and a fork milliseconds. The parent of the forks does no
tensor work and touches no device, so that nothing but modules is inherited. Where fork
is not to be had, every job starts a process of its own.

Spoken over stdin and stdout: one pickled :class:`Job` a line (base64), one JSON object
a line back. What torch or a reproducer prints goes to a log, never in between.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .shim import Reproducer, Shim

__all__ = ["Job", "decode", "encode", "main"]

#: Seconds that the other ranks get to end by themselves after one has failed.
_GRACE = 3.0
_CAN_FORK = hasattr(os, "fork") and sys.platform != "darwin"


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one reproducer.

    Attributes:
        shim: the shim, pickled by reference to its functions.
        reproducer: the reproducer's name.
        cure: whether to apply the shim first.
        force: apply it against the gate.
    """

    shim: Shim
    reproducer: str
    cure: bool
    force: bool = False

    @property
    def chosen(self) -> Reproducer:
        """The reproducer itself."""
        return next(r for r in self.shim.reproducers if r.name == self.reproducer)


def encode(job: Job) -> str:
    """Pickle a job into one line of text."""
    return base64.b64encode(pickle.dumps(job)).decode("ascii")


def decode(line: str) -> Job:
    """Read what :func:`encode` wrote."""
    job = pickle.loads(base64.b64decode(line))
    if not isinstance(job, Job):
        raise TypeError(f"expected a job, got {job!r}")
    return job


# -- in the forked child: one rank ---------------------------------------------------


def _attempt(job: Job, rank: int, folder: Path) -> dict[str, Any]:
    """Run the reproducer in this process and say how it went."""
    from .engine import Engine
    from .registry import Registry

    result: dict[str, Any] = {"result": "passed", "error": "", "probe": None, "state": None}
    start = time.perf_counter()
    try:
        for name in job.shim.modules:
            import_module(name)
        probe = job.shim.probe()
        result["probe"] = {"presence": str(probe.presence), "reason": probe.reason}
        if job.cure:
            registry = Registry(builtin=(), plugins=False)
            registry.register(job.shim)
            result["state"] = str(Engine(registry).apply(job.shim.key, force=job.force).state)
        _run(job.chosen, rank, folder)
    except BaseException as error:
        traceback.print_exc()
        result["result"] = "failed"
        result["error"] = f"{type(error).__name__}: {error}"
    result["seconds"] = round(time.perf_counter() - start, 3)
    return result


def _run(reproducer: Reproducer, rank: int, folder: Path) -> None:
    if not reproducer.ranks:
        reproducer.run()
        return
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    if reproducer.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if reproducer.device == "cuda" else "gloo",
        init_method=(folder / "store").as_uri(),
        rank=rank,
        world_size=reproducer.ranks,
        timeout=timedelta(seconds=reproducer.timeout),
    )
    reproducer.run()
    _wait_for_peers(rank, reproducer.ranks, folder)


def _wait_for_peers(rank: int, ranks: int, folder: Path) -> None:
    """Leave together, so that no rank cuts another's last collective off.

    The process group is left to the process's end: on gloo before 2.8
    destroy_process_group() hangs now and then.
    """
    (folder / f"done-{rank}").touch()
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        if sum(1 for _ in folder.glob("done-*")) == ranks or any(folder.glob("result-*")):
            return
        time.sleep(0.002)


def _rank_main(job: Job, rank: int, folder: Path) -> None:
    log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    result = _attempt(job, rank, folder)
    sys.stdout.flush()
    sys.stderr.flush()
    partial = folder / f"partial-{rank}"
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.rename(folder / f"result-{rank}")


# -- in the parent of the forks ------------------------------------------------------


class _Forked:
    """A rank in a forked child, in a process group of its own."""

    def __init__(self, job: Job, rank: int, folder: Path) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._status: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.setsid()
                _rank_main(job, rank, folder)
                code = 0
            finally:
                os._exit(code)

    def ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status is not None

    def kill(self) -> None:
        if not self.ended():
            try:
                os.killpg(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(self._pid, signal.SIGKILL)  # it has not come to setsid() yet
            _, self._status = os.waitpid(self._pid, 0)

    def how(self) -> str:
        status = self._status or 0
        if os.WIFSIGNALED(status):
            return f"the child died of signal {os.WTERMSIG(status)}"
        return f"the child left with exit code {os.WEXITSTATUS(status)} and no result"


class _Spawned:
    """A rank in a new interpreter, where fork is not to be had."""

    def __init__(self, job: Job, rank: int, folder: Path) -> None:
        command = [sys.executable, "-m", "torchcompat.child", encode(job), str(rank), str(folder)]
        self._process = subprocess.Popen(command)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        if not self.ended():
            self._process.kill()
            self._process.wait()

    def how(self) -> str:
        return f"the child left with exit code {self._process.returncode} and no result"


def _run_job(job: Job) -> dict[str, Any]:
    """Run all ranks of a job; the answer is that of the rank that failed first."""
    reproducer = job.chosen
    _preload((*job.shim.modules, *reproducer.preload))
    start_rank = _Forked if _CAN_FORK else _Spawned
    with tempfile.TemporaryDirectory(prefix="torchcompat-") as name:
        folder = Path(name)
        ranks = [start_rank(job, rank, folder) for rank in range(max(1, reproducer.ranks))]
        deadline = time.monotonic() + reproducer.timeout
        failed_first: int | None = None
        while not all(rank.ended() for rank in ranks):
            if failed_first is None:
                failed_first = _failed_rank(folder, len(ranks))
                if failed_first is not None:
                    deadline = min(deadline, time.monotonic() + _GRACE)
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        killed = [rank.kill() for rank in ranks if not rank.ended()]
        first = failed_first if failed_first is not None else _failed_rank(folder, len(ranks))
        if first is None:
            silent = [i for i in range(len(ranks)) if not (folder / f"result-{i}").exists()]
            first = silent[0] if silent else 0
        return _answer(
            folder, first, ranks[first].how(), timed_out=bool(killed), timeout=reproducer.timeout
        )


def _preload(names: Iterable[str]) -> None:
    for name in names:
        try:
            import_module(name)
        except ImportError:
            continue  # the child meets the same error, and reports it


def _failed_rank(folder: Path, ranks: int) -> int | None:
    for rank in range(ranks):
        path = folder / f"result-{rank}"
        if path.exists() and json.loads(path.read_text(encoding="utf-8"))["result"] != "passed":
            return rank
    return None


def _answer(folder: Path, rank: int, how: str, *, timed_out: bool, timeout: float) -> dict[str, Any]:
    path = folder / f"result-{rank}"
    if path.exists():
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    else:
        error = f"Timeout: no result within {timeout:g} s" if timed_out else f"Crash: {how}"
        result = {"result": "failed", "error": error, "probe": None, "state": None, "seconds": timeout}
    log = folder / f"log-{rank}"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    result["log"] = text[-4000:] if result["result"] != "passed" else ""
    return result


def _facts() -> dict[str, Any]:
    """What this torch is, for the head of the evidence."""
    import platform

    import torch

    start = time.perf_counter()
    cuda = bool(torch.version.cuda) and torch.cuda.device_count() > 0
    return {
        "torch": str(torch.__version__),
        "git_version": getattr(torch.version, "git_version", None),
        "python": platform.python_version(),
        # Not platform.platform(): the kernel's build says which machine, not which platform.
        "platform": " ".join(
            filter(None, (platform.system(), platform.machine(), *platform.libc_ver()))
        ),
        "cuda_devices": torch.cuda.device_count() if cuda else 0,
        "asked_in": round(time.perf_counter() - start, 3),
    }


def main() -> None:
    """Serve jobs until stdin ends; with arguments, run one rank of one job."""
    if len(sys.argv) == 4:
        _rank_main(decode(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
        return
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    out.write(json.dumps(_facts()) + "\n")
    out.flush()
    for line in sys.stdin:
        out.write(json.dumps(_run_job(decode(line))) + "\n")
        out.flush()
    # Not through the interpreter's end, which takes torch apart module by module, for seconds.
    atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Run reproducers in a child process that imports torch once; see :mod:`torchcompat.child`."""

from __future__ import annotations

import enum
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from .child import Job, encode
from .errors import TorchCompatError
from .scrub import scrub
from .settings import DISABLE, ONLY

__all__ = ["Ran", "Run", "Server"]


class Ran(str, enum.Enum):
    """How one run of a reproducer ended."""

    PASSED = "passed"
    DOCUMENTED = "failed as documented"
    OTHERWISE = "failed otherwise"
    NOT_RUN = "not run"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Run:
    """One run: how it ended, the message, and the seconds it took."""

    ran: Ran
    message: str = ""
    seconds: float = 0.0
    log: str = ""


class Server:
    """The child that imports torch once and forks for every job."""

    def __init__(self) -> None:
        # Closed in close(); a file and not a pipe, which could fill up unread.
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", errors="replace"
        )
        environment = {k: v for k, v in os.environ.items() if k not in (DISABLE, ONLY)}
        if sys.platform.startswith("linux"):
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        # -c and not -m, which would put the current folder in front of everything.
        self._process = subprocess.Popen(
            [*_interpreter(), "-c", "from torchcompat.child import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        self.facts: dict[str, Any] = {}

    def greet(self) -> None:
        """Wait until torch is imported."""
        self.facts = self._read("torch cannot be imported in a child process")

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def run(self, job: Job) -> tuple[Run, str]:
        """Run a job; return how it went, and what the probe said before any edit."""
        try:
            line = encode(job)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TorchCompatError(
                f"the shim {job.shim.key!r} cannot be sent to a child process; its probe, edits and "
                f"reproducers must be module-level functions ({error})"
            ) from error
        if self._process.stdin is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        answer = self._read("the verifying process died")
        probe = answer["probe"]["presence"] if answer["probe"] else ""
        ran = Ran.PASSED
        if answer["result"] != "passed":
            documented = re.search(job.chosen.expect, answer["error"], re.DOTALL)
            ran = Ran.DOCUMENTED if documented else Ran.OTHERWISE
        message = scrub(" ".join(answer["error"].split()))[:500]
        return Run(ran, message, answer["seconds"], answer["log"]), probe

    def _read(self, otherwise: str) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if line:
            return cast("dict[str, Any]", json.loads(line))
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["it said nothing"]
        raise TorchCompatError(f"{otherwise}: {said[-1]}")


def _interpreter() -> Sequence[str]:
    flags = ["-P"] if sys.version_info >= (3, 11) and sys.flags.safe_path else []
    return [sys.executable, *flags]

"""Run reproducers without and with their shims, and conclude what this build needs."""

from __future__ import annotations

import enum
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from .bounds import bound_for_affected, bound_for_fixed
from .builds import TorchBuild
from .child import Job, encode
from .errors import TorchCompatError
from .gate import Affected, Verdict
from .scrub import scrub
from .settings import DISABLE, ONLY
from .shim import Presence, Reproducer, Shim

__all__ = [
    "Conclusion",
    "Finding",
    "Ran",
    "Run",
    "Verification",
    "conclude",
    "expectation",
    "verify",
    "write_bound",
]

SCHEMA = "torchcompat-evidence-1"


class Ran(str, enum.Enum):
    """How one run of a reproducer ended."""

    PASSED = "passed"
    DOCUMENTED = "failed as documented"
    OTHERWISE = "failed otherwise"
    NOT_RUN = "not run"

    def __str__(self) -> str:
        return self.value


class Conclusion(str, enum.Enum):
    """What the runs without and with the shim say together."""

    NEEDED = "needed"
    NOT_NEEDED = "not needed"
    OBSOLETE = "obsolete"
    TOO_NARROW = "gate too narrow"
    BROKEN = "broken"
    HARMFUL = "harmful"
    UNCLEAR = "unclear"
    NOT_RUN = "not run"

    def __str__(self) -> str:
        return self.value

    @property
    def is_right(self) -> bool:
        """Whether shim and gate are right here (or nothing could be run)."""
        return self in (Conclusion.NEEDED, Conclusion.NOT_NEEDED, Conclusion.NOT_RUN)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: how it ended, the message, and the seconds it took."""

    ran: Ran
    message: str = ""
    seconds: float = 0.0
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reproducer on one build.

    Attributes:
        shim: the shim's key.
        reproducer: the reproducer's name.
        revision: the revision of the shim's cure.
        gate: what the gate says of this reproducer.
        probe: present, absent, drifted, or ``""`` where it did not come to that.
        without: the run without the shim.
        cured: the run with it.
        conclusion: what both say together.
        advice: a sentence, what to do or why it was not run.
    """

    shim: str
    reproducer: str
    revision: int
    gate: Verdict
    probe: str
    without: Run
    cured: Run
    conclusion: Conclusion
    advice: str

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-ready values."""
        return {
            "shim": self.shim,
            "reproducer": self.reproducer,
            "revision": self.revision,
            "gate": str(self.gate),
            "probe": self.probe,
            "without": _run_dict(self.without),
            "with": _run_dict(self.cured),
            "conclusion": str(self.conclusion),
            "advice": self.advice,
        }


def _run_dict(run: Run) -> dict[str, Any]:
    return {"result": str(run.ran), "message": run.message, "seconds": round(run.seconds, 1)}


@dataclass(frozen=True, slots=True)
class Verification:
    """All findings on one build; :meth:`as_dict` is the evidence format."""

    facts: dict[str, Any]
    emulated: str | None
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings that contradict a shim or its gate."""
        return tuple(finding for finding in self.findings if not finding.conclusion.is_right)

    def as_dict(self) -> dict[str, Any]:
        """Return the evidence as JSON-ready values (schema ``torchcompat-evidence-1``)."""
        from . import __version__

        build = TorchBuild.parse(self.facts["torch"], git_version=self.facts["git_version"])
        return {
            "schema": SCHEMA,
            "torchcompat": self.facts.get("torchcompat", __version__),
            "torch": self.facts["torch"],
            "git_version": self.facts["git_version"],
            "stage": str(build.stage),
            "accelerator": build.accelerator,
            "emulated_from": self.emulated,
            "python": self.facts["python"],
            "platform": self.facts["platform"],
            "cuda_devices": self.facts["cuda_devices"],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def verify(
    shims: Iterable[Shim],
    *,
    device: str = "cpu",
    on_start: Callable[[Shim, Reproducer, int, int], object] = lambda *_: None,
    on_finding: Callable[[Finding], object] = lambda _: None,
) -> Verification:
    """Run every reproducer of ``shims`` on the torch of this environment.

    Args:
        shims: what to verify.
        device: ``"cuda"`` also runs the reproducers for CUDA devices; without one of
            those they count as failed rather than skipped.
        on_start: told of each reproducer before it runs, with its number and the total.
        on_finding: told of each finding.

    Raises:
        TorchCompatError: torch cannot be imported in a child process.
    """
    work = [(shim, reproducer) for shim in shims for reproducer in shim.reproducers]
    with _Server() as server:
        build = TorchBuild.parse(server.facts["torch"], git_version=server.facts["git_version"])
        findings = []
        for number, (shim, reproducer) in enumerate(work, 1):
            on_start(shim, reproducer, number, len(work))
            finding = _find(server, build, shim, reproducer, device)
            on_finding(finding)
            findings.append(finding)
    return Verification(server.facts, _emulated_from(), tuple(findings))


def _find(
    server: _Server, build: TorchBuild, shim: Shim, reproducer: Reproducer, device: str
) -> Finding:
    range_ = reproducer.affected or shim.affected
    gate = range_.verdict(build)
    not_run = _why_not(server, build, reproducer, device)
    if not_run:
        nothing = Run(Ran.NOT_RUN)
        return Finding(
            shim=shim.key,
            reproducer=reproducer.name,
            revision=shim.revision,
            gate=gate,
            probe="",
            without=nothing,
            cured=nothing,
            conclusion=Conclusion.NOT_RUN,
            advice=not_run,
        )
    without, probe = server.run(Job(shim, reproducer.name, cure=False))
    # The shim's own gate would keep it from curing what this reproducer shows.
    force = without.ran is not Ran.PASSED and shim.affected.verdict(build) is Verdict.OUT
    cured, _ = server.run(Job(shim, reproducer.name, cure=True, force=force))
    conclusion, advice = conclude(without, cured, expectation(gate, probe))
    advice = write_bound(conclusion, advice, range_, build)
    if force and conclusion is Conclusion.NEEDED:
        advice += f", outside its gate: torchcompat.apply({shim.key!r}, force=True)"
    return Finding(
        shim=shim.key,
        reproducer=reproducer.name,
        revision=shim.revision,
        gate=gate,
        probe=probe,
        without=without,
        cured=cured,
        conclusion=conclusion,
        advice=advice,
    )


def _why_not(server: _Server, build: TorchBuild, reproducer: Reproducer, device: str) -> str:
    runnable = reproducer.runnable
    if runnable is not None and runnable.verdict(build) is Verdict.OUT:
        return f"needs {reproducer.needs or 'another torch'} (torch {runnable})"
    if reproducer.device == "cuda":
        if device != "cuda":
            return "needs a CUDA device; run `torchcompat verify --device cuda` where there is one"
        wanted = max(1, reproducer.ranks)
        if server.facts["cuda_devices"] < wanted:
            raise TorchCompatError(
                f"--device cuda was asked for, and {reproducer.name} needs {wanted} CUDA device(s), "
                f"but torch sees {server.facts['cuda_devices']}"
            )
    return ""


def expectation(gate: Verdict, probe: str) -> Verdict:
    """Say what is expected: what the gate says, or the probe where the gate cannot tell."""
    if gate in (Verdict.IN, Verdict.OUT):
        return gate
    told = {Presence.PRESENT.value: Verdict.IN, Presence.ABSENT.value: Verdict.OUT}
    return told.get(probe, gate)


def write_bound(conclusion: Conclusion, advice: str, range_: Affected, build: TorchBuild) -> str:
    """Add to the advice what to write into the shim's range, where the range is wrong."""
    if conclusion is Conclusion.OBSOLETE:
        return f"{advice}: {bound_for_fixed(range_, build)}"
    if conclusion is Conclusion.TOO_NARROW:
        return f"{advice}: {bound_for_affected(range_, build)}"
    return advice


def conclude(without: Run, cured: Run, expected: Verdict) -> tuple[Conclusion, str]:
    """Read the four-way table: what the two runs and the expectation say together."""
    if without.ran is Ran.OTHERWISE:
        return (
            Conclusion.UNCLEAR,
            "without the shim it failed, but not as documented: look at its message",
        )
    if without.ran is Ran.DOCUMENTED:
        if cured.ran is not Ran.PASSED:
            return Conclusion.BROKEN, "the fault is here and the shim does not cure it: mend the shim"
        if expected is Verdict.OUT:
            return Conclusion.TOO_NARROW, "the fault is here and the gate says OUT"
        return Conclusion.NEEDED, "this build has the fault, and the shim cures it"
    if cured.ran is not Ran.PASSED:
        return Conclusion.HARMFUL, "without the shim it passes, with it it fails: mend the shim"
    if expected is Verdict.IN:
        return (
            Conclusion.OBSOLETE,
            "the gate says IN and the fault is not here; the shim is obsolete from this build on",
        )
    return Conclusion.NOT_NEEDED, "this build does not have the fault"


class _Server:
    """The child that imports torch once and forks for every job."""

    def __init__(self) -> None:
        # Closed in __exit__; a file and not a pipe, which could fill up unread.
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

    def __enter__(self) -> _Server:
        self.facts = self._read("torch cannot be imported in a child process")
        return self

    def __exit__(self, *exc: object) -> None:
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


def _emulated_from() -> str | None:
    """Return the real version under a restamped torch (see ``noxfile.py``), else None."""
    from importlib import metadata

    try:
        text = metadata.distribution("torch").read_text("TORCHCOMPAT_EMULATED")
    except metadata.PackageNotFoundError:
        return None
    return text.strip() if text else None

"""Run reproducers without and with their shims, and conclude what this build needs."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from .bounds import bound_for_affected, bound_for_fixed
from .builds import TorchBuild
from .child import Job
from .errors import TorchCompatError
from .gate import Affected, Verdict
from .running import Ran, Run, Server
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

#: From so many reproducers on, two run side by side: a second torch to import pays then.
_MANY, _TOGETHER = 12, 2


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
    side_by_side: int | None = None,
) -> Verification:
    """Run every reproducer of ``shims`` on the torch of this environment.

    Args:
        shims: what to verify.
        device: ``"cuda"`` also runs the reproducers for CUDA devices; without one of
            those they count as failed rather than skipped.
        on_start: told of each reproducer before its finding is waited for, with its number
            and the total.
        on_finding: told of each finding, in the order of the shims.
        side_by_side: how many reproducers run at a time, each in processes of its own; by
            default two where there are many of them and no GPU to share.

    Raises:
        TorchCompatError: torch cannot be imported in a child process.
    """
    work = [(shim, reproducer) for shim in shims for reproducer in shim.reproducers]
    count = side_by_side or (_TOGETHER if len(work) >= _MANY and device == "cpu" else 1)
    idle: SimpleQueue[Server] = SimpleQueue()
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            servers.append(Server())
            stack.callback(servers[-1].close)
        for server in servers:
            server.greet()
            idle.put(server)
        facts = servers[0].facts
        build = TorchBuild.parse(facts["torch"], git_version=facts["git_version"])

        def find(shim: Shim, reproducer: Reproducer) -> Finding:
            server = idle.get()
            try:
                return _find(server, build, shim, reproducer, device)
            finally:
                idle.put(server)

        pool = stack.enter_context(ThreadPoolExecutor(count))
        stack.callback(pool.shutdown, cancel_futures=True)
        under_way = [pool.submit(find, *pair) for pair in work]
        findings = []
        for number, ((shim, reproducer), ahead) in enumerate(zip(work, under_way), 1):
            on_start(shim, reproducer, number, len(work))
            findings.append(ahead.result())
            on_finding(findings[-1])
    return Verification(facts, _emulated_from(), tuple(findings))


def _find(server: Server, build: TorchBuild, shim: Shim, reproducer: Reproducer, device: str) -> Finding:
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
    conclusion, advice = conclude(
        without, cured, expectation(gate, probe, of_shim=reproducer.affected is None)
    )
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


def _why_not(server: Server, build: TorchBuild, reproducer: Reproducer, device: str) -> str:
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


def expectation(gate: Verdict, probe: str, *, of_shim: bool) -> Verdict:
    """Say what is expected: what the gate says, or the probe where the gate cannot tell.

    Args:
        gate: the verdict of the shim's range, or of the reproducer's own.
        probe: what the shim's probe found.
        of_shim: whether the range is the shim's. A probe that finds the fault does not say that
            the build has the part of it that one reproducer with a range of its own shows.
    """
    if gate in (Verdict.IN, Verdict.OUT):
        return gate
    if probe == Presence.ABSENT.value:
        return Verdict.OUT
    if probe == Presence.PRESENT.value and of_shim:
        return Verdict.IN
    return gate


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


def _emulated_from() -> str | None:
    """Return the real version under a restamped torch (see ``noxfile.py``), else None."""
    from importlib import metadata

    try:
        text = metadata.distribution("torch").read_text("TORCHCOMPAT_EMULATED")
    except metadata.PackageNotFoundError:
        return None
    return text.strip() if text else None

"""The declaration of one shim: one known fault of torch, and what is known about it."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .edits import Edit
from .errors import ShimDefinitionError
from .gate import Affected
from .records import Record

__all__ = ["Presence", "Probe", "Reproducer", "Shim", "absent", "drifted", "present"]


class Presence(str, enum.Enum):
    """What a probe found: the fault's shape, no fault, or code it does not know."""

    PRESENT = "present"
    ABSENT = "absent"
    DRIFTED = "drifted"

    def __str__(self) -> str:
        return self.value


@dataclass(eq=False, repr=False)
class Probe(Record):
    """A probe's answer.

    Attributes:
        presence: present, absent or drifted.
        reason: the sentence that explains it.
        cured: for ``absent``: the cure itself is in place (by us, by a framework or by
            upstream), so that even ``force=True`` has nothing to do.
    """

    presence: Presence
    reason: str
    cured: bool = False


def present(reason: str) -> Probe:
    """The fault's shape is here."""
    return Probe(Presence.PRESENT, reason)


def absent(reason: str, *, cured: bool = False) -> Probe:
    """The fault's shape is not here; ``cured`` says that the cure already is."""
    return Probe(Presence.ABSENT, reason, cured)


def drifted(reason: str) -> Probe:
    """The code has changed so much that neither fault nor cure can be recognised."""
    return Probe(Presence.DRIFTED, reason)


@dataclass(eq=False, repr=False, kw_only=True)
class Reproducer(Record):
    """One way to make the fault happen, run in a child process.

    Attributes:
        name: short and unique within the shim.
        run: a module-level function without arguments. It returns where the fault does
            not happen, and raises where it does. With ``ranks`` it runs once in each
            rank, the default process group already initialised.
        expect: regular expression that the documented failure matches (searched in
            ``"ErrorType: message"``); any other failure is not the fault.
        affected: the builds where this reproducer fails, if they differ from the
            shim's. Where they say IN and the shim's gate says OUT, the shim is applied
            with ``force=True``.
        runnable: the builds that can run it at all; elsewhere it counts as "not run".
        needs: what ``runnable`` is about, in words, such as ``"FSDP2 on the CPU"``.
        ranks: size of the process group (gloo on the loopback interface, nccl for cuda),
            0 for none.
        device: ``"cpu"`` or ``"cuda"``; without such a device it counts as "not run".
        preload: modules to import before the fork, so that their seconds are spent once.
        timeout: seconds until the child is ended and counts as failed.
    """

    name: str
    run: Callable[[], None]
    expect: str
    affected: Affected | None = None
    runnable: Affected | None = None
    needs: str = ""
    ranks: int = 0
    device: str = "cpu"
    preload: tuple[str, ...] = ()
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ShimDefinitionError(
                f"reproducer {self.name!r}: device is cpu or cuda, not {self.device!r}"
            )
        if self.ranks < 0:
            raise ShimDefinitionError(f"reproducer {self.name!r}: ranks cannot be negative")

    def check(self) -> None:
        """Raise a ShimDefinitionError where ``expect`` is no regular expression.

        Called by ``register()`` and not at once: compiling the patterns of built-in shims,
        which a test has checked, would be a tenth of what ``apply_all()`` costs.
        """
        try:
            re.compile(self.expect)
        except re.error as error:
            raise ShimDefinitionError(
                f"reproducer {self.name!r}: expect is no regular expression: {error}"
            ) from error


@dataclass(eq=False, repr=False, kw_only=True)
class Shim(Record):
    """One known fault or API break of torch, and its cure.

    Attributes:
        key: snake_case name, never reused.
        summary: one line for lists.
        symptom: what the user sees, with the exact error text.
        cause: what in torch goes wrong.
        cure: what the edits change, in words.
        upstream: issue and pull-request URLs.
        affected: the gate.
        modules: the torch modules that must be loaded; while one is not, the shim is
            ``pending``. They are never imported for the shim's sake.
        probe: looks for the fault's shape; microseconds, no side effects, and it may
            import only ``modules``.
        edits: returns the edits; called with ``modules`` loaded.
        reproducers: at least one.
        removable_when: when users no longer need the shim.
        opt_in: applied only by name, since the cure can surprise.
        dynamo_reset: compiled code does not notice the edits until dynamo is reset.
        after: keys of shims that may hold the same target and must come first.
        carried_by: who ships the same patch by hand today.
        notes: what else a user should know.
        revision: counted up when the cure changes, so that compile caches notice.
        retired: why the shim is no longer applied; its key stays taken.

    Raises:
        ShimDefinitionError: the key is no snake_case name, or a reproducer is missing.
    """

    key: str
    summary: str
    symptom: str
    cause: str
    cure: str
    upstream: tuple[str, ...]
    affected: Affected
    modules: tuple[str, ...]
    probe: Callable[[], Probe]
    edits: Callable[[], Sequence[Edit]]
    reproducers: tuple[Reproducer, ...]
    removable_when: str
    opt_in: bool = False
    dynamo_reset: bool = False
    after: tuple[str, ...] = ()
    carried_by: tuple[str, ...] = ()
    notes: str = ""
    revision: int = 1
    retired: str | None = None
    distribution: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not _is_snake_case(self.key):
            raise ShimDefinitionError(
                f"a shim's key is a snake_case name ([a-z][a-z0-9_]*), not {self.key!r}"
            )
        if not self.reproducers and self.retired is None:
            raise ShimDefinitionError(
                f"shim {self.key!r} has no reproducer: without one nobody can tell that it is needed"
            )
        names = [reproducer.name for reproducer in self.reproducers]
        if len(set(names)) != len(names):
            raise ShimDefinitionError(f"shim {self.key!r} has two reproducers of one name: {names}")
        for field_name in ("modules", "upstream", "after", "carried_by"):
            if isinstance(getattr(self, field_name), str):
                raise ShimDefinitionError(f"shim {self.key!r}: {field_name} is a tuple of strings")
        if not self.modules:
            raise ShimDefinitionError(f"shim {self.key!r} names no module that it edits")

    def check(self) -> None:
        """Raise a ShimDefinitionError for what is not checked when the shim is made."""
        for reproducer in self.reproducers:
            reproducer.check()


def _is_snake_case(key: str) -> bool:
    return key.isascii() and key.isidentifier() and key == key.lower() and not key.startswith("_")

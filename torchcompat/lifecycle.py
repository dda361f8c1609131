"""The life of one shim: decide, probe, edit, probe again, undo, revert."""

from __future__ import annotations

import sys
from dataclasses import replace

from . import import_hooks
from .builds import TorchBuild, detect
from .entries import Declared
from .errors import ConflictError, RevertError, TargetDriftError, TorchCompatError
from .gate import Gated, Verdict
from .journal import Journal
from .registry import Registry
from .report import Event, Outcome, State
from .session import Session, Sessions, logger, said
from .settings import Switches
from .shim import Presence, Probe

__all__ = ["Lifecycle"]


class Known:
    """What the engine knows about one shim."""

    def __init__(
        self,
        shim: Declared,
        outcome: Outcome,
        journal: Journal | None = None,
        claims: frozenset[str] = frozenset(),
        *,
        force: bool = False,
    ) -> None:
        self.shim = shim
        self.outcome = outcome
        self.journal = journal
        self.claims = claims
        self.waiter: import_hooks.Waiter | None = None
        self.force = force


class Undoing:
    """Edits that have to be taken back, and what is then to be noted.

    Written down before the first edit, and struck out after the last line of an apply or
    revert: whatever cuts that off, the engine finds it before it releases the lock.
    """

    def __init__(self, shim: Declared, journal: Journal, outcome: Outcome) -> None:
        self.shim = shim
        self.journal = journal
        self.outcome = outcome


class Lifecycle(Sessions):
    """What happens to a shim, always under the lock."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self.registry = registry
        self._records: dict[str, Known] = {}  # in the order in which they were touched
        self._undoing: Undoing | None = None

    # -- deciding --------------------------------------------------------------------

    def _forecast(self, shim: Declared, switches: Switches, build: TorchBuild | None) -> Outcome:
        """What would become of a shim, from the version alone."""
        early = self._early(shim, switches, named=False)
        if early is not None:
            return early
        if build is None:
            return _no_torch(shim)
        gated = shim.affected.judge(build)
        if gated.verdict is Verdict.OUT:
            return _not_affected(shim, gated)
        sure = "once the probe confirms it" if gated.verdict is Verdict.IN else "if the probe finds it"
        return Outcome(
            key=shim.key,
            state=State.PENDING,
            reason=f"{gated.reason}; apply_all() would cure it {sure}",
            verdict=gated.verdict,
        )

    @staticmethod
    def _early(shim: Declared, switches: Switches, *, named: bool) -> Outcome | None:
        """The states that need no look at torch."""
        if shim.retired is not None:
            return Outcome(key=shim.key, state=State.RETIRED, reason=shim.retired)
        disabled = switches.why_disabled(shim.key)
        if disabled is not None:
            return Outcome(key=shim.key, state=State.DISABLED, reason=disabled)
        if shim.opt_in and not named:
            return Outcome(
                key=shim.key,
                state=State.OPT_IN,
                reason=f"its cure can surprise; ask for it with torchcompat.apply({shim.key!r})",
            )
        return None

    def _settle(self, shim: Declared, switches: Switches, *, named: bool, force: bool) -> Outcome:
        """Bring one shim to the state that it should have; under the lock."""
        record = self._records.get(shim.key)
        if record is not None and record.journal is not None:
            outcome = self._checked(record)
            if outcome.state is State.APPLIED or not self._is_undone(shim, record.journal):
                return outcome
            # What is left of the edits goes first, or it would be edited twice.
            self._take_back(record, replace(outcome, edits=()))
            if self._records[shim.key].outcome.state is State.FAILED:
                return self._records[shim.key].outcome
        if record is not None and record.outcome.state is State.PENDING:
            # What was asked for by name, or with force, stays so until it is decided.
            named, force = True, force or record.force
        early = self._early(shim, switches, named=named)
        if early is not None:
            return self._note(shim, early)
        build = self._session.build if self._session is not None else None
        if build is None:
            return self._note(shim, _no_torch(shim))
        gated = shim.affected.judge(build)
        if gated.verdict is Verdict.OUT and not force:
            return self._note(shim, _not_affected(shim, gated))
        if not import_hooks.is_ready(shim.modules):
            return self._wait(shim, gated, force=force)
        return self._commit(shim, gated, force=force)

    def _wait(self, shim: Declared, gated: Gated, *, force: bool) -> Outcome:
        missing = [name for name in shim.modules if not import_hooks.is_ready([name])]
        waits = " and ".join(missing) if import_hooks.is_ready([]) else "torch"
        outcome = Outcome(
            key=shim.key,
            state=State.PENDING,
            reason=f"waits for {waits} to be imported; {gated.reason}",
            verdict=gated.verdict,
        )
        self._note(shim, outcome, force=force)
        waiter = import_hooks.when_ready(shim.modules, lambda: self._on_ready(shim.key))
        self._records[shim.key].waiter = waiter
        return outcome

    # -- applying --------------------------------------------------------------------

    def _commit(self, shim: Declared, gated: Gated, *, force: bool) -> Outcome:
        """Probe, edit, probe again; on any failure torch is brought back."""
        try:
            probe = self._probe(shim)
        except TargetDriftError as error:
            probe = Probe(Presence.DRIFTED, str(error))
        except Exception as error:
            return self._note(shim, _failed(shim, gated, f"its probe raised {said(error)}"))
        if probe.presence is Presence.DRIFTED:
            return self._note(
                shim,
                Outcome(
                    key=shim.key,
                    state=State.UNSUPPORTED,
                    reason=f"this torch has drifted from what the shim knows: {probe.reason}",
                    verdict=gated.verdict,
                ),
            )
        if probe.presence is Presence.ABSENT and (probe.cured or not force):
            return self._note(
                shim,
                Outcome(
                    key=shim.key,
                    state=State.ALREADY_FIXED,
                    reason=probe.reason,
                    verdict=gated.verdict,
                ),
            )
        journal = Journal()
        cut_off = _failed(shim, gated, "it was interrupted; torch is as it was")
        try:
            self._undoing = Undoing(shim, journal, cut_off)
            edits = tuple(self.registry.get(shim.key).edits())
            changes = [edit.prepare() for edit in edits]
            claims = frozenset(claim for change in changes for claim in change.claims())
            self._refuse_shared(shim, claims)
            late = tuple(name for change in changes for name in change.late_holders())
            for change in changes:
                journal.commit(change)
            reset = self._reset_dynamo(shim)
            after = self._probe(shim)
            if after.presence is not Presence.ABSENT:
                raise TorchCompatError(f"after the edits the probe still says: {after.reason}")
            outcome = Outcome(
                key=shim.key,
                state=State.APPLIED,
                reason=f"{gated.reason}; {probe.reason}{reset}",
                verdict=gated.verdict,
                edits=journal.describe(),
                late=late,
                reversible=all(edit.reversible for edit in edits),
                forced=force and (gated.verdict is Verdict.OUT or probe.presence is Presence.ABSENT),
            )
            self._note(shim, outcome, journal=journal, claims=claims, force=force)
            self._undoing = None
            return outcome
        except BaseException as error:
            return self._undo(shim, gated, journal, error)

    def _undo(self, shim: Declared, gated: Gated, journal: Journal, error: BaseException) -> Outcome:
        """Bring torch back after a failed apply, and record why."""
        self._undoing = Undoing(
            shim, journal, _failed(shim, gated, f"{said(error)}; torch is as it was")
        )
        done = tuple(f"undone: {line}" for line in journal.describe())
        lost = journal.rollback()
        if lost:
            outcome = _failed(shim, gated, f"{said(error)}; and in undoing it, {_lost(lost)}")
        elif isinstance(error, TargetDriftError):
            outcome = replace(_failed(shim, gated, str(error)), state=State.UNSUPPORTED)
        elif isinstance(error, ConflictError):
            outcome = replace(
                _failed(shim, gated, f"{error}; keep one of the two patches"), state=State.CONFLICT
            )
        else:
            outcome = _failed(shim, gated, f"{said(error)}; torch is as it was")
        self._note(shim, replace(outcome, edits=done))
        self._undoing = None
        if not isinstance(error, Exception):
            raise error
        logger.debug("shim %s", shim.key, exc_info=error)
        return self._records[shim.key].outcome

    def _recover(self) -> None:
        undoing = self._undoing
        if undoing is None:
            return
        lost = undoing.journal.rollback()
        outcome = undoing.outcome
        if lost:
            outcome = replace(outcome, state=State.FAILED, reason=_lost(lost))
        self._note(undoing.shim, outcome)
        self._undoing = None

    def _overdue(self) -> list[str]:
        return [
            key
            for key, record in self._records.items()
            if record.outcome.state is State.PENDING and import_hooks.is_ready(record.shim.modules)
        ]

    def _probe(self, shim: Declared) -> Probe:
        probe = self.registry.get(shim.key).probe()
        if not isinstance(probe, Probe):
            raise TypeError(f"a probe returns present(), absent() or drifted(), not {probe!r}")
        return probe

    def _refuse_shared(self, shim: Declared, claims: frozenset[str]) -> None:
        for key, record in self._records.items():
            shared = claims & record.claims if record.journal is not None else frozenset()
            if shared and key not in shim.after and key != shim.key:
                raise ConflictError(min(shared), f"the shim {key!r}")

    def _reset_dynamo(self, shim: Declared) -> str:
        """Drop compiled code that would run past the edits; only where there is any."""
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None or not self.registry.get(shim.key).dynamo_reset:
            return ""
        if not import_hooks.is_ready(["torch._dynamo"]):
            return ""
        dynamo.reset()
        return "; torch._dynamo was reset, so compiled functions compile again"

    # -- reverting and checking ------------------------------------------------------

    def _revert(self, shim: Declared) -> Outcome:
        record = self._records.get(shim.key)
        if record is None:
            return self._forecast(shim, Switches.read(self.registry.keys()), detect())
        if record.journal is None:
            if record.outcome.state is not State.PENDING:
                return record.outcome
            reason = "no longer waits"
        else:
            if not record.outcome.reversible:
                raise RevertError(
                    shim.key, "torch offers no way back from one of its edits; start a new process"
                )
            for key, other in self._records.items():
                shared = record.claims & other.claims if other.journal is not None else frozenset()
                if shared and shim.key in other.shim.after:
                    raise RevertError(
                        shim.key, f"{min(shared)} is now held by the shim {key!r}; revert that first"
                    )
            taken = record.journal.foreign_holder()
            if taken is not None:
                target, holder = taken
                raise RevertError(
                    shim.key, f"{target} is now held by {holder}; take that patch back first"
                )
            reason = "reverted on request; torch is as it was"
        outcome = Outcome(
            key=shim.key, state=State.REVERTED, reason=reason, verdict=record.outcome.verdict
        )
        if record.journal is None:
            return self._note(shim, outcome)
        self._take_back(record, outcome)
        outcome = self._records[shim.key].outcome
        if outcome.state is State.FAILED:
            raise RevertError(shim.key, outcome.reason)
        self._reset_dynamo(shim)
        return outcome

    def _take_back(self, record: Known, outcome: Outcome) -> None:
        """Undo the edits of an applied shim and note what it is then."""
        if record.journal is not None:
            self._undoing = Undoing(record.shim, record.journal, outcome)
            self._recover()

    def _is_undone(self, shim: Declared, journal: Journal) -> bool:
        """Whether torch's own code, with the fault, is where an applied shim's edits were.

        As after a reload. Where another patch is in the way, ours may lie under it and come
        back; then the edits stay written down.
        """
        try:
            return self._probe(shim).presence is Presence.PRESENT and not journal.is_ousted()
        except Exception as error:
            logger.debug("shim %s stays as it is: %s", shim.key, said(error))
            return False

    def _checked(self, record: Known, below: frozenset[str] = frozenset()) -> Outcome:
        """The outcome on record, unless somebody has overwritten the edits since."""
        if record.journal is None:
            return record.outcome
        above: set[str] = set()
        below |= {record.shim.key}
        for key, other in self._records.items():
            if other.journal is None or record.shim.key not in other.shim.after or key in below:
                continue  # below: `after` may go round in a circle
            if self._checked(other, below).state is State.APPLIED:
                above |= other.claims
        taken = record.journal.foreign_holder(besides=above)
        if taken is None:
            return record.outcome
        target, holder = taken
        return replace(
            record.outcome,
            state=State.CONFLICT,
            reason=f"was applied, but {target} has since been taken over by {holder}",
        )

    # -- records ---------------------------------------------------------------------

    def _take(self, key: str, session: Session) -> None:
        record = self._records.get(key)
        if record is None or record.outcome.state is not State.PENDING:
            return
        switches = Switches.read(self.registry.keys())
        outcome = self._settle(record.shim, switches, named=True, force=record.force)
        logger.info("%s", outcome)
        if outcome.state.is_trouble:
            session.warnings.append(str(outcome))

    def _note(
        self,
        shim: Declared,
        outcome: Outcome,
        *,
        journal: Journal | None = None,
        claims: frozenset[str] = frozenset(),
        force: bool = False,
    ) -> Outcome:
        """Record an outcome, and the event if it is news."""
        old = self._records.pop(shim.key, None)
        if old is not None and old.waiter is not None:
            old.waiter.cancel()
        self._records[shim.key] = Known(shim, outcome, journal, claims, force=force)
        before = None if old is None else old.outcome.state
        if self._session is not None and before is not outcome.state:
            self._session.events.append(Event(outcome, before))
        return outcome


def _lost(failures: tuple[str, ...]) -> str:
    return f"could not be undone: {'; '.join(failures)}; start a new process"


def _failed(shim: Declared, gated: Gated, reason: str) -> Outcome:
    return Outcome(key=shim.key, state=State.FAILED, reason=reason, verdict=gated.verdict)


def _no_torch(shim: Declared) -> Outcome:
    return Outcome(key=shim.key, state=State.NOT_AFFECTED, reason="torch is not installed here")


def _not_affected(shim: Declared, gated: Gated) -> Outcome:
    return Outcome(key=shim.key, state=State.NOT_AFFECTED, reason=gated.reason, verdict=gated.verdict)

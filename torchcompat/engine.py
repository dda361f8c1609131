"""The engine: applies the shims of a registry to this process's torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from .builds import TorchBuild, detect
from .errors import ApplyError, GateError, RevertError, TorchNotFoundError
from .lifecycle import Lifecycle
from .report import Event, Outcome, Report, State
from .session import logger
from .settings import Switches

__all__ = ["Engine"]


class Engine(Lifecycle):
    """The public face; every method is safe to call from any thread."""

    def apply(self, key: str, *, force: bool = False) -> Outcome:
        """Apply one shim, now or as soon as the modules that it edits are imported.

        Args:
            key: the shim.
            force: apply it although the gate or the probe says that this build does not
                have the fault. It still refuses code that it does not recognise, and
                what the environment has switched off.

        Returns:
            The outcome; ``not_affected``, ``already_fixed``, ``pending`` and ``disabled``
            are outcomes, not errors.

        Raises:
            UnknownShimError: there is no such shim.
            TorchNotFoundError: there is no torch.
            ApplyError: the shim is needed here and cannot be applied; torch is as it was.
        """
        shim = self.registry.entry(key)
        switches = Switches.read(self.registry.keys())
        with self._locked() as session:
            if session.build is None:
                raise TorchNotFoundError
            outcome = self._settle(shim, switches, named=True, force=force)
        if outcome.state.is_trouble:
            raise _apply_error(outcome)
        return outcome

    def apply_all(
        self,
        *,
        only: Iterable[str] | None = None,
        skip: Iterable[str] = (),
        strict: bool | None = None,
    ) -> Report:
        """Apply every shim that this build needs and that cannot surprise anyone.

        Args:
            only: consider these keys alone; an opt-in shim named here is applied.
            skip: leave these keys out.
            strict: raise where a shim is needed and cannot be applied; the default is
                what ``TORCHCOMPAT_STRICT`` says. One bad shim never stops the others.

        Returns:
            The state of every shim, as :meth:`status` would give it.

        Raises:
            UnknownShimError: ``only`` or ``skip`` names no shim.
            ApplyError: in strict mode.
        """
        named = None if only is None else {self.registry.entry(key).key for key in only}
        left_out = {self.registry.entry(key).key for key in skip}
        switches = Switches.read(self.registry.keys())
        taken: list[Outcome] = []
        with self._locked():
            for shim in self.registry.entries():
                if shim.key in left_out or (named is not None and shim.key not in named):
                    continue
                by_name = named is not None or switches.only is not None
                taken.append(self._settle(shim, switches, named=by_name, force=False))
        report = self.status()
        applied = ", ".join(report.applied) or "none"
        logger.info("torch %s: applied %s; %r", report.build, applied, report)
        troubled = [outcome for outcome in taken if outcome.state.is_trouble]
        if troubled and (switches.strict if strict is None else strict):
            raise _apply_error(troubled[0], others=[o.key for o in troubled[1:]])
        return report

    def revert(self, key: str) -> Outcome:
        """Take one shim back; a pending one stops waiting, any other stays as it is.

        Raises:
            UnknownShimError: there is no such shim.
            RevertError: its target is no longer ours, or torch offers no way back.
        """
        shim = self.registry.entry(key)
        with self._locked():
            return self._revert(shim)

    def revert_all(self) -> Report:
        """Take everything back, last applied first.

        Raises:
            RevertError: for the first shim that could not be; the others are reverted.
        """
        trouble: RevertError | None = None
        with self._locked():
            for record in reversed(list(self._records.values())):
                try:
                    self._revert(record.shim)
                except RevertError as error:
                    trouble = trouble or error
        if trouble is not None:
            raise trouble
        return self.status()

    @contextmanager
    def applied(self, *keys: str, force: bool = False) -> Iterator[Report]:
        """Apply shims for the length of a ``with`` block.

        What was applied or pending before the block is left so. Raises as
        :meth:`apply` and :meth:`revert` do.
        """
        ours: list[str] = []
        try:
            for key in keys:
                record = self._records.get(key)
                held = record is not None and record.outcome.state in (State.APPLIED, State.PENDING)
                self.apply(key, force=force)
                if not held:
                    ours.append(key)
            yield self.status()
        finally:
            for key in reversed(ours):
                self.revert(key)

    def status(self) -> Report:
        """Return the state of every shim, checked against the live torch.

        A shim that nobody has asked for shows what the gate says.
        """
        switches = Switches.read(self.registry.keys())
        outcomes: dict[str, Outcome] = {}
        with self._locked() as session:
            for shim in self.registry.entries():
                record = self._records.get(shim.key)
                if record is None:
                    outcomes[shim.key] = self._forecast(shim, switches, session.build)
                else:
                    outcomes[shim.key] = self._checked(record)
            build = session.build
        return Report(outcomes, build, self.registry.problems)

    def waiting(self) -> tuple[str, ...]:
        """Return the keys that were asked for and wait for their modules to be imported."""
        with self._locked():
            return tuple(
                key for key, record in self._records.items() if record.outcome.state is State.PENDING
            )

    def plan(self, torch: str | TorchBuild | None = None) -> Report:
        """Say what ``apply_all()`` would do on a build, from its version alone.

        Args:
            torch: a version string such as ``"2.13.0a0+8145d630e8"``; the default is
                the torch of this environment.

        Returns:
            Outcomes in which ``pending`` means: would be applied if the probe confirms.

        Raises:
            GateError: the string is no version of torch.
        """
        build = detect() if torch is None else torch
        if isinstance(build, str):
            build = TorchBuild.parse(build)
            if not build.known:
                raise GateError(
                    f"{build.raw!r} is not a version of torch; write it as torch.__version__ "
                    f"does, like '2.13.0' or '2.13.0a0+8145d630e8'"
                )
        switches = Switches.read(self.registry.keys())
        outcomes = {shim.key: self._forecast(shim, switches, build) for shim in self.registry.entries()}
        return Report(outcomes, build, self.registry.problems)

    def subscribe(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``callback`` after every change of a shim's state; returns the way out.

        It runs without the engine's lock. What it raises becomes a warning: the change
        has been made by then.
        """
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return unsubscribe

    def fingerprint(self) -> str:
        """Return a short digest of the applied shims and their revisions.

        Compile caches hash ``torch.__version__`` and source files and so do not see
        patches; put this into the cache directory's name.
        """
        import hashlib

        report = self.status()
        parts = [f"{key}@{self.registry.entry(key).revision}" for key in sorted(report.applied)]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
        return f"torchcompat-{len(parts)}-{digest}"


def _apply_error(outcome: Outcome, others: Iterable[str] = ()) -> ApplyError:
    also = f" (and so could not: {', '.join(others)})" if others else ""
    return ApplyError(outcome.key, outcome.reason + also, outcome.edits)

"""Errors and the one warning that torchcompat raises.

Every error builds its own sentence: what happened, and what to do about it.
All of them survive pickling, so that a worker process can hand one back.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ApplyError",
    "ConflictError",
    "DuplicateShimError",
    "GateError",
    "InputError",
    "RanksDisagreeError",
    "RevertError",
    "ShimDefinitionError",
    "TargetDriftError",
    "TorchCompatError",
    "TorchCompatWarning",
    "TorchNotFoundError",
    "UnknownShimError",
]


class TorchCompatError(Exception):
    """Root of every error that torchcompat raises."""


class TorchCompatWarning(RuntimeWarning):
    """Something worth a person's attention that did not stop the program."""


def near_misses(word: str, known: Iterable[str]) -> list[str]:
    """Return up to three of ``known`` that look like ``word``, best first."""
    import difflib

    return difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)


def unknown_key_message(key: str, known: Iterable[str], *, where: str = "") -> str:
    """Say that ``key`` names no shim, with its near misses or the way to list them."""
    known = sorted(known)
    near = near_misses(key, known)
    hint = (
        f"did you mean {' or '.join(repr(n) for n in near)}?"
        if near
        else f"known shims: {', '.join(known) or 'none'} (see `torchcompat list`)."
    )
    return f"{where}there is no shim {key!r}; {hint}"


class UnknownShimError(TorchCompatError, KeyError):
    """A key that names no shim; the message lists the near misses."""

    def __init__(self, key: str, known: Sequence[str] = ()) -> None:
        super().__init__(key, tuple(known))
        self.key = key
        self.known = tuple(known)

    def __str__(self) -> str:
        return unknown_key_message(self.key, self.known)


class GateError(TorchCompatError, ValueError):
    """A range of builds that contradicts itself, or a version that is none."""


class InputError(TorchCompatError, ValueError):
    """A file or an option that cannot be used as it was given."""


class ShimDefinitionError(TorchCompatError, ValueError):
    """A shim whose declaration is incomplete or contradicts itself."""


class DuplicateShimError(TorchCompatError, ValueError):
    """Two shims with one key; keys are never reused, so the second is refused."""

    def __init__(self, key: str, holder: str, newcomer: str) -> None:
        super().__init__(key, holder, newcomer)
        self.key = key
        self.holder = holder
        self.newcomer = newcomer

    def __str__(self) -> str:
        return (
            f"the shim key {self.key!r} from {self.newcomer} is already taken by "
            f"{self.holder}; give the new shim another key, or uninstall one of the two."
        )


class TorchNotFoundError(TorchCompatError, ModuleNotFoundError):
    """There is no torch in this environment."""

    def __init__(
        self,
        message: str = (
            "torch is not installed in this environment; install it first "
            "(`pip install torch`): torchcompat never installs or changes torch."
        ),
    ) -> None:
        super().__init__(message)


class TargetDriftError(TorchCompatError):
    """The code that an edit is meant for no longer has the shape it was written for.

    Args:
        target: the edit's target, ``"module:attribute.path"``.
        found: what is there instead, as the end of a sentence.
    """

    def __init__(self, target: str, found: str) -> None:
        super().__init__(target, found)
        self.target = target
        self.found = found

    def __str__(self) -> str:
        return f"{self.target} {self.found}"


class ConflictError(TorchCompatError):
    """Two patchers want one target; the message names the one that holds it."""

    def __init__(self, target: str, holder: str) -> None:
        super().__init__(target, holder)
        self.target = target
        self.holder = holder

    def __str__(self) -> str:
        return f"{self.target} is already held by {self.holder}"


class ApplyError(TorchCompatError):
    """A shim that this build needs could not be applied; torch is as it was.

    Attributes:
        key: the shim.
        reason: why, as a sentence.
        journal: the edits that were made and undone again, in order.
    """

    def __init__(self, key: str, reason: str, journal: Sequence[str] = ()) -> None:
        super().__init__(key, reason, tuple(journal))
        self.key = key
        self.reason = reason
        self.journal = tuple(journal)

    def __str__(self) -> str:
        return f"shim {self.key!r} could not be applied: {self.reason}"


class RevertError(TorchCompatError):
    """A shim could not be taken back, since its target is no longer ours."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"shim {self.key!r} could not be reverted: {self.reason}"


class RanksDisagreeError(TorchCompatError):
    """The ranks of a job do not run the same torch with the same shims.

    Attributes:
        differences: in what they differ, one sentence each, with the ranks.
    """

    def __init__(self, differences: Sequence[str]) -> None:
        super().__init__(tuple(differences))
        self.differences = tuple(differences)

    def __str__(self) -> str:
        return (
            f"the ranks of this job disagree: {'; and '.join(self.differences)}. Give every rank the "
            f"same environment: torch, torchcompat-shims, TORCHCOMPAT_* variables, and the place "
            f"where apply_all() is called."
        )

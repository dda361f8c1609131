"""Known faults and API breaks of torch, and reversible cures for them.

``import torchcompat`` loads nothing but this file; everything else comes with the
first name that is used, and torch is never imported on its own account.

    import torchcompat
    torchcompat.apply_all()

PYTEST_DONT_REWRITE: under ``torchcompat exec -- pytest`` this package is loaded before
pytest, which would warn that it is too late to rewrite our asserts; there are none.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .builds import Stage, TorchBuild
    from .default import (
        applied,
        apply,
        apply_all,
        fingerprint,
        plan,
        register,
        revert,
        revert_all,
        status,
        subscribe,
        torch_build,
        unregister,
    )
    from .edits import AddAttr, AddEntries, AddItems, Call, ReplaceAttr
    from .errors import (
        ApplyError,
        ConflictError,
        DuplicateShimError,
        GateError,
        RanksDisagreeError,
        RevertError,
        ShimDefinitionError,
        TargetDriftError,
        TorchCompatError,
        TorchCompatWarning,
        TorchNotFoundError,
        UnknownShimError,
    )
    from .gate import Affected, NamedBuild, Verdict
    from .ranks import check_ranks
    from .report import Event, Outcome, Report, State
    from .shim import Presence, Probe, Reproducer, Shim, absent, drifted, present
    from .targets import lookup

__version__ = "0.1.0"

_HOMES = {
    "builds": ("Stage", "TorchBuild"),
    "default": (
        "applied",
        "apply",
        "apply_all",
        "fingerprint",
        "plan",
        "register",
        "revert",
        "revert_all",
        "status",
        "subscribe",
        "torch_build",
        "unregister",
    ),
    "edits": ("AddAttr", "AddEntries", "AddItems", "Call", "ReplaceAttr"),
    "errors": (
        "ApplyError",
        "ConflictError",
        "DuplicateShimError",
        "GateError",
        "RanksDisagreeError",
        "RevertError",
        "ShimDefinitionError",
        "TargetDriftError",
        "TorchCompatError",
        "TorchCompatWarning",
        "TorchNotFoundError",
        "UnknownShimError",
    ),
    "gate": ("Affected", "NamedBuild", "Verdict"),
    "ranks": ("check_ranks",),
    "report": ("Event", "Outcome", "Report", "State"),
    "shim": ("Presence", "Probe", "Reproducer", "Shim", "absent", "drifted", "present"),
    "targets": ("lookup",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AddAttr",
    "AddEntries",
    "AddItems",
    "Affected",
    "ApplyError",
    "Call",
    "ConflictError",
    "DuplicateShimError",
    "Event",
    "GateError",
    "NamedBuild",
    "Outcome",
    "Presence",
    "Probe",
    "RanksDisagreeError",
    "ReplaceAttr",
    "Report",
    "Reproducer",
    "RevertError",
    "Shim",
    "ShimDefinitionError",
    "Stage",
    "State",
    "TargetDriftError",
    "TorchBuild",
    "TorchCompatError",
    "TorchCompatWarning",
    "TorchNotFoundError",
    "UnknownShimError",
    "Verdict",
    "__version__",
    "absent",
    "applied",
    "apply",
    "apply_all",
    "check_ranks",
    "drifted",
    "fingerprint",
    "lookup",
    "plan",
    "present",
    "register",
    "revert",
    "revert_all",
    "status",
    "subscribe",
    "torch_build",
    "unregister",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'torchcompat' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"torchcompat.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

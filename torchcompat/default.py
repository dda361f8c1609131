"""The process's one engine, over the built-in shims and the plugins."""

from __future__ import annotations

from .builds import TorchBuild, detect
from .engine import Engine
from .errors import TorchNotFoundError
from .registry import Registry
from .shim import Shim

__all__ = [
    "applied",
    "apply",
    "apply_all",
    "engine",
    "fingerprint",
    "plan",
    "register",
    "registry",
    "revert",
    "revert_all",
    "status",
    "subscribe",
    "torch_build",
    "unregister",
]

registry = Registry()
engine = Engine(registry)

applied = engine.applied
apply = engine.apply
apply_all = engine.apply_all
fingerprint = engine.fingerprint
plan = engine.plan
revert = engine.revert
revert_all = engine.revert_all
status = engine.status
subscribe = engine.subscribe


def register(shim: Shim, *, distribution: str = "") -> None:
    """Add a framework's own shim; ``apply_all()`` then takes it with the others.

    Args:
        shim: the declaration.
        distribution: whose it is, for reports.

    Raises:
        DuplicateShimError: the key is taken.
        ShimDefinitionError: this is no shim.
    """
    registry.register(shim, distribution=distribution)


def unregister(key: str) -> None:
    """Revert and forget a shim that :func:`register` added.

    Raises:
        UnknownShimError: there is no such shim.
        ShimDefinitionError: it is built in.
        RevertError: it cannot be taken back.
    """
    registry.get(key)
    engine.revert(key)
    registry.unregister(key)


def torch_build() -> TorchBuild:
    """Say which torch this process has or would import; nothing is imported.

    Raises:
        TorchNotFoundError: there is none.
    """
    build = detect()
    if build is None:
        raise TorchNotFoundError
    return build

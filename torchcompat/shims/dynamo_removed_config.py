"""Settings of torch.compile that are gone, and still set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..edits import AddEntries, AddItems, Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_ROWS = {
    "torch._dynamo.config:_config": {"skip_fsdp_hooks": True},
    "torch._inductor.config:_config": {"force_same_precision": False},
}
_IGNORED = {
    "torch._dynamo.config:_compile_ignored_keys": "torch._dynamo.config:_config",
    "torch._inductor.config:_compile_ignored_keys": "torch._inductor.config:_config",
}


def probe() -> Probe:
    """Look for the settings."""
    gone = []
    for target, settings in _ROWS.items():
        held = lookup(target, None)
        if not isinstance(held, dict):
            return drifted(f"{target} is no dict of settings")
        gone += [name for name in settings if name not in held]
    if not gone:
        return absent("the settings are there", cured=True)
    if not callable(lookup("torch.utils._config_module:Config", None)):
        return drifted("settings are made otherwise")
    return present(f"{' and '.join(gone)} cannot be set")


def edits() -> Sequence[Edit]:
    """Add settings that nothing reads; torch's own means say so, once, where one is used."""
    from torch.utils import _config_module

    entry: Any = _config_module._ConfigEntry

    def entries(target: str) -> dict[str, Any]:
        held = lookup(target)
        return {
            name: entry(_setting(default), name)
            for name, default in _ROWS[target].items()
            if name not in held
        }

    # Kept out of the hash of the settings, so that compile caches and guards stay what they are.
    return [
        *(AddEntries(target, lambda target=target: entries(target)) for target in _ROWS),  # type: ignore[misc]
        *(
            AddItems(ignored, lambda target=target: _ROWS[target])  # type: ignore[misc]
            for ignored, target in _IGNORED.items()
        ),
    ]


def _setting(default: bool) -> Any:
    from torch.utils import _config_module

    config: Any = _config_module.Config
    return config(
        default=default,
        deprecated=True,
        deprecation_message="ignored, since torch 2.13 has no such setting; leave it out "
        "(torchcompat's shim dynamo_removed_config)",
    )


def set_removed_settings() -> None:
    """Set and patch them, as training recipes do."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    for config, name in ((dynamo, "skip_fsdp_hooks"), (inductor, "force_same_precision")):
        before = getattr(config, name, None)
        for value in (not before, bool(before)):
            setattr(config, name, value)
            if getattr(config, name) != value:
                raise AssertionError(f"{name} is not {value}")
            patch: Any = config.patch
            with patch({name: not value}):
                if getattr(config, name) == value:
                    raise AssertionError(f"{name} cannot be patched")


SHIM = Shim(
    key="dynamo_removed_config",
    summary="torch._dynamo.config.skip_fsdp_hooks and inductor's force_same_precision can be set",
    symptom="AttributeError: torch._dynamo.config.skip_fsdp_hooks does not exist",
    cause="2.13 took both settings away.",
    cure="Both are settings again that nothing reads; the first use of each warns.",
    upstream=("https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/config.py",),
    affected=Affected(since="2.13.0"),
    modules=("torch._dynamo.config", "torch._inductor.config"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="set_removed_settings",
            run=set_removed_settings,
            expect="AttributeError: .*(skip_fsdp_hooks|force_same_precision).* does not exist",
            preload=("torch._dynamo", "torch._inductor.config"),
        ),
    ),
    removable_when="none of your dependencies sets them",
)

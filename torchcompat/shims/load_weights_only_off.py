"""``torch.load`` with ``weights_only=False`` as its default, as before 2.6. Dangerous."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_LOAD = "torch.serialization:load"
_DEFAULT = "torch.serialization:_default_to_weights_only"

logger = logging.getLogger("torchcompat")


class _Marker:
    """A class that no allow-list knows."""

    def __eq__(self, other: object) -> bool:
        return type(other) is _Marker

    __hash__ = None  # type: ignore[assignment]


def probe() -> Probe:
    """Look whether weights only is the default."""
    if is_replaced(_LOAD):
        return absent("torch.load loads anything, by this shim", cured=True)
    if lookup(_DEFAULT, None) is None:
        return absent("torch.load loads anything unless it is told not to", cured=True)
    if not callable(lookup(_LOAD, None)):
        return drifted("torch.load is not where it was")
    return present("torch.load loads weights only")


def edits() -> Sequence[Edit]:
    """Say weights_only=False where the caller says nothing, and log it."""

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def load(f: Any, *args: Any, weights_only: bool | None = None, **kwargs: Any) -> Any:
            forced = os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0") in ("1", "y", "yes", "true")
            if weights_only is None and not forced:
                logger.warning(
                    "torch.load(%s) runs whatever code the file holds: the shim load_weights_only_off "
                    "has "
                    "made weights_only=False the default; pass weights_only yourself to be safe",
                    f if isinstance(f, (str, os.PathLike)) else type(f).__name__,
                )
                weights_only = False
            return original(f, *args, weights_only=weights_only, **kwargs)

        return load

    return [ReplaceAttr(_LOAD, make, aliases=("torch:load",))]


def any_class() -> None:
    """An object of a class of one's own, loaded by a call that says nothing; refused if told so."""
    import io
    import pickle

    import torch

    def load(**options: Any) -> Any:
        file = io.BytesIO()
        torch.save(_Marker(), file)
        file.seek(0)
        return torch.load(file, **options)

    if load() != _Marker():
        raise AssertionError("another object came back")
    try:
        load(weights_only=True)
    except pickle.UnpicklingError:
        return
    raise AssertionError("weights_only=True was not heeded")


SHIM = Shim(
    key="load_weights_only_off",
    summary="torch.load runs any pickle by default, as before 2.6: for files that you trust only",
    symptom="_pickle.UnpicklingError: Weights only load failed.",
    cause=(
        "2.6 made weights_only=True the default of torch.load, for safety: a pickle can run any code, "
        "so that loading a file from elsewhere hands your account to its author."
    ),
    cure=(
        "Calls that say nothing about weights_only get False, and each of them is logged as a warning. "
        "weights_only=True, and TORCH_FORCE_WEIGHTS_ONLY_LOAD=1, are heeded as always."
    ),
    upstream=("https://github.com/pytorch/pytorch/pull/137602",),
    affected=Affected(since="2.6.0"),
    modules=("torch.serialization",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(name="any_class", run=any_class, expect="UnpicklingError: Weights only load failed"),
    ),
    removable_when="your calls of torch.load say weights_only=False where the file is trusted",
    opt_in=True,
    notes=(
        "Dangerous, and never applied unless it is asked for by name. Try load_weights_only first, then "
        "torch.serialization.add_safe_globals; a module that did `from torch import load` before stays "
        "as it was."
    ),
)

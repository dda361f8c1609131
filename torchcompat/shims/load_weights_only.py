"""``torch.load`` refuses harmless types, now that it loads weights only by default."""

from __future__ import annotations

import argparse
import collections
import datetime
import functools
import pathlib
import pickle
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_ALLOWED = "torch._weights_only_unpickler:_get_user_allowed_globals"
_DEFAULT = "torch.serialization:_default_to_weights_only"

# What making one of these from data of an attacker's choice can do: nothing but to hold the data.
# No callable that is handed on, no hook in __new__, __init__ or __setstate__, no registry, no file.
HARMLESS: tuple[type, ...] = (
    *(bool, int, float, str, list, tuple, dict, frozenset, slice, range),
    argparse.Namespace,
    types.SimpleNamespace,
    collections.defaultdict,  # its factory comes from a pickle too, so it is of this list or torch's
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
    pathlib.PosixPath,
)

_PLAIN = re.compile(r"[?]|[<>=|]?[biufcSU]\d+")


class PlainDtype:
    """Stands in for ``numpy.dtype`` while a numpy scalar is loaded.

    The real one believes whatever state a pickle gives it; with forged flags and fields,
    bytes of a file would be taken for objects. This one accepts plain numbers and text.
    """

    def __init__(self, code: Any, align: object = False, copy: object = False) -> None:
        if type(code) is not str or not _PLAIN.fullmatch(code):
            raise pickle.UnpicklingError(f"the numpy dtype {code!r} is not one of plain numbers or text")
        self.code = code

    def __setstate__(self, state: Any) -> None:
        order, *rest = state[1:5] if isinstance(state, tuple) else ("",)
        if order not in ("<", ">", "=", "|") or rest != [None, None, None]:
            raise pickle.UnpicklingError("the numpy dtype is not one of plain numbers or text")
        self.code = order + self.code.lstrip("<>=|")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            "a numpy dtype by itself is not loaded by torchcompat's shim load_weights_only, only those "
            "of numpy scalars are; allow it yourself with torch.serialization.add_safe_globals"
        )


def scalar(dtype: Any, raw: Any = b"") -> Any:
    """Make the numpy scalar that ``raw`` holds; only numbers and text."""
    import numpy  # type: ignore[import-not-found, unused-ignore]

    code = dtype.code if isinstance(dtype, PlainDtype) else numpy.dtype(dtype).str
    if not _PLAIN.fullmatch(code):
        raise pickle.UnpicklingError(f"a numpy scalar of {code!r} is not one of plain numbers or text")
    plain = numpy.dtype(code)
    if not isinstance(raw, bytes) or len(raw) != plain.itemsize:
        raise pickle.UnpicklingError(f"a numpy scalar of {code!r} does not have {plain.itemsize} bytes")
    return numpy.frombuffer(raw, plain)[0] if raw else plain.type()


_SCALARS = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")


def _ours() -> dict[str, Any]:
    from torch.torch_version import TorchVersion

    allowed = {f"{t.__module__}.{t.__name__}": t for t in (*HARMLESS, TorchVersion)}
    for name in ("PurePosixPath", "PureWindowsPath", "PosixPath"):
        for home in ("pathlib", "pathlib._local"):  # which of them, Python's version decides
            allowed[f"{home}.{name}"] = getattr(pathlib, name)
    return allowed


def _numpy(theirs: dict[str, Any]) -> dict[str, Any]:
    """Our two stand-ins, unless the program has allowed numpy's own dtype."""
    if "numpy.dtype" in theirs:
        return {name: scalar for name in _SCALARS if name not in theirs}
    return dict.fromkeys(_SCALARS, scalar) | {"numpy.dtype": PlainDtype}


def probe() -> Probe:
    """Look whether weights only is the default."""
    if is_replaced(_ALLOWED):
        return absent("harmless types are allowed, by this shim", cured=True)
    if not isinstance(lookup(_ALLOWED, None), types.FunctionType):
        return drifted("the types that a program allows are not where they were")
    if lookup(_DEFAULT, None) is None:
        return absent("torch.load does not load weights only unless it is told to")
    return present("torch.load loads weights only, and knows few types")


def edits() -> Sequence[Edit]:
    """Add to what the program allows; what it has allowed itself stays as it is."""
    ours = _ours()

    def make(original: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        @functools.wraps(original, updated=())
        def _get_user_allowed_globals() -> dict[str, Any]:
            theirs = original()
            return {**ours, **theirs, **_numpy(theirs)}

        return _get_user_allowed_globals

    return [ReplaceAttr(_ALLOWED, make)]


def _through(value: Any) -> Any:
    import io

    import torch

    file = io.BytesIO()
    torch.save({"value": value, "weight": torch.ones(2)}, file)
    file.seek(0)
    return torch.load(file)["value"]


def common_types() -> None:
    """Save and load what checkpoints of real programs hold beside their tensors."""
    import torch

    values: tuple[Any, ...] = (
        argparse.Namespace(lr=0.1, layers=[1, 2]),
        types.SimpleNamespace(a=1),
        collections.defaultdict(list),
        torch.torch_version.TorchVersion("2.5.1"),
        slice(1, None, 2),
        pathlib.PurePosixPath("a/b"),
        pathlib.PosixPath("a/b"),
        datetime.datetime(2026, 1, 2, 3, 4),
        datetime.timedelta(1, 2),
        frozenset({1, 2}),
        range(3),
    )
    for value in values:
        got = _through(value)
        if type(got) is not type(value) or got != value:
            raise AssertionError(f"{value!r} came back as {got!r}")


def numpy_scalars() -> None:
    """The same for numpy scalars, such as a best metric."""
    import numpy as np

    for value in (np.float64(1.5), np.float32(1.5), np.int64(7), np.bool_(True), np.str_("best")):
        got = _through(value)
        if type(got) is not type(value) or got != value:
            raise AssertionError(f"{value!r} came back as {got!r}")


SHIM = Shim(
    key="load_weights_only",
    summary="torch.load takes numpy scalars, Namespace, defaultdict and other harmless types again",
    symptom="_pickle.UnpicklingError: Weights only load failed.",
    cause="From 2.6 on torch.load loads weights only by default, and knows few types beside tensors.",
    cure=(
        "Types that can only hold data are added to those that a program allows: numpy scalars (without "
        "their dtype's own unpickling), argparse.Namespace, SimpleNamespace, defaultdict, TorchVersion, "
        "slice, range, frozenset, the built-in containers and numbers, dates, and paths."
    ),
    upstream=("https://github.com/pytorch/pytorch/pull/137602",),
    affected=Affected(since="2.6.0"),
    modules=("torch._weights_only_unpickler", "torch.serialization", "torch.torch_version"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="common_types", run=common_types, expect="UnpicklingError: Weights only load failed"
        ),
        Reproducer(
            name="numpy_scalars", run=numpy_scalars, expect="UnpicklingError: Weights only load failed"
        ),
    ),
    removable_when="no checkpoint that you load holds such types",
    notes=(
        "The default of weights_only stays. Not among them, on purpose: numpy arrays and dtypes, whose "
        "state can forge pointers, deque, which the unpickler cannot fill, classes of third parties, "
        "and functions. From 2.14 on torch fills no defaultdict: only an empty one is loaded there. See "
        "load_weights_only_off for files that you trust."
    ),
)

"""A slice of a DTensor can be neither saved nor deep-copied."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_DTENSOR = "torch.distributed.tensor:DTensor"
_POINTER = f"{_DTENSOR}.data_ptr"
_TAIL = "torch.distributed.tensor._dispatch:OpDispatcher._dispatch_fast_path_python_tail"


def probe() -> Probe:
    """Look whether C++ makes the views, and how torch tells that a tensor has no data."""
    if is_replaced(_POINTER):
        return absent("no DTensor has a data pointer, by this shim", cured=True)
    dtensor = lookup(_DTENSOR, None)
    if not inspect.isclass(dtensor):
        return drifted("DTensor is somewhere else")
    own = {"data_ptr", "__reduce_ex__", "__deepcopy__"} & set(vars(dtensor))
    if own:
        return absent(f"DTensor has {', '.join(sorted(own))} of its own")
    if lookup(_TAIL, None) is None:
        return absent("a view of a DTensor has no offset into its storage")
    readers = (
        lookup("torch:Tensor._reduce_ex_internal", None),
        lookup("torch:Tensor.__deepcopy__", None),
    )
    if not all(map(inspect.isfunction, readers)):
        return drifted("tensors are pickled or copied by something else")
    if not all("data_ptr" in reader.__code__.co_names for reader in readers):
        return absent("whether a tensor has data is not told by its pointer")
    return present("a slice's offset is taken for a pointer to data")


def edits() -> Sequence[Edit]:
    """Say 0 for every DTensor, as torch does for one without an offset."""

    def make(_: Callable[[Any], int]) -> Callable[[Any], int]:
        def data_ptr(self: Any) -> int:
            """Return 0: the data are those of ``to_local()``."""
            return 0

        # A method is pickled by its name, and Tensor's was made in C++, without a module.
        data_ptr.__module__ = lookup(_DTENSOR).__module__
        data_ptr.__qualname__ = "DTensor.data_ptr"
        return data_ptr

    return [ReplaceAttr(_POINTER, make)]


def _views() -> list[Any]:
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    x: Any = distribute_tensor(torch.arange(24.0).view(6, 4), reproduce.cpu_mesh(), [Shard(0)])
    return [x, x[1:3], x[:, 1], x[2], x.chunk(2, dim=1)[1], x.t()]


def _must_equal(copy: Any, view: Any) -> None:
    import torch

    same = copy.placements == view.placements and torch.equal(copy.to_local(), view.to_local())
    if not same:
        raise AssertionError(f"{copy} is not a copy of {view}")


def saved() -> None:
    """Slices go through ``torch.save`` and ``torch.load``."""
    import io

    import torch

    for view in _views():
        file = io.BytesIO()
        torch.save({"view": view}, file)
        file.seek(0)
        _must_equal(torch.load(file, weights_only=False)["view"], view)


def copied() -> None:
    """``copy.deepcopy`` of slices."""
    import copy

    for view in _views():
        made = copy.deepcopy(view)
        _must_equal(made, view)
        before = view.to_local().tolist()
        made.to_local().zero_()
        if view.to_local().tolist() != before:
            raise AssertionError(f"{view} shares its data with the copy")


_NO_SELECT = "a strategy for aten.select"

SHIM = Shim(
    key="dtensor_view_pickle",
    summary="a slice of a DTensor can be neither saved nor deep-copied",
    symptom=(
        "RuntimeError: Attempted to access the data pointer on an invalid python storage, from "
        "torch.save of a slice, row or chunk of a DTensor; from copy.deepcopy: Attempted to call "
        "copy_() on an invalid python storage"
    ),
    cause=(
        "Where data_ptr() is 0, pickling and copying take a tensor for one that keeps its data "
        "elsewhere. From 2.10 on a view of a DTensor has an offset into a storage without data, and its "
        "data_ptr() is that offset."
    ),
    cure="DTensor.data_ptr() is 0, with or without an offset.",
    upstream=("https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_tensor.py",),
    affected=Affected(since="2.10.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="saved",
            run=saved,
            expect=r"RuntimeError: Attempted to access the data pointer on an invalid python storage",
            ranks=1,
            runnable=Affected(since="2.8.0"),
            needs=_NO_SELECT,
            preload=("torch.distributed.tensor",),
        ),
        Reproducer(
            name="copied",
            run=copied,
            expect=r"RuntimeError: Attempted to call copy_\(\) on an invalid python storage",
            ranks=1,
            runnable=Affected(since="2.8.0"),
            needs=_NO_SELECT,
            preload=("torch.distributed.tensor",),
        ),
    ),
    removable_when="torch tells by something else than a pointer that a DTensor's data are elsewhere",
    notes="As before, what is loaded is a tensor of its own: it no longer shares data with others.",
)

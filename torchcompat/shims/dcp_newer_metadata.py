"""A distributed checkpoint that torch 2.15 wrote cannot be read by any older torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_PROPERTIES = "torch.distributed.checkpoint.metadata:TensorProperties"
_SETSTATE = f"{_PROPERTIES}.__setstate__"
_KNOWN = 5  # values that the older builds write and read


def probe() -> Probe:
    """Look whether a tensor's properties have the strides, which the sixth value holds."""
    if is_replaced(_SETSTATE):
        return absent("further values are left aside, by this shim", cured=True)
    fields = getattr(lookup(_PROPERTIES, None), "__dataclass_fields__", None)
    if fields is None or lookup(_SETSTATE, None) is None:
        return drifted("the metadata of checkpoints is written differently")
    if "strides" in fields:
        return absent("the metadata has strides")
    if len(fields) != _KNOWN:
        return drifted(f"a tensor's properties are {', '.join(fields)}")
    return present(f"a tensor's properties are read as {_KNOWN} values, and no more")


def edits() -> Sequence[Edit]:
    """Read the values that this build knows."""

    def make(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        @functools.wraps(original, updated=())
        def __setstate__(self: Any, state: Any) -> None:
            original(self, tuple(state)[:_KNOWN])

        return __setstate__

    return [ReplaceAttr(_SETSTATE, make)]


def _written_by_2_15(state: dict[str, Any], path: str) -> None:
    """Save as 2.15 does, which puts the strides behind the other properties."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.metadata import TensorProperties

    dcp: Any = checkpoint
    own: Any = TensorProperties.__getstate__

    def with_strides(self: Any) -> tuple[Any, ...]:
        values: tuple[Any, ...] = own(self)
        return values if len(values) > _KNOWN else (*values, (3, 1))

    class_: Any = TensorProperties
    class_.__getstate__ = with_strides
    try:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path))
    finally:
        class_.__getstate__ = own


def load() -> None:
    """Model and optimizer of a checkpoint in 2.15's format come back as they were saved."""
    import tempfile

    import torch
    from torch.distributed import checkpoint

    dcp: Any = checkpoint
    torch.manual_seed(0)
    state: dict[str, Any] = {
        "weight": torch.randn(4, 3),
        "optimizer": {"exp_avg": torch.randn(4, 3), "step": 7},
    }
    with tempfile.TemporaryDirectory() as path:
        _written_by_2_15(state, path)
        dcp.FileSystemReader(path).read_metadata()
        loaded: dict[str, Any] = {
            "weight": torch.zeros(4, 3),
            "optimizer": {"exp_avg": torch.zeros(4, 3), "step": 0},
        }
        dcp.load(loaded, storage_reader=dcp.FileSystemReader(path))
    if not torch.equal(loaded["weight"], state["weight"]):
        raise AssertionError("the weight came back differently")
    want = state["optimizer"]
    if not torch.equal(loaded["optimizer"]["exp_avg"], want["exp_avg"]):
        raise AssertionError("the optimizer's state came back differently")
    if loaded["optimizer"]["step"] != want["step"]:
        raise AssertionError("the optimizer's step came back differently")


SHIM = Shim(
    key="dcp_newer_metadata",
    summary="distributed checkpoints written by torch 2.15 cannot be read by older releases",
    symptom=(
        "ValueError: too many values to unpack (expected 5) in TensorProperties.__setstate__; on 2.9 "
        "it is hidden behind AssertionError, from 2.10 on told as AssertionError: metadata is None; "
        "global metadata read failed: too many values to unpack (expected 5)"
    ),
    cause=(
        "2.15 writes the strides of every tensor as a sixth value into .metadata; older releases "
        "unpack five."
    ),
    cure="The five values that the build knows are read, and further ones are left aside.",
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/checkpoint/metadata.py",
    ),
    affected=Affected(since=None, fixed_in=("2.15.0",)),
    modules=("torch.distributed.checkpoint.metadata",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="load",
            run=load,
            expect=r"ValueError: too many values to unpack \(expected 5",
            ranks=1,
            preload=("torch.distributed.checkpoint",),
        ),
    ),
    removable_when="no job on torch 2.14 or older reads checkpoints of newer releases",
    notes=(
        "The reproducer writes 2.15's format on any build; with the shim 2.7.1, 2.9.1, 2.12.1 and "
        "2.14.1 also read a checkpoint that 2.15.0 wrote. Loading a checkpoint unpickles it, so load "
        "only what you trust. Strides do not matter for reading: values are copied into tensors that "
        "are there."
    ),
)

"""``torch.nn.functional.one_hot`` refuses int32 indices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torchcompat import Affected, Probe, ReplaceAttr, Reproducer, Shim, absent, lookup, present

_TARGET = "torch.nn.functional:one_hot"


def probe() -> Probe:
    """Look for our mark: the operator itself is C++ and tells nothing."""
    if hasattr(lookup(_TARGET), "_takes_int32"):
        return absent("one_hot takes int32 indices", cured=True)
    return present("one_hot refuses int32 indices")


def edits() -> Sequence[ReplaceAttr]:
    """Convert the indices on the way in."""

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def one_hot(tensor: Any, num_classes: int = -1) -> Any:
            return original(tensor.long(), num_classes)

        one_hot._takes_int32 = True  # type: ignore[attr-defined]
        # The operator says that it is torch._C._nn's; it is this name that pickle must find.
        one_hot.__module__, one_hot.__qualname__ = "torch.nn.functional", "one_hot"
        return one_hot

    return [ReplaceAttr(_TARGET, make)]


def int32_indices() -> None:
    """Compare with the result for int64 indices."""
    import torch

    index = torch.tensor([0, 2, 1])
    want = torch.nn.functional.one_hot(index, 3)
    torch.testing.assert_close(torch.nn.functional.one_hot(index.int(), 3), want)


SHIM = Shim(
    key="example_one_hot_int32",
    summary="one_hot refuses int32 indices",
    symptom="RuntimeError: one_hot is only applicable to index tensor of type LongTensor.",
    cause="The operator checks for int64 instead of converting.",
    cure="torch.nn.functional.one_hot converts its indices to int64.",
    upstream=(),
    affected=Affected(since="2.4.0"),
    modules=("torch.nn.functional",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="int32_indices",
            run=int32_indices,
            expect="one_hot is only applicable to index tensor",
        ),
    ),
    removable_when="torch takes int32 indices",
    opt_in=True,
)

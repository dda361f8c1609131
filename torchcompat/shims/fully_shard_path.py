"""``torch.distributed.fsdp`` has no ``fully_shard`` yet."""

from __future__ import annotations

from .. import moved
from ..gate import Affected
from ..shim import Reproducer, Shim

_ROWS = {
    "torch.distributed.fsdp:fully_shard": "torch.distributed._composable.fsdp.fully_shard",
    "torch.distributed.fsdp:FSDPModule": "torch.distributed._composable.fsdp.FSDPModule",
    "torch.distributed.fsdp:CPUOffloadPolicy": "torch.distributed._composable.fsdp.CPUOffloadPolicy",
    "torch.distributed.fsdp:OffloadPolicy": "torch.distributed._composable.fsdp.OffloadPolicy",
    "torch.distributed.fsdp:MixedPrecisionPolicy": (
        "torch.distributed._composable.fsdp.MixedPrecisionPolicy"
    ),
    "torch.distributed.fsdp:register_fsdp_forward_method": (
        "torch.distributed._composable.fsdp.register_fsdp_forward_method"
    ),
}

probe, edits = moved.lazy_names(__name__, "torch.distributed.fsdp", _ROWS)


def import_from_fsdp() -> None:
    """Import FSDP2 from where it is from 2.6 on, and find it to be the one of _composable."""
    import torch.distributed._composable.fsdp as before
    import torch.distributed.fsdp as home
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    for new, name in (
        (CPUOffloadPolicy, "CPUOffloadPolicy"),
        (FSDPModule, "FSDPModule"),
        (MixedPrecisionPolicy, "MixedPrecisionPolicy"),
        (OffloadPolicy, "OffloadPolicy"),
        (fully_shard, "fully_shard"),
        (register_fsdp_forward_method, "register_fsdp_forward_method"),
    ):
        if new is not getattr(before, name):
            raise AssertionError(f"{name} is another object")
    if hasattr(home, "no_such_name"):
        raise AssertionError("a name is found that is not there")


SHIM = Shim(
    key="fully_shard_path",
    summary="torch.distributed.fsdp has fully_shard and its policies, as from 2.6 on",
    symptom="ImportError: cannot import name 'fully_shard' from 'torch.distributed.fsdp'",
    cause="Up to 2.5 FSDP2 is in torch.distributed._composable.fsdp only.",
    cure=(
        "torch.distributed.fsdp finds fully_shard, FSDPModule, CPUOffloadPolicy, OffloadPolicy, "
        "MixedPrecisionPolicy and register_fsdp_forward_method there when they are asked for."
    ),
    upstream=("https://github.com/pytorch/pytorch/pull/141868",),
    affected=Affected(since=None, fixed_in=("2.6.0",)),
    modules=("torch.distributed.fsdp",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="import_from_fsdp",
            run=import_from_fsdp,
            expect="ImportError: cannot import name '(fully_shard|FSDPModule|.*Policy|register_.*)'",
            preload=("torch.distributed.fsdp",),
        ),
    ),
    removable_when="the oldest torch you support is 2.6",
    notes="What FSDP2 itself can do there stays as it was: on the CPU it runs from 2.7 on.",
)

"""FSDP2's own unshard ops break the replay of selective activation checkpointing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..edits import AddItems, Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup
from .sac_profiler import checkpointed, range_ops, replay_names, save_matmuls, sharded_moe

_IGNORED = "torch.utils.checkpoint:SAC_IGNORED_OPS"
# What an unshard dispatches: allocation, copy-in, all-gather, copy-out, views of the result.
_OPS = (
    "fsdp.all_gather_copy_in.default",
    "fsdp.split_with_sizes_copy.default",
    "c10d._allgather_base_.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.view.default",
)


def _unshard_ops() -> list[Any]:
    """Return the overloads behind an unshard, as far as this torch has them."""
    import torch

    found = []
    for name in _OPS:
        op: Any = torch.ops
        for part in name.split("."):
            op = getattr(op, part, None)
        if op is not None:
            found.append(op)
    return found


def probe() -> Probe:
    """Look whether the replay counts invocations, and those of the unshard ops with them."""
    ignored = lookup(_IGNORED, None)
    if ignored is None:
        return absent("this torch has no SAC_IGNORED_OPS, so no replay to disturb", cured=True)
    if not isinstance(ignored, (set, frozenset)):
        return drifted(f"SAC_IGNORED_OPS is a {type(ignored).__name__}, not a set")
    counted = [op for op in _unshard_ops() if op not in ignored]
    if not counted:
        return absent("SAC_IGNORED_OPS already holds FSDP2's unshard ops", cured=True)
    names = replay_names()
    if "func_counter" in names:
        return present(f"the replay counts invocations of {counted[0]}")
    if "policy_fn" in names:
        return absent("the replay asks the policy about each op and counts only what it saved")
    return drifted("the replay of selective activation checkpointing is written differently")


def edits() -> Sequence[Edit]:
    """Add the unshard ops in place: other code may hold the same set."""
    return [AddItems(_IGNORED, _unshard_ops)]


def gathered_only_in_recompute() -> None:
    """Prefetched outside the region in the forward, gathered inside it in the recompute.

    Losses and last gradients over five steps must equal those without checkpointing.
    """
    # What sac_profiler cures would hide what this is about; the child is thrown away.
    ignored = lookup(_IGNORED, None)
    if ignored is not None:
        ignored.update(range_ops())

    def model() -> Any:
        built = sharded_moe(prefetch=True)
        experts = [block.experts for block in built.blocks]
        for module in (built, *experts):
            module.set_modules_to_backward_prefetch([experts[-1]])
        return built

    batches = reproduce.batches()
    cured = model()
    cured.run_block = checkpointed(save_matmuls)
    reproduce.assert_same_training(reproduce.train(cured, batches), reproduce.train(model(), batches))


SHIM = Shim(
    key="sac_fsdp_ops",
    summary="SAC's replay dies on FSDP2's all-gather where a forward prefetch moved it",
    symptom=(
        "RuntimeError: fsdp.all_gather_copy_in.default encountered during backward "
        "but not found in storage."
    ),
    cause=(
        "From 2.13 on, selective activation checkpointing replays the forward op stream by per-op "
        "invocation index. A forward prefetch unshards a module before its checkpointed block; if no "
        "backward prefetch does the same, the recompute unshards it inside the block, and finds no "
        "such ops in the forward's storage."
    ),
    cure=(
        "The ops of an unshard (fsdp.all_gather_copy_in, fsdp.split_with_sizes_copy, "
        "c10d._allgather_base_, aten.empty, aten.empty_like, aten.view) are added to "
        "torch.utils.checkpoint.SAC_IGNORED_OPS, in place."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/pull/196862",
        "https://github.com/pytorch/torchtitan/issues/3427",
    ),
    affected=Affected(since="2.13.0a0"),
    modules=("torch.utils.checkpoint", "torch.distributed.fsdp"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="gathered_only_in_recompute",
            run=gathered_only_in_recompute,
            expect=r"fsdp\.all_gather_copy_in\.default .*during backward but not found in storage",
            ranks=2,
            runnable=Affected(since="2.7.0"),
            needs="FSDP2 on the CPU",
            preload=("torch._dynamo",),
        ),
    ),
    removable_when="the oldest torch you support keeps FSDP2's unshard out of the replay",
    opt_in=True,
    carried_by=("NVIDIA-NeMo/Automodel",),
    notes=(
        "Opt-in: a policy that wants to save the result of aten.view, aten.empty or aten.empty_like "
        "no longer can; these are recomputed, which costs next to nothing. Needs sac_profiler too."
    ),
)

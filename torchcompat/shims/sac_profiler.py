"""Profiler ranges break the replay of selective activation checkpointing."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import reproduce
from ..edits import AddItems, Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

if TYPE_CHECKING:
    import torch

_IGNORED = "torch.utils.checkpoint:SAC_IGNORED_OPS"
_REPLAY = "torch.utils.checkpoint:_CachedTorchDispatchMode.__torch_dispatch__"
_PACKETS = ("_record_function_enter", "_record_function_enter_new", "_record_function_exit")


def range_ops() -> list[Any]:
    """Every overload of the ops behind ``record_function``, as far as this torch has them."""
    import torch

    packets = [getattr(torch.ops.profiler, name, None) for name in _PACKETS]
    return [
        getattr(packet, name) for packet in packets if packet is not None for name in packet.overloads()
    ]


def replay_names() -> tuple[str, ...]:
    """Return the names that the replay's code uses: they tell how it is written."""
    replay = lookup(_REPLAY, None)
    # From 2.12 on torch wraps the method to keep dynamo out of it.
    code = getattr(inspect.unwrap(replay), "__code__", None) if callable(replay) else None
    return code.co_names if code is not None else ()


def probe() -> Probe:
    """Look whether the replay counts invocations, and those of the range ops with them."""
    ignored = lookup(_IGNORED, None)
    if ignored is None:
        return absent("this torch has no SAC_IGNORED_OPS, so no replay to disturb", cured=True)
    if not isinstance(ignored, (set, frozenset)):
        return drifted(f"SAC_IGNORED_OPS is a {type(ignored).__name__}, not a set")
    ops = range_ops()
    if not ops:
        return absent("this torch has no dispatchable record_function ops", cured=True)
    counted = [op for op in ops if op not in ignored]
    if not counted:
        return absent("SAC_IGNORED_OPS already holds the profiler's range ops", cured=True)
    names = replay_names()
    if "func_counter" in names:
        return present(f"the replay counts invocations of {counted[0]}")
    if "policy_fn" in names:
        return absent("the replay asks the policy about each op and counts only what it saved")
    return drifted("the replay of selective activation checkpointing is written differently")


def edits() -> Sequence[Edit]:
    """Add the range ops in place: other code may hold the same set."""
    return [AddItems(_IGNORED, range_ops)]


# -- reproducers ---------------------------------------------------------------------


def checkpointed(policy: Any) -> Any:
    """Return ``run(block, x)`` under selective checkpointing with a policy or a list of ops."""
    import functools

    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    context = functools.partial(create_selective_checkpoint_contexts, policy)
    return functools.partial(checkpoint, use_reentrant=False, context_fn=context)


def save_matmuls(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep the results of matrix products, recompute everything else."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    saved = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE


def _save_nothing(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.PREFER_RECOMPUTE


def _save_everything(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.PREFER_SAVE


def _range_only_in_recompute(policy: Any) -> None:
    """A range that is entered in the recompute and not in the forward, as FSDP2's hooks do."""
    import torch

    def region(x: torch.Tensor, calls: list[int]) -> torch.Tensor:
        calls[0] += 1
        if calls[0] > 1:
            with torch.profiler.record_function("only in the recompute"):
                x = x * 2.0
        else:
            x = x * 2.0
        return torch.sin(x @ x)

    torch.manual_seed(0)
    start = torch.randn(4, 4)
    x, reference = start.clone().requires_grad_(), start.clone().requires_grad_()
    checkpointed(policy)(region, x, [0]).sum().backward()
    region(reference, [0]).sum().backward()
    torch.testing.assert_close(x.grad, reference.grad)


def range_policy_matmul() -> None:
    """Under a policy that saves matrix products."""
    _range_only_in_recompute(save_matmuls)


def range_policy_nothing() -> None:
    """Under a policy that saves nothing."""
    _range_only_in_recompute(_save_nothing)


def range_policy_list() -> None:
    """Under a list of ops to save."""
    import torch

    _range_only_in_recompute([torch.ops.aten.mm.default])


def range_policy_everything() -> None:
    """Under a policy that saves every op, the profiler's included."""
    _range_only_in_recompute(_save_everything)


def sharded_moe(*, prefetch: bool) -> Any:
    """Build the MoE blocks with FSDP2: each block's experts a unit of their own."""
    from torch.distributed.fsdp import fully_shard

    mesh = reproduce.cpu_mesh()
    model: Any = reproduce.moe_blocks()
    experts = [block.experts for block in model.blocks]
    for module in (*experts, model):
        fully_shard(module, mesh=mesh)
    if prefetch:
        model.set_modules_to_forward_prefetch(experts)
    return model


def _fsdp2_moe(*, prefetch: bool) -> None:
    """Experts sharded on their own inside a checkpointed block; five steps of SGD.

    Losses and last gradients must equal those of the same model without checkpointing.
    """
    batches = reproduce.batches()
    model = sharded_moe(prefetch=prefetch)
    model.run_block = checkpointed(save_matmuls)
    got = reproduce.train(model, batches)
    reproduce.assert_same_training(got, reproduce.train(sharded_moe(prefetch=prefetch), batches))


def fsdp2_moe() -> None:
    """On one rank the hooks' order alone is enough."""
    _fsdp2_moe(prefetch=False)


def fsdp2_moe_prefetched() -> None:
    """On more ranks what was prefetched in the forward is gathered anew in the recompute."""
    _fsdp2_moe(prefetch=True)


_NOT_FOUND = (
    r"profiler\._record_function_enter_new\.default .*encountered during backward,? "
    r"but not found in storage"
)
_PUBLIC_SAC = Affected(since="2.5.0")
_FSDP2_ON_CPU = Affected(since="2.7.0")

SHIM = Shim(
    key="sac_profiler",
    summary="SAC's replay dies on profiler ranges, such as those around FSDP2's hooks",
    symptom=(
        "RuntimeError: profiler._record_function_enter_new.default invocation index N "
        "encountered during backward but not found in storage."
    ),
    cause=(
        "From 2.13.0a0 on, selective activation checkpointing replays the forward op stream by "
        "per-op invocation index. record_function dispatches torch.ops.profiler ops, and FSDP2's "
        "hooks run under record_function: with an FSDP boundary inside a checkpointed region they "
        "fire a different number of times in the recompute, and the indices no longer match."
    ),
    cure=(
        "Every overload of torch.ops.profiler._record_function_{enter,enter_new,exit} is added to "
        "torch.utils.checkpoint.SAC_IGNORED_OPS, in place. The ranges still run and are still "
        "recorded in a profile; they only leave the replay's accounting."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/pull/185178",
        "https://github.com/pytorch/pytorch/pull/196862",
        "https://github.com/pytorch/torchtitan/issues/3427",
    ),
    affected=Affected(since="2.13.0a0"),
    modules=("torch.utils.checkpoint",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="range_policy_matmul",
            run=range_policy_matmul,
            expect=_NOT_FOUND,
            runnable=_PUBLIC_SAC,
            needs="the public selective checkpointing API",
            preload=("torch._dynamo",),
        ),
        Reproducer(
            name="range_policy_nothing",
            run=range_policy_nothing,
            expect=_NOT_FOUND,
            runnable=_PUBLIC_SAC,
            needs="the public selective checkpointing API",
            preload=("torch._dynamo",),
        ),
        Reproducer(
            name="range_policy_list",
            run=range_policy_list,
            expect=_NOT_FOUND,
            runnable=_PUBLIC_SAC,
            needs="the public selective checkpointing API",
            preload=("torch._dynamo",),
        ),
        Reproducer(
            name="range_policy_everything",
            run=range_policy_everything,
            expect=_NOT_FOUND,
            affected=_PUBLIC_SAC,
            runnable=_PUBLIC_SAC,
            needs="the public selective checkpointing API",
            preload=("torch._dynamo",),
        ),
        Reproducer(
            name="fsdp2_moe_1rank",
            run=fsdp2_moe,
            expect=_NOT_FOUND,
            ranks=1,
            runnable=_FSDP2_ON_CPU,
            needs="FSDP2 on the CPU",
            preload=("torch._dynamo", "torch.distributed.fsdp"),
        ),
        Reproducer(
            name="fsdp2_moe_prefetched_2ranks",
            run=fsdp2_moe_prefetched,
            expect=_NOT_FOUND,
            ranks=2,
            runnable=_FSDP2_ON_CPU,
            needs="FSDP2 on the CPU",
            preload=("torch._dynamo", "torch.distributed.fsdp"),
        ),
    ),
    removable_when="the oldest torch you support ignores the profiler's range ops by itself",
    carried_by=("NVIDIA-NeMo/Automodel#3133",),
    notes=(
        "Builds before 2.13 ask the policy about each op again in the recompute, so there only a "
        "policy that saves the profiler's ops too (a save-everything policy) meets the fault. The "
        "gate stays at 2.13.0a0; such users call torchcompat.apply('sac_profiler', force=True)."
    ),
)

"""FSDP2's mixed-precision casts are skipped in the recompute of a checkpointed unit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"
_PRE = f"{_STATE}:FSDPState._pre_forward"
_POST = f"{_STATE}:FSDPState._post_forward"
# Both decorators keep dynamo out of FSDP's hooks; builds have one or the other.
_DECORATORS = (f"{_STATE}:disable_if_config_true", f"{_STATE}:_dynamo_disable")


def probe() -> Probe:
    """Look whether the pre-forward casts by itself, or calls a method that always does."""
    if is_replaced(_PRE) and is_replaced(_POST):
        return absent("FSDP2's hooks cast in the recompute too, by this shim", cured=True)
    hooks = [lookup(name, None) for name in (_PRE, _POST)]
    if not all(inspect.isfunction(hook) for hook in hooks):
        return drifted("FSDPState no longer has the methods _pre_forward and _post_forward")
    names = {name for hook in hooks for name in inspect.unwrap(hook).__code__.co_names}
    if "_cast_forward_inputs" in names:
        return absent("FSDP2's hooks cast in the recompute too")
    if {"PRE_BACKWARD", "cast_forward_inputs", "output_dtype"} <= names:
        return present("FSDP2's pre-forward returns before its casts while in pre-backward")
    return drifted("FSDP2's forward hooks are written differently")


def edits() -> Sequence[Edit]:
    """Cast around the two hooks while their unit is in its pre-backward state."""
    import functools

    state = lookup(f"{_STATE}:TrainingState.PRE_BACKWARD")
    cast = lookup(f"{_STATE}:_cast_fp_tensor")
    on_tensors = lookup(f"{_STATE}:_apply_to_tensors", None) or lookup(f"{_STATE}:tree_map")
    found = [decorator for name in _DECORATORS if (decorator := lookup(name, None)) is not None]
    decorate: Callable[[Any], Any] = found[0] if found else _undecorated

    def pre(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def _pre_forward(self: Any, module: Any, args: Any, kwargs: Any) -> Any:
            recompute = self._training_state == state
            args, kwargs = original(self, module, args, kwargs)
            policy = self._mp_policy
            if recompute and policy.cast_forward_inputs and policy.param_dtype:
                to_param = functools.partial(cast, policy.param_dtype)
                args, kwargs = on_tensors(to_param, args), on_tensors(to_param, kwargs)
            return args, kwargs

        return decorate(_pre_forward)

    def post(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def _post_forward(self: Any, module: Any, input: Any, output: Any) -> Any:
            recompute = self._training_state == state
            output = original(self, module, input, output)
            if recompute and self._mp_policy.output_dtype is not None:
                output = on_tensors(functools.partial(cast, self._mp_policy.output_dtype), output)
            return output

        return decorate(_post_forward)

    return [ReplaceAttr(_PRE, pre), ReplaceAttr(_POST, post)]


def _undecorated(function: Any) -> Any:
    return function


def _mixed_precision(checkpointed: bool) -> Any:
    """Build blocks that are FSDP units in bf16 with float32 outputs."""
    import functools

    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.utils.checkpoint import checkpoint

    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    model: Any = reproduce.moe_blocks()
    for module in (*model.blocks, model):
        fully_shard(module, mesh=reproduce.cpu_mesh(), mp_policy=policy)
    if checkpointed:
        model.run_block = functools.partial(checkpoint, use_reentrant=False)
    return model


def checkpointed_units() -> None:
    """Losses and gradients equal those without checkpointing, to the last bit."""
    batches = reproduce.batches()
    got = reproduce.train(_mixed_precision(checkpointed=True), batches)
    want = reproduce.train(_mixed_precision(checkpointed=False), batches)
    reproduce.assert_same_training(got, want, rtol=0.0, atol=0.0)


def against_float32() -> None:
    """And those of the unsharded float32 model, within bfloat16's precision (5 %)."""
    batches = reproduce.batches()
    got = reproduce.train(_mixed_precision(checkpointed=True), batches)
    want = reproduce.train(reproduce.moe_blocks(), batches)
    reproduce.assert_same_training(got, want, rtol=5e-2, atol=5e-3)


_MISMATCH = r"mat1 and mat2 must have the same dtype, but got Float and BFloat16"
_FSDP2_ON_CPU = Affected(since="2.7.0")

SHIM = Shim(
    key="fsdp_recompute_cast",
    summary="FSDP2's mixed-precision casts are skipped when a checkpointed unit is recomputed",
    symptom="RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
    cause=(
        "In the recompute of an FSDP unit under activation checkpointing the unit is in its "
        "pre-backward state, in which its forward hooks return before they cast inputs to "
        "param_dtype and outputs to output_dtype."
    ),
    cure="FSDPState._pre_forward and _post_forward cast in that state too, as 2.13 does.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/159359",
        "https://github.com/pytorch/pytorch/pull/182580",
    ),
    affected=Affected(since="2.7.0", fixed_in=("2.13.0",)),
    modules=("torch.distributed.fsdp",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=name,
            run=run,
            expect=_MISMATCH,
            ranks=ranks,
            runnable=_FSDP2_ON_CPU,
            needs="FSDP2 on the CPU",
            preload=("torch._dynamo",),
        )
        for name, run, ranks in (
            ("checkpointed_units_1rank", checkpointed_units, 1),
            ("checkpointed_units_2ranks", checkpointed_units, 2),
            ("against_float32", against_float32, 1),
        )
    ),
    removable_when="the oldest torch you support is 2.13",
    carried_by=("NVIDIA-NeMo/Automodel#3504", "NVIDIA-NeMo/Automodel#3513"),
    notes=(
        "A model that was sharded before the shim is applied keeps the old hooks: apply first. "
        "2.5 and 2.6 have FSDP2 elsewhere, and only for CUDA; they are not covered."
    ),
)

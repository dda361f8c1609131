"""FSDP2 refuses to reduce accumulated and fresh gradients together."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_FSDP = "torch.distributed.fsdp._fully_shard"
_REDUCE = f"{_FSDP}._fsdp_collectives:foreach_reduce"
_REFUSAL = "FSDP reduce-scatter expects uniform gradient dtype"


def probe() -> Probe:
    """Look for the refusal's text in foreach_reduce."""
    if is_replaced(_REDUCE):
        return absent("foreach_reduce gets gradients of one dtype, by this shim", cured=True)
    reduce = lookup(_REDUCE, None)
    if not inspect.isfunction(reduce):
        return drifted("foreach_reduce is not where it was")
    code = inspect.unwrap(reduce).__code__
    if "unsharded_grads" not in code.co_varnames:
        return drifted("foreach_reduce takes no unsharded_grads")
    if any(isinstance(value, str) and _REFUSAL in value for value in code.co_consts):
        return present("foreach_reduce refuses gradients of mixed dtypes")
    return absent("foreach_reduce takes gradients of mixed dtypes")


def edits() -> Sequence[Edit]:
    """Widen a group's gradients to the widest dtype among them before they are reduced."""
    import functools

    import torch

    # float8 is left alone: there a mix may be a real error, for which the refusal is meant.
    floats = {torch.float16, torch.bfloat16, torch.float32, torch.float64}

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def foreach_reduce(fsdp_params: Any, unsharded_grads: Any, *args: Any, **kwargs: Any) -> Any:
            dtypes = {grad.dtype for grad in unsharded_grads}
            if len(dtypes) > 1 and dtypes <= floats:
                widest = functools.reduce(torch.promote_types, dtypes)
                with torch.no_grad():
                    # In place: the list owns the gradients, and is cleared to free them.
                    unsharded_grads[:] = [grad.to(widest) for grad in unsharded_grads]
            return original(fsdp_params, unsharded_grads, *args, **kwargs)

        return foreach_reduce

    return [ReplaceAttr(_REDUCE, make, aliases=(f"{_FSDP}._fsdp_param_group:foreach_reduce",))]


def _two_linears() -> Any:
    import torch
    from torch import nn

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always = nn.Linear(8, 8, bias=False)
            self.sometimes = nn.Linear(8, 8, bias=False)

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            out: torch.Tensor = self.always(x)
            return out + self.sometimes(x) if both else out

    torch.manual_seed(0)
    return Two()


def _accumulate(reduce_dtype: Any, *, unused: bool = False) -> None:
    """Accumulate a step that skips a linear and one that uses it; gradients within 2 %."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    reference, model = _two_linears(), _two_linears()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    fully_shard(model, mesh=reproduce.cpu_mesh(), mp_policy=policy)
    if unused:
        model.set_reduce_scatter_unused_params(True)
    first, second = reproduce.batches(2)
    model.set_requires_gradient_sync(False)
    model(first, False).float().sum().backward()
    model.set_requires_gradient_sync(True)
    model(second, not unused).float().sum().backward()
    reference(first, False).sum().backward()
    reference(second, not unused).sum().backward()
    for got, want in zip(model.parameters(), reference.parameters()):
        expected = torch.zeros_like(want) if want.grad is None else want.grad
        torch.testing.assert_close(reproduce.whole(got.grad), expected, rtol=2e-2, atol=2e-2)


def late_parameter() -> None:
    """A parameter that only the last micro-batch uses, reduced in float32."""
    import torch

    _accumulate(torch.float32)


def late_parameter_float64() -> None:
    """The same reduced in float64, for which gloo needs no average of its own."""
    import torch

    _accumulate(torch.float64)


def unused_parameter() -> None:
    """A parameter that no micro-batch uses, with set_reduce_scatter_unused_params(True)."""
    import torch

    _accumulate(torch.float32, unused=True)


_FSDP2_ON_CPU = Affected(since="2.7.0")
_HAS_UNUSED = Affected(since="2.13.0")

SHIM = Shim(
    key="fsdp_uniform_reduce_dtype",
    summary="FSDP2 dies where a parameter joins late in gradient accumulation",
    symptom=(
        "AssertionError: FSDP reduce-scatter expects uniform gradient dtype but got "
        "{torch.bfloat16, torch.float32}"
    ),
    cause=(
        "Without gradient sync, FSDP2 accumulates in reduce_dtype; a parameter whose first gradient "
        "comes with the synced micro-batch, or none at all, still has one in param_dtype, and "
        "foreach_reduce refuses the mix."
    ),
    cure="foreach_reduce first widens the gradients of a group to the widest dtype among them.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/196996",
        "https://github.com/pytorch/pytorch/pull/160279",
    ),
    affected=Affected(since="2.7.0", fixed_in=("2.15.0",)),
    modules=("torch.distributed.fsdp",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=name,
            run=run,
            expect=_REFUSAL,
            ranks=ranks,
            runnable=runnable,
            needs=needs,
        )
        for name, run, ranks, runnable, needs in (
            ("late_parameter_1rank", late_parameter, 1, _FSDP2_ON_CPU, "FSDP2 on the CPU"),
            ("late_parameter_2ranks", late_parameter_float64, 2, _FSDP2_ON_CPU, "FSDP2 on the CPU"),
            ("unused_parameter", unused_parameter, 1, _HAS_UNUSED, "set_reduce_scatter_unused_params"),
        )
    ),
    removable_when="the oldest torch you support is 2.15",
    carried_by=("NVIDIA-NeMo/Automodel",),
    notes=(
        "Costs a look at each gradient's dtype where they agree, and one copy of the narrower "
        "gradients where they do not. float8 gradients are still refused."
    ),
)

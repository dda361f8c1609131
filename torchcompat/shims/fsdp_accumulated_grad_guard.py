"""FSDP2's gradient accumulation trips over a unit that the batch has skipped."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam"
_UPCAST = f"{_PARAM}.to_accumulated_grad_if_needed"


def probe() -> Probe:
    """Look whether the upcast reads the unsharded parameter without asking if it was made."""
    if is_replaced(_UPCAST):
        return absent("the upcast asks first, by this shim", cured=True)
    upcast = lookup(_UPCAST, None)
    if upcast is None and lookup(_PARAM, None) is not None:
        return absent("this build upcasts accumulated gradients elsewhere", cured=True)
    if not inspect.isfunction(upcast):
        return drifted("FSDPParam is not where it was")
    names = inspect.unwrap(upcast).__code__.co_names
    if "_unsharded_param" not in names:
        return drifted("to_accumulated_grad_if_needed is written differently")
    if "hasattr" in names or "getattr" in names:
        return absent("the upcast asks whether the unsharded parameter was made")
    return present("the upcast reads _unsharded_param, which a skipped unit does not have")


def edits() -> Sequence[Edit]:
    """Return early where the unit was never gathered."""
    import functools

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def to_accumulated_grad_if_needed(self: Any) -> None:
            if hasattr(self, "_unsharded_param"):
                original(self)

        return to_accumulated_grad_if_needed

    return [ReplaceAttr(_UPCAST, make)]


def _towers() -> Any:
    """Build two linears, of which batches without images use one."""
    import torch
    from torch import nn

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text = nn.Linear(8, 8, bias=False)
            self.vision = nn.Linear(8, 8, bias=False)

        def forward(self, text: torch.Tensor, image: torch.Tensor | None) -> torch.Tensor:
            out: torch.Tensor = self.text(text)
            return out if image is None else out + self.vision(image)

    torch.manual_seed(0)
    return Towers()


def skipped_tower() -> None:
    """Accumulate a batch without images, then one with; gradients as unsharded, within 2 %."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    reference, model = _towers(), _towers()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (model.vision, model.text, model):
        fully_shard(module, mesh=reproduce.cpu_mesh(), mp_policy=policy)
    text, image, more = reproduce.batches(3)
    model.set_requires_gradient_sync(False)
    model(text, None).float().sum().backward()
    model.set_requires_gradient_sync(True)
    model(more, image).float().sum().backward()
    for batch in ((text, None), (more, image)):
        reference(*batch).sum().backward()
    for got, want in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(reproduce.whole(got.grad), want.grad, rtol=2e-2, atol=2e-2)


SHIM = Shim(
    key="fsdp_accumulated_grad_guard",
    summary="FSDP2 without gradient sync dies on a unit that no batch has used yet",
    symptom="AttributeError: 'FSDPParam' object has no attribute '_unsharded_param'",
    cause=(
        "With set_requires_gradient_sync(False) and a reduce_dtype, the post-backward of every unit "
        "upcasts its gradients, and reads a field that is made by the unit's first all-gather. A "
        "unit that the batch skipped, such as a vision tower on text, has had none."
    ),
    cure="FSDPParam.to_accumulated_grad_if_needed does nothing for a parameter never gathered.",
    upstream=("https://github.com/pytorch/pytorch/pull/194058",),
    affected=Affected(since="2.7.0", fixed_in=("2.15.0",)),
    modules=("torch.distributed.fsdp",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="skipped_tower_1rank",
            run=skipped_tower,
            expect="'FSDPParam' object has no attribute '_unsharded_param'",
            ranks=1,
            runnable=Affected(since="2.7.0"),
            needs="FSDP2 on the CPU",
        ),
    ),
    removable_when="the oldest torch you support is 2.15",
    carried_by=("NVIDIA-NeMo/Automodel", "verl-project/verl#7475"),
)

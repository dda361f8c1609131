"""``item()`` of a DTensor gives the rank's own part of a sum, a norm or a maximum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import HANDLERS
from ..edits import AddEntries, Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup


def probe() -> Probe:
    """Look whether anybody handles the operator that item, float, int and bool dispatch."""
    import torch

    handlers = lookup(HANDLERS, None)
    if not isinstance(handlers, dict):
        return drifted("DTensor keeps its handlers elsewhere")
    if torch.ops.aten._local_scalar_dense.default in handlers:
        return absent("item() has a handler", cured=True)
    return present("item() is run on the local tensor")


def _item(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return operator(args[0].full_tensor(), *args[1:], **kwargs)


def edits() -> Sequence[Edit]:
    """Handle the operator: reduce or gather the tensor, and take the number from that."""

    def entries() -> Mapping[Any, Any]:
        import torch

        return {torch.ops.aten._local_scalar_dense.default: _item}

    return [AddEntries(HANDLERS, entries)]


def numbers() -> None:
    """Sum, norm, maximum and ``any`` of a sharded tensor, as numbers."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    plain = torch.arange(12.0).view(4, 3)
    for placement in (Replicate(), Shard(0), Shard(1)):
        x: Any = distribute_tensor(plain, reproduce.cpu_mesh(), [placement])
        found = {
            "x.sum().item()": (x.sum().item(), plain.sum().item()),
            "float(x.norm())": (float(x.norm()), float(plain.norm())),
            "int(x.max())": (int(x.max()), int(plain.max())),
            "bool((x == 0).any())": (bool((x == 0).any()), True),
            "bool((x == 11).any())": (bool((x == 11).any()), True),
        }
        for what, (got, want) in found.items():
            if abs(got - want) > 1e-5:
                raise AssertionError(f"{placement}: {what} is {got}, not {want}")


def one_element() -> None:
    """A tensor of one element, which is on one rank alone."""
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    one: Any = distribute_tensor(torch.ones(1, 1), reproduce.cpu_mesh(), [Shard(0)])
    if one.item() != 1.0:
        raise AssertionError("S(0): item() of one element is not that element")


def fsdp2_norm() -> None:
    """The gradient norm that ``clip_grad_norm_`` returns, logged with ``item()``."""
    import torch
    from torch.distributed.fsdp import fully_shard

    model, reference = reproduce.moe_blocks(blocks=1), reproduce.moe_blocks(blocks=1)
    fully_shard(model, mesh=reproduce.cpu_mesh())
    for each in (model, reference):
        each(reproduce.batches(1)[0]).square().mean().backward()
    norms = [
        torch.nn.utils.clip_grad_norm_(each.parameters(), 1.0).item() for each in (model, reference)
    ]
    if abs(norms[0] - norms[1]) > 1e-5:
        raise AssertionError(f"the norm's item() is {norms[0]}, not {norms[1]}")


SHIM = Shim(
    key="dtensor_item",
    summary="item(), float() and bool() of a DTensor give the rank's own part of a pending reduction",
    symptom=(
        "No error: x.sum().item() of a sharded DTensor, or up to 2.9 the norm that clip_grad_norm_ "
        "returns under FSDP2, is another number on every rank; if (x > y).any(): goes different ways"
    ),
    cause="item() is run on the local tensor, whatever the placement, even a pending reduction.",
    cure="item() and what uses it take the number from full_tensor(), which reduces or gathers first.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/144054",
        "https://github.com/pytorch/pytorch/issues/166638",
        "https://github.com/pytorch/pytorch/pull/162312",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        reproduce.on_two_ranks(numbers, expect=r"AssertionError: S\(.*\): .* is .*, not "),
        Reproducer(
            name="one_element",
            run=one_element,
            # Up to 2.6 an empty tensor's item() was whatever the memory held.
            expect=r"Empty tensor not supported|with 0 elements cannot be|one element is not that",
            ranks=2,
            runnable=Affected(since="2.5.0"),
            needs="the public torch.distributed.tensor",
            preload=("torch.distributed.tensor", "torch._dynamo"),
        ),
        Reproducer(
            name="fsdp2_norm",
            run=fsdp2_norm,
            expect=r"AssertionError: the norm's item\(\) is ",
            ranks=2,
            affected=Affected(since="2.9.0", fixed_in=("2.10.0",)),
            runnable=Affected(since="2.9.0"),
            needs="FSDP2 on a gloo that averages",
            preload=("torch.distributed.fsdp",),
        ),
    ),
    opt_in=True,
    removable_when="you call full_tensor() before item() everywhere",
    notes=(
        "torch does so on purpose (pytorch#144054), and with the shim item() becomes a collective, "
        "which every rank of the mesh must call: code that logs on rank 0 only, if rank == 0: "
        "loss.item(), would wait forever. Hence opt-in. Without it: loss.full_tensor().item()."
    ),
)

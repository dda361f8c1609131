"""nn.Embedding with padding_idx cannot zero its padding row once its weight is a DTensor."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_TARGETS = tuple(
    f"torch.nn.modules.sparse:{name}._fill_padding_idx_with_zero"
    for name in ("Embedding", "EmbeddingBag")
)
_OFFSET = "torch.distributed.tensor._utils:compute_local_shape_and_global_offset"


def probe() -> Probe:
    """Look whether the padding row is still zeroed through a selected row."""
    if all(map(is_replaced, _TARGETS)):
        return absent("the padding row is zeroed in its shard, by this shim", cured=True)
    functions = [lookup(target, None) for target in _TARGETS]
    if not all(map(inspect.isfunction, functions)):
        return drifted("nn.Embedding zeroes its padding row somewhere else")
    for function in functions:
        names = set(function.__code__.co_names)
        if {"DTensor", "device_mesh", "to_local"} & names:
            return absent("nn.Embedding knows of DTensors")
        if not {"padding_idx", "weight"} <= names:
            return drifted("nn.Embedding zeroes its padding row differently")
    if lookup(_OFFSET, None) is None:
        return drifted("torch tells the offset of a shard somewhere else")
    return present("the padding row is filled through weight[padding_idx], of a DTensor a copy")


def edits() -> Sequence[Edit]:
    """Zero the row in the shard that holds it; plain weights take torch's own way."""
    import torch
    from torch.distributed.tensor import DTensor

    offset_of: Callable[..., Any] = lookup(_OFFSET)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _fill_padding_idx_with_zero(self: Any) -> None:
            weight, row = self.weight, self.padding_idx
            if row is None or not isinstance(weight, DTensor):
                original(self)
                return
            with torch.no_grad():
                part = weight.to_local()
                _, offset = offset_of(weight.shape, weight.device_mesh, weight.placements)
                here = row - offset[0] if offset else -1  # none on a rank outside of the mesh
                if 0 <= here < part.shape[0]:
                    part[here].fill_(0)

        return _fill_padding_idx_with_zero

    return [ReplaceAttr(target, make) for target in _TARGETS]


def every_placement() -> None:
    """Whole weights equal a plain one with that row zeroed, on even and uneven shards."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    line = init_device_mesh("cpu", (dist.get_world_size(),))
    plane = init_device_mesh("cpu", (1, dist.get_world_size()))
    layouts = [(line, [p]) for p in (Shard(0), Shard(1), Replicate())]
    layouts += [(plane, [a, b]) for a, b in ((Shard(1), Shard(0)), (Replicate(), Shard(0)))]
    kinds: tuple[Any, ...] = (nn.Embedding, nn.EmbeddingBag)
    for make in kinds:
        for rows, padding in ((6, 0), (6, -1), (5, 2), (5, 4), (1, 0)):
            for mesh, placements in layouts:
                module = make(rows, 4, padding_idx=padding)
                given = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
                want = given.clone()
                want[padding] = 0
                module.weight = nn.Parameter(distribute_tensor(given.clone(), mesh, placements))
                module._fill_padding_idx_with_zero()
                if not torch.equal(reproduce.whole(module.weight), want):
                    raise AssertionError(
                        f"{make.__name__} of {rows} rows, {placements}: row {padding} is not zeroed"
                    )


def fsdp2() -> None:
    """Sharded on the meta device, then initialised; the padding row stays zero in training."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    model: Any
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(5, 4, padding_idx=4), nn.Linear(4, 4))
    fully_shard(model, mesh=reproduce.cpu_mesh())
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for layer in model:
        layer.reset_parameters()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        if bool(reproduce.whole(model[0].weight)[4].any()):
            raise AssertionError("fully_shard: the padding row is not zeroed")
        model(torch.tensor([0, 4, 1, 3, 4])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


_FAULT = (
    r"NotImplementedError: Operator aten\.select\.int does not have a sharding strategy|"
    r"AssertionError: .*the padding row is not zeroed|AssertionError: .*row -?\d is not zeroed"
)

SHIM = Shim(
    key="embedding_padding_sharded",
    summary="nn.Embedding(padding_idx=...) does not zero its padding row once it is sharded",
    symptom=(
        "No error from 2.9 on: after fully_shard(model), to_empty() and reset_parameters() the padding "
        "row of an Embedding or EmbeddingBag holds random numbers. Up to 2.8 NotImplementedError: "
        "Operator aten.select.int does not have a sharding strategy registered"
    ),
    cause=(
        "reset_parameters() fills weight[padding_idx] with zero. Of a DTensor sharded along its rows, "
        "that is a copy gathered from all ranks."
    ),
    cure="Where the weight is a DTensor, the row is zeroed in the shard that holds it.",
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/nn/modules/sparse.py",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/3808",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.nn.modules.sparse", "torch.distributed.tensor"),
    probe=probe,
    edits=edits,
    reproducers=(
        *(
            Reproducer(
                name=f"every_placement_{ranks}rank{'s' * (ranks > 1)}",
                run=every_placement,
                expect=_FAULT,
                ranks=ranks,
                # A selected row of a DTensor on one rank is no copy from 2.10 on.
                affected=Affected(since="2.5.0", fixed_in=("2.10.0",)) if ranks == 1 else None,
                runnable=Affected(since="2.5.0"),
                needs="torch.distributed.tensor",
                preload=("torch.distributed.tensor",),
            )
            for ranks in (1, 2)
        ),
        Reproducer(
            name="fsdp2_2ranks",
            run=fsdp2,
            expect=_FAULT,
            ranks=2,
            runnable=Affected(since="2.7.0"),
            needs="FSDP2 on the CPU",
            preload=("torch.distributed.fsdp",),
        ),
    ),
    removable_when="the oldest torch you support zeroes the row of a DTensor by itself",
    carried_by=("NVIDIA-NeMo/Automodel#3808",),
    notes=(
        "Only nn.Embedding and nn.EmbeddingBag: code of your own that writes weight[i].zero_() on a "
        "DTensor writes to a copy as before."
    ),
)

"""What is assigned to the ``data`` of a DTensor is lost."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_DATA = "torch.distributed.tensor:DTensor.data"
_STATES = "torch.distributed._composable_state"
#: What FSDP2 keeps of a parameter, by the id of the sharded one or of the gathered one.
_managed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def probe() -> Probe:
    """Look whether ``data`` is the property that every tensor has, which knows no local tensor."""
    if is_replaced(_DATA):
        return absent("what is assigned to data is kept, by this shim", cured=True)
    kind: Any = lookup("torch.distributed.tensor:DTensor", None)
    data = lookup(_DATA, None)
    if data is None or not {"_local_tensor", "_spec"} <= set(vars(kind)):
        return drifted("DTensor keeps its local tensor elsewhere")
    if data is not lookup("torch:Tensor.data", None):
        return absent("DTensor has a data of its own")
    return present("data is the property of plain tensors")


def edits() -> Sequence[Edit]:
    """Give DTensor a ``data`` that takes the local tensor and the placements over too."""

    def make(original: Any) -> Any:
        def get(self: Any) -> Any:
            return original.__get__(self, type(self))

        def assign(self: Any, value: Any) -> None:
            from torch.distributed.tensor import DTensor

            if not isinstance(value, DTensor):
                raise TypeError(
                    f"the data of a DTensor must be a DTensor, not a {type(value).__name__}; use "
                    "distribute_tensor(value, p.device_mesh, p.placements), or to write into this "
                    "rank's part p.to_local().copy_(value)"
                )
            keeper = _keeper_of(self)
            if keeper is not None:
                _check(keeper, self, value)
            original.__set__(self, value)
            _take_over(self, value)
            if keeper is not None:
                _tell(keeper)

        return property(get, assign)

    return [ReplaceAttr(_DATA, make)]


def _take_over(tensor: Any, value: Any) -> None:
    tensor._local_tensor = value._local_tensor.detach()
    tensor._spec = value._spec


def _keepers() -> Iterator[Any]:
    """Yield what FSDP2 keeps of each parameter of each module of this process."""
    states = getattr(sys.modules.get(_STATES), "_module_state_mapping", {})
    for state in list(states.values()):
        # Held weakly from 2.9 on.
        names = getattr(state() if isinstance(state, weakref.ref) else state, "__dict__", {})
        groups = names.get("_fsdp_param_groups") or [names.get("_fsdp_param_group")]
        for group in groups:
            yield from getattr(group, "fsdp_params", ())


def _keeper_of(tensor: Any) -> Any:
    """Return what FSDP2 keeps of a parameter; None where it is none of FSDP2's."""

    def known() -> Any:
        keeper = _managed.get(id(tensor))
        return keeper if keeper is not None and any(tensor is one for one in _both(keeper)) else None

    if known() is None:
        _managed.clear()
        for keeper in _keepers():
            _managed.update((id(one), keeper) for one in _both(keeper) if one is not None)
    return known()


def _both(keeper: Any) -> tuple[Any, Any]:
    return keeper.sharded_param, getattr(keeper, "_unsharded_param", None)


def _check(keeper: Any, param: Any, value: Any) -> None:
    """Refuse what FSDP2 could not go on with."""
    name = keeper._module_info.param_name
    if param is not keeper.sharded_param or keeper.sharded_state.name != "SHARDED":
        raise RuntimeError(
            f"the parameter {name!r} is gathered by FSDP2, and what is assigned to its data would be "
            "lost; call reshard() of its module first"
        )
    for what, mine, other in (
        ("shape", tuple(param.shape), tuple(value.shape)),
        ("device mesh", param.device_mesh, value.device_mesh),
        ("placements", param.placements, value.placements),
    ):
        if mine != other:
            raise ValueError(
                f"FSDP2 cannot take over a {what} of {other} for the parameter {name!r}, which has "
                f"{mine}; shard the new model with fully_shard, or redistribute the value"
            )
    if not value._local_tensor.is_contiguous():
        raise ValueError(f"FSDP2 needs contiguous data for the parameter {name!r}: call contiguous()")
    dtype = getattr(keeper, "orig_dtype", value.dtype)  # there from the first forward on
    if value.dtype != dtype:
        raise ValueError(
            f"FSDP2 cannot change the dtype of the parameter {name!r} from {dtype} to {value.dtype} "
            "after the first forward; do it before, or choose a MixedPrecisionPolicy"
        )


def _tell(keeper: Any) -> None:
    """Have FSDP2 gather from the new local tensor, padded where shards are uneven."""
    local, gathered_from = keeper.sharded_param._local_tensor, keeper._sharded_param_data
    same = local.untyped_storage().data_ptr() == gathered_from.untyped_storage().data_ptr()
    if same and (local.data_ptr(), local.dtype) != (gathered_from.data_ptr(), gathered_from.dtype):
        # Newer builds take another part of the same memory for the part they know.
        keeper.sharded_param._local_tensor = local.clone()
    keeper.reset_sharded_param()


def assigned() -> None:
    """Values, a dtype, a gradient and another placement, assigned to ``data``."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = reproduce.cpu_mesh()
    before = torch.arange(12.0).view(4, 3)
    after = before.flip(0)
    for placement in (Shard(0), Shard(1), Replicate()):
        p: Any = torch.nn.Parameter(distribute_tensor(before, mesh, [placement]))
        (p * p).sum().backward()
        p.data = distribute_tensor(after.clone(), mesh, [placement])  # which the step changes
        p.grad.data = distribute_tensor(before, mesh, [placement])
        _same("p.data = x", p, after)
        _same("p.grad.data = g", p.grad, before)
        torch.optim.SGD([p], lr=1.0).step()
        _same("a step after p.data = x", p, after - before)
        p.data = distribute_tensor(after, mesh, [Replicate()])
        _same("p.data = x of another placement", p, after)
        p.grad = None
        p.data = p.data.to(torch.bfloat16)
        _same("p.data = p.data.to(torch.bfloat16)", p, after.to(torch.bfloat16))


def vector() -> None:
    """``vector_to_parameters``, as in averaging weights or in meta-learning."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = reproduce.cpu_mesh()
    whole = torch.arange(12.0)
    for placement in (Replicate(), Shard(0)):
        zeros = (torch.zeros(4, 2), torch.zeros(4))
        params: list[Any] = [torch.nn.Parameter(distribute_tensor(z, mesh, [placement])) for z in zeros]
        torch.nn.utils.vector_to_parameters(distribute_tensor(whole, mesh, [Replicate()]), params)
        _same("vector_to_parameters", params[0], whole[:8].view(4, 2))
        _same("vector_to_parameters", params[1], whole[8:])


def _same(what: str, got: Any, want: Any) -> None:
    import torch

    local, whole = got.to_local(), reproduce.whole(got)
    if local.dtype != want.dtype or not torch.equal(whole, want):
        raise AssertionError(f"{what}: lost, the parameter is still {whole.tolist()} in {local.dtype}")


def fsdp2() -> None:
    """Under FSDP2: a dtype before the first forward, values after it; losses as unsharded ones."""
    import torch
    from torch.distributed.fsdp import fully_shard

    for dtype in (torch.float32, torch.float64):
        # Of width 7, so that shards are uneven.
        models: list[Any] = [reproduce.moe_blocks(width=7, blocks=1) for _ in range(2)]
        fully_shard(models[1], mesh=reproduce.cpu_mesh())
        runs = []
        for model in models:
            for p in model.parameters():
                p.data = p.data.to(dtype)
            losses, gradients = [], []
            for batch in reproduce.batches(3, shape=(4, 7)):
                got = reproduce.train(model, [batch.to(dtype)])
                losses += got[0]
                gradients += got[1]
                for p in model.parameters():
                    p.data = p.data * 0.9
            runs.append((losses, gradients))
        reproduce.assert_same_training(runs[1], runs[0])


SHIM = Shim(
    key="dtensor_data",
    summary="what is assigned to the data of a DTensor is lost",
    symptom=(
        "No error: p.data = x, p.data = p.data.to(torch.bfloat16), p.grad.data = g and "
        "torch.nn.utils.vector_to_parameters leave a DTensor p as it was, under FSDP2 too; only "
        "p.shape and p.dtype tell the new ones"
    ),
    cause=(
        "data is the property of plain tensors. It changes the outer tensor alone, and neither the "
        "local tensor nor the placements, by which everything is computed."
    ),
    cure=(
        "DTensor has a data that takes the local tensor, the mesh and the placements over too, and "
        "tells FSDP2, where it keeps the parameter. A plain tensor, and what a parameter of FSDP2 "
        "cannot become, raise an error that names the way out."
    ),
    upstream=("https://github.com/pytorch/pytorch/issues/157391",),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        reproduce.on_two_ranks(assigned, expect=r"AssertionError: p\.data = x: lost, the parameter is"),
        reproduce.on_two_ranks(vector, expect=r"AssertionError: vector_to_parameters: lost"),
        Reproducer(
            name="fsdp2_1rank",
            run=fsdp2,
            expect=r"AssertionError: loss at step 1: got ",
            ranks=1,
            runnable=Affected(since="2.7.0"),
            needs="FSDP2 on the CPU",
            preload=("torch.distributed.fsdp", "torch._dynamo"),
        ),
        Reproducer(
            name="fsdp2_2ranks",
            run=fsdp2,
            expect=r"AssertionError: loss at step 1: got ",
            ranks=2,
            runnable=Affected(since="2.9.0"),
            needs="FSDP2 on a gloo that averages",
            preload=("torch.distributed.fsdp", "torch._dynamo"),
        ),
    ),
    removable_when="you write p.copy_(x) under torch.no_grad(), and nothing assigns to data",
    notes=(
        "Without the shim a plain tensor could be assigned, and was lost as well; with it that is a "
        "TypeError. plain.data = dtensor is another matter, and stays as it is."
    ),
)

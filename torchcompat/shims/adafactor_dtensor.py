"""torch.optim.Adafactor updates DTensor parameters wrongly, or raises."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..adafactor import update
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_TARGET = "torch.optim._adafactor:adafactor"
_SINGLE = "torch.optim._adafactor:_single_tensor_adafactor"


def probe() -> Probe:
    """Look whether the statistics are still computed in place, from a norm along a dimension."""
    if is_replaced(_TARGET):
        return absent("DTensors are updated shard by shard, by this shim", cured=True)
    function = lookup(_SINGLE, None)
    if not inspect.isfunction(function) or not inspect.isfunction(lookup(_TARGET, None)):
        return drifted("torch.optim._adafactor is written differently")
    names = set(function.__code__.co_names)
    if {"DTensor", "device_mesh", "redistribute", "to_local", "full_tensor"} & names:
        return absent("Adafactor knows of DTensors")
    if not {"square_", "div_", "lerp_", "rsqrt_"} <= names:
        return drifted("the statistics are computed differently")
    return present("norms of a DTensor, a reduction still pending, are squared in place")


def edits() -> Sequence[Edit]:
    """Update DTensor parameters shard by shard; all others take torch's own way."""
    import torch
    from torch.distributed.tensor import DTensor

    def shard_by_shard(columns: Sequence[Sequence[Any]], options: dict[str, Any]) -> None:
        with torch.no_grad():
            for each in zip(*columns):
                update(each, **options)

    disable: Callable[[Any], Any] = vars(torch)["_disable_dynamo"]
    shard_by_shard_eagerly = disable(shard_by_shard)

    def ours(param: Any, grad: Any) -> bool:
        return (
            isinstance(param, DTensor)
            and isinstance(grad, DTensor)
            and not any(placement.is_partial() for placement in param.placements)
        )

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def adafactor(  # noqa: PLR0917 (torch has it so)
            params: Any,
            grads: Any,
            row_vars: Any,
            col_vars: Any,
            variances: Any,
            state_steps: Any,
            foreach: Any = None,
            grad_scale: Any = None,
            found_inf: Any = None,
            has_complex: bool = False,
            **options: Any,
        ) -> None:
            columns: list[Any] = [params, grads, row_vars, col_vars, variances, state_steps]
            sharded = [ours(param, grad) for param, grad in zip(params, grads)]
            if any(sharded) and grad_scale is None and found_inf is None:
                if options["eps1"] is None:  # as in torch, the first parameter's for all of the group
                    options["eps1"] = torch.finfo(params[0].dtype).eps
                chosen = [[x for x, mine in zip(column, sharded) if mine] for column in columns]
                shard_by_shard_eagerly(chosen, options)
                columns = [[x for x, mine in zip(column, sharded) if not mine] for column in columns]
            if columns[0] or not params:
                original(*columns, foreach, grad_scale, found_inf, has_complex, **options)

        return adafactor

    return [ReplaceAttr(_TARGET, make)]


def _same(got: Any, want: Any, what: str) -> None:
    import torch

    try:
        torch.testing.assert_close(reproduce.whole(got), reproduce.whole(want), rtol=1e-5, atol=1e-6)
    except AssertionError as error:
        raise AssertionError(f"Adafactor, {what} differs: {error}") from None


def _steps(shape: tuple[int, ...], options: dict[str, Any], placement: Any = None) -> tuple[Any, Any]:
    """Four steps, the state saved and loaded after the second; return parameter and state."""
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = reproduce.cpu_mesh()
    random = torch.Generator().manual_seed(0)
    if isinstance(placement, Shard) and placement.dim >= len(shape):
        placement = Shard(0)

    def tensor() -> Any:
        made = torch.randn(shape, generator=random)
        return made if placement is None else distribute_tensor(made, mesh, [placement])

    param = torch.nn.Parameter(tensor())
    optimizer = torch.optim.Adafactor([param], **options)
    for step in range(4):
        if step == 2:
            saved = optimizer.state_dict()
            optimizer = torch.optim.Adafactor([param], **options)
            optimizer.load_state_dict(saved)
        param.grad = tensor()
        optimizer.step()
    return param, optimizer.state[param]


def every_placement() -> None:
    """Parameter and state equal those of plain tensors, on whole and on uneven shards."""
    import torch
    from torch.distributed.tensor import Replicate, Shard

    cases: tuple[dict[str, Any], ...] = (
        {},
        {"weight_decay": 0.1, "maximize": True},
        {"foreach": True, "lr": torch.tensor(0.05)},
    )
    for shape in ((6, 4), (5, 3), (7,), (3, 5, 2)):
        for options in cases:
            want, state = _steps(shape, options)
            for placement in (Shard(0), Shard(1), Replicate()):
                what = f"{placement} of {shape} with {options}"
                got, mine = _steps(shape, options, placement)
                _same(got, want, what)
                for name, value in state.items():
                    _same(mine[name], value, f"{name} of {what}")


def _model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))


def fsdp2() -> None:
    """A model under fully_shard trains as the whole one does."""
    import torch
    from torch.distributed.fsdp import fully_shard

    model, reference = _model(), _model()
    for layer in (*model, model):
        fully_shard(layer, mesh=reproduce.cpu_mesh())
    for each in (model, reference):
        optimizer = torch.optim.Adafactor(each.parameters(), lr=0.05, weight_decay=0.1)
        for batch in reproduce.batches(shape=(4, 6)):
            each(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for (name, want), got in zip(reference.named_parameters(), model.parameters()):
        _same(got, want, name)


def no_gather() -> None:
    """No rank makes a tensor larger than its shard."""
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call, unused-ignore]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for made in result if isinstance(result, (list, tuple)) else [result]:
                if isinstance(made, torch.Tensor) and made.device.type != "meta":
                    sizes.append(made.to_local().numel() if hasattr(made, "to_local") else made.numel())
            return result

    mesh = reproduce.cpu_mesh()
    param = torch.nn.Parameter(distribute_tensor(torch.ones(32, 16), mesh, [Shard(0)]))
    param.grad = distribute_tensor(torch.ones(32, 16), mesh, [Shard(0)])
    optimizer = torch.optim.Adafactor([param])
    with Watch():
        optimizer.step()
    if max(sizes) > 256:
        raise AssertionError(f"Adafactor made a tensor of {max(sizes)} numbers from shards of 256")


_FAULT = (
    r"AssertionError: Adafactor(, .* differs| made a tensor of 512 numbers)|"
    r"aten\.pow_\.Scalar: in-place operations that require placement changes are not supported|"
    # 2.5 on one rank: the product of row and column statistics has no strategy at all.
    r"IndexError: list index out of range"
)

SHIM = Shim(
    key="adafactor_dtensor",
    summary="torch.optim.Adafactor updates DTensor parameters (FSDP2) wrongly, or raises",
    symptom=(
        "No error up to 2.9: the parameters differ from those of an unsharded run. From 2.10 on "
        "RuntimeError: aten.pow_.Scalar: in-place operations that require placement changes are not "
        "supported. With foreach=True, RuntimeError: "
        "aten.mul.Tensor: in-place operations, or Operator aten._foreach_lerp_.ScalarList does not "
        "have a sharding strategy registered"
    ),
    cause=(
        "The row and column statistics come from a norm along a dimension. Where that dimension is "
        "sharded, the norm of a DTensor is a reduction still pending, and it is squared and divided "
        "in place."
    ),
    cure=(
        "DTensor parameters are updated shard by shard, and only sums of squares, of rows, of columns "
        "and of all, are added up over the ranks; foreach=True takes the same way. Plain tensors take "
        "torch's own."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.9.1/torch/optim/_adafactor.py",
        "https://github.com/pytorch/pytorch/issues/109581",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.optim._adafactor", "torch.distributed.tensor"),
    probe=probe,
    edits=edits,
    reproducers=(
        *(
            Reproducer(
                name=name,
                run=run,
                expect=_FAULT,
                ranks=ranks,
                runnable=Affected(since="2.5.0"),
                needs="torch.optim.Adafactor",
                preload=("torch.distributed.tensor",),
            )
            for name, run, ranks in (
                ("every_placement_1rank", every_placement, 1),
                ("every_placement_2ranks", every_placement, 2),
                ("no_gather_2ranks", no_gather, 2),
            )
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
    removable_when="the oldest torch you support updates DTensors in Adafactor by itself",
    notes=(
        "The row and column statistics stay where torch puts them, and so do those of a checkpoint. "
        "Four small reductions a matrix and step. No parameter or gradient is gathered. Dynamo does "
        "not look into the sharded update: a compiled step breaks there. FSDP2 over tensor parallel "
        "with uneven rows (6 and 5 over four ranks) still differed on 2.9.1; 2.10.0 is right."
    ),
)

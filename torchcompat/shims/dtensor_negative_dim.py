"""Some of DTensor's sharding strategies do not count a negative dimension from the end."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import held, overload_of, overridden, reword, tensors, with_arguments
from ..targets import lookup

_SCANS = ("cumsum.default", "cumprod.default", "logcumsumexp.default")
_STACK, _SELECT_BACKWARD = "stack.default", "select_backward.default"


def _faulty() -> list[Any]:
    """The overloads whose strategy is torch's own and takes a negative dimension as it is."""
    faulty = []
    for name in (*_SCANS, _STACK, _SELECT_BACKWARD):
        own = inspect.unwrap(held(STRATEGIES, name) or _faulty)
        if not own.__module__.startswith("torch."):
            continue  # missing, or registered by dtensor_dim_ops
        # a stack has one dimension more than what it is made of
        knows = _adds(own) if name == _STACK else "normalize_dim" in own.__code__.co_names
        if not knows:
            faulty.append(overload_of(name))
    return faulty


def _adds(function: Callable[..., Any]) -> bool:
    return any(
        step.opname == "BINARY_ADD" or (step.opname == "BINARY_OP" and step.argrepr == "+")
        for step in dis.get_instructions(function)
    )


def probe() -> Probe:
    """Look which strategies normalize the dimension that they are given."""
    if not isinstance(lookup(STRATEGIES, None), dict):
        return drifted("DTensor keeps its strategies elsewhere")
    faulty = _faulty()
    if not faulty:
        return absent("every strategy counts negative dimensions from the end")
    if overridden(faulty, _from_begin):
        return absent("negative dimensions are counted from the end, by this shim", cured=True)
    return present(f"negative dimensions are taken as they are by {', '.join(map(str, faulty))}")


def _from_begin(schema: Any) -> Any:
    """Return the schema with the dimension counted from the begin."""
    args = schema.args_schema
    if "select_backward" in str(schema.op):
        at, ndim = 2, len(args[1])
    else:
        at, ndim = 1, tensors(args[0])[0].ndim + ("stack" in str(schema.op))
    if len(args) <= at or args[at] >= 0:
        return schema
    return with_arguments(schema, {at: args[at] + max(ndim, 1)})


def edits() -> Sequence[Edit]:
    """Tell torch's strategies the dimension counted from the begin."""
    return [reword(dict.fromkeys(_faulty(), _from_begin))]


def stacked() -> None:
    """``stack`` along the new last dimension and the last but one, and the gradient of ``unbind``."""
    import torch
    from torch.distributed.tensor import Shard

    for shape in ((6, 4), (5, 7)):
        for shard in (0, 1):
            reproduce.assert_same_sharded(
                lambda x, _: [torch.stack([x.detach(), x.detach() * 2], dim) for dim in (-1, -2, -3)],
                shape=shape,
                placements=[Shard(shard)],
            )


def scanned() -> None:
    """``cumsum`` along a sharded last dimension."""
    for shape in ((6, 4), (5, 7)):
        reproduce.assert_same_sharded(
            lambda x, _: [x.detach().cumsum(-1), x.detach().cumsum(-2)], shape=shape
        )


def multiplied() -> None:
    """``cumprod`` and ``logcumsumexp`` along a sharded last dimension."""
    for shape in ((6, 4), (5, 7)):
        reproduce.assert_same_sharded(
            lambda x, _: [*(x.detach().cumprod(dim) for dim in (-1, -2)), x.detach().logcumsumexp(-1)],
            shape=shape,
        )


def selected() -> None:
    """The gradient of ``x[..., 1]`` and of ``x[-1]``."""
    from torch.distributed.tensor import Shard

    for shape in ((6, 4), (5, 7)):
        reproduce.assert_same_sharded(
            lambda x, _: x.select(-1, 1) * 2, shape=shape, placements=[Shard(0), Shard(1)]
        )


_DIFFERS = r"AssertionError: .*output \d+ differs"

SHIM = Shim(
    key="dtensor_negative_dim",
    summary="cumsum(-1), stack(..., -1) and x.select(-1, i) of a sharded DTensor are wrong",
    symptom=(
        "No error: x.cumsum(-1) of a DTensor that is sharded along its last dimension sums every shard "
        "on its own, and torch.stack([x, y], -1) is a DTensor of another shape than its parts have. Or "
        "RuntimeError: The size of tensor a (3) must match the size of tensor b (6), from the backward "
        "of x.select(-1, 1)"
    ),
    cause=(
        "The sharding strategies compare the dimension they are given with those that are sharded, and "
        "a negative one is none of them; stack counts it without the dimension that it adds."
    ),
    cure="The strategies are told the dimension counted from the begin.",
    upstream=(
        "https://github.com/pytorch/pytorch/pull/151071",
        "https://github.com/pytorch/pytorch/pull/174640",
        "https://github.com/pytorch/pytorch/pull/176820",
    ),
    affected=Affected(since="2.5.0", fixed_in=("2.14.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        reproduce.on_two_ranks(
            run,
            expect=expect,
            affected=Affected(since=since, fixed_in=(fixed_in,)),
            since=runnable,
            needs=needs,
        )
        for run, since, fixed_in, runnable, needs, expect in (
            (stacked, "2.5.0", "2.12.0", "2.5.0", "the public torch.distributed.tensor", _DIFFERS),
            (scanned, "2.8.0", "2.14.0", "2.8.0", "a sharding strategy for cumsum", _DIFFERS),
            (multiplied, "2.12.0", "2.14.0", "2.12.0", "a sharding strategy for cumprod", _DIFFERS),
            (
                selected,
                "2.8.0",
                "2.14.0",
                "2.8.0",
                "a sharding strategy for select",
                r"RuntimeError: The size of tensor a",
            ),
        )
    ),
    removable_when="the oldest torch you support is 2.14",
)

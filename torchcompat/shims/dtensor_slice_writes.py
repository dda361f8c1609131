"""A write to a slice of a DTensor's sharded dimension goes to a copy, and is lost."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import redistribution, takes_call_and_schema, wrap_redistribution
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..targets import lookup
from ..write_through import write_through

_KEY = "dtensor_slice_writes"
_MOVE = "torch.distributed.tensor._redistribute:redistribute_local_tensor"


def probe() -> Probe:
    """Look whether the function that moves a view's tensor makes a copy of it."""
    function, wrapped_for = redistribution()
    if _KEY in wrapped_for:
        return absent("what is written to a slice is written to its shards, by this shim", cured=True)
    if function is None or not inspect.isfunction(lookup(_MOVE, None)):
        return drifted("DTensor's dispatcher is written differently")
    if not takes_call_and_schema(function):
        return drifted("redistribute_local_args has other parameters")
    if "redistribute_local_tensor" not in function.__code__.co_names:
        return drifted("redistribute_local_args moves tensors otherwise")
    return present("a slice of a sharded dimension is one of a gathered copy")


def edits() -> Sequence[Edit]:
    """Bring what is written to the copy back to the shards."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def redistribute_local_args(
            op_info: Any, suggested_input_schema: Any, *rest: Any, **named: Any
        ) -> None:
            before = op_info.local_args
            original(op_info, suggested_input_schema, *rest, **named)
            viewed = suggested_input_schema.op._schema.arguments[:1]
            if not viewed or viewed[0].alias_info is None or viewed[0].alias_info.is_write:
                return
            specs = op_info.flat_args_schema[0], suggested_input_schema.args_schema[0]
            gathered, *others = op_info.local_args
            linked = _linked(before[0], gathered, *specs)
            op_info.local_args = (linked, *others)

        return redistribute_local_args

    return [wrap_redistribution(_KEY, make)]


def _linked(shard: Any, gathered: Any, spec: Any, gathered_spec: Any) -> Any:
    """Return the gathered tensor, with what is written to it being brought back to the shard."""
    import torch
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    if isinstance(gathered, AsyncCollectiveTensor):
        gathered = gathered.wait()
    # What is being traced is another class of tensor, and what was not moved is no copy.
    if gathered is shard or not type(gathered) is type(shard) is torch.Tensor:
        return gathered

    def put_back() -> None:
        # From replicas to shards nothing is sent; other moves all ranks make, as they all write.
        shard.copy_(lookup(_MOVE)(gathered, gathered_spec, spec))

    return write_through(gathered, put_back)


# -- reproducers ---------------------------------------------------------------------


def _changed(*changes: Callable[[Any], object]) -> Callable[[Any, Any], Any]:
    def all_changed(x: Any, _: Any) -> Any:
        import torch

        results = []
        with torch.no_grad():
            for change in changes:
                y = x.detach().clone()
                change(y)
                results.append(y)
        return results

    return all_changed


def slices() -> None:
    """``x[1:3].zero_()``, a step, a part, and what a view of a slice writes."""
    changed = _changed(
        lambda x: x[1:3].zero_(),
        lambda x: x[:, 1:3].mul_(2),
        lambda x: x[::2].add_(1),
        lambda x: x.chunk(2)[0].mul_(3),
        lambda x: x.split(2, dim=1)[1].mul_(3),
        lambda x: x[1:4].t().mul_(2),
        lambda x: x[1:5][1:2].zero_(),
    )
    reproduce.assert_same_sharded(changed, shape=(6, 4))
    reproduce.assert_same_sharded(changed, shape=(5, 7))


def rows() -> None:
    """One row, column or element; and a slice assigned."""
    import torch
    from torch.distributed.tensor import Shard

    def assign(x: Any) -> None:
        x[0:2] = x[2:4].clone()

    changed = _changed(
        lambda x: x[1].mul_(2),
        lambda x: x[-1].add_(2),
        lambda x: x[:, 1].zero_(),
        lambda x: x[2, 3].zero_(),
        lambda x: x.diagonal().mul_(2),
        lambda x: torch.nn.init.ones_(x[0]),
        assign,
    )
    # Not Replicate(): up to 2.9 selecting spoils the placement of a replicated tensor.
    shards = [Shard(0), Shard(1)]
    reproduce.assert_same_sharded(changed, shape=(6, 4), placements=shards)
    reproduce.assert_same_sharded(changed, shape=(5, 7), placements=shards)


SHIM = Shim(
    key=_KEY,
    summary="a write to a slice of a DTensor's sharded dimension is lost",
    symptom=(
        "No error: after weight[padding_idx].zero_(), nn.init.zeros_(weight[:2]) or x[1:3] = y the "
        "DTensor has the numbers that it had before"
    ),
    cause=(
        "A slice of a sharded dimension is made by gathering that dimension. It is a view of the "
        "gathered copy, not of the shards, and so is whatever is written to it."
    ),
    cure=(
        "The gathered copy remembers its shard: after a write to the copy, or to any view of it, every "
        "rank copies its part back into its shard."
    ),
    upstream=("https://github.com/pytorch/pytorch/issues/139735",),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        reproduce.on_two_ranks(slices),
        reproduce.on_two_ranks(rows, since="2.8.0", needs="a strategy for aten.select"),
    ),
    after=("dtensor_cached_scalars", "dtensor_inplace_lost"),
    removable_when="torch writes such slices to their shards, or refuses to",
    notes=(
        "The other direction stays as it was: a slice does not see what is written to its tensor, or to "
        "another slice of it, later. In a compiled function writes to slices are still lost. The local "
        "tensor of such a slice is of a class of its own, whose operators cost one Python call more."
    ),
)

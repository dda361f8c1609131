"""An operator on DTensors that reduces or moves them first runs with an earlier call's numbers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import PROPAGATOR, redistribution, wrap_redistribution
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_KEY = "dtensor_cached_scalars"
# Operators whose sizes DTensor itself adjusts to the local shard; their sizes are in the key.
_ADJUSTED = f"{PROPAGATOR}.op_to_shape_and_stride_idx"


def probe() -> Probe:
    """Look whether the function can tell the call's own arguments from the cached ones."""
    function, wrapped_for = redistribution()
    if _KEY in wrapped_for:
        return absent("the call's own arguments are used, by this shim", cured=True)
    if function is None or not isinstance(lookup(_ADJUSTED, None), dict):
        return drifted("DTensor's dispatcher is written differently")
    names = inspect.signature(function).parameters
    if "use_val_from_redistribute_schema" in names:
        return absent("the call's own arguments are used")
    if list(names) != ["op_info", "suggested_input_schema"]:
        return drifted("redistribute_local_args has other parameters")
    return present("arguments that are no tensors are taken from the cache of shardings")


def edits() -> Sequence[Edit]:
    """Put the call's own arguments back where the cached ones were taken."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        from torch.distributed.tensor._dtensor_spec import DTensorSpec

        adjusted = lookup(_ADJUSTED)

        def redistribute_local_args(op_info: Any, suggested_input_schema: Any) -> None:
            own = op_info.local_args
            original(op_info, suggested_input_schema)
            if op_info.schema.op not in adjusted:
                op_info.local_args = tuple(
                    moved if isinstance(spec, DTensorSpec) else mine
                    for spec, moved, mine in zip(op_info.flat_args_schema, op_info.local_args, own)
                )

        return redistribute_local_args

    return [wrap_redistribution(_KEY, make)]


def divided_sum() -> None:
    """Losses divided by their number of tokens, another number every time."""

    def loss(x: Any, _: Any, tokens: int) -> Any:
        return x.square().sum() / tokens

    for tokens in (2, 3, 7):
        reproduce.assert_same_sharded(functools.partial(loss, tokens=tokens))


def every_argument() -> None:
    """Operators with other numbers, on sums that are pending and on shards that must move."""
    import torch

    def numbers(x: Any, place: Any, a: float, b: int) -> Any:
        total = x.sum(0)
        turned = place(torch.ones(6, 4)).t()
        return (
            *(total - a, total.pow(b), total.clamp(max=a), total % b, total > a),
            *(total.masked_fill(total > a, a), torch.where(total > a, total, b)),
            torch.add(x * a, turned).clamp(min=a),
            torch.lerp(x, turned, a / 2),
        )

    for a, b in ((1.0, 2), (0.5, 3)):
        reproduce.assert_same_sharded(functools.partial(numbers, a=a, b=b))


def sizes() -> None:
    """Sizes that DTensor adjusts to the shard go on being adjusted."""

    def shapes(x: Any, _: Any) -> Any:
        total = x.sum(0)
        return total.expand(3, 6), total.view(2, 3), x.new_zeros(8, 6) + total

    reproduce.assert_same_sharded(shapes)
    reproduce.assert_same_sharded(shapes, shape=(6, 6))
    divided_sum()


SHIM = Shim(
    key=_KEY,
    summary="an operator on a DTensor that must be reduced first runs with an earlier call's numbers",
    symptom=(
        "No error: loss.sum() / tokens of a sharded loss is divided by the tokens of the first call, "
        "whatever tokens is; so are -, **, clamp, where, >, and whatever else takes a number"
    ),
    cause=(
        "DTensor caches what an operator's inputs must be redistributed to, by their placements and "
        "not by the numbers among its arguments, and then takes the numbers from the cache too."
    ),
    cure="Where inputs are redistributed, arguments that are no tensors are those of the call itself.",
    upstream=("https://github.com/pytorch/pytorch/pull/159289",),
    affected=Affected(since="2.5.0", fixed_in=("2.9.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=name,
            run=run,
            expect=r"AssertionError: .*(output \d+|the gradient) differs",
            ranks=ranks,
            runnable=Affected(since="2.5.0"),
            needs="the public torch.distributed.tensor",
            preload=("torch.distributed.tensor", "torch._dynamo"),
        )
        for name, run, ranks in (
            ("divided_sum_1rank", divided_sum, 1),
            ("divided_sum_2ranks", divided_sum, 2),
            ("every_argument", every_argument, 2),
            ("sizes", sizes, 2),
        )
    ),
    removable_when="the oldest torch you support is 2.9",
    notes=(
        "torch 2.4 has the fault too, in the private torch.distributed._tensor of that time; it is not "
        "covered."
    ),
)

"""A list of DTensors is not changed in place where one of them is a pending reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import STRATEGIES, before_redistribution, redistribution, takes_call_and_schema
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import (
    held,
    overload_of,
    overridden,
    override,
    pending,
    reduced,
    tensors,
    with_arguments,
)
from ..targets import lookup

_KEY = "dtensor_foreach_inplace"
#: What may be done to every rank's part of a sum, as long as the other factor is not pending too.
_LINEAR = (
    *("_foreach_mul_.Scalar", "_foreach_mul_.ScalarList", "_foreach_mul_.Tensor", "_foreach_mul_.List"),
    *("_foreach_div_.Scalar", "_foreach_div_.ScalarList", "_foreach_div_.Tensor", "_foreach_div_.List"),
    *("_foreach_neg_.default", "_foreach_zero_.default"),
)


def _overloads() -> list[Any]:
    return [overload_of(name) for name in _LINEAR]


def probe() -> Probe:
    """Look whether lists have the strategy that knows no pending sum."""
    move, wrapped_for = redistribution()
    if move is None or not isinstance(lookup(STRATEGIES, None), dict):
        return drifted("DTensor's dispatcher is written differently")
    found = [held(STRATEGIES, name) for name in _LINEAR]
    if not any(found):
        return absent("lists are registered with rules for one mesh dimension")
    if _KEY in wrapped_for and overridden(_overloads(), _waiting):
        return absent("a list's pending sums are multiplied where they are, by this shim", cured=True)
    if any(getattr(own, "__name__", "") != "list_pointwise_strategy" for own in found):
        return drifted("DTensor multiplies lists by another strategy")
    if not takes_call_and_schema(move):
        return drifted("redistribute_local_args has other parameters")
    return present("a list's pending sum is reduced into a copy, and the copy is changed")


def _waiting(*mesh_and_schema: Any) -> Any:
    """Return the strategy that leaves pending sums pending; None where there are none, or others."""
    from torch.distributed.tensor import Partial

    *mesh, schema = mesh_and_schema
    given = tensors(schema.args_schema[0])
    others = [tensor for argument in schema.args_schema[1:] for tensor in tensors(argument)]
    waiting = [one for tensor in given for one in pending(tensor)]
    sums = [type(one) is Partial and one.reduce_op in ("sum", "avg") for one in waiting]
    if not waiting or not all(sums) or any(map(pending, others)):
        return None
    # As torch does it for tensors that were reduced; then with what is pending put back.
    whole = with_arguments(schema, {0: reduced(schema.args_schema[0])})
    found = lookup(STRATEGIES)[schema.op](*mesh, whole)
    return type(found)([_put_back(child, tensor) for child, tensor in zip(tensors(found), given)])


def _put_back(child: Any, tensor: Any) -> Any:
    def spec(found: Any) -> Any:
        placements = tuple(
            mine if mine.is_partial() else placement
            for mine, placement in zip(tensor.strategies[0].output_spec.placements, found.placements)
        )
        return type(found)(found.mesh, placements, tensor_meta=found.tensor_meta)

    return type(child)(
        [
            type(choice)(
                output_specs=spec(choice.output_spec),
                input_specs=[spec(choice.input_specs[0]), *choice.input_specs[1:]],
                redistribute_cost=choice.redistribute_cost,
            )
            for choice in child.strategies
        ]
    )


def edits() -> Sequence[Edit]:
    """Leave sums pending where that is right, and raise where a copy would be changed."""
    return [
        override(dict.fromkeys(_overloads(), _waiting)),
        before_redistribution(_KEY, _refuse_copies),
    ]


def _refuse_copies(op_info: Any, suggested_input_schema: Any) -> None:
    # Not op_info.schema: from 2.10 on it may be None. A list comes first in the flat one.
    operator, wanted = suggested_input_schema.op, suggested_input_schema.args_schema[0]
    written = operator._schema.arguments[0].alias_info
    if written is None or not written.is_write or not isinstance(wanted, (list, tuple)):
        return
    for at, (before, after) in enumerate(zip(op_info.flat_args_schema, wanted)):
        if before.placements != after.placements:
            raise RuntimeError(
                f"{operator} changes its tensors in place, and would change a copy of number {at}: it "
                f"has the placements {before.placements}, the operator needs {after.placements}; use "
                f"the operator that returns new tensors, or redistribute the tensor first"
            )


# -- reproducers ---------------------------------------------------------------------


def clipped() -> None:
    """``clip_grad_norm_`` of a replicated weight, whose gradient is a sum over a sharded batch."""
    import torch

    weight, _ = reproduce.replicated_linear()
    torch.nn.utils.clip_grad_norm_([weight], 0.5, foreach=True)
    # Not 0.5 itself: up to 2.9 the norm that the gradient is divided by is too large.
    if reproduce.whole(weight.grad).norm() > 0.501:
        raise AssertionError("output 0 differs: the gradient is not clipped")


def products() -> None:
    """Products, quotients and negatives of a list of a sum, a replica and a shard."""
    import torch

    def changed(x: Any, place: Any) -> Any:
        y, two, column = x.detach(), torch.tensor(2.0), torch.arange(1.0, 5.0)
        changes: list[Callable[[list[Any]], object]] = [
            lambda listed: torch._foreach_mul_(listed, 3.0),
            lambda listed: torch._foreach_mul_(listed, [2.0, 3.0, 4.0]),
            lambda listed: torch._foreach_mul_(listed, place(two)),
            lambda listed: torch._foreach_mul_(listed, [place(column), place(column), place(y * 2)]),
            lambda listed: torch._foreach_div_(listed, 3.0),
            torch._foreach_neg_,
        ]
        results = []
        for change in changes:
            listed = [y.sum(1), place(column.clone()), y.clone()]
            change(listed)
            results += listed
        return results

    reproduce.assert_same_sharded(changed)


def roots() -> None:
    """``_foreach_sqrt_`` of a pending sum: the right numbers, or an error, as on newer builds."""
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    total: Any = distribute_tensor(torch.ones(4, 6), reproduce.cpu_mesh(), [Shard(1)]).sum(1)
    try:
        torch._foreach_sqrt_([total])
    except RuntimeError as error:
        if "in place" not in str(error) and "in-place" not in str(error):
            raise
        return
    got = reproduce.whole(total)
    torch.testing.assert_close(got, torch.full((4,), 6.0**0.5), msg="output 0 differs")


SHIM = Shim(
    key=_KEY,
    summary="clip_grad_norm_ and other changes in place of a list of DTensors change nothing",
    symptom=(
        "No error: where a gradient is a pending sum, as that of a replicated weight and a sharded "
        "batch is, clip_grad_norm_(foreach=True) does not clip it; torch._foreach_mul_([x.sum(0)], 2) "
        "leaves the sum as it was"
    ),
    cause=(
        "In-place operators on lists reduce a pending sum first. What they change is then a copy, and "
        "what was written to it is dropped."
    ),
    cure=(
        "Products, quotients and negatives are taken of the ranks' parts of the sum. Where that would "
        "be wrong, a RuntimeError names the placements and the way out, as 2.12 and newer raise one."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.11.0/torch/distributed/tensor/_ops/_pointwise_ops.py",
    ),
    affected=Affected(since="2.5.0", fixed_in=("2.12.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(reproduce.on_two_ranks(run) for run in (clipped, products, roots)),
    after=("dtensor_cached_scalars", "dtensor_inplace_lost", "dtensor_slice_writes"),
    removable_when="the oldest torch you support is 2.12",
)

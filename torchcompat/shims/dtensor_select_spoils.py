"""``select`` of a replicated tensor overwrites what DTensor knows of the tensor itself."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import PROPAGATOR, STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import held, overload_of, overridden, override, tensors, whole_along
from ..targets import lookup

_SELECT = "select.int"


def probe() -> Probe:
    """Look whose the strategy is, and whether torch writes shapes into the specs that it returns."""
    if not isinstance(lookup(STRATEGIES, None), dict):
        return drifted("DTensor keeps its strategies elsewhere")
    if lookup(f"{PROPAGATOR}._wrap_output_spec_tensor_meta", None) is None:
        return absent("the output's shape is written into a copy of the spec")
    own = held(STRATEGIES, _SELECT)
    if own is None or not inspect.unwrap(own).__module__.startswith("torch."):
        return absent("torch has no strategy for select")
    if overridden([overload_of(_SELECT)], _apart):
        return absent("the output has a spec of its own, by this shim", cured=True)
    if "is_sharded" in inspect.unwrap(own).__code__.co_names:
        return present("the input's spec is the output's, where nothing is sharded")
    return drifted("the strategy of select is written differently")


def _apart(*mesh_and_schema: Any) -> Any:
    schema = mesh_and_schema[-1]
    (tensor,) = tensors(schema.args_schema[0])
    return None if tensor.strategies[0].output_spec.is_sharded() else whole_along(schema)


def edits() -> Sequence[Edit]:
    """Make another spec for the output where torch's strategy hands on the input's."""
    return [override({overload_of(_SELECT): _apart})]


def afterwards() -> None:
    """What a replicated tensor, of which a row was selected, is for the next operators."""
    from torch.distributed.tensor import Replicate

    def selected(x: Any, _: Any) -> Any:
        import torch

        doubled = x.detach() * 2
        row = doubled.select(0, 1)
        shape = torch.tensor(doubled.exp().shape)
        return [row, shape, doubled.exp()]

    reproduce.assert_same_sharded(selected, shape=(5, 7), placements=[Replicate()])


SHIM = Shim(
    key="dtensor_select_spoils",
    summary="x.select(0, i), or x[i], of a replicated DTensor spoils x",
    symptom=(
        "No error: after x[1] of a replicated DTensor x, x.exp() is a DTensor of the shape of x[1]; or "
        "IndexError: Dimension out of range, or RuntimeError: Sharding propagation failed, from the "
        "next operator on x, or on another tensor made as x was"
    ),
    cause=(
        "Where nothing is sharded, the strategy of select returns the input's own spec as that of the "
        "output, and the output's shape is then written into it. The caches of shardings hold it, too."
    ),
    cure="The output gets a spec of its own.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/179290",
        "https://github.com/pytorch/pytorch/pull/179318",
    ),
    affected=Affected(since="2.8.0", fixed_in=("2.10.0",)),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        reproduce.on_two_ranks(afterwards, since="2.8.0", needs="a sharding strategy for select"),
    ),
    removable_when="the oldest torch you support is 2.10",
)

"""DTensor's sharding propagator: where it keeps its tables, and how to empty its caches.

Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .targets import lookup

__all__ = [
    "PROPAGATOR",
    "SCHEMA_INFO",
    "STRATEGIES",
    "forget_shardings",
    "registered",
    "whole_along",
]

PROPAGATOR = "torch.distributed.tensor:DTensor._op_dispatcher.sharding_propagator"
#: A dict from overload to strategy. From 2.11 on there is a second one; this is asked first.
STRATEGIES = f"{PROPAGATOR}.op_strategy_funcs"
#: A dict from overload to what of its other arguments the cache of shardings has to look at.
SCHEMA_INFO = f"{PROPAGATOR}.op_to_schema_info"
# Where an overload may be registered; builds have some of these.
_TABLES = ("op_strategy_funcs", "op_to_rules", "op_single_dim_strategy_funcs")


def registered(overload: Any) -> bool:
    """Whether DTensor has a sharding strategy or rule for an overload, in any of its tables."""
    tables = (lookup(f"{PROPAGATOR}.{name}", None) for name in _TABLES)
    return any(isinstance(table, Mapping) and overload in table for table in tables)


def forget_shardings() -> None:
    """Empty the caches of propagated shardings, for use after a strategy was changed.

    Both caches, Python's and that of C++ (from 2.10 on), belong to a thread, and only the
    calling thread's are emptied: another thread that has met the same operator with the
    same placements before goes on as before.
    """
    import torch

    lookup(f"{PROPAGATOR}.propagate_op_sharding").cache.cache_clear()
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:
        clear()


def whole_along(op_schema: Any, dims: Sequence[int], *, keepdim: bool, outputs: int = 1) -> Any:
    """Return the strategy of a reduction that must see all of the dimensions it reduces.

    The one tensor among the inputs is replicated, or sharded along a dimension that is not
    reduced, and so are the outputs, whose dimensions move up where ``keepdim`` is False.

    Args:
        op_schema: what the propagator asks about.
        dims: the reduced dimensions, from 0 on.
        keepdim: whether the reduced dimensions stay, with size 1.
        outputs: how many tensors the operator returns, all of one shape.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    tensor = op_schema.args_schema[0]
    choices: list[Any] = [[Replicate()] * (outputs + 1)]
    for dim in range(len(tensor.shape)):
        if dim not in dims:
            gone = 0 if keepdim else sum(reduced < dim for reduced in dims)
            choices.append([*[Shard(dim - gone)] * outputs, Shard(dim)])
    mesh = tensor.strategies[0].output_spec.mesh
    return expand_to_full_mesh_op_strategy(mesh, op_schema, choices, input_index=outputs)

"""DTensor's sharding propagator: where it keeps its tables, and how to empty its caches.

Imports torch only when called.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .edits import Edit, ReplaceAttr
from .targets import lookup

__all__ = [
    "HANDLERS",
    "PROPAGATOR",
    "REDISTRIBUTE",
    "SCHEMA_INFO",
    "SINGLE_DIM",
    "STRATEGIES",
    "before_redistribution",
    "each_rank_has_some",
    "forget_shardings",
    "layers",
    "ranks_along",
    "redistribution",
    "registered",
    "takes_call_and_schema",
    "wrap_redistribution",
]

#: The function (op_info, suggested_input_schema, ...) that brings a call's inputs to the
#: placements that its operator needs.
REDISTRIBUTE = "torch.distributed.tensor._dispatch:OpDispatcher.redistribute_local_args"
_DISPATCHER = "torch.distributed.tensor:DTensor._op_dispatcher"
#: A dict from overload to a function that is called in place of propagation and operator.
HANDLERS = f"{_DISPATCHER}._custom_op_handlers"
PROPAGATOR = f"{_DISPATCHER}.sharding_propagator"
#: A dict from overload to strategy. From 2.11 on there is a second one, which is asked first.
STRATEGIES = f"{PROPAGATOR}.op_strategy_funcs"
#: A dict from overload to what of its other arguments the cache of shardings has to look at.
SCHEMA_INFO = f"{PROPAGATOR}.op_to_schema_info"
#: A dict from overload to strategy over one mesh dimension, from 2.11 on.
SINGLE_DIM = f"{PROPAGATOR}.op_single_dim_strategy_funcs"
_WRAPPED_FOR = "_torchcompat_wrapped_for"
# Where an overload may be registered; builds have some of these.
_TABLES = (STRATEGIES, f"{PROPAGATOR}.op_to_rules", SINGLE_DIM)


def registered(overload: Any) -> bool:
    """Whether DTensor has a sharding strategy or rule for an overload, in any of its tables."""
    tables = (lookup(table, None) for table in _TABLES)
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


def ranks_along(mesh: Any, placements: Sequence[Any], dim: int) -> int:
    """Return over how many ranks a tensor's dimension is sharded; 1 where it is not."""
    sharding = [at for at, placement in enumerate(placements) if placement.is_shard(dim)]
    return math.prod(mesh.size(at) for at in sharding)


def each_rank_has_some(tensor: Any, dim: int) -> bool:
    """Whether no rank's part along a dimension of a DTensor, or of its spec, is empty."""
    mesh = getattr(tensor, "device_mesh", None) or tensor.mesh
    size, ranks = tensor.shape[dim], ranks_along(mesh, tensor.placements, dim)
    return bool(size > (ranks - 1) * -(-size // ranks))


def redistribution() -> tuple[Callable[..., Any] | None, frozenset[str]]:
    """Return torch's own function at :data:`REDISTRIBUTE`, and for which shims it is wrapped.

    The function is None where torch has it no more, or has something else there.
    """
    found = list(layers(lookup(REDISTRIBUTE, None)))
    wrapped_for = frozenset(filter(None, (getattr(layer, _WRAPPED_FOR, None) for layer in found)))
    own = found[-1] if found and inspect.isfunction(found[-1]) else None
    return own, wrapped_for


def layers(function: Any) -> Iterator[Any]:
    """Yield a function, what it wraps, and so on; nothing for None."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def takes_call_and_schema(function: Callable[..., Any]) -> bool:
    """Whether a function's first parameters are those that :data:`REDISTRIBUTE` is known by."""
    return list(inspect.signature(function).parameters)[:2] == ["op_info", "suggested_input_schema"]


def before_redistribution(key: str, look: Callable[[Any, Any], None]) -> Edit:
    """Declare the edit by which a shim looks at a call whose inputs are to be moved, and may raise.

    Args:
        key: the shim's key, by which :func:`redistribution` knows the wrapper.
        look: gets what the function at :data:`REDISTRIBUTE` gets first.
    """

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def redistribute_local_args(
            op_info: Any, suggested_input_schema: Any, *rest: Any, **named: Any
        ) -> None:
            look(op_info, suggested_input_schema)
            original(op_info, suggested_input_schema, *rest, **named)

        return redistribute_local_args

    return wrap_redistribution(key, make)


def wrap_redistribution(key: str, make: Callable[[Callable[..., None]], Callable[..., None]]) -> Edit:
    """Declare the edit of :data:`REDISTRIBUTE` for a shim.

    Args:
        key: the shim's key, by which :func:`redistribution` knows the wrapper.
        make: makes the wrapper of what is there.
    """

    def made(original: Callable[..., None]) -> Callable[..., None]:
        wrapper = functools.wraps(original, updated=())(make(original))
        setattr(wrapper, _WRAPPED_FOR, key)
        return wrapper

    return ReplaceAttr(REDISTRIBUTE, made)

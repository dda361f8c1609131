"""Sharding strategies for operators that DTensor has none for, and how to register them.

A strategy is a function of an operator's schema in which specs of DTensors stand for the tensors;
it says how every input has to be placed, and how the outputs then are. Imports torch when called.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .dtensor import (
    PROPAGATOR,
    SCHEMA_INFO,
    SINGLE_DIM,
    STRATEGIES,
    forget_shardings,
    layers,
    registered,
)
from .edits import AddEntries, Edit
from .errors import TargetDriftError
from .targets import lookup

__all__ = [
    "along",
    "arguments",
    "can_build",
    "decomposes",
    "gathered",
    "held",
    "input_specs",
    "masked_outcome",
    "missing",
    "movable",
    "norm_pending",
    "outcome",
    "overridden",
    "override",
    "overload_of",
    "override_rule",
    "pending",
    "place",
    "reduced",
    "refuse_partial",
    "register",
    "reword",
    "settled",
    "tensors",
    "whole_along",
    "with_arguments",
]

_SINGLE_DIM_INFO = f"{PROPAGATOR}.op_to_schema_info_for_single_dim_strategy"
_OVERRIDDEN = "_torchcompat_overridden"
_SCHEMA = "torch.distributed.tensor._op_schema"


def decomposes() -> bool:
    """Whether DTensor tries an operator's decomposition where it has no strategy (from 2.11 on)."""
    return isinstance(lookup(SINGLE_DIM, None), Mapping)


def held(table: str, name: str) -> Any:
    """Return what a table holds for an overload of aten such as ``"exp.default"``, or None."""
    entries = lookup(table, None)
    return entries.get(overload_of(name)) if isinstance(entries, Mapping) else None


def missing(names: Iterable[str]) -> Iterator[Any]:
    """Yield the overloads of aten that this build has, and DTensor registers in no table."""
    for name in names:
        overload = overload_of(name)
        if overload is not None and not registered(overload):
            yield overload


def overload_of(name: str) -> Any:
    """Return an overload of aten by its name, ``"exp.default"``; None where this build has none."""
    import torch

    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


def can_build() -> bool:
    """Whether torch has the classes that :func:`outcome` builds a strategy from."""
    names = ("OpStrategy", "TupleStrategy", "RuntimeSchemaInfo")
    return _spec_class() is not None and all(lookup(f"{_SCHEMA}:{name}", None) for name in names)


def _spec_class() -> Any:
    return lookup(f"{_SCHEMA}:OpSpec", None) or lookup(f"{_SCHEMA}:PlacementStrategy", None)


def register(
    entries: Mapping[Any, Any], *, single_dim: bool = False, lists: bool = False
) -> Sequence[Edit]:
    """Declare the edits that register strategies; ``lists`` where tensors come in lists.

    Numbers and flags are made part of the cache's key: on a hit, torch up to 2.8 calls the operator
    with the numbers of the call that filled the cache, where a tensor is redistributed.
    """

    def infos() -> Mapping[Any, Any]:
        info: Any = lookup(f"{_SCHEMA}:RuntimeSchemaInfo")
        if lists:
            return dict.fromkeys(entries, info(needs_pytree=True))
        return {
            overload: info(
                static_argnum=1,
                static_kwargkey=[arg.name for arg in overload._schema.arguments if arg.kwarg_only],
            )
            for overload in entries
        }

    strategies, schema_info = (SINGLE_DIM, _SINGLE_DIM_INFO) if single_dim else (STRATEGIES, SCHEMA_INFO)
    return [
        AddEntries(strategies, lambda: entries, settle=forget_shardings),
        # torch notes one of its own once it has tried to decompose an operator
        AddEntries(schema_info, infos, replace=True, settle=forget_shardings),
    ]


def reword(instead: Mapping[Any, Callable[[Any], Any]]) -> Edit:
    """Declare the edit that asks torch's strategies of some overloads in other words.

    Args:
        instead: a function for each overload. It gets an operator's schema, and returns the one
            that torch's strategy is to see, such as made by :func:`with_arguments`.
    """

    def entries() -> Mapping[Any, Any]:
        strategies = _own_strategies(instead)
        return {overload: _rewording(words, strategies[overload]) for overload, words in instead.items()}

    return AddEntries(STRATEGIES, entries, replace=True, settle=forget_shardings)


def _rewording(words: Callable[[Any], Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def strategy(*mesh_and_schema: Any) -> Any:  # up to 2.6 a mesh comes first
        *mesh, schema = mesh_and_schema
        return original(*mesh, words(schema))

    setattr(strategy, _OVERRIDDEN, words)
    return strategy


def override(instead: Mapping[Any, Callable[..., Any]]) -> Edit:
    """Declare the edit that asks functions before torch's strategies of some overloads.

    Args:
        instead: a function for each overload. It gets what the strategy gets, an operator's
            schema and up to 2.6 a mesh before it, and returns a strategy, or None to take
            torch's own.
    """

    def entries() -> Mapping[Any, Any]:
        strategies = _own_strategies(instead)
        return {overload: _asking(ask, strategies[overload]) for overload, ask in instead.items()}

    return AddEntries(STRATEGIES, entries, replace=True, settle=forget_shardings)


def override_rule(instead: Mapping[Any, Callable[..., Any]]) -> Edit:
    """Declare the edit that wraps torch's rules for one mesh dimension of some overloads.

    Args:
        instead: for each overload a function that gets torch's own, a function of the overload,
            its arguments and its named ones, and returns another.
    """

    def entries() -> Mapping[Any, Any]:
        rules = lookup(SINGLE_DIM)
        return {overload: _wrapped_rule(wrap, rules.get(overload)) for overload, wrap in instead.items()}

    return AddEntries(SINGLE_DIM, entries, replace=True, settle=forget_shardings)


def _wrapped_rule(wrap: Callable[..., Any], rule: Any) -> Any:
    original = getattr(rule, "func", None)
    if original is None or not dataclasses.is_dataclass(rule) or isinstance(rule, type):
        raise TargetDriftError(SINGLE_DIM, "keeps its rules differently")
    function = functools.wraps(original, updated=())(wrap(original))
    setattr(function, _OVERRIDDEN, wrap)
    return dataclasses.replace(rule, func=function)


def _own_strategies(overloads: Iterable[Any]) -> Mapping[Any, Callable[..., Any]]:
    strategies: Mapping[Any, Any] = lookup(STRATEGIES)
    for overload in overloads:
        if overload not in strategies:
            raise TargetDriftError(STRATEGIES, f"has no strategy for {overload}")
    return strategies


def _asking(ask: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def strategy(*mesh_and_schema: Any) -> Any:
        answer = ask(*mesh_and_schema)
        return original(*mesh_and_schema) if answer is None else answer

    setattr(strategy, _OVERRIDDEN, ask)
    return strategy


def overridden(overloads: Iterable[Any], *by: Callable[..., Any]) -> bool:
    """Whether one of these functions was given for all the overloads to one of the edits above.

    Other shims' may lie over it.
    """
    strategies, rules = lookup(STRATEGIES, None), lookup(SINGLE_DIM, {})
    return isinstance(strategies, Mapping) and all(
        any(
            getattr(layer, _OVERRIDDEN, None) in by
            for top in (strategies.get(overload), getattr(rules.get(overload), "func", None))
            for layer in layers(top)
        )
        for overload in overloads
    )


# -- writing a strategy --------------------------------------------------------------


def arguments(schema: Any) -> dict[str, Any]:
    """Return all arguments of a call by their names, defaults included."""
    declared = schema.op._schema.arguments
    found = {arg.name: arg.default_value for arg in declared if arg.has_default_value()}
    found.update(zip((arg.name for arg in declared), schema.args_schema))
    found.update(schema.kwargs_schema)
    return found


def with_arguments(schema: Any, changed: Mapping[int, Any], **named: Any) -> Any:
    """Return a copy of a call's schema with other values for some of its arguments."""
    args = tuple(changed.get(at, value) for at, value in enumerate(schema.args_schema))
    return dataclasses.replace(schema, args_schema=args, kwargs_schema={**schema.kwargs_schema, **named})


def pending(tensor: Any) -> list[Any]:
    """Return the placements of what stands for a tensor that wait for a reduction."""
    return [one for one in tensor.strategies[0].output_spec.placements if one.is_partial()]


def reduced(argument: Any) -> Any:
    """Return what stands for a tensor, or for a list of them, with replicas for what is pending."""
    from torch.distributed.tensor import Replicate

    if not hasattr(argument, "strategies"):
        return type(argument)([reduced(tensor) for tensor in tensors(argument)])
    make_spec: Any = lookup("torch.distributed.tensor._dtensor_spec:DTensorSpec")
    spec = argument.strategies[0].output_spec
    placements = tuple(Replicate() if one.is_partial() else one for one in spec.placements)
    whole = make_spec(spec.mesh, placements, tensor_meta=spec.tensor_meta)
    return type(argument)([_spec_class()(output_specs=whole)])


def input_specs(schema: Any) -> list[tuple[str, Any]]:
    """Return name and spec of every tensor among the arguments, in their order."""
    strategy: Any = lookup(f"{_SCHEMA}:OpStrategy")
    return [
        (name, value.strategies[0].output_spec)
        for name, value in arguments(schema).items()
        if isinstance(value, strategy)
    ]


def settled(placements: Iterable[Any]) -> tuple[Any, ...]:
    """Return the placements with everything that is not a shard replicated."""
    return place(placements, lambda dim: dim)


def place(placements: Iterable[Any], move: Callable[[int], int | None]) -> tuple[Any, ...]:
    """Move sharded dimensions to where ``move`` says; None, and what is partial, is replicated."""
    from torch.distributed.tensor import Replicate, Shard

    def moved(placement: Any) -> Any:
        dim = move(placement.dim) if isinstance(placement, Shard) else None
        if dim is None:
            return Replicate()
        if dim == placement.dim:
            return placement
        return Shard(dim) if type(placement) is Shard else Replicate()

    return tuple(map(moved, placements))


def movable(placements: Iterable[Any], move: Callable[[int], int | None]) -> tuple[Any, ...]:
    """Return the placements with everything replicated that :func:`place` could not move."""
    from torch.distributed.tensor import Replicate

    return tuple(
        Replicate() if moved == Replicate() else placement
        for placement in placements
        for moved in place([placement], move)
    )


def outcome(
    schema: Any, inputs: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any] | None]
) -> Any:
    """Build the one strategy that places inputs and outputs as given.

    Args:
        schema: what the strategy function got.
        inputs: the placements of every tensor among the arguments.
        outputs: the placements of every output; None for one that the operator leaves out.
    """
    make_spec: Any = lookup("torch.distributed.tensor._dtensor_spec:DTensorSpec")
    make_strategy: Any = lookup(f"{_SCHEMA}:OpStrategy")
    specs = [spec for _, spec in input_specs(schema)]
    mesh = specs[0].mesh

    def strategy(*placed: Sequence[Any] | None) -> Any:
        made = tuple(None if one is None else make_spec(mesh, tuple(one)) for one in placed)
        needed = [
            make_spec(mesh, tuple(placements), tensor_meta=spec.tensor_meta)
            for placements, spec in zip(inputs, specs)
        ]
        return make_strategy(
            [
                _spec_class()(
                    output_specs=made[0] if len(made) == 1 else made,
                    input_specs=needed,
                    redistribute_cost=[[0.0] for _ in needed],
                )
            ]
        )

    if str(schema.op._schema.returns[0].type) == "List[Tensor]":
        return lookup(f"{_SCHEMA}:TupleStrategy")([strategy(placed) for placed in outputs])
    return strategy(*outputs)


def along(named: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    """Return the dimensions that a call's arguments name, from 0 on; all where they name none."""
    found = next((named[name] for name in ("dim", "dims", "dimension") if name in named), None)
    if found is None or found == []:
        return tuple(range(ndim))
    dims = found if isinstance(found, (list, tuple)) else (found,)
    return tuple(sorted({dim % ndim for dim in dims})) if ndim else ()


def tensors(argument: Any) -> list[Any]:
    """Return what stands for a tensor, or for a list of them, each; nothing for anything else."""
    if hasattr(argument, "strategies"):
        return [argument]
    listed: Any = getattr(argument, "children", None) or getattr(argument, "childs", ())  # to 2.8
    return list(listed)


def norm_pending(tensor: Any) -> bool:
    """Whether a tensor is a norm whose reduction is pending, which adds up as powers."""
    return any(getattr(placement, "norm_type", None) is not None for placement in pending(tensor))


def whole_along(schema: Any) -> Any:
    """Build the strategy of a reduction that must see all of the dimensions it reduces.

    The one tensor among the arguments stays sharded along the other dimensions; what is
    partial is reduced first.
    """
    ((_, spec),) = input_specs(schema)
    named = arguments(schema)
    dims = along(named, len(spec.shape))

    def moved(dim: int) -> int | None:
        gone = 0 if named.get("keepdim", False) else sum(reduced < dim for reduced in dims)
        return None if dim in dims else dim - gone

    kept = movable(spec.placements, moved)
    return outcome(schema, [kept], [place(kept, moved)] * len(schema.op._schema.returns))


def gathered(schema: Any) -> Any:
    """Build the strategy of an operator that needs all of its inputs whole."""
    whole = [place(spec.placements, lambda dim: None) for _, spec in input_specs(schema)]
    return masked_outcome(schema, whole, whole[0])


def masked_outcome(schema: Any, inputs: Sequence[Sequence[Any]], placed: Sequence[Any]) -> Any:
    """Build the strategy whose outputs are all placed alike, but for those that a mask leaves out."""
    mask = arguments(schema).get("output_mask") or [True] * len(schema.op._schema.returns)
    return outcome(schema, inputs, [placed if wanted else None for wanted in mask])


def refuse_partial(strategy: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the strategy of an operator that writes into its first argument.

    Up to 2.9 a partial one would be reduced into another tensor, and the write lost; later
    builds refuse it themselves.
    """

    @functools.wraps(strategy, updated=())
    def checked(*given: Any) -> Any:
        schema = given[-1]  # a mesh comes first up to 2.7
        for written in tensors(schema.args_schema[0]):
            if pending(written):
                placements = written.strategies[0].output_spec.placements
                raise RuntimeError(
                    f"{schema.op} cannot write into a DTensor that waits for a reduction "
                    f"({placements}): redistribute it first, or use the operator that makes a new tensor"
                )
        return strategy(*given)

    return checked

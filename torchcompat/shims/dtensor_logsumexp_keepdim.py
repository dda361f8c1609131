"""The sharding of ``logsumexp(dim, keepdim=True)`` is worked out as without ``keepdim``."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM, STRATEGIES, forget_shardings
from ..edits import AddEntries, Edit
from ..errors import TargetDriftError
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..strategies import held, overridden, reword, with_arguments

_NAME, _KEEPDIM = "logsumexp.default", 2
_CURED = "_torchcompat_reads_keepdim"


def _overload() -> Any:
    import torch

    return torch.ops.aten.logsumexp.default


def probe() -> Probe:
    """Look whether the strategy reads its third argument, which ``keepdim`` always comes as."""
    rule = held(SINGLE_DIM, _NAME)
    own = held(STRATEGIES, _NAME) if rule is None else getattr(rule, "func", None)
    if own is None and rule is None:
        return absent("logsumexp has no sharding strategy of its own")
    if hasattr(own, _CURED) or (rule is None and overridden([_overload()])):
        return absent("keepdim is handed to the strategy by name, by this shim", cured=True)
    code = getattr(inspect.unwrap(own), "__code__", None) if callable(own) else None
    if code is None:
        return drifted("the strategy of logsumexp is written differently")
    loads = {step.argval for step in dis.get_instructions(code) if step.opname.startswith("LOAD")}
    if "keepdim" not in loads or _KEEPDIM in loads:
        return absent("the strategy reads keepdim where it comes")
    return present("keepdim comes as the third argument, and is looked for among the named ones")


def _by_name(schema: Any) -> Any:
    return with_arguments(schema, {}, keepdim=_keeps(schema.args_schema, schema.kwargs_schema))


def _keeps(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    return bool(args[_KEEPDIM] if len(args) > _KEEPDIM else named.get("keepdim", False))


def _rule() -> Mapping[Any, Any]:
    rule = held(SINGLE_DIM, _NAME)
    original: Callable[..., Any] | None = getattr(rule, "func", None)
    if original is None or not dataclasses.is_dataclass(rule) or isinstance(rule, type):
        raise TargetDriftError(SINGLE_DIM, "keeps its functions differently")

    @functools.wraps(original, updated=())
    def strategy(op: Any, args_schema: Any, kwargs_schema: Any) -> Any:
        named = {**kwargs_schema, "keepdim": _keeps(args_schema, kwargs_schema)}
        return original(op, args_schema, named)

    setattr(strategy, _CURED, True)
    return {_overload(): dataclasses.replace(rule, func=strategy)}


def edits() -> Sequence[Edit]:
    """Hand ``keepdim`` to torch's strategy by name, too."""
    if held(SINGLE_DIM, _NAME) is None:
        return [reword({_overload(): _by_name})]
    return [AddEntries(SINGLE_DIM, _rule, replace=True, settle=forget_shardings)]


def kept() -> None:
    """``logsumexp`` with its dimension kept, over every dimension of every sharding."""

    def functions(x: Any, _: Any) -> Any:
        return [x.logsumexp(dim, keepdim=True) for dim in (0, 1, -1)]

    for shape in ((6, 4), (5, 7)):
        reproduce.assert_same_sharded(lambda x, place: functions(x.detach(), place), shape=shape)
        reproduce.assert_same_sharded(functions, shape=shape)


SHIM = Shim(
    key="dtensor_logsumexp_keepdim",
    summary="logsumexp(dim, keepdim=True) of a sharded DTensor has a wrong shape",
    symptom=(
        "No error: x.logsumexp(0, keepdim=True) of a DTensor that is sharded along dim 1 calls itself "
        "sharded along dim 0, and is gathered into another shape than its own"
    ),
    cause="keepdim comes as the third argument, and the sharding strategy reads it by its name only.",
    cure="The strategy is handed keepdim by its name.",
    upstream=("https://github.com/pytorch/pytorch/pull/163879",),
    affected=Affected(since="2.10.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="kept",
            run=kept,
            expect=r"AssertionError: .*output \d+ differs",
            ranks=2,
            runnable=Affected(since="2.10.0"),
            needs="a sharding strategy for logsumexp",
            preload=("torch.distributed.tensor", "torch._dynamo"),
        ),
    ),
    removable_when="torch reads the positional keepdim of logsumexp",
)

"""The sharding of ``logsumexp(dim, keepdim=True)`` is worked out as without ``keepdim``."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM, STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import held, overload_of, overridden, override_rule, reword, with_arguments

_NAME, _KEEPDIM = "logsumexp.default", 2


def _own() -> Any:
    """Torch's function that is asked: a rule for one mesh dimension comes first."""
    rule = held(SINGLE_DIM, _NAME)
    return held(STRATEGIES, _NAME) if rule is None else getattr(rule, "func", rule)


def probe() -> Probe:
    """Look whether the strategy reads its third argument, which ``keepdim`` always comes as."""
    own = _own()
    if own is None:
        return absent("logsumexp has no sharding strategy of its own")
    if overridden([overload_of(_NAME)], _by_name, _naming):
        return absent("keepdim is handed to the strategy by name, by this shim", cured=True)
    code = getattr(inspect.unwrap(own), "__code__", None) if callable(own) else None
    if code is None:
        return drifted("the strategy of logsumexp is written differently")
    loads = {step.argval for step in dis.get_instructions(code) if step.opname.startswith("LOAD")}
    if "keepdim" not in loads or _KEEPDIM in loads:
        return absent("the strategy reads keepdim where it comes")
    return present("keepdim comes as the third argument, and is looked for among the named ones")


def _keeps(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    return bool(args[_KEEPDIM] if len(args) > _KEEPDIM else named.get("keepdim", False))


def _by_name(schema: Any) -> Any:
    return with_arguments(schema, {}, keepdim=_keeps(schema.args_schema, schema.kwargs_schema))


def _naming(original: Callable[..., Any]) -> Callable[..., Any]:
    def rule(op: Any, args: Any, named: Any) -> Any:
        return original(op, args, {**named, "keepdim": _keeps(args, named)})

    return rule


def edits() -> Sequence[Edit]:
    """Hand ``keepdim`` to torch's strategy by name, too."""
    if held(SINGLE_DIM, _NAME) is None:
        return [reword({overload_of(_NAME): _by_name})]
    return [override_rule({overload_of(_NAME): _naming})]


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
        reproduce.on_two_ranks(kept, since="2.10.0", needs="a sharding strategy for logsumexp"),
    ),
    removable_when="torch reads the positional keepdim of logsumexp",
)

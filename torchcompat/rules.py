"""Torch's rules for one mesh dimension, from 2.11 on: asking one, and leaving out what it gets wrong.

A rule is a function of an overload, its arguments and its named ones. It returns rows, each with
the placements of all outputs and inputs. Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .dtensor import SINGLE_DIM
from .strategies import held, overload_of
from .targets import lookup

__all__ = ["ask", "leaving_out"]


def ask(name: str, *arguments: Any) -> list[Sequence[Any]] | None:
    """Return what the rule of an overload offers; None where rules are kept differently.

    Args:
        name: of the overload, such as ``"gather.default"``; it has a rule.
        arguments: of the call; a tuple of sizes stands for a tensor.
    """
    function = getattr(held(SINGLE_DIM, name), "func", None)
    if not callable(function):
        return None
    meta: Any = lookup("torch.distributed.tensor._dtensor_spec:TensorMeta")
    given = (meta(one, (1,) * len(one), None) if isinstance(one, tuple) else one for one in arguments)
    return list(function(overload_of(name), tuple(given), {}))


def leaving_out(wrong: Callable[[Any, Any, Sequence[Any]], bool]) -> Callable[..., Any]:
    """Make what :func:`~torchcompat.strategies.override_rule` wraps a rule in, to drop rows of it.

    Args:
        wrong: called as ``wrong(overload, arguments, row)``.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def rule(op: Any, args: Any, named: Any) -> Any:
            return [row for row in original(op, args, named) if not wrong(op, args, row)]

        return rule

    return wrap

"""Stand-ins for builds of torch that lack a name: small, and exact.

Each passes the tests of the newer build's own (tests/shims/test_api.py). What could only be
imitated is not here; its row in rows.py says what to use instead.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce
from typing import Any

__all__ = [
    "clip_grads_with_norm_",
    "get_total_norm",
    "is_exporting",
    "safe_globals",
    "sym_and",
    "sym_or",
    "sym_sum",
]


def is_exporting() -> bool:
    """Whether torch.export is tracing the program, strictly or not."""
    import torch

    # Set by nothing but torch.export on the builds that need this (2.4 to 2.6).
    return bool(torch.compiler._is_compiling_flag) or _dynamo_exports()


def _dynamo_exports() -> bool:
    """Ask dynamo, which runs this while it traces and takes the answer for a constant."""
    import sys

    convert = sys.modules.get("torch._dynamo.symbolic_convert")
    guards = sys.modules.get("torch._guards")
    if convert is None or guards is None or guards.TracingContext.try_get() is None:
        return False
    return bool(convert.InstructionTranslator.current_tx().output.export)


# What torch.compiler.assume_constant_result sets; it would import dynamo for it.
_dynamo_exports._dynamo_marked_constant = True  # type: ignore[attr-defined]


class safe_globals:
    """Allow globals for ``torch.load(weights_only=True)`` inside a ``with`` block."""

    def __init__(self, safe_globals: list[Any]) -> None:
        self.safe_globals = safe_globals

    def __enter__(self) -> None:
        from torch.serialization import add_safe_globals

        add_safe_globals(list(self.safe_globals))

    def __exit__(self, *_: object) -> None:
        from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

        # As torch does from 2.5 on: what the block named goes, whoever else had named it too.
        kept = [entry for entry in get_safe_globals() if entry not in self.safe_globals]
        clear_safe_globals()
        add_safe_globals(kept)


def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Any:
    """Return the norm of all tensors together, as clip_grad_norm_ computes it."""
    import torch

    tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    norm_type = float(norm_type)
    if not tensors:
        return torch.tensor(0.0)
    with torch.no_grad():
        if foreach:
            norms = list(torch._foreach_norm(tensors, norm_type))
        else:
            norms = [torch.linalg.vector_norm(tensor, norm_type) for tensor in tensors]
        first = tensors[0].device
        total = torch.linalg.vector_norm(torch.stack([norm.to(first) for norm in norms]), norm_type)
    if error_if_nonfinite and bool(torch.logical_or(total.isnan(), total.isinf())):
        raise RuntimeError(
            f"the total norm of order {norm_type} is non-finite, {float(total)}; "
            f"error_if_nonfinite=False returns it all the same"
        )
    return total


def clip_grads_with_norm_(
    parameters: Any, max_norm: float, total_norm: Any, foreach: bool | None = None
) -> None:
    """Scale gradients in place by ``max_norm / total_norm``, where that is less than one."""
    import torch

    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return
    factor = torch.clamp(float(max_norm) / (total_norm + 1e-6), max=1.0)
    with torch.no_grad():
        for grad in grads:
            if foreach:
                torch._foreach_mul_([grad], factor.to(grad.device))
            else:
                grad.mul_(factor.to(grad.device))


def sym_and(x: Any, *others: Any) -> Any:
    """``x & y & ...``, without a call of bool()."""
    return reduce(operator.and_, others, x)


def sym_or(x: Any, *others: Any) -> Any:
    """``x | y | ...``, without a call of bool()."""
    return reduce(operator.or_, others, x)


def sym_sum(args: Iterable[Any]) -> Any:
    """Add numbers, symbolic ones among them."""
    return sum(args)

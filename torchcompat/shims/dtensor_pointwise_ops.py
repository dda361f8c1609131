"""DTensor has no sharding strategy for many elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM, STRATEGIES
from ..edits import Edit
from ..gate import Affected
from ..missing_ops import probe_missing
from ..shim import Probe, Reproducer, Shim
from ..strategies import (
    decomposes,
    held,
    input_specs,
    missing,
    outcome,
    place,
    refuse_partial,
    register,
    settled,
)

# The overloads, by the release from which torch does without us: by then it has a strategy, or
# gets one from the operator's decomposition.
_UNTIL_211 = (
    *("softplus.default", "softplus_backward.default", "heaviside.default"),
    *("elu.default", "elu_.default", "elu_backward.default", "celu.default", "celu_.default"),
    *("leaky_relu.default", "leaky_relu_.default", "leaky_relu_backward.default"),
    *("mish.default", "mish_.default", "mish_backward.default", "silu_.default", "gelu_.default"),
    *("hardtanh.default", "hardtanh_.default", "hardswish.default", "hardswish_.default"),
    *("hardsigmoid.default", "hardsigmoid_.default", "softshrink.default", "_prelu_kernel.default"),
    *("masked_fill.Tensor", "masked_fill_.Scalar", "masked_fill_.Tensor"),
    *("clamp.Tensor", "clamp_.Tensor", "clamp_min.Tensor", "clamp_max.Tensor"),
    *("clamp_min.default", "clamp_max.default", "clamp_min_.default", "clamp_max_.default"),
    *("maximum.default", "fmax.default", "fmin.default", "floor_divide.default"),
)
_UNTIL_212 = (
    *("hardshrink.default", "threshold.default", "ne.Tensor", "ne_.Scalar", "logit_backward.default"),
    *("complex.default", "polar.default", "special_entr.default"),
)
_ALWAYS = (
    *("hardtanh_backward.default", "hardswish_backward.default", "hardsigmoid_backward.default"),
    *("softshrink_backward.default", "hardshrink_backward.default"),
    *("_prelu_kernel_backward.default", "threshold_.default"),
)
# From 2.11 on torch decomposes the forward, but not under torch.compile.
_LOG_SIGMOID = ("log_sigmoid_forward.default", "log_sigmoid_backward.default")
# Registered in every build as an elementwise operator without any rule of its own for sums.
_MODEL = "cos.default"


def _borrowers() -> tuple[str, ...]:
    if held(SINGLE_DIM, _MODEL) is not None:
        return _ALWAYS
    return _ALWAYS + _UNTIL_212 + (() if decomposes() else _UNTIL_211)


def probe() -> Probe:
    """Look for the operators in the propagator's tables, and for a strategy to borrow."""
    return probe_missing(_borrowers() + _LOG_SIGMOID, model=_MODEL)


def edits() -> Sequence[Edit]:
    """Register for them what is registered for cos, and a strategy for log_sigmoid's buffer."""
    borrowed = held(SINGLE_DIM, _MODEL)
    single_dim = borrowed is not None
    if not single_dim:
        borrowed = held(STRATEGIES, _MODEL)
    guarded = borrowed if single_dim else refuse_partial(borrowed)
    entries: Mapping[Any, Any] = {
        overload: guarded if overload._schema.is_mutable else borrowed
        for overload in missing(_borrowers())
    }
    own: Mapping[Any, Any] = dict.fromkeys(missing(_LOG_SIGMOID), _log_sigmoid)
    return [*register(entries, single_dim=single_dim), *register(own)]


def _log_sigmoid(*given: Any) -> Any:
    """Let the buffer go with the input where it has its shape; on a GPU it is empty."""
    schema = given[-1]
    named = dict(input_specs(schema))
    kept = settled(named["self"].placements)
    alone = place(kept, lambda dim: None)
    inputs = [
        # an empty one is never read: wherever it is, it may stay
        spec.placements if name == "buffer" and spec.shape != named["self"].shape else kept
        for name, spec in named.items()
    ]
    if "buffer" in named:
        return outcome(schema, inputs, [kept])
    empty = named["self"].mesh.device_type in ("cuda", "xpu")
    return outcome(schema, inputs, [kept, alone if empty else kept])


def clipped() -> None:
    """The backwards that no build has: ``hardtanh``, ``hardswish`` and their kin."""
    f = reproduce.functional()
    _same(*map(_alone, (f.hardtanh, f.relu6, f.hardswish, f.hardsigmoid, f.softshrink, f.hardshrink)))


def log_sigmoid() -> None:
    """``logsigmoid``, as in losses of preferences."""
    _same(lambda x, _: reproduce.functional().logsigmoid(2 * x))


def prelu() -> None:
    """``prelu`` with one weight, and with one per channel."""
    import torch

    def apply(x: Any, place: Callable[[Any], Any], count: int) -> list[Any]:
        weight = place(torch.linspace(0.1, 0.6, count)).requires_grad_()
        out = reproduce.functional().prelu(x, weight)
        (gradient,) = torch.autograd.grad((out * out).sum(), weight, retain_graph=True)
        return [out, gradient]

    _same(lambda x, place: apply(x, place, 1), lambda x, place: apply(x, place, 6))


def compared() -> None:
    """``ne``, ``threshold``, and the backward of ``logit``."""
    import torch

    f = reproduce.functional()
    _same(
        lambda x, _: [x.ne(x.round()), f.threshold(x, 0.1, -1.0)],
        lambda x, _: torch.special.logit(x.sigmoid(), eps=1e-3),
        lambda x, _: torch.view_as_real(torch.polar(x.detach().abs(), x.detach())),
    )


def activations() -> None:
    """``softplus``, ``elu``, ``leaky_relu``, ``mish``, and some of them in place."""
    f = reproduce.functional()
    _same(
        *map(_alone, (f.softplus, f.elu, f.selu, f.celu, f.leaky_relu, f.mish)),
        lambda x, _: f.softplus(x, beta=2.0, threshold=1.0),
        lambda x, _: [f.elu(x, 0.5), f.leaky_relu(x, 0.3)],
        lambda x, _: [f.leaky_relu(x * 2, 0.2, inplace=True), f.silu(x * 2, inplace=True)],
        lambda x, _: [x.fmax(x * 2), x.detach().clone().clamp_min_(0.1)],
    )


def masked_fill() -> None:
    """``masked_fill_``, as in attention masks."""
    _same(
        lambda x, place: (x * 1).masked_fill_(place(x.detach() > 0), -1.0),
        lambda x, place: (x * 1).masked_fill_(x.detach() > 0, 2.0),
    )


def clamped() -> None:
    """``clamp`` by a number on one side, and by a tensor."""
    _same(lambda x, _: [x.clamp_min(0.1), x.clamp_max(0.1), x.clamp(min=x.detach() * 2)])


def _alone(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, _: function(x * 2)


def _same(*functions: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
    for function in functions:
        reproduce.assert_same_sharded(function, shape=(5, 6))


_PUBLIC = Affected(since="2.5.0")
_REPRODUCERS: tuple[tuple[Callable[[], None], Affected | None], ...] = (
    (clipped, None),
    (log_sigmoid, None),
    (prelu, None),
    (compared, Affected(since="2.5.0", fixed_in=("2.12.0",))),
    (activations, Affected(since="2.5.0", fixed_in=("2.11.0",))),
    (masked_fill, Affected(since="2.5.0", fixed_in=("2.10.0",))),
    (clamped, Affected(since="2.5.0", fixed_in=("2.9.0",))),
)

SHIM = Shim(
    key="dtensor_pointwise_ops",
    summary="elementwise operators (softplus, logsigmoid, masked_fill_, ...) find no sharding strategy",
    symptom=(
        "NotImplementedError: Operator aten.log_sigmoid_backward.default does not have a sharding "
        "strategy registered. So for the backwards of hardtanh, relu6, hardswish, hardsigmoid, "
        "softshrink, hardshrink and prelu on every build, and before 2.11 for softplus, elu, "
        "leaky_relu, mish, masked_fill_, fmax and others."
    ),
    cause="DTensor's list of elementwise operators does not have them.",
    cure="They get the sharding strategy of aten.cos, log_sigmoid one that knows of its buffer.",
    upstream=(
        "https://github.com/pytorch/pytorch/issues/152249",
        "https://github.com/pytorch/pytorch/pull/177407",
    ),
    affected=_PUBLIC,
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=f"{run.__name__}_{ranks}rank{'s' * (ranks > 1)}",
            run=run,
            expect=r"Operator aten\.\w+\.\w+ does not have a sharding strategy registered",
            affected=affected,
            ranks=ranks,
            runnable=_PUBLIC,
            needs="the public torch.distributed.tensor",
            preload=("torch.distributed.tensor", "torch._dynamo"),
        )
        for run, affected in _REPRODUCERS
        for ranks in ((1, 2) if affected is None else (2,))
    ),
    removable_when="torch registers strategies for the backwards of hardtanh, hardswish and log_sigmoid",
    notes=(
        "torch decomposes logsigmoid's forward from 2.11 on, but not under torch.compile; it is "
        "registered there, too. An operator of the table that writes in place refuses a DTensor that "
        "waits for a reduction: torch before 2.10 would lose the write, and later builds refuse it."
    ),
)

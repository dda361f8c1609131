"""Weights cast by autocast under no_grad lose their gradient for the rest of the region."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import own_attr, owner_of

#: Whatever of torch's Python switches gradients on again; no_grad's exit calls set_grad_enabled.
_TARGETS = (
    "torch.autograd.grad_mode:set_grad_enabled.__init__",
    "torch.autograd.grad_mode:set_grad_enabled.__enter__",
    "torch.autograd.grad_mode:set_grad_enabled.__exit__",
    "torch.autograd.grad_mode:enable_grad.__enter__",
    "torch.autograd.grad_mode:inference_mode.__enter__",
    "torch.autograd.grad_mode:inference_mode.__exit__",
)


def probe() -> Probe:
    """The cache is C++ and shows nowhere in Python: cast one weight, for a product without rows."""
    import torch

    if all(map(is_replaced, _TARGETS)):
        return absent("the cache is cleared when gradients are switched on", cured=True)
    for owner, name in map(owner_of, _TARGETS):
        if not inspect.isfunction(own_attr(owner, name)):
            return drifted(f"{owner.__name__} has no {name} of its own")
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.zeros(1, 1, device="cpu", dtype=torch.float32, requires_grad=True)
        rows = torch.zeros(0, 1, device="cpu", dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            with torch.no_grad():
                torch.mm(rows, weight)
            kept = torch.mm(rows, weight).requires_grad
    if kept:
        return absent("a weight cast under no_grad keeps its gradient")
    return present("a weight cast under no_grad is used again without its gradient")


def _make(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    enabled, casting, clear = (
        torch.is_grad_enabled,
        torch._C._is_any_autocast_enabled,
        torch.clear_autocast_cache,
    )

    @functools.wraps(original, updated=())
    def switching(*args: Any, **kwargs: Any) -> Any:
        off = not enabled()
        result = original(*args, **kwargs)
        if off and enabled() and casting():
            clear()
        return result

    return switching


def edits() -> Sequence[Edit]:
    """Clear the cache wherever gradients are switched on inside an autocast region."""
    return [ReplaceAttr(target, _make) for target in _TARGETS]


def _model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    # The norm has weights of its own, so that the loss has a gradient and nothing is raised.
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))


def _compare(model: Any, reference: Any, x: Any, look: Callable[[Any], None], what: str) -> None:
    """Train one step after a look without gradients, all in one region, against a step alone."""
    import torch

    for each, before in ((model, look), (reference, None)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if before is not None:
                before(each)
            out = each(x)
        out.float().square().sum().backward()
    names = [name for name, _ in reference.named_parameters()]
    for name, got, want in zip(names, model.parameters(), reference.parameters()):
        if got.grad is None:
            raise AssertionError(f"after {what}: {name} has no gradient")
        if not torch.equal(reproduce.whole(got.grad), want.grad):
            raise AssertionError(f"after {what}: {name} has another gradient")


def _batch() -> Any:
    import torch

    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def _inside(context: Callable[[], Any], x: Any) -> Callable[[Any], None]:
    def look(model: Any) -> None:
        with context():
            model(x)

    return look


def every_way() -> None:
    """Each way to switch gradients off and on; the step's gradients equal those without it."""
    import torch

    x = _batch()

    def decorated(model: Any) -> None:
        torch.no_grad()(lambda: model(x))()

    def switched(model: Any) -> None:
        torch.set_grad_enabled(False)
        model(x)
        torch.set_grad_enabled(True)

    def enabled_inside(model: Any) -> None:
        with torch.no_grad():
            model(x)
            with torch.enable_grad():
                again = model(x)
        if not again.grad_fn.next_functions[0][0]:
            raise AssertionError("after enable_grad inside no_grad: the linear has no gradient")

    ways = {
        "no_grad": _inside(torch.no_grad, x),
        "no_grad as a decorator": decorated,
        "set_grad_enabled(False)": _inside(functools.partial(torch.set_grad_enabled, False), x),
        "set_grad_enabled called": switched,
        "enable_grad inside no_grad": enabled_inside,
        "inference_mode": _inside(torch.inference_mode, x),
    }
    for what, look in ways.items():
        _compare(_model(), _model(), x, look, what)


def linear_alone() -> None:
    """Without a norm after it, the loss has no graph at all, and backward says so."""
    import torch

    linear, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            linear(x)
        loss = linear(x).float().sum()
    loss.backward()


def fsdp2() -> None:
    """Sharded in float32, where autocast casts the gathered parameters."""
    import torch
    from torch.distributed.fsdp import fully_shard

    model, reference = _model(), _model()
    for layer in (*model, model):
        fully_shard(layer, mesh=reproduce.cpu_mesh())
    x = _batch()
    _compare(model, reference, x, _inside(torch.no_grad, x), "no_grad")


SHIM = Shim(
    key="autocast_no_grad_cache",
    summary="a forward under no_grad inside an autocast region takes the weights' gradients away",
    symptom=(
        "No error: after with torch.no_grad(): model(x) the same weights get no gradient for the rest "
        "of the autocast region, as in a policy model that is its own reference (DPO, GRPO). Where "
        "nothing else has a gradient: RuntimeError: element 0 of tensors does not require grad and "
        "does not have a grad_fn"
    ),
    cause=(
        "autocast keeps the casts of weights until the region ends. A cast made while gradients are "
        "off has no graph, and is used again when they are on."
    ),
    cure=(
        "Where no_grad, set_grad_enabled, enable_grad or inference_mode switches gradients on inside "
        "an autocast region, torch.clear_autocast_cache() is called; the weights are cast anew."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/65766",
        "https://github.com/pytorch/pytorch/issues/112583",
        "https://github.com/pytorch/pytorch/issues/158232",
        "https://github.com/pytorch/pytorch/pull/165068",
    ),
    affected=Affected(since=None, fixed_in=("2.11.0",)),
    modules=("torch.autograd.grad_mode",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="every_way",
            run=every_way,
            expect=r"AssertionError: after .*: (0\.(weight|bias)|the linear) has no gradient",
        ),
        Reproducer(
            name="linear_alone",
            run=linear_alone,
            expect=r"RuntimeError: element 0 of tensors does not require grad",
        ),
        Reproducer(
            name="fsdp2_1rank",
            run=fsdp2,
            expect=r"AssertionError: after no_grad: 0\.(weight|bias) has no gradient",
            ranks=1,
            runnable=Affected(since="2.7.0"),
            needs="FSDP2 on the CPU",
            preload=("torch.distributed.fsdp",),
        ),
    ),
    removable_when="the oldest torch you support is 2.11",
    notes=(
        "Costs one more cast of the weights after each such switch inside a region, and a few "
        "microseconds a no_grad anywhere. A cast made in the forward of a torch.autograd.Function, "
        "where gradients are switched off in C++, is not covered."
    ),
)

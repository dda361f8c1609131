"""FSDPModule.set_reduce_scatter_unused_params, for the builds before it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..edits import AddAttr, Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_FSDP = "torch.distributed.fsdp._fully_shard"
_MODULE = f"{_FSDP}._fully_shard:FSDPModule"
_SETTER = f"{_MODULE}.set_reduce_scatter_unused_params"
_POST_BACKWARD = f"{_FSDP}._fsdp_param_group:FSDPParamGroup.post_backward"


def probe() -> Probe:
    """Look for the method."""
    if lookup(_SETTER, None) is not None:
        by = ", by this shim" if is_replaced(_SETTER) else ""
        return absent(f"FSDPModule has set_reduce_scatter_unused_params{by}", cured=True)
    post_backward = lookup(_POST_BACKWARD, None)
    if lookup(f"{_MODULE}.set_requires_gradient_sync", None) is None or not inspect.isfunction(
        post_backward
    ):
        return drifted("FSDPModule or FSDPParamGroup.post_backward is not where it was")
    wanted = {"reduce_grads", "fsdp_params", "unsharded_accumulated_grad"}
    if not wanted <= set(inspect.unwrap(post_backward).__code__.co_names):
        return drifted("FSDPParamGroup.post_backward is written differently")
    return present("FSDPModule has no set_reduce_scatter_unused_params")


def edits() -> Sequence[Edit]:
    """Add the method, and let the post-backward fill in the zero gradients."""
    import functools

    import torch

    module_class = lookup(_MODULE)

    def setter() -> Any:
        def set_reduce_scatter_unused_params(
            self: Any, reduce_scatter_unused_params: bool, *, recurse: bool = True
        ) -> None:
            for module in self.modules() if recurse else [self]:
                if isinstance(module, module_class):
                    for group in _param_groups(module._get_fsdp_state()):
                        group.reduce_scatter_unused_params = reduce_scatter_unused_params

        # Pickle looks a function up by these.
        set_reduce_scatter_unused_params.__module__ = _MODULE.partition(":")[0]
        set_reduce_scatter_unused_params.__qualname__ = _SETTER.partition(":")[2]
        return set_reduce_scatter_unused_params

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def post_backward(self: Any, *unused: Any) -> Any:
            if self.reduce_grads and getattr(self, "reduce_scatter_unused_params", False):
                for param in self.fsdp_params:
                    # Made by the first all-gather: without it there is nothing to reduce with.
                    unsharded = getattr(param, "_unsharded_param", None)
                    if (
                        unsharded is not None
                        and unsharded.requires_grad
                        and unsharded.grad is None
                        and param.unsharded_accumulated_grad is None
                    ):
                        unsharded.grad = torch.zeros_like(unsharded)
            return original(self, *unused)

        return post_backward

    return [AddAttr(_SETTER, setter), ReplaceAttr(_POST_BACKWARD, make)]


def _param_groups(state: Any) -> list[Any]:
    """Return a state's parameter groups; builds before 2.12 know one at most."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    group = state._fsdp_param_group
    return [] if group is None else [group]


def _experts() -> Any:
    import torch
    from torch import nn

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(8, 8, bias=False)
            self.expert = nn.Linear(8, 8, bias=False)

        def forward(self, x: torch.Tensor, routed: bool) -> torch.Tensor:
            out: torch.Tensor = self.shared(x)
            return out + self.expert(x) if routed else out

    torch.manual_seed(0)
    # float64, for which FSDP2 sums and divides: gloo's own average is wrong before 2.9.
    return Experts().double()


def unused_on_one_rank() -> None:
    """Rank 0 alone routes to the expert; gradients are the mean over the ranks."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model, reference = _experts(), _experts()
    fully_shard(model, mesh=reproduce.cpu_mesh())
    model.set_reduce_scatter_unused_params(True)
    inputs = [batch.double() for batch in reproduce.batches(dist.get_world_size())]
    rank = dist.get_rank()
    for _ in range(2):
        model(inputs[rank], rank == 0).sum().backward()
        for other, batch in enumerate(inputs):
            (reference(batch, other == 0).sum() / len(inputs)).backward()
    for got, want in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(reproduce.whole(got.grad), want.grad)


def unused_everywhere() -> None:
    """A parameter that no rank uses gets a zero gradient; switched off, none; frozen, none."""
    import torch
    from torch.distributed.fsdp import fully_shard

    def gradient(*calls: Any, frozen: bool = False) -> Any:
        model = _experts()
        model.expert.requires_grad_(not frozen)
        fully_shard(model.expert, mesh=reproduce.cpu_mesh())
        fully_shard(model, mesh=reproduce.cpu_mesh())
        for positional, named in calls:
            model.set_reduce_scatter_unused_params(*positional, **named)
        batch = reproduce.batches(1)[0].double()
        with torch.no_grad():
            model(batch, True)  # every unit must have been gathered once
        model(batch, False).sum().backward()
        return model.expert.weight.grad

    on: Any = ((True,), {})
    off: Any = ((False,), {})
    shallow: Any = ((True,), {"recurse": False})
    got = gradient(on)
    if got is None or bool(reproduce.whole(got).ne(0).any()):
        raise AssertionError(f"an unused parameter's gradient is {got}, not zero")
    for calls, frozen in (((on, off), False), ((shallow,), False), ((on,), True)):
        if gradient(*calls, frozen=frozen) is not None:
            raise AssertionError(f"a gradient appeared after {calls} (frozen: {frozen})")


SHIM = Shim(
    key="fsdp_unused_params",
    summary="FSDP2 cannot be told that ranks use different parameters",
    symptom="AttributeError: 'FSDPLinear' object has no attribute 'set_reduce_scatter_unused_params'",
    cause=(
        "A parameter that one rank uses and another does not (an expert without tokens, a vision "
        "tower without images) gives the ranks different reduce-scatters: gradients go missing or "
        "the job hangs. The public way to say so came with 2.13."
    ),
    cure=(
        "FSDPModule gets set_reduce_scatter_unused_params(flag, *, recurse=True), as 2.13 has it; "
        "FSDPParamGroup.post_backward fills in zero gradients where it was switched on."
    ),
    upstream=("https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/",),
    affected=Affected(since="2.7.0", fixed_in=("2.13.0",)),
    modules=("torch.distributed.fsdp",),
    probe=probe,
    edits=edits,
    reproducers=tuple(
        Reproducer(
            name=name,
            run=run,
            expect="has no attribute 'set_reduce_scatter_unused_params'",
            ranks=ranks,
            runnable=Affected(since="2.7.0"),
            needs="FSDP2 on the CPU",
        )
        for name, run, ranks in (
            ("unused_on_one_rank", unused_on_one_rank, 2),
            ("unused_everywhere", unused_everywhere, 1),
        )
    ),
    removable_when="the oldest torch you support is 2.13",
    carried_by=("NVIDIA-NeMo/Automodel",),
    notes=(
        "Nothing changes until the method is called. As in 2.13, a unit that a rank never gathered "
        "has no zero gradient to give, so every rank must run each unit's forward once."
    ),
)

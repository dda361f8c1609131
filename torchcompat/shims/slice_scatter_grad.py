"""Compiled slice_scatter, select_scatter and diagonal_scatter: wrong gradients of their input."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..compile_cache import SaltCompileCache
from ..edits import Edit, ReplaceAttr
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

if TYPE_CHECKING:
    import torch

_KEY = "slice_scatter_grad"
_CLONE = "torch._prims_common:clone_preserve_strides"
_METAS = "torch._meta_registrations"


def probe() -> Probe:
    """Look how the layout of a scatter's result is worked out."""
    clone = lookup(_CLONE, None)
    if clone is None:
        return drifted("torch._prims_common has no clone_preserve_strides")
    if getattr(clone, "heeds_overlap", False):
        return absent("clone_preserve_strides gives an expanded input a layout of its own", cured=True)
    if lookup(f"{_METAS}:meta_diagonal_scatter", None) is not None:
        return absent("all three ops give an expanded input a layout of its own", cured=True)
    if lookup(f"{_METAS}:_scatter_meta_output", None) is not None:
        return present("diagonal_scatter copies the stride 0 of an expanded input")
    meta = lookup(f"{_METAS}:meta_slice_scatter", None)
    if "clone_preserve_strides" not in getattr(getattr(meta, "__code__", None), "co_names", ()):
        return drifted("the layout of slice_scatter's result is worked out differently")
    return present("the result of a scatter copies the stride 0 of an expanded input")


def _overlaps(x: torch.Tensor) -> bool:
    import torch

    # Without this module there are no symbols; with unbacked ones torch cannot say.
    symbolic = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    if symbolic is not None and symbolic.free_unbacked_symbols(x):
        return False
    return bool(torch._debug_has_internal_overlap(x) == 1)


def edits() -> Sequence[Edit]:
    """Do as ATen's function of the same name: give up the strides if elements share memory."""

    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original, updated=())
        def clone_preserve_strides(x: Any) -> Any:
            return x.clone() if _overlaps(x) else original(x)

        clone_preserve_strides.heeds_overlap = True  # type: ignore[attr-defined]
        return clone_preserve_strides

    return [ReplaceAttr(_CLONE, make), SaltCompileCache(_KEY)]


# -- reproducers ---------------------------------------------------------------------


def _slice(x: Any, source: Any) -> Any:
    import torch

    return torch.slice_scatter(x, source, 0, 1, 3)


def _select(x: Any, source: Any) -> Any:
    import torch

    return torch.select_scatter(x, source, 0, 1)


def _diagonal(x: Any, source: Any) -> Any:
    import torch

    return torch.diagonal_scatter(x, source, 0)


def _cases(dtype: Any = None) -> list[tuple[Any, Any, Any]]:
    import torch

    x = torch.randn(5, 4, dtype=dtype)
    parts = ((_slice, x[1:3]), (_select, x[1]), (_diagonal, x.diagonal()))
    return [(op, x, torch.randn_like(part)) for op, part in parts]


def _gradients(cases: Any, loss: Any) -> list[Any]:
    leaves = [(x.clone().requires_grad_(), y.clone().requires_grad_()) for _, x, y in cases]
    loss(leaves).backward()
    return [leaf.grad for pair in leaves for leaf in pair]


def gradients() -> None:
    """The three ops in one graph through the default backend, against eager."""
    import torch

    from ..reproduce import quick_inductor

    quick_inductor()
    torch.manual_seed(0)
    cases = _cases()

    def loss(leaves: Any) -> Any:
        # The gradient of a sum is one expanded number, the kind of gradient that goes wrong.
        return sum(op(x, y).sum() for (op, _, _), (x, y) in zip(cases, leaves))

    got, want = _gradients(cases, torch.compile(loss)), _gradients(cases, loss)
    names = [op.__name__.strip("_") for op, _, _ in cases for _ in range(2)]
    for name, a, b in zip(names, got, want):
        if not torch.equal(a, b):  # all are 0 or 1
            raise AssertionError(
                f"compiled {name}_scatter: the gradient sums to {a.sum():g}, eager's to {b.sum():g}"
            )


def layouts() -> None:
    """What the meta functions say of an expanded input, against the real result's strides.

    Static and symbolic shapes; float32, float64, bfloat16; expanded in one, in both and,
    for the sound case, in no dimension.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for op, x, source in _cases(dtype):
            for base in (x[0, 0].expand(5, 4), x[:, :1].expand(5, 4), x, x.t().contiguous().t()):
                real = op(base, source).stride()
                for env in (None, ShapeEnv()):
                    mode = FakeTensorMode(shape_env=env)
                    static = env is None
                    fake_base = mode.from_tensor(base, static_shapes=static)
                    fake_source = mode.from_tensor(source, static_shapes=static)
                    with mode:
                        fake = tuple(int(s) for s in op(fake_base, fake_source).stride())
                    if fake != real:
                        name = op.__name__.strip("_")
                        raise AssertionError(
                            f"{name}_scatter of strides {base.stride()}: its meta function says "
                            f"strides {fake}, the result has {real}"
                        )


SHIM = Shim(
    key=_KEY,
    summary="compiled slice_, select_ and diagonal_scatter give wrong gradients of their input",
    symptom=(
        "No error. Under torch.compile(backend='inductor') the gradient of x in "
        "slice_scatter(x, source).sum() (or select_scatter, diagonal_scatter) is all zeros or all ones, "
        "instead of zero where source was put and one elsewhere."
    ),
    cause=(
        "The gradient of a sum is one number, expanded with stride 0. The backward of a scatter "
        "scatters zeros into it, and the meta functions of the scatters say that the result has the "
        "strides of that input, 0 again: inductor then computes one element for all. Eager copies "
        "such an input first."
    ),
    cure=(
        "torch._prims_common.clone_preserve_strides, from which the meta functions take the layout, "
        "clones a tensor whose elements share memory, as ATen's function of that name does. The keys "
        "of torch's compile caches are salted, so that what was compiled before is not used again."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/180164",
        "https://github.com/pytorch/pytorch/issues/182012",
        "https://github.com/pytorch/pytorch/pull/180166",
    ),
    affected=Affected(since="2.5.0", fixed_in=("2.13.0",)),
    modules=("torch._prims_common", "torch._meta_registrations", "torch._inductor.codecache"),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="gradients",
            run=gradients,
            expect=r"AssertionError: compiled \w+_scatter: the gradient sums to",
            preload=("torch._dynamo", "torch._inductor.compile_fx"),
        ),
        Reproducer(
            name="layouts",
            run=layouts,
            expect=r"AssertionError: \w+_scatter of strides .* its meta function says strides",
            affected=Affected(since=None, fixed_in=("2.13.0",)),
        ),
    ),
    removable_when="the oldest torch you support is 2.13",
    dynamo_reset=True,
    notes=(
        "Covers select_scatter (wrong on 2.5 to 2.11) and diagonal_scatter (wrong on 2.6 to 2.12) too. "
        "Costs nothing but the memory of a full gradient where one number was wrongly used; code is "
        "compiled anew once, since the cache's keys change. Unbacked symbolic shapes are left alone. "
        "2.4 has the wrong layouts, but its inductor makes no wrong numbers of them."
    ),
)

"""A convolution of DTensors takes what every rank has for the whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import reproduce
from ..convolution import backward, forward
from ..dtensor import HANDLERS
from ..edits import AddEntries, Edit
from ..errors import TargetDriftError
from ..gate import Affected
from ..handlers import handler, is_ours, with_other_arguments
from ..reproduce import beside, functional
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import overload_of
from ..targets import lookup

_FORWARD, _BACKWARD = "convolution.default", "convolution_backward.default"
_ARGUMENTS = {
    _FORWARD: (
        *("input", "weight", "bias", "stride", "padding", "dilation"),
        *("transposed", "output_padding", "groups"),
    ),
    _BACKWARD: (
        *("grad_output", "input", "weight", "bias_sizes", "stride", "padding", "dilation"),
        *("transposed", "output_padding", "groups", "output_mask"),
    ),
}


def probe() -> Probe:
    """Look whether torch's handler moves the inputs to where its result says they are."""
    handlers = lookup(HANDLERS, None)
    if not isinstance(handlers, dict):
        return drifted("DTensor keeps its handlers elsewhere")
    found = [handlers.get(overload_of(name)) for name in (_FORWARD, _BACKWARD)]
    if not any(found):
        return absent("convolutions have no handler")
    if all(map(is_ours, found, (forward, backward))):
        return absent("inputs are moved before they are convolved, by this shim", cured=True)
    names = [one.__code__.co_names for one in found if inspect.isfunction(one)]
    if len(names) < 2 or not all({"unwrap_to_op_info", "wrap"} <= set(known) for known in names):
        return drifted("convolutions are handled differently")
    changed = with_other_arguments(_ARGUMENTS)
    if changed is not None:
        return drifted(f"{changed} has other arguments")
    if "redistribute_local_args" in names[0]:
        return absent("convolutions move their inputs first")
    return present("a convolution is made of the parts that every rank has, wherever they belong")


def edits() -> Sequence[Edit]:
    """Handle both operators in place of torch's handlers."""

    def entries() -> Mapping[Any, Any]:
        originals = lookup(HANDLERS)
        found = {}
        for name, handle, made_of in ((_FORWARD, forward, 1), (_BACKWARD, backward, 2)):
            overload = overload_of(name)
            if not callable(originals.get(overload)):
                raise TargetDriftError(HANDLERS, f"has no handler for {overload}")
            found[overload] = handler(handle, made_of, originals[overload])
        return found

    return [AddEntries(HANDLERS, entries, replace=True)]


# -- reproducers ---------------------------------------------------------------------


def _random(*shape: int, seed: int = 2) -> Any:
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def data_parallel() -> None:
    """A padded convolution of a batch, sharded or not, with a weight that every rank has."""
    from torch.distributed.tensor import Replicate, Shard

    def padded(x: Any, _: Any) -> Any:
        weight, bias = beside(x, _random(6, 3, 3, 3)), beside(x, _random(6, seed=3))
        return functional().conv2d(x, weight.requires_grad_(), bias.requires_grad_(), padding=1)

    _same(padded, (4, 3, 6, 8), Shard(0), Replicate())


def first_layer() -> None:
    """A convolution whose input needs no gradient, with patches, and with padding but no bias."""
    from torch.distributed.tensor import Replicate

    def patches(x: Any, _: Any) -> Any:
        return functional().conv2d(beside(x, _random(4, 3, 6, 9)), x, stride=3)

    def padded(x: Any, _: Any) -> Any:
        return functional().conv2d(beside(x, _random(4, 3, 6, 8)), x, padding=1)

    for function in (patches, padded):
        _same(function, (6, 3, 3, 3), Replicate())


def sharded_weight() -> None:
    """A weight sharded as FSDP2 shards it, and along its inputs; batches sharded and not."""
    from torch.distributed.tensor import Shard

    def weight_only(x: Any, _: Any) -> Any:
        return functional().conv2d(beside(x, _random(4, 4, 6, 8)), x, padding=1)

    def batch_and_weight(x: Any, place: Any) -> Any:
        return functional().conv2d(place(_random(4, 4, 6, 8)), x, place(_random(6, seed=3)), padding=1)

    for function in (weight_only, batch_and_weight):
        _same(function, (6, 4, 3, 3), Shard(0), Shard(1))


def sharded_channels() -> None:
    """Inputs sharded along channels: an ordinary convolution, and a depthwise one."""
    from torch.distributed.tensor import Shard

    def ordinary(x: Any, place: Any) -> Any:
        return functional().conv2d(x, beside(x, _random(6, 4, 3, 3)), padding=1)

    def depthwise(x: Any, place: Any) -> Any:
        return functional().conv1d(x.flatten(2), beside(x, _random(4, 1, 3)), padding=1, groups=4)

    for function in (ordinary, depthwise):
        _same(function, (4, 4, 2, 5), Shard(1))


def sharded_pixels() -> None:
    """Inputs sharded along rows or columns: neighbours that another rank has, and patches."""
    from torch.distributed.tensor import Shard

    def neighbours(x: Any, _: Any) -> Any:
        return functional().conv2d(x, beside(x, _random(6, 3, 3, 3)), padding=1)

    def overlapping(x: Any, _: Any) -> Any:
        return functional().conv2d(x, beside(x, _random(6, 3, 3, 3)))

    def patches(x: Any, _: Any) -> Any:
        return functional().conv2d(x, beside(x, _random(6, 3, 2, 2)), stride=2)

    for function in (neighbours, overlapping, patches):
        _same(function, (4, 3, 4, 8), Shard(3), Shard(2))


def transposed() -> None:
    """``conv_transpose2d`` and ``conv_transpose1d`` of batches, and with a sharded weight."""
    from torch.distributed.tensor import Shard

    def of_batch(x: Any, _: Any) -> Any:
        return functional().conv_transpose2d(
            x, beside(x, _random(4, 6, 3, 3)), stride=2, output_padding=1
        )

    def of_weight(x: Any, place: Any) -> Any:
        return functional().conv_transpose1d(place(_random(4, 4, 6)), x.flatten(2))

    _same(of_batch, (4, 4, 3, 5), Shard(0))
    _same(of_weight, (4, 6, 1, 3), Shard(0), Shard(1))


def _same(function: Callable[[Any, Any], Any], shape: tuple[int, ...], *placements: Any) -> None:
    reproduce.assert_same_sharded(function, shape=shape, placements=placements, rtol=1e-4, atol=1e-5)


_WRONG = (
    r"AssertionError: .*(output 0 differs|the gradient differs|only one of the two runs has a gradient)"
)
_REFUSED = (
    r"Error: .*(Given (groups|transposed)=|could not create a primitive descriptor|"
    r"It requires that input_size|Stride must be 1|op=aten\.convolution\.default|"
    r"aten::convolution_backward)"
)

#: Where only the batch is sharded; and where nothing is.
_OF_BATCHES = Affected(since="2.5.0", fixed_in=("2.10.0",))
_OF_REPLICAS = Affected(since="2.5.0", fixed_in=("2.12.0",))

SHIM = Shim(
    key="dtensor_convolution",
    summary="a convolution of sharded DTensors is wrong; up to 2.11 a padded one of replicas is, too",
    symptom=(
        "No error, mostly: conv2d with a weight sharded along dimension 0 returns the part of the "
        "output channels that a rank has as if it were all; with an input sharded along channels, rows "
        "or columns the numbers are wrong. Up to 2.9 a padded convolution is wrong and has no gradient "
        "for its input even where only the batch is sharded, or nothing is; up to 2.11 the gradients of "
        "replicas are wrong. Else RuntimeError: Given groups=1, weight of size [...], or: It requires "
        "that input_size[3] is divisible by stride[1]"
    ),
    cause=(
        "DTensor handles convolutions on its own. The handler runs the operator on what every rank has, "
        "without the moves that the propagated placements ask for, and exchanges columns between "
        "neighbouring ranks wherever there is padding (up to 2.9), or wherever a placement of more "
        "than the batch says so. The exchange's backward returns no gradient."
    ),
    cure=(
        "A handler that leaves batches sharded, and rows or columns too where the convolution cuts "
        "patches (stride equal to the kernel, no padding, no border within one). Everything else is "
        "gathered first; gradients of weight and bias wait as sums."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/issues/191926",
        "https://github.com/pytorch/pytorch/pull/186129",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        reproduce.on_two_ranks(data_parallel, _WRONG, affected=_OF_BATCHES),
        reproduce.on_two_ranks(first_layer, f"({_WRONG}|{_REFUSED})", affected=_OF_REPLICAS),
        *(
            reproduce.on_two_ranks(run, f"({_WRONG}|{_REFUSED})")
            for run in (sharded_weight, sharded_channels, sharded_pixels, transposed)
        ),
    ),
    removable_when="torch moves the inputs of a convolution before it runs it",
    notes=(
        "Gathers the weight and whatever is sharded along channels, or along rows and columns whose "
        "neighbours are needed: memory and time of a whole convolution on every rank. Up to 2.11 that "
        "includes a forward that torch does right, of columns with neighbours on a mesh of all ranks; "
        "its backward has no gradient for the input."
    ),
)

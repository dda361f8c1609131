"""Reduce-scatter on gloo by all-reduces, of which every rank keeps its own part.

Imports torch only when called.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .edits import Call, Edit
from .targets import lookup

__all__ = [
    "C10D",
    "NEEDED",
    "flat_pieces",
    "functional_kernels",
    "gloo_in",
    "goes_to_gloo",
    "is_sum",
    "options_for",
    "reduce_scatter",
    "spelled_out",
]

C10D = "torch._C._distributed_c10d"
#: What this module cannot do without.
NEEDED = tuple(
    f"{C10D}:{name}" for name in ("AllreduceOptions", "ReduceScatterOptions", "ReduceOp", "Work")
)
#: C++ may be the only holder of a Work, and would then wait by the method of the base class.
_unfinished: set[Any] = set()
#: A kernel goes when its library does, even if nobody asked for it.
_libraries: list[Any] = []


def spelled_out(
    output_tensors: Any = None,
    input_tensors: Any = None,
    opts: Any = None,
    *,
    output: Any = None,
    input: Any = None,
    op: Any = None,
) -> tuple[Any, Any, Any]:
    """Return outputs, lists of inputs and options of a call, which may be the one for one output."""
    outputs = output_tensors if output is None else output
    inputs = input_tensors if input is None else input
    how = opts if op is None else op
    if not hasattr(how, "reduceOp"):
        how = options_for(how)
    return ([outputs], [inputs], how) if hasattr(outputs, "device") else (outputs, inputs, how)


def options_for(op: Any = None) -> Any:
    """Return the options of a reduce-scatter with an op; to sum, where none is given."""
    options: Any = lookup(f"{C10D}:ReduceScatterOptions")()
    if op is not None:
        options.reduceOp = op
    return options


def is_sum(op: Any) -> bool:
    """Whether gloo does what it is asked for."""
    import torch

    return bool(op == torch.distributed.ReduceOp.SUM)


def goes_to_gloo(group: Any, *tensors: Any) -> bool:
    """Whether a group has gloo work on these tensors."""
    import torch

    if any(one.device.type != "cpu" for one in tensors):
        return False
    return gloo_in(group._get_backend(torch.device("cpu"))) is not None


def gloo_in(backend: Any) -> Any:
    """Return the gloo that a group's backend is, or wraps; None for other backends."""
    inner = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
    gloo: Any = lookup(f"{C10D}:ProcessGroupGloo", None)
    return inner if gloo is not None and isinstance(inner, gloo) else None


def flat_pieces(group: Any, whole: Any) -> list[Any]:
    """Split an input into what each of the ranks is to get of it."""
    return list(whole.reshape(-1).tensor_split(group.size()))


def reduce_scatter(group: Any, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any) -> Any:
    """Start all-reduces, and return the Work that has filled the outputs when it is done.

    Args:
        group: the process group.
        outputs: tensors of any shapes.
        inputs: for each output a list with one tensor for every rank of the group, of any
            shapes; the one for this rank has as many elements as the output.
        opts: ``ReduceScatterOptions``.

    Raises:
        ValueError: numbers of elements, or dtypes, do not fit.
        RuntimeError: integers are to be averaged, as on torch 2.9.
    """
    import torch
    from torch.distributed import ReduceOp

    rank, ranks = group.rank(), group.size()
    for output, pieces in zip(outputs, inputs):
        _check(output, pieces, rank, ranks)
    options: Any = lookup(f"{C10D}:AllreduceOptions")()
    options.timeout = opts.timeout
    average = opts.reduceOp == ReduceOp.AVG  # which gloo's all-reduce refuses
    options.reduceOp = ReduceOp.SUM if average else opts.reduceOp
    parts, works = [], []
    for output, pieces in zip(outputs, inputs):
        whole = torch.cat([piece.detach().reshape(-1) for piece in pieces])
        if average:
            whole.div_(ranks)
        parts.append((output, whole.split([piece.numel() for piece in pieces])[rank]))
        works.append(group.allreduce([whole], options))
    return _work_class()(works, parts)


@functools.cache
def _work_class() -> Any:
    """Make the Work that fills outputs in the thread that waits, as gloo's own do.

    Not a callback of futures: gloo would run it in a thread that takes the interpreter's lock,
    for which destroy_process_group, which holds the lock, waits forever.
    """
    import torch

    def __init__(self: Any, works: list[Any], parts: list[tuple[Any, Any]]) -> None:
        torch.distributed.Work.__init__(self)
        self.works, self.parts = works, parts
        _unfinished.add(self)

    def wait(self: Any, *timeout: Any, **named: Any) -> bool:
        for work in self.works:
            work.wait(*timeout, **named)
        parts, self.parts = self.parts, []
        for output, part in parts:
            with torch.inference_mode(output.is_inference()), torch.no_grad():
                output.copy_(part.view(output.shape))
        _unfinished.discard(self)
        return True

    def is_completed(self: Any) -> bool:
        return all(work.is_completed() for work in self.works) and wait(self)

    methods = {"__init__": __init__, "wait": wait, "is_completed": is_completed}
    return type("ReduceScatterWork", (torch.distributed.Work,), methods)


def _check(output: Any, pieces: Sequence[Any], rank: int, ranks: int) -> None:
    if len(pieces) != ranks or pieces[rank].numel() != output.numel():
        total = sum(piece.numel() for piece in pieces)
        raise ValueError(
            f"reduce-scatter over {ranks} ranks cannot fill an output of {output.numel()} elements "
            f"from inputs of {total}"
        )
    if any(piece.dtype != output.dtype for piece in pieces):
        raise ValueError(f"reduce-scatter from {pieces[rank].dtype} to {output.dtype}: dtypes differ")


def functional_kernels() -> Edit:
    """Kernels that are asked for tensors on the CPU before the one for every device."""
    import torch

    def several(inputs: Any, reduce_op: str, group_size: int, group_name: str) -> Any:
        from torch.distributed import ReduceOp, distributed_c10d

        resolve: Any = distributed_c10d.__dict__["_resolve_process_group"]
        group = resolve(group_name)
        op = getattr(ReduceOp, reduce_op.upper(), ReduceOp.SUM)  # one unknown is torch's to refuse
        if is_sum(op) or not goes_to_gloo(group, *inputs):
            return _elsewhere(inputs, reduce_op, group_size, group_name)
        outputs = [one.new_empty(one.shape[0] // group_size, *one.shape[1:]) for one in inputs]
        pieces = [flat_pieces(group, one) for one in inputs]
        reduce_scatter(group, outputs, pieces, options_for(op)).wait()
        return outputs

    def one(input: Any, reduce_op: str, group_size: int, group_name: str) -> Any:
        return several([input], reduce_op, group_size, group_name)[0]

    def do() -> None:
        library: Any = torch.library.Library("_c10d_functional", "IMPL")
        _libraries.append(library)
        library.impl("reduce_scatter_tensor", one, "CPU")
        library.impl("reduce_scatter_tensor_coalesced", several, "CPU")

    def undo() -> None:
        while _libraries:
            _libraries.pop()._destroy()

    return Call("the kernels of _c10d_functional.reduce_scatter_tensor for the CPU", do, undo)


def _elsewhere(*args: Any) -> Any:
    """Call torch's own coalesced kernel, which stands at the keys of all devices."""
    import torch

    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    return torch.ops._c10d_functional.reduce_scatter_tensor_coalesced.default.redispatch(keys, *args)

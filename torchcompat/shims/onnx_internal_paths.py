"""Modules of the TorchScript ONNX exporter that moved."""

from __future__ import annotations

from importlib import import_module

from .. import moved
from ..gate import Affected
from ..shim import Reproducer, Shim

_ROWS = {
    "torch.onnx:_type_utils": "torch.onnx._internal.torchscript_exporter._type_utils",
    "torch.onnx:_globals": "torch.onnx._internal.torchscript_exporter._globals",
    "torch.onnx._internal:jit_utils": "torch.onnx._internal.torchscript_exporter.jit_utils",
    "torch.onnx._internal:registration": "torch.onnx._internal.torchscript_exporter.registration",
    "torch.onnx._internal:onnx_proto_utils": (
        "torch.onnx._internal.torchscript_exporter.onnx_proto_utils"
    ),
}

probe, edits = moved.modules(__name__, _ROWS)


def import_old_paths() -> None:
    """Import the modules by their old names, in both ways, and find today's in them."""
    import torch

    # Strings, since a type checker knows one torch only.
    names = [old.replace(":", ".") for old in _ROWS]
    found = {name.rpartition(".")[2]: import_module(name) for name in names}
    scope: dict[str, object] = {}
    exec("from torch.onnx import _type_utils\nfrom torch.onnx._internal import jit_utils", scope)
    for name in ("_type_utils", "jit_utils"):
        if scope[name] is not found[name]:
            raise AssertionError(f"there are two modules {name}")
    if found["_type_utils"].JitScalarType is not torch.onnx.JitScalarType:  # type: ignore[attr-defined, unused-ignore]
        raise AssertionError("_type_utils is another module than torch.onnx itself uses")


SHIM = Shim(
    key="onnx_internal_paths",
    summary="torch.onnx._type_utils, ._internal.jit_utils and their like can be imported again",
    symptom="ModuleNotFoundError: No module named 'torch.onnx._type_utils'",
    cause="2.9 moved the TorchScript exporter's modules to torch.onnx._internal.torchscript_exporter.",
    cure=(
        "The modules torch.onnx._type_utils and _globals, and torch.onnx._internal.jit_utils, "
        "registration and onnx_proto_utils, are put under their old names too, as the same modules."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/tree/v2.9.0/torch/onnx/_internal/torchscript_exporter",
        "https://github.com/NVIDIA/Model-Optimizer/pull/356",
    ),
    affected=Affected(since="2.9.0"),
    modules=("torch.onnx",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="import_old_paths",
            run=import_old_paths,
            expect=r"ModuleNotFoundError: No module named 'torch\.onnx\.",
            preload=("torch.onnx",),
        ),
    ),
    removable_when="none of your dependencies imports these modules",
    notes="torch.onnx.dynamo_export, which went in 2.9 too, stays gone: call export(..., dynamo=True).",
)

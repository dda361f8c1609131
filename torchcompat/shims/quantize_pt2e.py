"""``torch.ao.quantization.quantize_pt2e`` and its quantizers are in torchao now."""

from __future__ import annotations

from typing import Any

from .. import moved
from ..gate import Affected
from ..shim import Reproducer, Shim

_ROWS = {
    "torch.ao.quantization:quantize_pt2e": "torchao.quantization.pt2e.quantize_pt2e",
    "torch.ao.quantization:quantizer": "torchao.quantization.pt2e.quantizer",
    "torch.ao.quantization:pt2e": "torchao.quantization.pt2e",
}

probe, edits = moved.forwarding_modules(
    __name__, _ROWS, "torch 2.11 has handed it over to torchao: python -m pip install torchao"
)


def import_and_call() -> None:
    """Import a function by its old name; without torchao the error says what to install."""
    import sys
    from importlib.machinery import PathFinder
    from types import ModuleType

    import torch.ao.quantization as home

    if PathFinder.find_spec("torch.ao.quantization.quantize_pt2e", list(home.__path__)) is not None:
        return  # torch has its own, which takes seconds to import
    from torch.ao.quantization import quantize_pt2e  # type: ignore[attr-defined, unused-ignore]

    names = ["torchao", "torchao.quantization", "torchao.quantization.pt2e"]
    held = {name: sys.modules.get(name) for name in (*names, f"{names[2]}.quantize_pt2e")}
    try:
        for name in held:
            sys.modules[name] = None  # type: ignore[assignment]
        try:
            quantize_pt2e.prepare_pt2e  # noqa: B018
        except ImportError as error:
            if "pip install torchao" not in str(error):
                raise
        else:
            raise AssertionError("prepare_pt2e came from nowhere")
        made: Any = ModuleType(f"{names[2]}.quantize_pt2e")
        made.prepare_pt2e = import_and_call
        sys.modules.update({name: ModuleType(name) for name in names}, **{made.__name__: made})
        scope: dict[str, Any] = {}
        exec("from torch.ao.quantization.quantize_pt2e import prepare_pt2e", scope)
        if scope["prepare_pt2e"] is not import_and_call:
            raise AssertionError("another prepare_pt2e came")
    finally:
        for name, module in held.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


SHIM = Shim(
    key="quantize_pt2e",
    summary="torch.ao.quantization.quantize_pt2e, quantizer and pt2e forward to torchao",
    symptom="ModuleNotFoundError: No module named 'torch.ao.quantization.quantize_pt2e'",
    cause="2.11 took the PT2E quantization flow out of torch; it lives on in torchao.",
    cure=(
        "The three old module names are there and forward to torchao.quantization.pt2e, which is "
        "imported when something of it is used. Without torchao the ImportError says what to install."
    ),
    upstream=("https://github.com/pytorch/ao/issues/2259",),
    affected=Affected(since="2.11.0"),
    modules=("torch.ao.quantization",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="import_and_call",
            run=import_and_call,
            expect="(ModuleNotFoundError|ImportError): .*quantize_pt2e",
            preload=("torch.ao.quantization",),
        ),
    ),
    removable_when="your dependencies import torchao themselves",
    notes=(
        "Modules within torch.ao.quantization.quantizer, such as x86_inductor_quantizer, are not "
        "forwarded: take their names from quantizer itself or from torchao. XNNPACKQuantizer is in "
        "executorch now."
    ),
)

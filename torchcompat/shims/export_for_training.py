"""``torch.export.export_for_training`` is gone."""

from __future__ import annotations

from .. import moved
from ..gate import Affected
from ..shim import Reproducer, Shim

probe, edits = moved.names(__name__, {"torch.export:export_for_training": "torch.export.export"})


def export_a_module() -> None:
    """Export a module through the old name, and run it."""
    import torch
    from torch.export import export_for_training  # type: ignore[attr-defined, unused-ignore]

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) + 1

    x = torch.ones(3)
    program = export_for_training(Module(), (x,), strict=False)
    if not torch.equal(program.module()(x), torch.sin(x) + 1):
        raise AssertionError("the exported module computes something else")


SHIM = Shim(
    key="export_for_training",
    summary="torch.export.export_for_training is back",
    symptom="ImportError: cannot import name 'export_for_training' from 'torch.export'",
    cause="From 2.9 on export does the same as export_for_training, which went in 2.11.",
    cure="torch.export.export is put under the old name too, as the same function.",
    upstream=(
        "https://github.com/pytorch/pytorch/pull/171714",
        "https://github.com/pytorch/pytorch/pull/158203",
    ),
    affected=Affected(since="2.11.0"),
    modules=("torch.export",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="export_a_module",
            run=export_a_module,
            expect="ImportError: cannot import name 'export_for_training'",
            runnable=Affected(since="2.5.0"),
            needs="torch.export.export_for_training, which came with it",
            preload=("torch._dynamo", "torch._inductor.codecache", "torch.export._trace"),
        ),
    ),
    removable_when="none of your dependencies calls export_for_training",
)

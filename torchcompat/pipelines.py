"""Stages of pipelines for reproducers. Imports torch only when called."""

from __future__ import annotations

from typing import Any

__all__ = ["PRELOAD", "linears", "stage_of"]

#: What a reproducer with a pipeline needs.
PRELOAD = ("torch.distributed.pipelining", "torch._dynamo")


def linears(count: int) -> tuple[list[Any], list[Any]]:
    """Build linear layers of width 4 twice, with the same parameters on every rank."""
    import copy

    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4) for _ in range(count)]
    return layers, copy.deepcopy(layers)


def stage_of(layers: list[Any], index: int, rows: int, *, group: Any = None) -> Any:
    """Make a stage of one layer on the CPU.

    Gloo needs no first messages to connect neighbours, and on 2.9 they end the process (see
    ``pipeline_first_message``), so there are none.

    Args:
        layers: of the whole pipeline.
        index: of the layer.
        rows: of a microbatch, which is ``(rows, 4)``.
        group: process group, by default the whole world.
    """
    import torch
    from torch.distributed import pipelining

    example: Any = (torch.zeros(rows, 4),)
    stage: Any = pipelining.PipelineStage(
        layers[index], index, len(layers), torch.device("cpu"), input_args=example, group=group
    )
    stage._get_init_p2p_neighbors_ops = list
    return stage

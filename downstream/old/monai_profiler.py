"""MONAI's profiling decorator, which asks for ``use_cuda`` of torch's profiler."""

import contextlib
import io

import torch
from monai.utils import torch_profiler_full


@torch_profiler_full
def product() -> torch.Tensor:
    return torch.ones(3, 3) @ torch.ones(3, 3)


with contextlib.redirect_stdout(io.StringIO()) as told:
    assert product()[0, 0] == 3
assert "aten::mm" in told.getvalue(), told.getvalue()

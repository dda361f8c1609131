"""The cure of autocast_no_grad_cache inside compiled and scripted code."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_compiled_steps_have_eager_gradients(python):
    """In one graph, and with a graph break between no_grad's beginning and its end."""
    out = python(
        """
        import torch
        import torchcompat

        torchcompat.apply("autocast_no_grad_cache", force=True)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
        x = torch.randn(4, 8)

        def step(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                with torch.no_grad():
                    look = model(x)
                return model(x) + 0 * look

        def broken(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                with torch.no_grad():
                    look = model(x)
                    torch._dynamo.graph_break()
                    look = look + 1
                return model(x) + 0 * look

        def gradients(step):
            model.zero_grad()
            step(x).float().square().sum().backward()
            return [p.grad.clone() for p in model.parameters()]

        for function, whole in ((step, True), (broken, False)):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend="aot_eager", fullgraph=whole)
            torch.testing.assert_close(gradients(compiled), gradients(function), rtol=2e-2, atol=2e-2)
        print("equal")
        """
    ).stdout
    assert out.strip().endswith("equal")


SCRIPTED = """
import torch

def double(x):
    with torch.no_grad():
        y = x * 2
    return y + x
"""


def test_scripted_code_still_compiles(python, tmp_path):
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    out = python(
        """
        import warnings
        import torch
        import torchcompat
        import scripted

        torchcompat.apply("autocast_no_grad_cache", force=True)
        warnings.simplefilter("ignore")  # newer builds are done with torch.jit
        x = torch.ones(2, requires_grad=True)
        torch.jit.script(scripted.double)(x).sum().backward()
        print(x.grad.tolist())
        """,
        path=(tmp_path,),
    ).stdout
    assert out.strip().endswith("[1.0, 1.0]")

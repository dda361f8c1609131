from __future__ import annotations

import pytest

LATE = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "torch._inductor",
    "torch.onnx",
)


def test_import_torchcompat_loads_only_itself(python):
    out = python(
        """
        import sys
        before = set(sys.modules)
        import torchcompat
        print(sorted(set(sys.modules) - before))
        """,
        env={"PYTHONNOUSERSITE": "1"},
    )
    assert out.stdout.strip() == "['__future__', 'torchcompat']"


def test_no_module_imports_torch_at_its_top(python):
    out = python(
        """
        import pkgutil, sys, importlib, torchcompat
        for info in pkgutil.walk_packages(torchcompat.__path__, "torchcompat."):
            if not info.name.endswith(("__main__", "pytest_plugin")) and "bootstrap" not in info.name:
                importlib.import_module(info.name)
        print(sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "rich", "pytest")))
        """
    )
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "call", ["apply_all()", "apply('sac_profiler')", "status()", "plan()", "torch_build()"]
)
def test_no_call_imports_torch(python, fake_torch, call):
    folder = fake_torch(init="raise SystemExit('torch was imported')")
    python(f"import torchcompat; torchcompat.{call}", path=[folder])


@pytest.mark.torch
def test_after_import_torch_no_submodule_is_loaded_for_our_sake(python):
    out = python(
        f"""
        import sys, torch, torchcompat
        before = {{name for name in sys.modules if name.partition(".")[0] == "torch"}}
        torchcompat.apply_all()
        torchcompat.status()
        # What stands in for a module that is gone was put there, not imported: it has no spec.
        after = {{
            name for name, module in sys.modules.items()
            if name.partition(".")[0] == "torch" and (name in before or module.__spec__ is not None)
        }}
        print(sorted(after - before), [name for name in {LATE!r} if name in after - before])
        """
    )
    assert out.stdout.strip() == "[] []"


@pytest.mark.torch
def test_the_finder_leaves_when_nobody_waits(python):
    out = python(
        """
        import sys, torchcompat
        ours = lambda: [f for f in sys.meta_path if type(f).__module__.startswith("torchcompat")]
        assert not ours()
        torchcompat.apply("sac_profiler", force=True)
        assert len(ours()) == 1
        import torch, torch.utils.checkpoint
        print(torchcompat.status()["sac_profiler"].state, ours())
        """
    )
    assert out.stdout.strip() in ("applied []", "already_fixed []")

"""What is measured, and against what."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import CLOCK, Case, Measure, child, printed

APPLY = "import torchcompat; torchcompat.apply_all()"


def startup() -> Iterator[Case]:
    """What a program pays before it does anything."""
    aims = {"typing_extensions": 0.5, "packaging.specifiers": None, "wrapt": None}
    for other, aim in aims.items():
        yield Case(
            "import torchcompat",
            f"import {other}",
            child("import torchcompat"),
            child(f"import {other}"),
            aim,
        )
    yield Case(
        "python -c 'import torchcompat'",
        "python -c pass",
        child("import torchcompat", result=CLOCK),
        child("pass", result=CLOCK),
    )
    after = f"import torch\nbegun = {CLOCK}\n"
    yield Case(
        "apply_all() after import torch",
        "import torch",
        child(after + APPLY),
        child("import torch"),
        0.003,
        share=True,
    )
    files = ast.literal_eval(printed(f"import torch, sys\n{APPLY}", LOADED))
    yield Case(
        "of it, only to read the bytecode of our modules",
        "import torch",
        child(after + bare(files)),
        child("import torch"),
        share=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        yield Case(
            "the floor: as many empty modules, imported",
            "import torch",
            child(after + empty_package(Path(folder), len(files))),
            child("import torch"),
            share=True,
        )
    yield Case(
        "apply_all(), then import torch",
        "import torch",
        child(f"{APPLY}; import torch"),
        child("import torch"),
        1.005,
    )


LOADED = "[m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'torchcompat']"


def bare(files: list[str]) -> str:
    """Read modules from their bytecode, without what they define."""
    return f"""
import marshal, importlib.util
for source in {files!r}:
    with open(importlib.util.cache_from_source(source), "rb") as file:
        marshal.loads(file.read()[16:])
"""


def empty_package(folder: Path, count: int) -> str:
    """Make a package of as many empty modules; returns the code that imports them all."""
    package = folder / "emptypackage"
    package.mkdir()
    names = [f"module{number}" for number in range(count - 1)]
    for name in ("__init__", *names):
        (package / f"{name}.py").write_text("", encoding="utf-8")
    imports = "; ".join(f"import emptypackage.{name}" for name in names)
    return f"import sys; sys.path.insert(0, {str(folder)!r}); {imports}"


UNRELATED = """
import sys, pathlib, tempfile
{setup}
folder = tempfile.mkdtemp()
pathlib.Path(folder, "unrelated_module.py").write_text("")
sys.path.insert(0, folder)
import unrelated_module
begun = time.process_time()
for _ in range(10000):
    del sys.modules["unrelated_module"]
    import unrelated_module
"""
GATES = """
from dataclasses import replace
import torchcompat
from torchcompat.engine import Engine
from torchcompat.registry import Registry
from torchcompat.shims.sac_profiler import SHIM
registry = Registry(builtin=(), plugins=False)
for number in range({count}):
    far = torchcompat.Affected(since="9.0.0")
    registry.register(replace(SHIM, key=f"shim_{{number}}", affected=far))
build = torchcompat.TorchBuild.parse("2.13.0")
def once():
    for entry in registry.entries():
        entry.affected.judge(build)
once()
begun = time.process_time()
for _ in range({repeat}):
    once()
"""
MEMORY = """
def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
import torch
before = resident()
import torchcompat
torchcompat.apply_all()
"""


def running() -> Iterator[Case]:
    """What it costs while nothing of it is used."""
    yield Case(
        "10,000 imports of an unrelated module, shims pending",
        "without torchcompat",
        child(UNRELATED.format(setup=APPLY)),
        child(UNRELATED.format(setup="")),
        1.01,
    )
    per_shim = f"({CLOCK} - begun) / 1000 / 20 * 1e6"
    yield Case(
        "gate of one of 1,000 shims that are OUT",
        "",
        child(GATES.format(count=1000, repeat=20), result=per_shim),
        aim=5.0,
        unit="µs",
    )
    yield Case(
        "gates of 1,000 shims, per shim",
        "of 100 shims, per shim",
        child(GATES.format(count=1000, repeat=20)),
        child(GATES.format(count=100, repeat=200)),
    )
    yield Case(
        "memory of import torchcompat and apply_all(), after import torch",
        "",
        child(MEMORY, result="resident() - before"),
        aim=2.0,
        unit="MiB",
    )


SAC = """
import functools, statistics, torch, torch.utils.checkpoint as c
{prepare}
policy = lambda ctx, op, *a, **k: c.CheckpointPolicy.PREFER_RECOMPUTE
context = functools.partial(c.create_selective_checkpoint_contexts, policy)
torch.set_num_threads(1)
def region(x):
    with torch.profiler.record_function("a range"):
        for _ in range(8):
            x = torch.sin(x @ x)
    return x
x = torch.randn(64, 64, requires_grad=True)
def step():
    begun = time.process_time()
    c.checkpoint(region, x, use_reentrant=False, context_fn=context).sum().backward()
    return time.process_time() - begun
times = [step() for _ in range(400)][100:]
"""
BY_HAND = """
for name in ("_record_function_enter", "_record_function_enter_new", "_record_function_exit"):
    packet = getattr(torch.ops.profiler, name)
    c.SAC_IGNORED_OPS.update(getattr(packet, overload) for overload in packet.overloads())
"""


def sac() -> Iterator[Case]:
    """A forward and backward under selective activation checkpointing."""

    def step(prepare: str) -> Measure:
        return child(SAC.format(prepare=prepare), result="statistics.median(times)")

    ours = step("import torchcompat; torchcompat.apply('sac_profiler', force=True)")
    yield Case("SAC forward and backward, sac_profiler", "patched by hand", ours, step(BY_HAND), 1.0)
    yield Case("SAC forward and backward, sac_profiler", "unpatched", ours, step(""), 1.0)


#: A call that runs patched code, by shim: what to do first, and the call.
CALLS = {
    "ldexp_overflow": ("x, n = torch.randn(4096), torch.randint(-9, 9, (4096,))", "torch.ldexp(x, n)"),
    "layer_norm_double_backward": (
        "m = torch.nn.LayerNorm(256); x = torch.randn(64, 256, requires_grad=True)",
        "m(x).sum().backward()",
    ),
    "rms_norm_dtype": ("m = torch.nn.RMSNorm(256); x = torch.randn(64, 256)", "m(x)"),
    "isin_bf16": ("x = torch.randint(9, (4096,)); y = torch.arange(3)", "torch.isin(x, y)"),
    "fp8_saturate": ("x = torch.randn(4096)", "x.to(torch.float64)"),
    "autocast_no_grad_cache": ("pass", "with torch.no_grad(): pass"),
    "clip_grad_mixed_mesh": (
        "import torch.nn.utils.clip_grad, torch.distributed.tensor\n"
        "p = [torch.nn.Parameter(torch.randn(64, 64)) for _ in range(64)]\n"
        "for q in p: q.grad = torch.randn(64, 64)",
        "torch.nn.utils.clip_grad_norm_(p, 1.0)",
    ),
}
CALL = """
import statistics, torch
{apply}
torch.set_num_threads(1)
{setup}
def call():
    {call}
def many():
    begun = time.process_time()
    for _ in range(100):
        call()
    return (time.process_time() - begun) / 100
times = [many() for _ in range(30)][10:]
"""

FSDP = """
import os, statistics, torch, torch.distributed as dist
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import tempfile
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
{apply}
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{{tempfile.mkdtemp()}}/store", rank=0, world_size=1)
mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
for layer in model:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 256)
def step():
    begun = time.process_time()
    model(x).float().square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return time.process_time() - begun
times = [step() for _ in range(60)][20:]
"""


def hot_paths() -> Iterator[Case]:
    """Patched functions that run in every step, forced onto this build."""
    for key, (setup, call) in CALLS.items():

        def timed(apply: str, setup: str = setup, call: str = call) -> Measure:
            code = CALL.format(apply=apply, setup=setup, call=call)
            return child(code, result="statistics.median(times)")

        forced = f"import torchcompat; torchcompat.apply({key!r}, force=True)"
        yield Case(f"{key}: {call}", "unpatched", timed(forced), timed(""), unit="µs")

    def step(apply: str) -> Measure:
        return child(FSDP.format(apply=apply), result="statistics.median(times)")

    yield Case(
        "a step of FSDP2 in bf16 with gradient clipping, apply_all()",
        "unpatched",
        step("import torchcompat; torchcompat.apply_all()"),
        step(""),
        1.01,
    )


GROUPS = {
    "Start": startup,
    "While training": running,
    "Selective activation checkpointing": sac,
    "Patched functions": hot_paths,
}

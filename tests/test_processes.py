"""Threads, and every kind of process: none hangs, none is left out, none is edited twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, child_environment
from figures import scaled

HERE = Path(__file__).parent

THREADS = """
import faulthandler, importlib, random, sys, threading
faulthandler.dump_traceback_later({limit}, exit=True)  # a deadlock ends here, and is shown
sys.setswitchinterval(1e-5)
sys.path.insert(0, {tests!r})
from dataclasses import replace
import torchcompat
from torchcompat import Affected, ReplaceAttr, absent, lookup, present
from torchcompat.engine import Engine
from torchcompat.registry import Registry
from fakes import make_shim

def shim(name):
    target = f"torch.{{name}}:says"
    def probe():
        return absent("loud", cured=True) if lookup(target)().endswith("!") else present("quiet")
    def louder(original):
        return lambda: original() + "!"
    return make_shim(name, target, probe=probe, edits=lambda: [ReplaceAttr(target, louder)],
                     affected=Affected(since=None))

NAMES = ("one", "two", "three")
registry = Registry(builtin=(), plugins=False)
for name in NAMES:
    registry.register(shim(name))
engine = Engine(registry)
problems, done = [], 0

def work(number, start):
    rng = random.Random(number)
    jobs = [engine.apply_all, engine.revert_all, engine.status]
    jobs += [lambda name=name: importlib.import_module(f"torch.{{name}}") for name in NAMES]
    jobs += [lambda name=name: engine.apply(name) for name in NAMES]
    jobs += [lambda name=name: engine.revert(name) for name in NAMES]
    start.wait()
    for _ in range({calls}):
        try:
            rng.choice(jobs)()
        except BaseException as error:
            problems.append(repr(error))

for round_ in range({rounds}):
    start = threading.Barrier({threads})
    threads = [threading.Thread(target=work, args=(round_ * 100 + n, start)) for n in range({threads})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in NAMES:
        importlib.import_module(f"torch.{{name}}")
    engine.apply_all()
    said = {{name: sys.modules[f"torch.{{name}}"].says() for name in NAMES}}
    assert set(said.values()) == {{"quiet!"}}, (round_, said)
    assert engine.status().applied == NAMES or len(engine.status().applied) == 3
    engine.revert_all()
    said = {{name: sys.modules[f"torch.{{name}}"].says() for name in NAMES}}
    assert set(said.values()) == {{"quiet"}}, (round_, said)
    assert not problems, problems[:3]
    done += {threads} * {calls}
    for name in [n for n in sys.modules if n.partition(".")[0] == "torch"]:
        del sys.modules[name]
    engine.status()
print(done)
"""


def test_threads_that_apply_revert_and_import_at_once(python, fake_torch, figure):
    # Not a package that imports a submodule of its own: Python itself then finds a deadlock now and
    # then, where another thread imports that submodule first.
    folder = fake_torch(init="import time\ntime.sleep(0.002)\n")
    for name in ("one", "two", "three"):
        (folder / "torch" / f"{name}.py").write_text(
            "import time\ntime.sleep(0.001)\ndef says():\n    return 'quiet'\ntime.sleep(0.001)\n"
        )
    rounds = min(150, scaled(15))
    script = THREADS.format(tests=str(HERE), limit=60 + rounds, calls=20, rounds=rounds, threads=8)
    out = python(script, path=[folder], timeout=120 + 2 * rounds)
    figure("calls by eight threads at once, importing too", int(out.stdout))


CHILDREN = """
import multiprocessing, sys

def look(queue, name):
    import torch.utils.checkpoint as home
    import torchcompat
    queue.put([name, len(home.SAC_IGNORED_OPS), str(torchcompat.status()["sac_profiler"].state)])

if __name__ == "__main__":
    for name in ("fork", "spawn", "forkserver"):
        for loaded in (False, True):
            context = multiprocessing.get_context(name)
            queue = context.SimpleQueue()
            child = context.Process(target=look, args=(queue, name))
            child.start()
            print(*queue.get())
            child.join(30)
            import torch.utils.checkpoint
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="asks for fork")
def test_children_of_each_start_method_under_exec(tmp_path, fake_torch):
    """Before and after the parent has loaded torch; each child is cured once."""
    from test_cli import _torch_with_the_fault

    script = tmp_path / "job.py"
    script.write_text(CHILDREN)
    env = child_environment(_torch_with_the_fault(fake_torch), ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "torchcompat", "exec", "--", sys.executable, str(script)],
        capture_output=True, text=True, env=env, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kinds = ("fork", "spawn", "forkserver")
    assert done.stdout.splitlines() == [f"{kind} 1 applied" for kind in kinds for _ in range(2)]


@pytest.mark.torch
@pytest.mark.slow
def test_a_job_of_every_kind_of_process(tmp_path):
    """torchrun with two ranks; DataLoader workers; torch.compile's subprocess workers; asyncio."""
    env = child_environment(ROOT, *filter(None, sys.path))
    env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [
        sys.executable,
        "-m",
        "torchcompat",
        "exec",
        "--",
        sys.executable,
        "-m",
        "torch.distributed.run",
    ]
    command += ["--standalone", "--nproc-per-node=2", str(HERE / "processes_job.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told = [json.loads((tmp_path / f"told-{rank}").read_text()) for rank in (0, 1)]
    workers = [f"DataLoader worker, {kind}" for kind in ("fork", "spawn", "forkserver")]
    assert set(told[0]) == {"rank 0", "asyncio", *workers}
    assert set(told[1]) == {"rank 1", "asyncio", "compile worker"}
    for looked in told:
        for process, (state, layers) in looked.items():
            assert (state, layers) == ("applied", 1), process

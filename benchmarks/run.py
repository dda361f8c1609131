"""What torchcompat costs, each figure as a ratio to something measured in the same run.

    python benchmarks/run.py [--rounds N] [--json FILE]

Medians over interleaved rounds, with the quartiles; these are no assertions, machines
are noisy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable


def child(code: str) -> Callable[[], float]:
    """Seconds from the start of ``code`` to its end in a fresh interpreter."""
    program = "import time; t = time.perf_counter()\n" + code + "\nprint(time.perf_counter() - t)"

    def measure() -> float:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        return float(done.stdout.split()[-1])

    return measure


APPLY_AFTER = """
import torch
t = time.perf_counter()
import torchcompat; torchcompat.apply_all()
"""
MANY = """
import torchcompat
from dataclasses import replace
from torchcompat.engine import Engine
from torchcompat.registry import Registry
from torchcompat.shims.sac_profiler import SHIM
registry = Registry(builtin=(), plugins=False)
for number in range({count}):
    far = torchcompat.Affected(since="9.0.0")
    registry.register(replace(SHIM, key=f"shim_{{number}}", affected=far))
engine = Engine(registry)
engine.apply_all()
t = time.perf_counter()
engine.apply_all()
"""
UNRELATED = """
import sys
{setup}
t = time.perf_counter()
for _ in range(10000):
    try:
        import no_such_module_at_all
    except ImportError:
        pass
"""


def sac_step(prepare: str) -> Callable[[], float]:
    """Seconds of one SAC forward and backward, the median of many in one child."""
    code = f"""
import functools, statistics, torch, torch.utils.checkpoint as c
{prepare}
policy = lambda ctx, op, *a, **k: c.CheckpointPolicy.PREFER_RECOMPUTE
context = functools.partial(c.create_selective_checkpoint_contexts, policy)
def region(x):
    with torch.profiler.record_function("a range"):
        for _ in range(8):
            x = torch.sin(x @ x)
    return x
x = torch.randn(64, 64, requires_grad=True)
def step():
    begun = time.perf_counter()
    c.checkpoint(region, x, use_reentrant=False, context_fn=context).sum().backward()
    return time.perf_counter() - begun
times = [step() for _ in range(300)][50:]
t = time.perf_counter() - statistics.median(times)
"""
    return child(code)


BY_HAND = """
for name in ("_record_function_enter", "_record_function_enter_new", "_record_function_exit"):
    packet = getattr(torch.ops.profiler, name)
    c.SAC_IGNORED_OPS.update(getattr(packet, overload) for overload in packet.overloads())
"""

CASES: list[tuple[str, str, Callable[[], Callable[[], float]], Callable[[], Callable[[], float]]]] = [
    (
        "import torchcompat",
        "import typing_extensions",
        lambda: child("import torchcompat"),
        lambda: child("import typing_extensions"),
    ),
    (
        "import torchcompat",
        "import packaging.specifiers",
        lambda: child("import torchcompat"),
        lambda: child("import packaging.specifiers"),
    ),
    (
        "import torchcompat",
        "import wrapt",
        lambda: child("import torchcompat"),
        lambda: child("import wrapt"),
    ),
    (
        "apply_all() after import torch",
        "import torch",
        lambda: child(APPLY_AFTER),
        lambda: child("import torch"),
    ),
    (
        "apply_all(), then import torch",
        "import torch",
        lambda: child("import torchcompat; torchcompat.apply_all(); import torch"),
        lambda: child("import torch"),
    ),
    (
        "10,000 failing imports with a shim pending",
        "without",
        lambda: child(UNRELATED.format(setup="import torchcompat; torchcompat.apply_all()")),
        lambda: child(UNRELATED.format(setup="")),
    ),
    (
        "apply_all() over 1,000 shims that are OUT",
        "over 100",
        lambda: child(MANY.format(count=1000)),
        lambda: child(MANY.format(count=100)),
    ),
    (
        "SAC step, sac_profiler applied",
        "patched by hand",
        lambda: sac_step("import torchcompat; torchcompat.apply('sac_profiler', force=True)"),
        lambda: sac_step(BY_HAND),
    ),
    (
        "SAC step, sac_profiler applied",
        "unpatched",
        lambda: sac_step("import torchcompat; torchcompat.apply('sac_profiler', force=True)"),
        lambda: sac_step(""),
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    rows = []
    for name, against, ours, theirs in CASES:
        measure, reference = ours(), theirs()
        pairs = [(measure(), reference()) for _ in range(arguments.rounds)]
        ratios = sorted(a / b for a, b in pairs)
        low, median, high = statistics.quantiles(ratios, n=4)
        row = {
            "what": name,
            "against": against,
            "ours_ms": statistics.median(a for a, _ in pairs) * 1e3,
            "theirs_ms": statistics.median(b for _, b in pairs) * 1e3,
            "ratio": median,
            "quartiles": [low, high],
        }
        rows.append(row)
        print(
            f"{name} / {against}: {row['ratio']:.3f} [{low:.3f}, {high:.3f}]"
            f"  ({row['ours_ms']:.3f} ms / {row['theirs_ms']:.3f} ms)",
            flush=True,
        )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()

"""Run by tests/test_processes.py under ``torchcompat exec -- torchrun``: every kind of process in one job."""

from __future__ import annotations

import asyncio
import json
import os
import sys

KEY = "clip_grad_mixed_mesh"  # needed by every release


def look(_=None):
    """How this process is: the shim's state, and how often its edit was made."""
    import torch.nn.utils.clip_grad as home

    import torchcompat

    state = str(torchcompat.status()[KEY].state)
    function = getattr(home, "_get_total_norm", None) or home.clip_grad_norm_
    layers = 0
    while function.__globals__["__name__"].startswith("torchcompat"):
        layers, function = layers + 1, function.__wrapped__
    return [state, layers]


class Looks:
    """A dataset whose items are made in the worker."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return look()


def loaders(told):
    from torch.utils.data import DataLoader

    for kind in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Looks(), batch_size=None, num_workers=1, multiprocessing_context=kind)
        told[f"DataLoader worker, {kind}"] = next(iter(loader))


def compile_worker(told):
    import torch
    from processes_job import look  # the worker has another __main__
    from torch._inductor.async_compile import AsyncCompile, shutdown_compile_workers

    torch._inductor.config.compile_threads = 2
    told["compile worker"] = AsyncCompile.process_pool().submit(look).result(timeout=120)
    shutdown_compile_workers()


async def many(told):
    import torchcompat

    await asyncio.gather(*(asyncio.to_thread(torchcompat.apply_all) for _ in range(8)))
    told["asyncio"] = look()


def main():
    rank = int(os.environ["RANK"])
    import torch.distributed as dist

    import torchcompat

    told = {f"rank {rank}": look()}
    dist.init_process_group("gloo")
    torchcompat.check_ranks()
    loaders(told) if rank == 0 else compile_worker(told)
    asyncio.run(many(told))
    dist.barrier()
    with open(os.path.join(sys.argv[1], f"told-{rank}"), "w") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()

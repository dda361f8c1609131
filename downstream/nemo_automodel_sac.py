"""NeMo Automodel's own selective activation checkpointing, with its patch and with ours.

It adds the profiler's and FSDP2's ops to SAC_IGNORED_OPS by hand. Taken out, training
dies on torch 2.13 and newer; with torchcompat in its place it trains; with both, ours
sees that the work is done. Each case runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

CASES = ("theirs alone", "neither", "ours alone", "theirs, then ours", "ours, then theirs")
FAULT = "profiler._record_function_enter_new.default invocation index"


def case(name: str) -> None:
    import nemo_automodel.components.distributed.activation_checkpointing as automodel
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import torchcompat
    from torchcompat import reproduce

    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        batches = [torch.randn(4, 8) for _ in range(5)]
        want = reproduce.train(reproduce.moe_blocks(), batches)

        if name == "ours, then theirs":
            assert torchcompat.apply("sac_profiler").state == "applied"
        if "theirs" not in name:
            automodel.ensure_profiler_ops_sac_ignored = lambda: None
            automodel.ensure_fsdp_ops_sac_ignored = lambda: None
        model = reproduce.moe_blocks()
        automodel.apply_selective_checkpointing_to_layers(model, list(model.blocks), False)
        for block in model.blocks:
            fully_shard(automodel.unwrap_checkpoint_wrapper(block).experts, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if name in ("ours alone", "theirs, then ours"):
            state = torchcompat.apply_all()["sac_profiler"].state
            assert state == ("applied" if name == "ours alone" else "already_fixed"), state
        reproduce.assert_same_training(reproduce.train(model, batches), want)
        dist.destroy_process_group()


def main() -> None:
    if len(sys.argv) == 2:
        case(sys.argv[1])
        return
    for name in CASES:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, name], capture_output=True, text=True, check=False
        )
        if name == "neither":
            right = done.returncode != 0 and FAULT in done.stderr
            said = f"dies with {FAULT} N"
        else:
            right, said = done.returncode == 0, "trains, losses and gradients as without checkpointing"
        if not right:
            sys.exit(f"nemo-automodel, {name}: not as expected\n{done.stderr[-2000:]}")
        print(f"nemo-automodel, {name}: {said}")


if __name__ == "__main__":
    main()

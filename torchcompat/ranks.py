"""Compare the ranks of a job: the same torch, with the same shims.

A job whose ranks differ trains on, and is wrong or hangs where the patched code talks to
its peers. One gather of five numbers a rank tells; what differs is sent only then.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any

from .default import engine, registry
from .errors import RanksDisagreeError, TorchCompatError
from .report import Outcome, State

__all__ = ["check_ranks"]

_WORDS = 4  # of the digest, 64 bits each


def check_ranks(group: Any = None) -> None:
    """Raise on every rank if the ranks of a process group differ in torch or in shims.

    Call it on all ranks, once, after ``init_process_group`` and ``apply_all()``. It costs
    one gather of 40 bytes a rank; only where ranks differ, a second one says in what. A
    rank where a shim still waits for its module agrees with every other.

    Args:
        group: the process group; the default is the whole job. A rank that is not in it
            returns at once.

    Raises:
        RanksDisagreeError: on every rank, naming which ranks differ in what.
        TorchCompatError: there is no process group yet.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        raise TorchCompatError(
            "check_ranks() compares the ranks of a process group, and there is none yet; call it "
            "after torch.distributed.init_process_group(), and leave it out in a single process"
        )
    if group is None:
        group = dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
        return
    if dist.get_world_size(group) == 1:
        return
    mine = _facts()
    text = json.dumps(mine).encode()
    heads = _gather([*_digest(mine), len(text)], group, dist, "int64")
    if all(head[:_WORDS] == heads[0][:_WORDS] for head in heads):
        return
    longest = max(head[_WORDS] for head in heads)
    padded = text.ljust(longest, b" ")
    said = [json.loads(bytes(row)) for row in _gather(list(padded), group, dist, "uint8")]
    found = differences({dist.get_global_rank(group, i): facts for i, facts in enumerate(said)})
    if found:
        raise RanksDisagreeError(found)


def _facts() -> dict[str, Any]:
    """What this rank runs, ready for JSON."""
    report, waiting = engine.status(), engine.waiting()
    build = report.build

    def told(key: str, outcome: Outcome) -> list[Any]:
        state, reason = str(outcome.state), outcome.reason
        if outcome.state is State.PENDING and key not in waiting:
            state, reason = "not applied", "nobody has asked for it there"
        return [state, registry.entry(key).revision, reason]

    return {
        "torch": "none" if build is None else build.raw,
        "commit": None if build is None else build.sha,
        "shims": {key: told(key, outcome) for key, outcome in report.items()},
    }


def _digest(facts: dict[str, Any]) -> list[int]:
    # Reasons may name what is one rank's own, and a shim that waits and one that does not
    # have to be told apart by the details.
    shims = sorted(
        (key, state, revision)
        for key, (state, revision, _) in facts["shims"].items()
        if state in (State.APPLIED, State.PENDING)
    )
    text = json.dumps([facts["torch"], facts["commit"], shims])
    raw = hashlib.sha256(text.encode()).digest()
    return [int.from_bytes(raw[8 * i : 8 * i + 8], "big", signed=True) for i in range(_WORDS)]


def _gather(numbers: list[int], group: Any, dist: Any, dtype: str) -> list[list[int]]:
    """Gather a row of numbers from every rank: one collective."""
    import torch

    device = _device(str(dist.get_backend_config(group)))
    mine = torch.tensor(numbers, dtype=getattr(torch, dtype), device=device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    return [row.tolist() for row in rows]


def _device(config: str) -> str:
    """Choose the device of a small tensor, from a text such as ``cpu:gloo,cuda:nccl``."""
    devices = [piece.partition(":")[0] for piece in config.split(",") if ":" in piece]
    return "cpu" if "cpu" in devices or not devices else devices[0]


def differences(facts: dict[int, dict[str, Any]]) -> list[str]:
    """Say in what the facts of the ranks differ, one sentence a fault."""
    found = []
    builds: dict[tuple[Any, Any], list[int]] = {}
    for rank, said in facts.items():
        builds.setdefault((said["torch"], said["commit"]), []).append(rank)
    if len(builds) > 1:
        same_text = len({raw for raw, _ in builds}) < len(builds)
        named = (
            f"{raw}{f' (commit {commit})' if same_text else ''} on {_ranks(ranks)}"
            for (raw, commit), ranks in builds.items()
        )
        found.append(f"torch is {'; '.join(named)}")
    for key in sorted({key for said in facts.values() for key in said["shims"]}):
        groups: dict[str, list[int]] = {}
        reasons: dict[str, str] = {}
        for rank, said in facts.items():
            state, revision, reason = said["shims"].get(key, ("unknown", 0, "no such shim there"))
            if state == State.PENDING:
                continue  # undecided: its module is not loaded on this rank
            what = f"applied (revision {revision})" if state == State.APPLIED else state
            groups.setdefault(what, []).append(rank)
            reasons.setdefault(what, "" if state == State.APPLIED else f" ({reason})")
        applied = [what for what in groups if what.startswith("applied")]
        if applied and len(groups) > 1:
            order = [*applied, *(what for what in groups if what not in applied)]
            named = (f"{what} on {_ranks(groups[what])}{reasons[what]}" for what in order)
            found.append(f"the shim {key} is {'; '.join(named)}")
    return found


def _ranks(ranks: Iterable[int]) -> str:
    """Write ranks shortly: ``ranks 0-3, 6``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    only_one = len(runs) == 1 and len(runs[0]) == 1
    return f"{'rank' if only_one else 'ranks'} {', '.join(names)}"

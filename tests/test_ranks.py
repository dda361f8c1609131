"""check_ranks: what it says, and that every rank says it."""

from __future__ import annotations

import json
import pickle

import pytest

from torchcompat import RanksDisagreeError, TorchCompatError, check_ranks
from torchcompat.ranks import _device, _ranks, differences


def facts(torch="2.13.0", commit=None, **shims):
    return {"torch": torch, "commit": commit, "shims": shims}


ON, OFF, WAITS = ["applied", 1, "x"], ["disabled", 1, "switched off"], ["pending", 1, "y"]


def test_what_differs_is_said_once_with_its_ranks():
    said = differences({0: facts(a=ON), 1: facts(a=ON), 2: facts("2.12.1", a=OFF), 3: facts(a=ON)})
    assert said == [
        "torch is 2.13.0 on ranks 0-1, 3; 2.12.1 on rank 2",
        "the shim a is applied (revision 1) on ranks 0-1, 3; disabled on rank 2 (switched off)",
    ]


def test_one_version_of_two_commits():
    assert differences({0: facts(commit="aaaaaaa"), 1: facts(commit="bbbbbbb")}) == [
        "torch is 2.13.0 (commit aaaaaaa) on rank 0; 2.13.0 (commit bbbbbbb) on rank 1"
    ]


def test_revisions_and_shims_that_only_some_ranks_know():
    assert differences({0: facts(a=ON), 1: facts(a=["applied", 2, "x"])}) == [
        "the shim a is applied (revision 1) on rank 0; applied (revision 2) on rank 1"
    ]
    assert differences({0: facts(a=ON), 1: facts()}) == [
        "the shim a is applied (revision 1) on rank 0; unknown on rank 1 (no such shim there)"
    ]


def test_a_shim_that_waits_agrees_with_all():
    assert differences({0: facts(a=ON), 1: facts(a=WAITS)}) == []
    assert differences({0: facts(a=OFF), 1: facts(a=WAITS)}) == []
    assert differences({0: facts(a=OFF), 1: facts(a=["not_affected", 1, "z"])}) == [], "nobody applied"


@pytest.mark.parametrize(
    ("config", "device"),
    [("cpu:gloo,cuda:nccl", "cpu"), ("cuda:nccl", "cuda"), ("cpu:gloo,cuda:gloo", "cpu"), ("xpu:xccl", "xpu"), ("", "cpu")],
)  # fmt: skip
def test_the_tensor_is_where_the_backend_can_reach_it(config, device):
    assert _device(config) == device


def test_ranks_in_words():
    assert _ranks([3, 1, 0, 6]) == "ranks 0-1, 3, 6"
    assert _ranks([4]) == "rank 4"


def test_the_error_survives_pickling():
    error = pickle.loads(pickle.dumps(RanksDisagreeError(["torch is 1 on rank 0; 2 on rank 1"])))
    assert error.differences == ("torch is 1 on rank 0; 2 on rank 1",)
    assert "the ranks of this job disagree: torch is 1 on rank 0" in str(error)


def test_without_a_process_group():
    with pytest.raises(TorchCompatError, match="there is none yet; call it after"):
        check_ranks()


JOB = """
import json, os, sys, tempfile, time, traceback, warnings
import torch, torch.distributed as dist
from datetime import timedelta
import torchcompat
sys.path.insert(0, {tests!r})
from fakes import make_shim
torchcompat.status()

def edits():
    return [torchcompat.AddAttr("torch.nn.functional:added", lambda: 1)]

def demo(rank, apply=True, **changes):
    def look():
        here = hasattr(torch.nn.functional, "added")
        return torchcompat.absent("there", cured=True) if here else torchcompat.present("gone")
    torchcompat.register(make_shim("demo", "torch.nn.functional:added", **{{
        "probe": look, "edits": edits, "affected": torchcompat.Affected(since=None), **changes}}))
    if apply:
        torchcompat.apply("demo")

def alike(rank): demo(rank)
def one_without(rank): demo(rank, apply=rank != 1)
def revision(rank): demo(rank, revision=1 + (rank == 0))
def waiting(rank): demo(rank, **({{"modules": ("torch.never",)}} if rank == 0 else {{}}))
def build(rank):
    if rank == 1:
        torch.version.__version__ = "2.99.0"

def call(setup, rank, size, folder, of=None):
    setup(rank)
    dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank,
                            world_size=size, timeout=timedelta(seconds=60))
    counted = []
    for name in [n for n in dir(dist) if n.startswith(("all_", "gather", "broadcast", "reduce"))]:
        original = getattr(dist, name)
        setattr(dist, name, lambda *a, _o=original, _n=name, **k: (counted.append(_n), _o(*a, **k))[1])
    group = dist.new_group(of) if of else None
    try:
        torchcompat.check_ranks(group)
        answer = ["agree"]
        torchcompat.check_ranks(group)
    except torchcompat.RanksDisagreeError as error:
        answer = list(error.differences)
    return {{"said": answer, "collectives": counted}}

for name, size, of in {cases!r}:
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                try:
                    torch.set_num_threads(1)
                    said = call(globals()[name], rank, size, folder, of)
                except BaseException:
                    said = {{"error": traceback.format_exc()}}
                with open(f"{{folder}}/part-{{rank}}", "w") as file:
                    json.dump(said, file)
                os.rename(f"{{folder}}/part-{{rank}}", f"{{folder}}/said-{{rank}}")
                end = time.monotonic() + 20
                while len([n for n in os.listdir(folder) if n.startswith("said")]) < size:
                    assert time.monotonic() < end
                    time.sleep(0.005)
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        print("SAID", json.dumps([name, size, of, [json.load(open(f"{{folder}}/said-{{r}}")) for r in range(size)]]))
"""

DEMO = "the shim demo is applied (revision 1) on"
CASES = {
    ("alike", 3, None): None,
    ("waiting", 2, None): None,
    ("one_without", 2, None): [f"{DEMO} rank 0; not applied on rank 1 (nobody has asked for it there)"],
    ("one_without", 3, None): [f"{DEMO} ranks 0, 2; "],
    ("revision", 3, None): ["the shim demo is applied (revision 2) on rank 0; applied (revision 1) on ranks 1-2"],
    ("build", 3, None): ["on ranks 0, 2; 2.99.0"],
    ("one_without", 3, (0, 2)): None,
    ("one_without", 3, (1, 2)): [f"{DEMO} rank 2; "],
}  # fmt: skip


@pytest.mark.torch
def test_gloo_ranks(python, tmp_path):
    from conftest import ROOT

    cases = list(CASES)
    out = python(JOB.format(tests=str(ROOT / "tests"), cases=cases), timeout=180)
    lines = [json.loads(line[5:]) for line in out.stdout.splitlines() if line.startswith("SAID ")]
    assert len(lines) == len(cases)
    for (name, size, of), (_, _, _, ranks) in zip(cases, lines):
        where = f"{name} with {size} ranks, {of}"
        assert not any("error" in said for said in ranks), (where, ranks)
        members = [ranks[r] for r in of or range(size)]
        assert len({json.dumps(said["said"]) for said in members}) == 1, "every rank says the same"
        if CASES[name, size, of] is None:
            assert members[0]["said"] == ["agree"], where
            assert all(m["collectives"] in (["all_gather"] * 2, ["all_gather"] * 4) for m in members)
            one = ["all_gather"] * 2  # check_ranks was called twice
            assert name == "waiting" or all(m["collectives"] == one for m in members), where
        else:
            said = members[0]["said"]
            for piece, sentence in zip(CASES[name, size, of], said):
                assert piece in sentence, (where, said)
        for rank in set(range(size)) - set(of or range(size)):
            assert ranks[rank]["collectives"] == [], "a rank outside the group takes no part"

from __future__ import annotations

import json

import pytest

from torchcompat.gate import Verdict
from torchcompat.verify import Conclusion, Ran, Run, conclude, expectation

PASSED, DOCUMENTED, OTHERWISE = Run(Ran.PASSED), Run(Ran.DOCUMENTED), Run(Ran.OTHERWISE)


@pytest.mark.parametrize(
    ("without", "cured", "expected", "conclusion"),
    [
        (DOCUMENTED, PASSED, Verdict.IN, "needed"),
        (DOCUMENTED, PASSED, Verdict.UNKNOWN, "needed"),
        (DOCUMENTED, PASSED, Verdict.OUT, "gate too narrow"),
        (PASSED, PASSED, Verdict.IN, "obsolete"),
        (PASSED, PASSED, Verdict.OUT, "not needed"),
        (PASSED, PASSED, Verdict.EDGE, "not needed"),
        (DOCUMENTED, DOCUMENTED, Verdict.IN, "broken"),
        (DOCUMENTED, OTHERWISE, Verdict.OUT, "broken"),
        (PASSED, OTHERWISE, Verdict.IN, "harmful"),
        (PASSED, DOCUMENTED, Verdict.OUT, "harmful"),
        (OTHERWISE, PASSED, Verdict.IN, "unclear"),
        (OTHERWISE, OTHERWISE, Verdict.OUT, "unclear"),
    ],
)
def test_the_four_way_table(without, cured, expected, conclusion):
    got, advice = conclude(without, cured, expected)
    assert str(got) == conclusion
    assert advice
    assert got.is_right == (conclusion in ("needed", "not needed"))


@pytest.mark.parametrize(
    ("gate", "probe", "of_shim", "expected"),
    [
        (Verdict.IN, "absent", True, Verdict.IN),
        (Verdict.OUT, "present", True, Verdict.OUT),
        (Verdict.EDGE, "present", True, Verdict.IN),
        (Verdict.EDGE, "absent", True, Verdict.OUT),
        (Verdict.EDGE, "drifted", True, Verdict.EDGE),
        (Verdict.EDGE, "present", False, Verdict.EDGE),  # of which part, the probe does not say
        (Verdict.EDGE, "absent", False, Verdict.OUT),
    ],
)
def test_where_the_gate_cannot_tell_the_probe_does(gate, probe, of_shim, expected):
    assert expectation(gate, probe, of_shim=of_shim) is expected


SHIMS = """
    import os, signal, sys, time
    from dataclasses import replace
    from torchcompat import Affected, Reproducer, Shim, absent, drifted, lookup, present
    from torchcompat.edits import AddItems

    IGNORED = "torch.utils.checkpoint:SAC_IGNORED_OPS"

    def probe():
        return absent("in", cured=True) if "op" in lookup(IGNORED) else present("not in")

    def edits():
        return [AddItems(IGNORED, lambda: ["op"])]

    def fault():
        print("noise on stdout")
        if "op" not in lookup(IGNORED):
            raise RuntimeError("op not found in storage")

    def healthy(): pass
    def crash(): os.kill(os.getpid(), signal.SIGKILL)
    def leave(): os._exit(3)
    def hang(): time.sleep(60)
    def other(): raise KeyError("something else")
    def hurt_by_cure():
        if "op" in lookup(IGNORED):
            raise RuntimeError("op not found in storage")

    def shim(run, **fields):
        more = {k: fields.pop(k) for k in list(fields) if k in Reproducer.__dataclass_fields__}
        more.setdefault("expect", "RuntimeError: op not found in storage")
        return Shim(
            key=f"demo_{run.__name__}", summary="s", symptom="s", cause="c", cure="c", upstream=(),
            modules=("torch.utils.checkpoint",), probe=probe, edits=edits, removable_when="never",
            reproducers=(Reproducer(name="only", run=run, **more),),
            **{"affected": Affected(since="2.13.0"), **fields},
        )
"""


@pytest.fixture
def verified(python, fake_torch, tmp_path):
    """Verify shims made in a child, on a fake torch; returns the findings as JSON."""
    import textwrap

    (tmp_path / "demo_shims.py").write_text(textwrap.dedent(SHIMS))

    def run(expression, version="2.13.0", **options):
        folder = fake_torch(version, checkpoint="SAC_IGNORED_OPS = set()")
        out = python(
            f"""
            import json
            from torchcompat.verify import verify
            from demo_shims import *
            found = verify([{expression}])
            print(json.dumps({{"evidence": found.as_dict(), "logs": [f.without.log for f in found.findings]}}))
            """,
            path=[folder, tmp_path],
            **options,
        )
        return json.loads(out.stdout)

    return run


def finding(verified, expression, version="2.13.0"):
    return verified(expression, version)["evidence"]["findings"][0]


@pytest.mark.parametrize(
    ("expression", "version", "conclusion", "message"),
    [
        ("shim(fault)", "2.13.0", "needed", "RuntimeError: op not found in storage"),
        ("shim(fault)", "2.13.0a0+8145d630e8", "needed", "op not found"),
        ("shim(fault)", "banana", "needed", "op not found"),
        ("shim(fault)", "2.12.0", "gate too narrow", "op not found"),
        ("shim(fault, affected=Affected(since='2.14.0'))", "2.13.0", "gate too narrow", "op not found"),
        ("shim(healthy)", "2.13.0", "obsolete", ""),
        ("shim(healthy)", "2.12.0", "not needed", ""),
        ("shim(other)", "2.13.0", "unclear", "KeyError: 'something else'"),
        ("shim(crash)", "2.13.0", "unclear", "Crash: the child died of signal 9"),
        ("shim(leave)", "2.13.0", "unclear", "Crash: the child left with exit code 3"),
        ("shim(hang, timeout=0.5)", "2.13.0", "unclear", "Timeout: no result within 0.5 s"),
        ("shim(hurt_by_cure)", "2.13.0", "harmful", ""),
        ("shim(fault, expect='quite different')", "2.13.0", "unclear", "op not found"),
        (
            "shim(fault, affected=Affected(since='2.0.0', fixed_in=('2.12.0',)))",
            "2.13.0",
            "gate too narrow",
            "op",
        ),
        (
            "shim(fault, runnable=Affected(since='2.14.0'), needs='a newer torch')",
            "2.13.0",
            "not run",
            "",
        ),
        ("shim(fault, device='cuda')", "2.13.0", "not run", ""),
    ],
)
def test_conclusions_on_a_fake_torch(verified, expression, version, conclusion, message):
    found = finding(verified, expression, version)
    assert found["conclusion"] == conclusion, found
    assert message in found["without"]["message"]


@pytest.mark.parametrize(
    ("expression", "version", "says"),
    [
        ("shim(healthy)", "2.16.0", "write fixed_in=('2.16.0',)"),
        (
            "shim(healthy)",
            "2.16.0.dev20261130+cpu",
            "write fixed_in=('2.16.0',), first_good_nightly='20261130'",
        ),
        (
            "shim(healthy, affected=Affected(since='2.12.0', fixed_in=('2.13.1',)))",
            "2.13.0",
            "write fixed_in=('2.13.0', '2.13.1')",
        ),
        ("shim(fault)", "2.12.1", "write since='2.12.1', or the first release"),
        (
            "shim(fault, affected=Affected(since='2.0.0', fixed_in=('2.12.0', '2.14.0')))",
            "2.12.3",
            "take the fix that should reach 2.12.3 out of fixed_in, keeping 2.14.0",
        ),
    ],
)
def test_a_wrong_range_is_answered_with_the_bound_to_write(verified, expression, version, says):
    assert says in finding(verified, expression, version)["advice"]


def test_a_reproducer_with_a_range_of_its_own_is_cured_by_force(verified):
    found = finding(verified, "shim(fault, affected=Affected(since='2.14.0'))", "2.13.0")
    assert found["with"]["result"] == "passed", "the shim was applied against its gate"


def test_noise_does_not_break_the_protocol_and_is_kept_in_the_log(verified):
    found = verified("shim(fault)")
    assert "noise on stdout" in found["logs"][0]
    assert "RuntimeError: op not found" in found["logs"][0]


def test_an_unpicklable_shim_is_refused_with_its_name(python, fake_torch, tmp_path):
    folder = fake_torch()
    out = python(
        """
        from torchcompat.verify import verify
        from torchcompat import TorchCompatError
        import sys; sys.path.insert(0, %r)
        from fakes import make_shim
        try:
            verify([make_shim()])
        except TorchCompatError as error:
            print(error)
        """
        % str(__file__.rpartition("/")[0]),
        path=[folder],
    )
    assert "'demo'" in out.stdout
    assert "module-level functions" in out.stdout


def test_a_torch_that_cannot_be_imported(python, fake_torch):
    folder = fake_torch(init="raise ImportError('libcudart.so.12: cannot open shared object file')")
    out = python(
        """
        from torchcompat import cli
        raise SystemExit(cli.main(["verify"]))
        """,
        path=[folder],
        check=False,
    )
    assert out.returncode == 1
    assert "torch cannot be imported in a child process: " in out.stderr
    assert "libcudart.so.12" in out.stderr


def test_the_switches_do_not_reach_the_children(verified):
    found = verified("shim(fault)", env={"TORCHCOMPAT_DISABLE": "*"})
    assert found["evidence"]["findings"][0]["conclusion"] == "needed"


def test_the_evidence_says_what_it_is_about(verified):
    evidence = verified("shim(healthy)", "2.13.0a0+8145d630e8")["evidence"]
    assert evidence["schema"] == "torchcompat-evidence-1"
    assert evidence["torch"] == "2.13.0a0+8145d630e8"
    assert evidence["stage"] == "alpha"
    assert evidence["cuda_devices"] == 0
    assert isinstance(Conclusion.NEEDED.is_right, bool)

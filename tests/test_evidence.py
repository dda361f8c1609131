"""Evidence: the committed files against the shims of today, and the code that reads them."""

from __future__ import annotations

import copy
import json
import re
import textwrap
from dataclasses import replace

import pytest
from conftest import ROOT
from fakes import make_shim, nothing
from test_verify import SHIMS as SHIMS_ON_A_FAKE_TORCH

from torchcompat import Affected, Reproducer, cli
from torchcompat.builds import TorchBuild
from torchcompat.errors import InputError
from torchcompat.evidence import (
    build_of,
    compare,
    contradictions,
    file_name,
    from_dict,
    read,
    show,
    stale,
    write,
)
from torchcompat.gate import Verdict
from torchcompat.registry import Registry
from torchcompat.releases import RELEASES
from torchcompat.schema import load_schema, violations
from torchcompat.verify import Conclusion, Ran

FILES = sorted((ROOT / "evidence").glob("*.json"))
SHIMS = [shim for shim in Registry(plugins=False) if shim.retired is None]
AGAIN = "measure again: `nox -t matrix`, or the one cell with `nox -s 'tests(torch-X)'`"


# -- the committed files -------------------------------------------------------------


def test_every_release_has_its_evidence():
    assert {f"torch-{release}.json" for release in RELEASES} <= {path.name for path in FILES}, AGAIN


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_no_measurement_contradicts_a_shim(path):
    assert contradictions(read(path), SHIMS) == []


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_no_measurement_is_stale(path):
    assert stale(read(path), SHIMS) == [], AGAIN


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_file_is_about_the_build_that_it_names_and_about_no_machine(path):
    found = read(path)
    assert file_name(found) == path.name
    assert found.emulated or build_of(found).stage.is_release
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"[\" '(](?:/(?:home|root|tmp|usr|opt|work|var)/|[A-Z]:\\)", text)


# -- contradictions and staleness ----------------------------------------------------


def finding(conclusion="needed", **changes):
    """A finding of the shim ``demo`` as JSON values; the gate of :func:`make_shim` is 2.13.0 on."""
    ran = {
        "needed": ("failed as documented", "passed"),
        "not needed": ("passed", "passed"),
        "broken": ("failed as documented", "failed as documented"),
        "harmful": ("passed", "failed otherwise"),
        "unclear": ("failed otherwise", "passed"),
        "not run": ("not run", "not run"),
    }[conclusion]
    told = {
        "shim": "demo",
        "reproducer": "only",
        "revision": 1,
        "gate": "IN",
        "probe": "present" if conclusion == "needed" else "absent",
        "without": {"result": ran[0], "message": "ValueError: bad", "seconds": 0.1},
        "with": {"result": ran[1], "message": "", "seconds": 0.1},
        "conclusion": conclusion,
        "advice": "it was so",
    }
    return {**told, **changes}


def evidence(torch="2.13.0", *findings, emulated=None):
    build = TorchBuild.parse(torch)
    return {
        "schema": "torchcompat-evidence-1",
        "torchcompat": "0.1.0",
        "torch": torch,
        "git_version": "cf30153c4c131c8164ee7798e5022d810682e2cb",
        "stage": str(build.stage),
        "accelerator": build.accelerator,
        "emulated_from": emulated,
        "python": "3.11.7",
        "platform": "Linux x86_64 glibc 2.36",
        "cuda_devices": 0,
        "findings": list(findings),
    }


@pytest.mark.parametrize(
    ("torch", "measured", "affected", "says"),
    [
        ("2.13.0", "needed", Affected(since="2.13.0"), None),
        ("2.12.0", "not needed", Affected(since="2.13.0"), None),
        ("2.13.0", "not run", Affected(since="2.13.0"), None),
        ("2.12.0", "needed", Affected(since="2.13.0"), "gate too narrow; .* write since='2.12.0'"),
        ("2.14.0", "not needed", Affected(since="2.13.0"), r"obsolete; .* write fixed_in=\('2.14.0',\)"),
        (
            "2.14.0.dev20261130",
            "not needed",
            Affected(since="2.13.0", fixed_in=("2.13.1",), builds=()),
            None,
        ),
        (
            "2.15.0",
            "not needed",
            Affected(since="2.13.0", fixed_in=("2.16.0",)),
            r"write fixed_in=\('2.15.0', '2.16.0'\)",
        ),
        (
            "2.14.0.dev20261130+cpu",
            "not needed",
            Affected(since="2.12.0"),
            r"write fixed_in=\('2.14.0',\), first_good_nightly='20261130'",
        ),
        (
            "2.14.0",
            "needed",
            Affected(since="2.12.0", fixed_in=("2.14.0", "2.15.0")),
            r"take the fix that should reach 2.14.0 out of fixed_in, keeping 2.15.0",
        ),
        ("2.13.0", "broken", Affected(since="2.13.0"), "broken; "),
        ("2.13.0", "harmful", Affected(since="2.13.0"), "harmful; "),
        ("2.13.0", "unclear", Affected(since="2.13.0"), "unclear; "),
    ],
)
def test_a_contradiction_in_either_direction_names_the_bound_to_write(torch, measured, affected, says):
    found = from_dict(evidence(torch, finding(measured)))
    told = contradictions(found, [make_shim(affected=affected)])
    if says is None:
        assert told == []
    else:
        (sentence,) = told
        assert sentence.startswith(f"demo/only on torch {torch}: ")
        assert re.search(says, sentence), sentence


def test_a_reproducer_with_a_range_of_its_own_is_held_against_that_range():
    wider = Reproducer(name="only", run=nothing, expect="bad", affected=Affected(since="2.5.0"))
    found = from_dict(evidence("2.12.0", finding("needed")))
    assert contradictions(found, [make_shim(reproducers=(wider,))]) == []
    assert contradictions(found, [make_shim()]) != []


def test_where_the_gate_cannot_tell_the_probe_is_held_against_the_runs():
    edge = "2.13.0.dev20260601"
    assert make_shim().affected.verdict(TorchBuild.parse(edge)) is Verdict.EDGE
    right = from_dict(evidence(edge, finding("not needed", gate="EDGE")))
    assert contradictions(right, [make_shim()]) == []
    lying = from_dict(evidence(edge, finding("not needed", gate="EDGE", probe="present")))
    assert "obsolete" in contradictions(lying, [make_shim()])[0]


@pytest.mark.parametrize(
    ("change", "shim", "says"),
    [
        ({}, {}, None),
        ({"reproducer": "older"}, {}, "demo/only was not measured"),
        ({"reproducer": "older"}, {}, "demo/older .* is no longer there"),
        ({"shim": "gone"}, {}, "gone/only .* is no longer there"),
        ({"shim": "gone"}, {}, "demo/only was not measured"),
        ({}, {"revision": 2}, "measured at revision 1, now 2"),
        ({}, {"affected": Affected(since="2.14.0")}, "measured under the gate IN, now OUT"),
    ],
)
def test_stale_evidence_is_seen(change, shim, says):
    told = stale(from_dict(evidence("2.13.0", finding(**change))), [make_shim(**shim)])
    if says is None:
        assert told == []
    else:
        assert any(re.search(says, sentence) for sentence in told), told


# -- reading and writing -------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    def write_it(data, name="one.json"):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return str(path)

    return write_it


def test_what_is_read_is_what_was_written():
    data = evidence("2.13.0a0+8145d630e8", finding(), finding("not run"), emulated="2.13.0")
    assert from_dict(data).as_dict() == {**data, "git_version": data["git_version"]}
    assert [f.conclusion for f in from_dict(data).findings] == [Conclusion.NEEDED, Conclusion.NOT_RUN]
    assert from_dict(data).findings[0].without.ran is Ran.DOCUMENTED


def test_measuring_again_changes_no_file_unless_something_changed(tmp_path):
    first = from_dict(evidence("2.13.0+cu130", finding()))
    path = write(first, tmp_path / "new" / "folder")
    assert path.name == "torch-2.13.0.json"
    text = path.read_text()
    slower = copy.deepcopy(evidence("2.13.0+cu130", finding()))
    slower["findings"][0]["without"] |= {"seconds": 9.9, "message": "bad: ValueError"}
    write(from_dict(slower), path.parent)
    assert path.read_text() == text
    slower["findings"][0]["probe"] = "absent"
    write(from_dict(slower), path.parent)
    assert json.loads(path.read_text())["findings"][0]["probe"] == "absent"
    path.write_text("{ damaged")
    write(first, path.parent)
    assert path.read_text() == text


def test_an_emulated_build_gets_a_name_of_its_own(tmp_path):
    found = from_dict(evidence("2.13.0a0+8145d630e8", emulated="2.13.0"))
    assert write(found, tmp_path).name == "emulated-2.13.0a0+8145d630e8.json"


def test_seconds_are_rounded_in_the_file():
    found = from_dict(evidence("2.13.0", finding()))
    (one,) = found.findings
    exact = replace(found, findings=(replace(one, cured=replace(one.cured, seconds=1.2345)),))
    assert exact.as_dict()["findings"][0]["with"]["seconds"] == 1.2


BAD = [
    ("no JSON at all", "is no evidence file"),
    ("[]", "the document must be object, not []"),
    (evidence() | {"schema": "torchcompat-evidence-9"}, "must be 'torchcompat-evidence-1'"),
    ({k: v for k, v in evidence().items() if k != "torch"}, "lacks the field 'torch'"),
    (evidence() | {"more": 1}, "has an unknown field 'more'"),
    (evidence() | {"cuda_devices": -1}, "cuda_devices must be at least 0"),
    (evidence() | {"cuda_devices": True}, "cuda_devices must be integer, not true"),
    (evidence("2.13.0", finding(shim="Not A Key")), r"findings[0].shim must look like"),
    (evidence("2.13.0", finding(gate="MAYBE")), "findings[0].gate must be one of 'IN', 'OUT'"),
    (evidence("2.13.0", finding(), finding() | {"without": {}}), "findings[1].without lacks the field"),
]


@pytest.mark.parametrize(("data", "says"), BAD, ids=[says for _, says in BAD])
def test_bad_evidence_gets_one_sentence(file, capsys, data, says):
    path = file(data)
    assert cli.main(["evidence", "show", path]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchcompat: error: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert "torchcompat verify --json FILE" in captured.err


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)


# -- the schema ----------------------------------------------------------------------


def test_the_schema_uses_only_what_is_checked():
    def keywords(schema):
        for keyword, value in schema.items():
            yield keyword
            if keyword in ("properties", "$defs"):
                for inner in value.values():
                    yield from keywords(inner)
            elif isinstance(value, dict):
                yield from keywords(value)

    with pytest.raises(NotImplementedError, match="'maxLength'"):
        list(violations("x", {"maxLength": 1}))
    schema = load_schema()
    assert set(keywords(schema)) >= {"type", "const", "enum", "required", "pattern", "minimum", "items"}
    assert list(violations(evidence("2.13.0", finding(), finding("not run")), schema)) == []


def test_jsonschema_agrees():
    jsonschema = pytest.importorskip("jsonschema")
    schema = load_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator(schema)
    assert checker.is_valid(evidence("2.13.0", finding()))
    for data, _ in BAD[1:]:
        value = json.loads(data) if isinstance(data, str) else data
        assert not checker.is_valid(value)
    for path in FILES:
        assert checker.is_valid(json.loads(path.read_text()))


def test_the_schema_knows_every_word_that_verify_uses():
    words = load_schema()["$defs"]
    assert words["finding"]["properties"]["conclusion"]["enum"] == [str(c) for c in Conclusion]
    assert words["run"]["properties"]["result"]["enum"] == [str(r) for r in Ran]
    assert words["finding"]["properties"]["gate"]["enum"] == [str(v) for v in Verdict]


def test_verify_writes_what_the_schema_says(python, fake_torch, tmp_path):
    (tmp_path / "demo_shims.py").write_text(textwrap.dedent(SHIMS_ON_A_FAKE_TORCH))
    out = python(
        """
        import json
        from torchcompat.verify import verify
        from demo_shims import *
        shims = [shim(fault), shim(other), shim(healthy, device="cuda")]
        print(json.dumps(verify(shims).as_dict()))
        """,
        path=[fake_torch("2.13.0", checkpoint="SAC_IGNORED_OPS = set()"), tmp_path],
    )
    data = json.loads(out.stdout)
    assert list(violations(data, load_schema())) == []
    assert [f["conclusion"] for f in data["findings"]] == ["needed", "unclear", "not run"]


# -- the command ---------------------------------------------------------------------


def test_show(file, capsys):
    path = file(evidence("2.13.0", finding(), finding("unclear", shim="other")))
    assert cli.main(["evidence", "show", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "torch 2.13.0 (release)"
    assert lines[3].split()[:2] == ["demo/only", "needed"]
    assert lines[5] == "WRONG other/only: it was so"
    assert lines[6] == "  without: ValueError: bad"
    assert cli.main(["evidence", "show", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["torch"] == "2.13.0"


def test_show_reads_standard_input(monkeypatch, capsys):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(evidence("2.13.0"))))
    assert cli.main(["evidence", "show", "-"]) == 0
    assert "torch 2.13.0 (release)" in capsys.readouterr().out


def test_show_says_why_something_was_not_run_and_that_a_build_is_emulated():
    text = "\n".join(
        show(
            from_dict(
                evidence("2.13.0a0+8145d630e8", finding("not run", advice="needs X"), emulated="2.13.0")
            )
        )
    )
    assert "(alpha, emulated on 2.13.0)" in text
    assert text.splitlines()[-1].endswith("needs X")


def test_diff(file, capsys):
    old = evidence("2.14.1", finding(), finding(reproducer="same"), finding(reproducer="dropped"))
    new = evidence("2.15.0.dev20261130", finding("not needed"), finding(reproducer="same"))
    new["python"] = "3.12.1"
    paths = [file(old, "old.json"), file(new, "new.json")]
    assert cli.main(["evidence", "diff", *paths]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "from  torch 2.14.1 (release)",
        "to    torch 2.15.0.dev20261130 (nightly)",
        "python: 3.11.7 -> 3.12.1",
        "demo/only: conclusion: needed -> not needed; probe: present -> absent; "
        "without: failed as documented -> passed",
        "demo/dropped: only in the first",
        "1 changed, 1 the same",
    ]
    assert cli.main(["evidence", "diff", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"]["demo/only"]["probe"] == ["present", "absent"]


def test_seconds_and_messages_are_no_difference():
    quick = evidence("2.13.0", finding())
    slow = copy.deepcopy(quick)
    slow["findings"][0]["without"] |= {"seconds": 5.0, "message": "ValueError: bad, at 3"}
    told = compare(from_dict(quick), from_dict(slow))
    assert (told["changed"], told["same"]) == ({}, 1)


def test_the_schema_can_be_had_from_the_command_line(capsys):
    assert cli.main(["evidence", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$id"] == "urn:torchcompat:evidence-1"

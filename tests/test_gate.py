from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchcompat.builds import Stage, TorchBuild
from torchcompat.errors import GateError
from torchcompat.gate import Affected, NamedBuild, Verdict

RANGES = (
    Affected(since="2.13.0a0"),
    Affected(since="2.13.0", fixed_in=("2.14.0",)),
    Affected(since="2.9.0", fixed_in=("2.9.1", "2.10.0")),
)
TABLE = [
    line.split("\t")
    for line in (Path(__file__).parent / "data" / "gate_cases.tsv").read_text().splitlines()[1:]
]


def test_the_table_is_whole():
    assert len(TABLE) == 38


@pytest.mark.parametrize("row", TABLE, ids=[row[0] or "empty" for row in TABLE])
def test_table(row):
    raw, stage, *want = row[:5]
    build = TorchBuild.parse(raw)
    assert build.stage == Stage(stage)
    assert [str(range_.verdict(build)) for range_ in RANGES] == want


lines = st.tuples(st.just(2), st.integers(0, 20), st.integers(0, 3))
versions = lines.map(lambda line: ".".join(map(str, line)))
locals_ = st.sampled_from(["+cu130", "+cpu", "+gitabcdef0", "+8145d630e8.nv26.06", "+rocm7.0", "+fb"])
stages = st.sampled_from(["", "a0", "b1", "rc2", ".dev20260601", ".post1", "a0-dirty"])


@st.composite
def ranges(draw):
    since = draw(st.none() | lines)
    later = st.tuples(st.just(2), st.integers(0, 20), st.integers(0, 3))
    fixes = draw(st.lists(later, max_size=3, unique=True))
    if since is not None:
        fixes = [fix for fix in fixes if fix > since]
    stage = draw(st.sampled_from(["", "a0", "rc1"]))
    return Affected(
        since=None if since is None else ".".join(map(str, since)) + stage,
        fixed_in=tuple(".".join(map(str, fix)) for fix in fixes),
    )


@given(ranges(), versions, stages, locals_)
def test_a_local_segment_is_inert(range_, version, stage, local):
    if stage == "a0-dirty":
        stage = "a0"
    bare, tagged = TorchBuild.parse(version + stage), TorchBuild.parse(version + stage + local)
    assert range_.verdict(bare) is range_.verdict(tagged)


@given(ranges(), lines, lines)
def test_a_release_branch_goes_in_once_and_out_once(range_, one, two):
    first, last = sorted([one, (one[0], one[1], two[2])])
    order = [range_.verdict(TorchBuild.parse(".".join(map(str, line)))) for line in (first, last)]
    since = TorchBuild.parse(range_.since).line if range_.since else (0, 0, 0)
    if first >= since:
        assert order != [Verdict.OUT, Verdict.IN], "fixed on a branch and broken again"


@given(lines, lines)
def test_without_a_fix_it_stays_in(since, line):
    range_ = Affected(since=".".join(map(str, since)))
    verdict = range_.verdict(TorchBuild.parse(".".join(map(str, line))))
    assert verdict is (Verdict.IN if line >= since else Verdict.OUT)


@given(ranges(), lines, st.sampled_from(["a0", "rc1", ".dev20260601", "a0-dirty"]))
def test_an_edge_line_never_answers_by_itself(range_, line, stage):
    build = TorchBuild.parse(".".join(map(str, line)) + stage)
    fixes = [TorchBuild.parse(fix).line for fix in range_.fixed_in]
    since = TorchBuild.parse(range_.since) if range_.since else None
    on_since = since is not None and line == since.line
    if line in fixes or (on_since and since.stage.is_release):
        assert range_.verdict(build) is Verdict.EDGE
    elif not on_since:
        release = TorchBuild.parse(".".join(map(str, line)))
        assert range_.verdict(build) is range_.verdict(release)


@given(st.text(max_size=40), ranges())
def test_no_text_raises_out_of_the_gate(raw, range_):
    verdict = range_.verdict(TorchBuild.parse(raw))
    assert (verdict is Verdict.UNKNOWN) == (not TorchBuild.parse(raw).known)


def test_since_none_reaches_back_to_the_beginning():
    range_ = Affected(since=None, fixed_in=("2.6.0",))
    assert range_.verdict(TorchBuild.parse("2.0.0")) is Verdict.IN
    assert range_.verdict(TorchBuild.parse("2.6.0a0+fb")) is Verdict.EDGE
    assert range_.verdict(TorchBuild.parse("2.6.0")) is Verdict.OUT
    assert str(range_) == "every build, fixed in 2.6.0"


@pytest.mark.parametrize(
    ("raw", "verdict"),
    [
        ("2.13.0.dev20260400", "OUT"),
        ("2.13.0.dev20260501", "IN"),
        ("2.14.0.dev20260701", "IN"),
        ("2.14.0.dev20260801", "OUT"),
        ("2.14.0a0+abc1234567", "EDGE"),
        ("2.13.0.dev0", "EDGE"),
    ],
)
def test_nightly_dates_beat_edge(raw, verdict):
    range_ = Affected(
        since="2.13.0",
        fixed_in=("2.14.0",),
        first_bad_nightly="20260501",
        first_good_nightly="20260801",
    )
    assert str(range_.verdict(TorchBuild.parse(raw))) == verdict


def test_one_known_date_does_not_decide_the_other_end():
    range_ = Affected(since="2.13.0", fixed_in=("2.13.1",), first_good_nightly="20260801")
    assert range_.verdict(TorchBuild.parse("2.13.0.dev20260501")) is Verdict.EDGE


def test_named_builds_beat_every_rule():
    range_ = Affected(
        since="2.13.0a0",
        builds=(
            NamedBuild(verdict=Verdict.OUT, sha="8145d630e8", note="tried in 26.06"),
            NamedBuild(verdict=Verdict.IN, vendor="nv25.11"),
        ),
    )
    judged = range_.judge(TorchBuild.parse("2.13.0a0+8145d630e8"))
    assert judged.verdict is Verdict.OUT
    assert "tried in 26.06" in judged.reason
    assert range_.verdict(TorchBuild.parse("2.13.0a0+8145d63")) is Verdict.OUT, "a shorter sha"
    assert range_.verdict(TorchBuild.parse("2.10.0a0+b558c986e8.nv25.11")) is Verdict.IN
    assert range_.verdict(TorchBuild.parse("2.10.0a0+b558c986e8.nv25.11.77")) is Verdict.IN
    assert range_.verdict(TorchBuild.parse("2.10.0a0+b558c986e8.nv25.1")) is Verdict.OUT


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"since": "banana"}, "'banana' is not a version of torch"),
        ({"since": "2.13.0", "fixed_in": ("2.12.0",)}, "not after since"),
        ({"since": "2.13.0", "fixed_in": ("2.13.0",)}, "not after since"),
        ({"since": "2.13.0", "fixed_in": ("2.14.0a0",)}, "fixed_in names releases"),
        ({"since": "2.13.0", "fixed_in": "2.14.0"}, r"write \('2.14.0',\)"),
        ({"since": "2.13.0", "first_bad_nightly": "May 2026"}, "YYYYMMDD"),
    ],
)
def test_a_range_that_contradicts_itself(fields, says):
    with pytest.raises(GateError, match=says):
        Affected(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"verdict": Verdict.EDGE, "sha": "abcdef0"},
        {"verdict": Verdict.IN},
        {"verdict": Verdict.IN, "sha": "abcdef0", "vendor": "nv25.11"},
        {"verdict": Verdict.IN, "sha": "abc"},
    ],
)
def test_a_named_build_is_named_once(fields):
    with pytest.raises(GateError):
        NamedBuild(**fields)

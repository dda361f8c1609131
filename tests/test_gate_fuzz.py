"""Generated version strings: reading and judging them never raises, and the gate's laws hold."""

from __future__ import annotations

import random

from figures import scaled

from torchcompat.builds import Stage, TorchBuild, _parse_any, _parse_plain
from torchcompat.gate import Affected, Verdict
from torchcompat.registry import Registry

PRE = ["a0", "a1", "b2", "rc1", "rc3", ".dev20260601", ".dev20250131", ".dev0", "a0.dev20260601"]
LOCAL = [
    "+cu130", "+cpu", "+rocm7.0", "+xpu", "+gitabcdef0", "+8145d630e8", "+8145d630e8.nv26.06",
    "+cu126.post3", "+fb", "+041361538.nv23.06", "+computecanada", "+cu130-dirty", "+0", "+cpu.cxx11.abi",
]  # fmt: skip
TAILS = ["", "", "", "-dirty", ".nv23.05", ".g8145d63", "-8145d630e8-dirty"]
#: Among them digits that are none for packaging: fullwidth, superscript, Arabic, mathematical.
NOISE = [*"0123456789.+-_abcdevrpostgitnv!~ *,<>=()\t\n\x00", "\uff15", "\xb2", "\u0663", "\U0001d7d7",
         "\xe9", "\ud800", "dev", "rc", "post", "1!", "9" * 5000]  # fmt: skip
#: Since when, and fixed where, for whole lines; no dates and no named builds.
RANGES = [
    Affected(since="2.13.0a0"),
    Affected(since=None, fixed_in=("2.6.0",)),
    *(shim.affected for shim in Registry(plugins=False)),
]


def line(rng):
    return (2 if rng.random() < 0.95 else rng.randrange(4), rng.randrange(21), rng.randrange(4))


def ranges(rng):
    """A range from the shims, or one made up: a start, and up to three fixes after it."""
    if rng.random() < 0.5:
        return rng.choice(RANGES)
    since = line(rng)
    fixes = sorted({fix for fix in (line(rng) for _ in range(rng.randrange(4))) if fix > since})
    text = ".".join(map(str, since)) + rng.choice(["", "", "a0", "rc1"])
    return Affected(since=text, fixed_in=tuple(".".join(map(str, fix)) for fix in fixes))


def spoil(rng, text):
    """Put in, take out or double something at a random place."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(3)
        if kind == 0:
            text = text[:at] + rng.choice(NOISE) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + 1 :]
        else:
            text = text[:at] + text[max(0, at - 3) : at] + text[at:]
    return text


def check(rng, pool):
    """One generated string against one range."""
    number, range_ = line(rng), rng.choice(pool)
    release = ".".join(map(str, number))
    stage = rng.choice([*PRE, "", "", "", ".post1"])
    public = release + stage
    local = rng.choice(LOCAL)
    raw = public + (rng.choice(TAILS) or (local if rng.random() < 0.7 else ""))
    spoilt = rng.random() < 0.4
    if spoilt:
        raw = spoil(rng, raw)
    build = TorchBuild.parse(raw)
    plain = _parse_plain(raw.strip())
    assert plain is None or plain == _parse_any(raw.strip()), "the short way reads the same"
    verdict = range_.verdict(build)
    assert build.raw == raw
    assert (verdict is Verdict.UNKNOWN) == (not build.known) == (build.stage is Stage.UNKNOWN)
    assert not build.known or (str(build) == raw and len(build.line) == 3)
    if spoilt:
        return raw
    assert build.line == number
    assert verdict is range_.verdict(TorchBuild.parse(public)), "a local segment is inert"
    since = TorchBuild.parse(range_.since) if range_.since else None
    fixes = [TorchBuild.parse(fix).line for fix in range_.fixed_in]
    on_edge = number in fixes or (since is not None and number == since.line)
    if build.stage.is_release:
        assert verdict in (Verdict.IN, Verdict.OUT)
        if len(fixes) < 2:
            begun = since is None or number >= since.line
            assert (verdict is Verdict.IN) == (begun and not (fixes and number >= fixes[0]))
        later = ".".join(map(str, (*number[:2], number[2] + rng.randrange(1, 4))))
        if since is None or number >= since.line:
            then = range_.verdict(TorchBuild.parse(later + rng.choice(["", ".post2", local])))
            assert (verdict, then) != (Verdict.OUT, Verdict.IN), "fixed on a branch and broken again"
    elif not on_edge:
        assert verdict is range_.verdict(TorchBuild.parse(release)), "it counts as its line"
    elif number in fixes or since.stage.is_release:
        assert verdict is Verdict.EDGE, "an edge line never answers by itself"
    else:
        assert verdict in (Verdict.IN, Verdict.EDGE)
    return raw


def test_generated_versions(figure):
    rng, count = random.Random(20261202), scaled(25_000)
    pool = [ranges(rng) for _ in range(300)]
    raw = "nothing yet"
    for done in range(count):
        if done % 50_000 == 49_999:
            pool = [ranges(rng) for _ in range(300)]
        try:
            raw = check(rng, pool)
        except Exception as error:
            raise AssertionError(f"string {done}, after {raw!r}: {error!r}") from error
    figure("generated version strings judged", count)

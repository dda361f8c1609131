"""Write docs/catalogue.md and docs/grid.svg from the registry and evidence/*.json.

python tools/catalogue.py            write them
python tools/catalogue.py --check    change nothing; fail where they have drifted
python tools/catalogue.py --check --measured-anew
                                     so too, where another run wrote the evidence: errors may be
                                     worded otherwise there (an order, a port), findings not
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from cells import Cell, Column, cell, columns  # noqa: E402
from grid import draw  # noqa: E402
from pages import settle  # noqa: E402

from torchcompat.errors import TorchCompatError  # noqa: E402
from torchcompat.evidence import judge  # noqa: E402
from torchcompat.registry import Registry  # noqa: E402
from torchcompat.releases import RELEASES, spans  # noqa: E402
from torchcompat.shim import Reproducer, Shim  # noqa: E402
from torchcompat.verify import Conclusion, Ran  # noqa: E402

INTRO = """\
<!-- Written by tools/catalogue.py from the shims and evidence/*.json. Do not edit. -->

# Catalogue

Every fault that torchcompat knows, and what was measured of it. Each cell of the picture is a
reproducer that was run in a child process without and with the shim; the files it is drawn from
are `evidence/*.json` in the repository, and `nox -t matrix` writes them anew.

![Which builds of torch need which shim](grid.svg)

- **N, needed:** the fault is there, and the shim cures it.
- **f:** only a rare use meets the fault; the shim is applied there with `force=True` (see its notes).
- **Check mark, fixed upstream:** a build after the fault that no longer has it.
- **Dot, not affected:** a build from before the fault.
- **Dashed square, not run:** the build cannot run the reproducer.
- **Triangle, contradiction:** measurement and shim disagree. CI does not let one in.

Is it needed on the build that you have? `torchcompat plan --torch VERSION` says what the version
alone can tell, `torchcompat verify KEY` runs the reproducers on your own build.
"""


def page(shims: Sequence[Shim], found: Sequence[Column]) -> str:
    """Return the catalogue as Markdown."""
    lines = [INTRO]
    real, emulated = _labels(found, emulated=False), _labels(found, emulated=True)
    lines.append(
        f"Measured on {len(real)} releases, {spans(real)}" if real else "Nothing is measured yet"
    )
    lines[-1] += f", and on emulated builds: {', '.join(emulated)}." if emulated else "."
    lines += ["", "| shim | what goes wrong | builds | applied |", "|---|---|---|---|"]
    for shim in shims:
        applied = "by name" if shim.opt_in else "by default"
        lines.append(
            f"| [`{shim.key}`](#{shim.key}) | {_prose(shim.summary)} | {shim.affected} | {applied} |"
        )
    for shim in shims:
        lines += ["", *_section(shim, found)]
    return "\n".join(lines) + "\n"


def _labels(found: Sequence[Column], *, emulated: bool) -> list[str]:
    return [column.label for column in found if column.emulated is emulated]


def _section(shim: Shim, found: Sequence[Column]) -> Iterator[str]:
    yield from (f"## {shim.key}", "", f"{_sentence(shim.summary)}.", "")
    if shim.retired is not None:
        yield from (f"**Retired:** {_prose(shim.retired)}", "")
    yield from ("**Symptom**", "", "```text", *shim.symptom.splitlines(), "```", "")
    label, messages = _seen(shim, found)
    if messages:
        yield from (f"In full, on torch {label}:", "", "```text", *messages, "```", "")
    yield from (f"**Cause.** {_prose(shim.cause)}", "")
    yield from (f"**Builds.** Gate: {shim.affected}. Measured: {_measured(shim, found)}.", "")
    yield from (f"**What the cure changes.** {_prose(shim.cure)}", "")
    applied = (
        f"Only by name, `torchcompat.apply({shim.key!r})`: it can surprise those without the fault."
        if shim.opt_in
        else "By `torchcompat.apply_all()`."
    )
    yield from (f"**Applied.** {applied}", "")
    if shim.notes:
        yield from (f"**Side effects and notes.** {_prose(shim.notes)}", "")
    yield from (f"**It can go** when {_prose(shim.removable_when)}.", "")
    upstream = ", ".join(map(_link, shim.upstream)) or "nothing is reported"
    yield from (f"**Upstream.** {upstream}.", "")
    if shim.carried_by:
        yield from (f"**The same patch by hand:** {', '.join(map(_carrier, shim.carried_by))}.", "")
    yield from ("| reproducer | what it does | needed on | not run on |", "|---|---|---|---|")
    for reproducer in shim.reproducers:
        yield _row(shim, reproducer, found)


def _seen(shim: Shim, found: Sequence[Column]) -> tuple[str, list[str]]:
    """Return the errors that the newest build with the fault raised, where they say more."""
    for column in reversed([column for column in found if not column.emulated]):
        raised = [f.without.message for f in column.findings(shim) if f.without.ran is Ran.DOCUMENTED]
        if raised:
            # An AssertionError is a comparison in our reproducer, which no user ever sees.
            theirs = [text for text in raised if not text.startswith("AssertionError")]
            new = [text for text in theirs if text not in shim.symptom]
            # Messages that differ in numbers alone are one.
            return column.label, list({re.sub(r"\d+", "N", text): text for text in new}.values())[:3]
    return "", []


def _measured(shim: Shim, found: Sequence[Column]) -> str:
    by_state: dict[Cell, list[Column]] = {}
    for column in found:
        by_state.setdefault(cell(shim, column), []).append(column)
    told = [f"{state.value} on {_where(by_state[state])}" for state in Cell if state in by_state]
    return "; ".join(told) or "not yet"


def _where(chosen: Sequence[Column]) -> str:
    known = [column.label for column in chosen if column.label in RELEASES and not column.emulated]
    others = [
        f"{column.label} (emulated)" if column.emulated else column.label
        for column in chosen
        if column.emulated or column.label not in RELEASES
    ]
    return ", ".join(filter(None, (spans(known), *others)))


def _row(shim: Shim, reproducer: Reproducer, found: Sequence[Column]) -> str:
    needed, not_run, why = [], [], ""
    for column in found:
        for finding in column.findings(shim):
            if finding.reproducer != reproducer.name:
                continue
            conclusion, advice = judge(finding, shim, column.build)
            if conclusion is Conclusion.NEEDED:
                needed.append(column)
            elif conclusion is Conclusion.NOT_RUN:
                not_run.append(column)
                why = f": {advice}"
    said = (reproducer.run.__doc__ or "").strip().split("\n")[0]
    left_out = f"{_where(not_run)}{why}" if not_run else "-"
    return (
        f"| `{reproducer.name}` | {_prose(said) or '-'} | {_where(needed) or '-'} | {_prose(left_out)} |"
    )


_WORD = re.compile(
    r"`[^`]*`"  # what is code already
    r"|(?<![\w.])[\w.]+\([^()]*\)"  # a call
    r"|(?<![\w.])(?:[A-Za-z_]\w*\.)+\w+(?:\{[^{}]*\})?"  # a dotted name
    r"|(?<![\w.])\w[\w.]*\[[^\[\]]*\]"  # a subscript
    r"|(?<![\w.])\w*_\w+(?:\{[^{}]*\})?"  # a name with an underscore
    r"|(?<![\w.])\w+=[\w'\".]*\w"  # a keyword argument
)


def _prose(text: str) -> str:
    """Set names as code, and keep the rest from being read as Markdown."""
    text = text.replace("``", "`")  # docstrings write reStructuredText's way
    out, end = [], 0
    for found in _WORD.finditer(text):
        out += [_plain(text[end : found.start()]), _code(found[0])]
        end = found.end()
    return "".join([*out, _plain(text[end:])]).strip()


def _sentence(text: str) -> str:
    """Begin with a capital, unless with a name."""
    said = _prose(text)
    return said[:1].upper() + said[1:]


def _code(word: str) -> str:
    if word.startswith("`") or word in ("e.g", "i.e"):
        return word
    return f"`{word}`"


def _plain(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]|])", r"\\\1", " ".join(text.split(" ")))


def _link(url: str) -> str:
    named = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:pull|issues)/(\d+)(?:#.*)?", url)
    if named is not None:
        return f"[{named[1]}#{named[2]}]({url})"
    if re.match(r"https?://", url):
        return f"[{url.split('://', 1)[1]}]({url})"
    return _prose(url)


def _carrier(name: str) -> str:
    named = re.fullmatch(r"([\w.-]+/[\w.-]+?)(?:#(\d+))?", name)
    if named is None:
        return _prose(name)
    path = f"{named[1]}/issues/{named[2]}" if named[2] else named[1]
    return f"[{name}](https://github.com/{path})"


def _without_messages(text: str) -> str:
    """Leave out the errors as one run raised them."""
    return re.sub(r"^In full, on torch [^\n]*\n\n```text\n.*?^```\n\n", "", text, flags=re.M | re.S)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files, or with --check compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail on drift")
    parser.add_argument(
        "--measured-anew", action="store_true", help="with --check: compare all but errors as raised"
    )
    parser.add_argument("--evidence", type=Path, default=ROOT / "evidence", metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", metavar="FOLDER")
    arguments = parser.parse_args(argv)
    if arguments.measured_anew and not arguments.check:
        parser.error("--measured-anew goes with --check")
    shims = list(Registry(plugins=False))
    try:
        found = columns(arguments.evidence)
    except TorchCompatError as error:
        print(f"catalogue: error: {error}", file=sys.stderr)
        return 1
    alive = [shim for shim in shims if shim.retired is None]
    texts = {"catalogue.md": page(shims, found), "grid.svg": draw(alive, found)}
    return settle(
        {arguments.out / name: text for name, text in texts.items()},
        check=arguments.check,
        drift=(
            "catalogue: {} no longer match the shims and the evidence: "
            "run `python tools/catalogue.py` and commit what it writes"
        ),
        compared=_without_messages if arguments.measured_anew else str,
    )


if __name__ == "__main__":
    raise SystemExit(main())

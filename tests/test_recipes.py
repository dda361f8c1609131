"""The recipes in docs/ci.md use commands and options that exist, in YAML that can be read."""

from __future__ import annotations

import re
import shlex

import pytest
from conftest import ROOT

from torchcompat import shims
from torchcompat.cli import build_parser

PAGES = ["docs/ci.md", "docs/migration.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page, *languages):
    text = (ROOT / page).read_text(encoding="utf-8")
    return [body for language, body in BLOCK.findall(text) if language in languages]


def commands(script):
    """Yield the arguments of each call of torchcompat in a shell script."""
    for line in re.sub(r"\\\n|\|\n", lambda m: "| " if m[0][0] == "|" else " ", script).splitlines():
        lexer = shlex.shlex(re.sub(r"\$\{\{.*?\}\}", "X", line), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        piece = []
        for token in [*lexer, ";"]:
            if not set(token) <= set("|&;<>"):
                piece.append(token)
                continue
            if "torchcompat" in piece:
                place = piece.index("torchcompat")
                yield piece[place + 1 :] + (["FILE"] if piece[0] == "xargs" else [])
            # What follows a redirection is a file, not a command.
            piece = ["a file"] if "<" in token or ">" in token else []


def scripts(page):
    yaml = pytest.importorskip("yaml")
    yield from blocks(page, "bash", "console")
    for body in blocks(page, "yaml"):
        for job in yaml.safe_load(body)["jobs"].values():
            for step in job["steps"]:
                yield step.get("run", "")


def test_each_command_is_one_that_the_parser_takes():
    found = [arguments for page in PAGES for script in scripts(page) for arguments in commands(script)]
    for arguments in found:
        build_parser().parse_args(arguments)
    assert {arguments[0] for arguments in found} >= {"verify", "plan", "audit", "scan", "exec", "status"}


def test_the_reader_of_scripts_sees_what_it_must():
    script = (
        "git diff -z |\n  xargs -r torchcompat scan --format github\n"
        "python -m torchcompat verify --json a.json && torchcompat plan > plan.txt || exit 1\n"
        "srun torchcompat exec -- torchrun \\\n  train.py  # torchcompat nonsense\n"
        "pip install torchcompat-shims\n"
    )
    assert list(commands(script)) == [
        ["scan", "--format", "github", "FILE"],
        ["verify", "--json", "a.json"],
        ["plan"],
        ["exec", "--", "torchrun", "train.py"],
    ]
    (wrong,) = commands("torchcompat verify --jsn a.json")
    with pytest.raises(SystemExit):
        build_parser().parse_args(wrong)


def test_workflows_have_what_github_asks_for():
    yaml = pytest.importorskip("yaml")
    read = [yaml.safe_load(body) for body in blocks("docs/ci.md", "yaml")]
    assert len(read) == 2
    for workflow in read:
        for job in workflow["jobs"].values():
            assert job["runs-on"]
            for step in job["steps"]:
                assert ("run" in step) != ("uses" in step)
    assert set(read[0]["jobs"]) == {"newest", "nightly", "range", "by-hand"}


def test_the_migration_guide_names_shims_that_exist_and_adds_up():
    text = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    checked = 0
    for section in text.split("\n## ")[1:]:
        total = re.search(r"^(\d+) lines go", section, re.MULTILINE)
        if total is None:
            continue
        gone = 0
        for row in re.findall(r"^\| (?!their patch|---)(.*) \|$", section, re.MULTILINE):
            theirs, ours, _ = row.split(" | ")
            if "`" in ours:
                assert re.search(r"`(\w+)`", ours)[1] in shims.KEYS
                gone += sum(int(lines) for lines in re.findall(r"\((\d+)(?: of \d+)? lines\)", theirs))
        assert gone == int(total[1]), section.splitlines()[0]
        checked += 1
    assert checked == 3

"""The documents must not drift from the code: links, commands, examples, tables."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT, TORCH_INSTALLED

from torchcompat import Affected, State, cli
from torchcompat.registry import Registry

README = (ROOT / "README.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def local_links(page):
    """What a page links to in this repository; error messages in its listings look like links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\((?!https?:)([^)#]+)", text)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page):
    for target in local_links(page):
        assert (page.parent / target).exists(), target


def test_ci_runs_the_readmes_test_command():
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2
    script = (ROOT / ".ci" / "run").read_text()
    assert f"\n{commands[1]}\n" in script
    demo = commands[0].rpartition(" && ")[2]
    assert f"\n{demo}\n" in script


def test_the_readme_lists_every_command():
    parser = cli.build_parser()
    (commands,) = [action.choices for action in parser._actions if action.dest == "command"]
    assert set(re.findall(r"^\| `torchcompat (\w+)", README, re.MULTILINE)) == set(commands)


def test_the_readme_names_every_state_and_variable():
    for state in State:
        assert f"`{state}`" in README
    from torchcompat import settings

    for name in ("DISABLE", "ONLY", "STRICT", "NO_PLUGINS"):
        assert getattr(settings, name) in README


@pytest.mark.parametrize("shim", list(Registry(plugins=False)), ids=lambda shim: shim.key)
def test_every_shim_is_in_the_readme_and_in_the_changelog(shim):
    assert re.search(rf"^\| `{shim.key}` \|", README, re.MULTILINE)
    entry = re.search(
        rf"^- `{shim.key}`(?: \(opt-in\))?:.*?(?=^- |^#)", CHANGELOG, re.MULTILINE | re.DOTALL
    )
    assert entry is not None
    assert "Builds:" in entry[0]
    assert "pstream" in entry[0]


def test_the_readmes_shim_table_says_the_ranges():
    for shim in Registry(plugins=False):
        row = re.search(rf"^\| `{shim.key}` \| ([^|]+) \|", README, re.MULTILINE)[1]
        if shim.affected.since is not None:
            assert shim.affected.since in row
        for fix in shim.affected.fixed_in:
            assert fix in row


def test_the_readmes_audit_is_as_printed(capsys):
    shown = re.search(r'\$ torchcompat audit --torch "(.*?)"\n(.*?)```', README, re.DOTALL)
    assert cli.main(["audit", "--torch", shown[1]]) == 0
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    for line in shown[2].splitlines():
        # More shims may drop out at a bound than README shows.
        start = " ".join(line.split())
        assert any(found.startswith(start) for found in printed) or "drop" in start, line


@pytest.mark.torch
def test_the_readmes_shim_example_works(python):
    (example,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "register(" in block
    ]
    out = python(
        "import torch\n"
        + example
        + "reproduce()\n"
        + "import torchcompat\n"
        + "torchcompat.revert('one_hot_int32')\n"
        + "try:\n    reproduce()\nexcept RuntimeError as error:\n    print(error)\n"
    )
    first, second = out.stdout.splitlines()
    assert first.startswith("one_hot_int32: applied ")
    assert "one_hot is only applicable to index tensor" in second


def test_the_contributing_example_means_what_it_says():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert 'Affected(since="2.9.0", fixed_in=("2.9.1", "2.10.0"))' in text
    range_ = Affected(since="2.9.0", fixed_in=("2.9.1", "2.10.0"))
    assert str(range_) == "from 2.9.0, fixed in 2.9.1, 2.10.0"


GATE_PAGE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("check", "answer"), re.findall(r"^\| `(.+?)` \| `(\w+)` \|", GATE_PAGE, re.MULTILINE)
)
def test_hand_written_gates_fail_as_the_page_says(check, answer, python):
    needs_torch = "TorchVersion" in check
    if needs_torch and not TORCH_INSTALLED:
        pytest.skip("torch is not installed in this environment")
    # In a process of its own: other tests count on torch not being imported here.
    out = python(
        f"""
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version
        if {needs_torch}:
            from torch.torch_version import TorchVersion
        try:
            print({check})
        except Exception as error:
            print(type(error).__name__)
        """
    )
    assert out.stdout.strip() == answer


def test_the_readmes_reliability_table_has_every_figure():
    import subprocess
    import sys

    tool = [sys.executable, str(ROOT / "tools" / "reliability.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_site_is_collected_with_all_that_its_pages_link_to(tmp_path):
    import importlib.util

    spec = importlib.util.spec_from_file_location("site_tool", ROOT / "tools" / "site.py")
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    site.collect(tmp_path / "src")
    for page in (tmp_path / "src").rglob("*.md"):
        for target in local_links(page):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    reference = (tmp_path / "src" / "reference" / "cli.md").read_text(encoding="utf-8")
    for command in ("verify", "evidence", "evidence diff", "audit", "exec"):
        assert f"## torchcompat {command}\n" in reference
    api = (tmp_path / "src" / "reference" / "api.md").read_text(encoding="utf-8")
    import torchcompat

    for name in set(torchcompat.__all__) - {"__version__"}:
        assert f"heading: {name}\n" in api
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2].partition("theme:")[0]
    listed = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted(
        str(page.relative_to(tmp_path / "src")) for page in (tmp_path / "src").rglob("*.md")
    )

"""torchcompat.api without torch, and with a torch that has next to nothing."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest
from conftest import ROOT

import torchcompat.api
from torchcompat.api.rows import ROWS, TABLE
from torchcompat.releases import RELEASES

SOURCE = Path(torchcompat.api.__file__).read_text(encoding="utf-8")


def test_the_type_checker_sees_the_table():
    typed = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch"
        for alias in node.names
    }
    assert typed == {row.name: row.homes[0].path for row in ROWS}
    assert torchcompat.api.__all__ == sorted(TABLE) == dir(torchcompat.api)


def test_the_table_has_no_row_twice_and_names_real_releases():
    assert len(TABLE) == len(ROWS)
    for row in ROWS:
        for home in row.homes:
            assert home.since in ("", *RELEASES), row
            assert home.gone in ("", *RELEASES), row


def test_importing_it_imports_no_torch_and_no_engine(python, fake_torch):
    folder = fake_torch(init="raise SystemExit('torch was imported')")
    out = python(
        """
        import sys
        import torchcompat.api
        from torchcompat import api
        assert len(dir(api)) > 100 and not hasattr(api, "__path_of_nothing__")
        print(sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "torchcompat")))
        """,
        path=[folder],
    )
    assert "'torch'" not in out.stdout
    for name in ("engine", "registry", "shims", "packaging"):
        assert f"torchcompat.{name}" not in out.stdout


def raised(python, fake_torch, statement, **fake):
    done = python(
        f"""
        try:
            {statement}
        except Exception as error:
            print(type(error).__name__, "|", error)
        """,
        path=[fake_torch(**fake)],
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("from torchcompat.api import Muon", "ImportError"),
        ("import torchcompat.api as api; api.Muon", "AttributeError"),
    ],
)
def test_a_name_that_this_torch_lacks(python, fake_torch, statement, error):
    said = raised(python, fake_torch, statement, version="2.8.0", init="__path__ = []")
    assert said.startswith(
        f"{error} | torch 2.8.0 has no torch.optim.Muon: releases have it from 2.9.0 on"
    )
    assert "Require torch>=2.9.0, or catch this" in said


def test_what_to_use_instead(python, fake_torch):
    said = raised(python, fake_torch, "from torchcompat.api import Buffer", version="2.4.1")
    assert "or catch this, and use Module.register_buffer for older builds" in said


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("from torchcompat.api import fully_sharded", "ImportError"),
        ("import torchcompat.api as api; api.fully_sharded", "AttributeError"),
    ],
)
def test_an_unknown_name_has_its_near_miss(python, fake_torch, statement, error):
    said = raised(python, fake_torch, statement)
    assert said.startswith(
        f"{error} | torchcompat.api has no name 'fully_sharded'; did you mean 'fully_shard'"
    )
    far = raised(python, fake_torch, statement.replace("fully_sharded", "qqqq"))
    assert "import all others from torch itself" in far


def test_hasattr_and_defaults_work(python, fake_torch):
    out = python(
        """
        from torchcompat import api
        print(hasattr(api, "Muon"), getattr(api, "Muon", 1), hasattr(api, "nothing"))
        """,
        path=[fake_torch()],
    )
    assert out.stdout.split() == ["False", "1", "False"]


def test_a_torch_whose_module_is_broken_is_not_taken_for_one_without_the_name(python, fake_torch):
    folder = fake_torch()
    (folder / "torch" / "optim.py").write_text("import a_library_that_is_not_there\n")
    done = python("from torchcompat.api import Muon", path=[folder], check=False)
    assert "ModuleNotFoundError: No module named 'a_library_that_is_not_there'" in done.stderr


def test_no_torch_at_all(python):
    done = python(
        """
        import sys
        sys.path = [entry for entry in sys.path if "-packages" not in entry]
        from torchcompat.api import fully_shard
        """,
        check=False,
    )
    assert re.search(r"TorchNotFoundError: torch is not installed", done.stderr), done.stderr


def test_the_older_home_is_found(python, fake_torch):
    folder = fake_torch(version="2.5.1")
    home = folder / "torch" / "distributed" / "_composable"
    home.mkdir(parents=True)
    (home.parent / "__init__.py").write_text("")
    (home / "__init__.py").write_text("")
    (home / "fsdp.py").write_text("def fully_shard(): return 'from the older home'\n")
    out = python("from torchcompat.api import fully_shard; print(fully_shard())", path=[folder])
    assert out.stdout.strip() == "from the older home"


def test_nothing_is_kept_so_that_shims_reach_it(python, fake_torch):
    folder = fake_torch(init="def sym_sum(args): return 1")
    out = python(
        """
        import torch
        from torchcompat import api
        first = api.sym_sum([])
        torch.sym_sum = lambda args: 2
        print(first, api.sym_sum([]))
        """,
        path=[folder],
    )
    assert out.stdout.split() == ["1", "2"]


def tool(name):
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_those_of_the_tables(monkeypatch, tmp_path, capsys):
    names, diff = tool("api_names"), tool("api_diff")
    assert names.main(["--check"]) == 0
    assert diff.main(["page", "--check"]) == 0
    for module, arguments in ((names, ["--check"]), (diff, ["page", "--check"])):
        old = tmp_path / "page.md"
        old.write_text(module.PAGE.read_text().replace("torch", "Torch", 1))
        monkeypatch.setattr(module, "PAGE", old)
        assert module.main(arguments) == 1
        assert "run `python tools/" in capsys.readouterr().err
    assert f"has {len(ROWS)} names" in (ROOT / "README.md").read_text()


def test_a_row_that_is_not_finished_fails(monkeypatch, tmp_path, capsys):
    diff = tool("api_diff")
    table = json.loads(diff.TABLE.read_text())
    table["rows"][0]["covered"] = "no_such_shim"
    table["rows"][1]["note"] = ""
    path = tmp_path / "removed.json"
    path.write_text(json.dumps(table))
    monkeypatch.setattr(diff, "TABLE", path)
    assert diff.main(["page", "--check"]) == 1
    said = capsys.readouterr().err
    assert table["rows"][0]["name"] in said
    assert table["rows"][1]["name"] in said


def test_dumps_are_compared(tmp_path, capsys):
    diff = tool("api_diff")

    def dump(version, **modules):
        path = tmp_path / f"{version}.json"
        modules = {name.replace("__", "."): names for name, names in modules.items()}
        path.write_text(json.dumps({"torch": f"{version}+cu1", "modules": modules, "failed": {}}))
        return str(path)

    inherited = [diff.INHERITED]
    paths = [
        dump("2.10.0", torch={"keep": ["a"], "f": ["x"], "Back": []}, torch__gone={"f": []}),
        dump(
            "2.9.0",
            torch={
                "keep": ["a", "b", "args"],
                "Old": ["self"],
                "Old.method": ["self"],
                "f": ["x", "y"],
                "Back": [],
                "Tensor.names": [],
                "HalfTensor.names": [],
            },
            torch__sub={"Old": [], "g": None},
            torch__gone={"f": [], "C": [], "C.own": [], "C.m": inherited},
        ),
        dump("2.11.0", torch={"keep": ["b", "kwargs"], "f": ["x"], "Back": []}, torch__gone={"f": []}),
    ]
    out = tmp_path / "out.json"
    assert diff.main(["table", *paths, "--out", str(out)]) == 0
    table = json.loads(out.read_text())
    assert table["compared"] == ["2.9.0", "2.10.0", "2.11.0"]
    assert [(row["name"], row["kind"], row["last"], row["gone"]) for row in table["rows"]] == [
        ("torch.Old", "name", "2.9.0", "2.10.0"),
        ("torch.f(y)", "parameter", "2.9.0", "2.10.0"),
        ("torch.gone.C", "name", "2.9.0", "2.10.0"),
        ("torch.sub", "module", "2.9.0", "2.10.0"),
    ]
    table["rows"][0]["note"] = "by hand"
    out.write_text(json.dumps(table))
    assert diff.main(["table", *paths, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["rows"][0]["note"] == "by hand"
    assert "4 rows, 3 of them without a note" in capsys.readouterr().out

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT, child_environment

from torchcompat import cli


def call(*arguments, path=(), env=(), cwd=None, stdin=None):
    environment = child_environment(*path, ROOT)
    environment.update(env)
    return subprocess.run(
        [sys.executable, "-m", "torchcompat", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        input=stdin,
        timeout=120,
        check=False,
    )


def test_list(capsys):
    assert cli.main(["list"]) == 0
    assert re.search(r"^sac_profiler +from 2\.13\.0a0", capsys.readouterr().out, re.MULTILINE)
    assert cli.main(["list", "--json"]) == 0
    (first, *_) = json.loads(capsys.readouterr().out)
    assert first["key"] == "sac_profiler"
    assert first["since"] == "2.13.0a0"
    assert first["fixed_in"] == []


@pytest.mark.parametrize(
    ("version", "state", "gate"),
    [
        ("2.13.0a0+8145d630e8", "pending", "IN"),
        ("2.13.0.dev20260601+cu130", "pending", "EDGE"),
        ("2.12.1", "not_affected", "OUT"),
        ("2.0.0", "not_affected", "OUT"),
    ],
)
def test_plan(capsys, version, state, gate):
    assert cli.main(["plan", "--torch", version, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["torch"] == version
    (sac,) = [shim for shim in plan["shims"] if shim["key"] == "sac_profiler"]
    assert (sac["state"], sac["verdict"]) == (state, gate)
    assert cli.main(["plan", "--torch", version]) == 0
    out = capsys.readouterr().out
    assert f"torch {version}" in out
    assert ("older than 2.4" in out) == (version == "2.0.0")


def test_explain(capsys):
    assert cli.main(["explain", "sac_profiler"]) == 0
    out = capsys.readouterr().out
    for part in (
        "Symptom",
        "Cause",
        "Upstream",
        "Removable",
        "force=True",
        "torchcompat verify sac_profiler",
    ):
        assert part in out
    assert cli.main(["explain", "sac_profiler", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["here"]["key"] == "sac_profiler"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["explain", "sac_profilr"], 2, "there is no shim 'sac_profilr'; did you mean 'sac_profiler'"),
        (["verify", "sac"], 2, "there is no shim 'sac'"),
        (["plan", "--torch", "banana"], 2, "'banana' is not a version of torch; write it as"),
        (["plan", "--torch", ""], 2, "'' is not a version of torch"),
        (["run", "--only", "nope", "x.py"], 2, "there is no shim 'nope'"),
        (["exec"], 2, "exec needs a command, such as: torchcompat exec -- torchrun train.py"),
        (["exec", "--", "no-such-command-at-all"], 1, "there is no command 'no-such-command-at-all'"),
    ],
)
def test_bad_input_gets_one_sentence(capsys, arguments, code, says):
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchcompat: error: ")
    assert says in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["plan", "--nope"], ["explain"]])
def test_wrong_usage_is_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: torchcompat" in capsys.readouterr().err


def test_without_torch(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchcompat.default.detect", lambda: None)
    monkeypatch.setattr("torchcompat.engine.detect", lambda: None)
    for arguments in (["status"], ["verify"]):
        assert cli.main(arguments) == 1
        assert "torch is not installed in this environment; install it first" in capsys.readouterr().err
    assert cli.main(["plan"]) == 1
    assert "nothing to patch" in capsys.readouterr().out


def test_a_reader_that_leaves_early():
    command = f"{sys.executable} -m torchcompat explain sac_profiler | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.stdout.startswith("sac_profiler: ")
    assert done.stderr == ""


IGNORED = "SAC_IGNORED_OPS = set()\n"


def test_status_on_a_fake_torch(fake_torch):
    folder = fake_torch("2.12.1", checkpoint=IGNORED)
    done = call("status", "--json", path=[folder])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shims"][0]["state"] == "not_affected"


def test_status_fails_where_a_needed_shim_cannot_be_applied(fake_torch):
    folder = fake_torch("2.13.0", checkpoint="SAC_IGNORED_OPS = ['a', 'list']\n")
    done = call("status", path=[folder])
    assert done.returncode == 1
    assert "unsupported" in done.stdout
    assert "SAC_IGNORED_OPS is a list, not a set" in done.stdout


# -- run and exec --------------------------------------------------------------------


@pytest.fixture
def script(tmp_path):
    def write(source, name="script.py"):
        path = tmp_path / name
        path.write_text(source)
        return str(path)

    return write


def test_run_is_as_python_itself(script, fake_torch, tmp_path):
    path = script(
        "import sys, os\n"
        "print(sys.argv, __name__, __file__, __spec__, sys.path[0], sys.flags.optimize)\n"
        "print([p for p in sys.path if 'bootstrap' not in p])\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    ours = call("run", path, "7", "-m", "--only", "x", cwd=tmp_path)
    plain = subprocess.run(
        [sys.executable, path, "7", "-m", "--only", "x"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert ours.returncode == plain.returncode == 7
    assert ours.stdout == plain.stdout
    assert (ours.stderr, plain.stderr) == ("", "")


def test_tracebacks_are_as_python_prints_them(script):
    path = script("def f():\n    return 1 / 0\nf()\n")
    ours = call("run", path)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert ours.returncode == plain.returncode == 1
    assert ours.stderr == plain.stderr


def test_a_signal_is_a_signal(script):
    path = script("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    assert call("run", path).returncode == -15


def test_run_a_module(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("import sys; print(sys.argv[1:], __package__)\n")
    done = call("run", "-m", "pack", "a", "--only", cwd=tmp_path)
    assert done.stdout == "['a', '--only'] pack\n", done.stderr


def test_missing_script():
    done = call("run", "/no/such/script.py")
    assert done.returncode == 2
    assert "can't open file" in done.stderr


def test_isolated_interpreters_are_refused():
    done = subprocess.run(
        [sys.executable, "-E", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
         "from torchcompat.cli import main; raise SystemExit(main(['run', 'x.py']))"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "this interpreter ignores PYTHONPATH" in done.stderr


CURED = """
import subprocess, sys
import torch.utils.checkpoint as c
print("here", len(c.SAC_IGNORED_OPS))
if len(sys.argv) == 1:
    print(subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True).stdout, end="")
"""


def _torch_with_the_fault(fake_torch):
    return fake_torch(
        "2.13.0",
        checkpoint="""
        SAC_IGNORED_OPS = set()
        class _CachedTorchDispatchMode:
            def __torch_dispatch__(self): return self.func_counter
        """,
        init="""
        class _Packet:
            def overloads(self): return ["default"]
            default = "op"
        class ops:
            class profiler:
                _record_function_enter = _Packet()
        """,
    )


@pytest.mark.parametrize(
    ("options", "length"), [([], 1), (["--skip", "sac_profiler"], 0), (["--only", "sac_profiler"], 1)]
)
def test_run_and_its_children_are_cured(script, fake_torch, options, length):
    done = call("run", *options, script(CURED), path=[_torch_with_the_fault(fake_torch)])
    assert done.stdout == f"here {length}\nhere {length}\n", done.stderr


def test_exec_reaches_what_it_starts(script, fake_torch):
    done = call(
        "exec", "-v", "--", sys.executable, script(CURED), path=[_torch_with_the_fault(fake_torch)]
    )
    assert done.stdout == "here 1\nhere 1\n"
    assert "torchcompat: sac_profiler: applied" in done.stderr


def test_the_hidden_sitecustomize_runs_too(script, tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("print('theirs', __name__)\n")
    done = call("run", script("print('script')\n"), path=[folder])
    # Once in the torchcompat command itself, once in the script's process.
    assert done.stdout == "theirs sitecustomize\n" * 2 + "script\n"


def test_an_interpreter_without_us_runs_its_program_all_the_same(script, tmp_path):
    import shutil

    from torchcompat.launch import BOOTSTRAP

    copy = tmp_path / "bootstrap"
    shutil.copytree(BOOTSTRAP, copy)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print('ran', [p for p in sys.path if 'bootstrap' in p])"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(copy), "PYTHONNOUSERSITE": "1"},
        cwd=tmp_path,
        check=False,
    )
    if "not applied" in done.stderr:  # torchcompat may be installed for this interpreter
        assert "install torchcompat-shims for this interpreter too" in done.stderr
    assert done.stdout == f"ran [{str(copy)!r}]\n"


def test_pythonpath_gets_no_empty_piece():
    from torchcompat.launch import BOOTSTRAP, environment

    assert environment({})["PYTHONPATH"] == str(BOOTSTRAP)
    assert environment({"PYTHONPATH": ""})["PYTHONPATH"] == str(BOOTSTRAP)
    twice = environment(environment({"PYTHONPATH": f"{os.pathsep}/a{os.pathsep}"}))
    assert twice["PYTHONPATH"] == f"{BOOTSTRAP}{os.pathsep}/a"


def test_progress_bar_on_a_terminal(monkeypatch, capsys):
    pytest.importorskip("rich")
    from torchcompat.progress import _Rich, progress

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with progress() as show:
        assert isinstance(show, _Rich)
    with progress(quiet=True) as show:
        assert not isinstance(show, _Rich)

"""Who gets in, and what is left alone: no network, no files, no code named by the environment."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest
from conftest import ROOT, child_environment

AUDIT = """
import sys
seen = []

def hook(event, args):
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append((event, str(args[0]), args[1]))
    elif event == "open" and args[1] is None and args[2] & 0o3:
        seen.append((event, str(args[0]), args[2]))
    elif event.partition(".")[0] in ("socket", "subprocess", "urllib", "ftplib", "http", "smtplib", "shutil"):
        seen.append((event, str(args)))
    elif event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.truncate", "os.link",
                   "os.symlink", "os.system", "os.exec", "os.posix_spawn", "os.fork", "tempfile.mkstemp",
                   "tempfile.mkdtemp", "os.putenv", "os.unsetenv"):
        seen.append((event, str(args)))

{before}
sys.dont_write_bytecode = True
sys.addaudithook(hook)
{doing}
assert seen == [], seen
print("quiet")
"""
DOING = """
import torchcompat
torchcompat.apply_all()
torchcompat.status()
torchcompat.plan("2.13.0a0+8145d630e8")
torchcompat.fingerprint()
with torchcompat.applied("sac_profiler", force=True):
    pass
print(sorted(torchcompat.apply_all().applied))
torchcompat.revert_all()
"""


@pytest.mark.parametrize("order", ["before torch", pytest.param("after torch", marks=pytest.mark.torch)])
def test_no_network_no_files_no_processes(python, fake_torch, order):
    """Asked of Python itself, which tells an audit hook of every open, socket and process."""
    real = order == "after torch"
    before = "import torch, torch.utils.checkpoint" if real else ""
    path = [] if real else [fake_torch()]
    doing = DOING if real else DOING.replace("with torchcompat.applied", "if 0:\n  with torchcompat.applied").replace("    pass", "      pass")  # fmt: skip
    out = python(
        AUDIT.format(before=before, doing=doing), path=path, env={"PYTHONDONTWRITEBYTECODE": "1"}
    )
    assert out.stdout.splitlines()[-1] == "quiet"


def test_the_audit_would_have_told(python, tmp_path):
    doing = f"open({str(tmp_path / 'x')!r}, 'w').close()"
    done = python(AUDIT.format(before="", doing=doing), check=False)
    assert "AssertionError: [('open', " in done.stderr
    done = python(AUDIT.format(before="import socket", doing="socket.socket().close()"), check=False)
    assert "AssertionError: [('socket.__new__', " in done.stderr


def test_the_environment_cannot_name_code(python, fake_torch, tmp_path):
    """Modules, paths and expressions in the variables are unknown keys, and nothing else."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    values = [
        "evil",
        "evil:main",
        "evil.main",
        str(tmp_path / "evil.py"),
        "__import__('evil')",
        "sac_profiler=evil",
    ]
    names = ("DISABLE", "ONLY", "STRICT", "NO_PLUGINS", "LOG", "PLUGINS", "SHIMS", "PRELOAD")
    for chosen in (names, names[1:2] + names[4:]):
        out = python(
            "import sys, warnings; warnings.simplefilter('ignore')\n"
            "import torchcompat; torchcompat.apply_all(strict=False); print('evil' in sys.modules)",
            path=[fake_torch(), tmp_path],
            env={f"TORCHCOMPAT_{name}": ",".join(values) for name in chosen},
        )
        assert out.stdout.strip() == "False", chosen
    assert not (tmp_path / "ran").exists()


def test_the_variables_that_are_read_are_the_ones_that_are_documented():
    """None beside those of README: a variable that nobody knows of is a way in."""
    import re

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    read = set()
    for path in (ROOT / "torchcompat").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        read |= set(re.findall(r"TORCHCOMPAT_[A-Z_]+", text))
    told_to_evidence = {
        "TORCHCOMPAT_EMULATED"
    }  # no variable: a file beside the metadata of an emulated torch
    assert read - told_to_evidence <= set(re.findall(r"TORCHCOMPAT_[A-Z_]+", readme)) | {"TORCHCOMPAT_"}


def test_the_bootstrap_folder_is_constant_and_holds_one_file(python, fake_torch):
    """exec makes no folder: it names the one in the package, which nothing is written to."""
    from torchcompat.launch import BOOTSTRAP

    def picture():
        return {
            p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in BOOTSTRAP.iterdir() if p.is_file()
        }

    before = picture()
    assert set(before) == {"sitecustomize.py"}
    if os.name == "posix":
        for path in (BOOTSTRAP, *BOOTSTRAP.iterdir()):
            assert not path.stat().st_mode & stat.S_IWOTH, f"{path} may be written by anybody"
    folder = fake_torch()
    done = subprocess.run(
        [sys.executable, "-m", "torchcompat", "exec", "--", sys.executable, "-c", "import sys; print(*sys.path, sep='\\n')"],
        capture_output=True, text=True, env=child_environment(folder, ROOT), timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines().count(str(BOOTSTRAP)) == 1, "inductor's workers need it there"
    assert str(folder) in done.stdout.splitlines()
    assert picture() == before

from __future__ import annotations

import sys

import pytest
from conftest import make_module
from hypothesis import given
from hypothesis import strategies as st

from torchcompat.builds import Stage, TorchBuild, detect


@pytest.mark.parametrize(
    ("raw", "line", "stage", "sha", "vendor", "accelerator", "date"),
    [
        ("2.13.0", (2, 13, 0), "release", None, None, None, None),
        ("2.13.0+cu130", (2, 13, 0), "release", None, None, "cu130", None),
        ("2.13.0+cpu.cxx11.abi", (2, 13, 0), "release", None, None, "cpu", None),
        ("2.13.0a0+8145d630e8", (2, 13, 0), "alpha", "8145d630e8", None, None, None),
        ("2.13.0a0+8145d630e8.nv26.06", (2, 13, 0), "alpha", "8145d630e8", "nv26.06", None, None),
        (
            "2.10.0a0+a36e1d39eb.nv26.01.42222806",
            (2, 10, 0),
            "alpha",
            "a36e1d39eb",
            "nv26.01.42222806",
            None,
            None,
        ),
        ("2.1.0a0+41361538.nv23.06", (2, 1, 0), "alpha", "41361538", "nv23.06", None, None),
        ("2.1.0a0+041361538", (2, 1, 0), "alpha", "041361538", None, None, None),
        ("2.13.0+gitabcdef0", (2, 13, 0), "release", "abcdef0", None, None, None),
        ("2.9.1+rocm7.2.0.lw.git7e1940d4", (2, 9, 1), "release", "7e1940d4", None, "rocm7.2.0", None),
        ("2.10.0+rocm7.13.0a20260318", (2, 10, 0), "release", None, None, "rocm7.13.0a20260318", None),
        ("2.5.0a0+fb", (2, 5, 0), "alpha", None, None, None, None),
        ("2.0.0.nv23.05", (2, 0, 0), "release", None, "nv23.05", None, None),
        ("2.13.0a0-dirty", (2, 13, 0), "alpha", None, None, None, None),
        ("2.13.0.dev20260601+cu130", (2, 13, 0), "nightly", None, None, "cu130", "20260601"),
        ("2.7.10+xpu", (2, 7, 10), "release", None, None, "xpu", None),
        ("2.6.0.post301", (2, 6, 0), "post", None, None, None, None),
        ("v2.13.0-rc1", (2, 13, 0), "rc", None, None, None, None),
        ("2.13b1", (2, 13, 0), "beta", None, None, None, None),
        ("Unknown", None, "unknown", None, None, None, None),
        ("1!2.13.0", None, "unknown", None, None, None, None),
        ("9" * 5000 + ".1", None, "unknown", None, None, None, None),
        ("2", None, "unknown", None, None, None, None),
    ],
)
def test_fields(raw, line, stage, sha, vendor, accelerator, date):
    build = TorchBuild.parse(raw)
    assert (build.line, build.stage, build.sha, build.vendor, build.accelerator, build.date) == (
        line,
        Stage(stage),
        sha,
        vendor,
        accelerator,
        date,
    )
    assert build.raw == raw


def test_git_version_beats_the_local_segment():
    full = "cf30153c4c131c8164ee7798e5022d810682e2cb"
    assert TorchBuild.parse("2.13.0+gitabcdef0", git_version=full).sha == full
    assert TorchBuild.parse("2.13.0+gitabcdef0", git_version="Unknown").sha == "abcdef0"


@given(st.text())
def test_no_text_raises(raw):
    build = TorchBuild.parse(raw)
    assert build.known == (build.stage is not Stage.UNKNOWN)
    assert build.raw == raw


@pytest.fixture
def no_torch(monkeypatch, tmp_path):
    """An environment whose only importable folder is tmp_path."""
    import email.message  # noqa: F401 - which metadata asks for first at this late hour, from 3.13 on

    for name in [n for n in sys.modules if n == "torch" or n.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def _metadata(folder, version):
    info = folder / f"torch-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")


def test_no_torch(no_torch):
    assert detect() is None


def test_version_file_is_read_and_not_run(no_torch):
    (no_torch / "torch").mkdir()
    (no_torch / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (no_torch / "torch" / "version.py").write_text(
        "from typing import Optional\n"
        "__version__: str = '2.13.0a0+8145d630e8'\n"
        "git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'\n"
        "raise SystemExit('executed')\n"
    )
    build = detect()
    assert build.raw == "2.13.0a0+8145d630e8"
    assert build.sha.startswith("cf30153c4c")
    assert build.source == "version.py"


def test_metadata_where_there_is_no_version_file(no_torch):
    (no_torch / "torch").mkdir()
    (no_torch / "torch" / "__init__.py").write_text("")
    _metadata(no_torch, "2.9.1+cpu")
    build = detect()
    assert (build.raw, build.source) == ("2.9.1+cpu", "metadata")


@pytest.mark.parametrize("content", [None, "nothing = 1", b"\xff\xfe__version__"])
def test_a_torch_that_hides_its_version(no_torch, content):
    (no_torch / "torch").mkdir()
    (no_torch / "torch" / "__init__.py").write_text("")
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (no_torch / "torch" / "version.py").write_bytes(data)
    build = detect()
    assert build is not None
    assert not build.known


def test_a_loaded_torch_comes_first(no_torch, monkeypatch):
    _metadata(no_torch, "2.9.1")
    monkeypatch.setitem(sys.modules, "torch", make_module("torch"))
    version = make_module("torch.version", "__version__ = '2.13.0+cpu'\ngit_version = 'abcdef01'")
    monkeypatch.setitem(sys.modules, "torch.version", version)
    build = detect()
    assert (build.raw, build.sha, build.source) == ("2.13.0+cpu", "abcdef01", "loaded")


def test_a_loaded_stub_without_version_falls_back(no_torch, monkeypatch):
    _metadata(no_torch, "2.9.1")
    stub = make_module("torch")
    stub.__spec__ = None
    monkeypatch.setitem(sys.modules, "torch", stub)
    assert detect().raw == "2.9.1"


@pytest.mark.torch
def test_detection_agrees_with_the_real_torch(python):
    out = python(
        """
        from torchcompat.builds import detect
        before = detect()
        import sys
        assert "torch" not in sys.modules
        import torch
        after = detect()
        assert (before.source, after.source) == ("version.py", "loaded")
        assert before.raw == after.raw == torch.__version__, (before, after)
        assert before.sha == after.sha == torch.version.git_version
        print("same")
        """
    )
    assert out.stdout == "same\n"

"""The rules that tools/package.py holds sdist and wheel against (nox -s package builds them)."""

from __future__ import annotations

import sys
import zipfile

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import package

FILES = {
    "torchcompat/__init__.py",
    "torchcompat/shims/a.py",
    *package.DATA,
    "tests/test_a.py",
    "README.md",
}


def test_differences():
    assert package.differences(["a", "b"], ["b", "c"]) == ["missing: c", "too many: a"]
    assert package.differences(["a"], ["a"]) == []


def test_the_wheel_has_the_package_and_its_metadata():
    names = package.wheel_names(FILES, "1.0")
    assert {"torchcompat/shims/a.py", "torchcompat/py.typed"} < names
    assert "torchcompat_shims-1.0.dist-info/licenses/LICENSE" in names
    assert not any(name.startswith("tests") or name == "README.md" for name in names)


def test_every_file_of_the_package_falls_under_a_rule():
    """A new kind of file in torchcompat/ needs a line in DATA, or the wheel may go without it."""
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "torchcompat").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= package.wheel_names(files, "1.0")


def test_the_sdist_has_what_is_included():
    names = package.sdist_names(FILES, ["/torchcompat", "/tests"])
    assert {"tests/test_a.py", "torchcompat/shims/a.py", "PKG-INFO"} < names
    assert "tools/x.py" not in package.sdist_names({*FILES, "tools/x.py"}, ["/torchcompat"])


@pytest.fixture
def wheel(tmp_path):
    def write(metadata="Requires-Dist: packaging>=22\n", entry="torchcompat.cli:main", extra=()):
        path = tmp_path / "torchcompat_shims-1.0-py3-none-any.whl"
        info = "torchcompat_shims-1.0.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            for name in (*package.DATA, "torchcompat/__init__.py"):
                archive.writestr(name, (ROOT / name).read_bytes())
            archive.writestr(f"{info}/METADATA", f"Name: torchcompat-shims\n{metadata}\n")
            archive.writestr(f"{info}/WHEEL", "Tag: py3-none-any\n")
            archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\ntorchcompat = {entry}\n")
            for name in (f"{info}/RECORD", f"{info}/licenses/LICENSE", *extra):
                archive.writestr(name, "")
        project = {
            "dependencies": ["packaging>=22"],
            "scripts": {"torchcompat": "torchcompat.cli:main"},
            "entry-points": {},
        }
        return package.check_wheel(path, {"torchcompat/__init__.py", *package.DATA}, project)

    return write


def test_a_right_wheel(wheel):
    assert wheel() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"extra": ["tests/test_a.py"]}, "too many: tests/test_a.py"),
        (
            {"metadata": "Requires-Dist: packaging>=22\nRequires-Dist: torch\n"},
            "requirement too many: torch",
        ),
        ({"entry": "torchcompat.other:main"}, "entry points are"),
    ],
)
def test_a_wrong_wheel(wheel, changes, said):
    (wrong,) = wheel(**changes)
    assert said in wrong

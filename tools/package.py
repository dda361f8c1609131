"""Build the sdist and the wheel, and check what they contain and what installing them changes.

    python tools/package.py        (nox -s package)

The wheel holds the package's files and its metadata and nothing else, and is the same as
what the repository has; its installation next to any torch changes no other package.
"""

from __future__ import annotations

import configparser
import email
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent

#: What else than Python a wheel may carry; each must be there.
DATA = {"torchcompat/py.typed", "torchcompat/schemas/evidence-1.schema.json"}
INFO = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
#: What hatchling adds to every sdist.
ADDED = {"PKG-INFO", "README.md", "LICENSE", "pyproject.toml", ".gitignore"}
#: A container's alpha and a nightly: neither of them may be replaced.
TORCHES = ("2.13.0a0+8145d630e8", "2.13.0.dev20260601+cu130")
INSTALLED = """
from importlib.metadata import distributions
print(*sorted(f"{found.name}=={found.version}" for found in distributions()))
"""


def differences(got: Iterable[str], want: Iterable[str]) -> list[str]:
    """Say which names are missing and which are too many."""
    got, want = set(got), set(want)
    return [f"missing: {name}" for name in sorted(want - got)] + [
        f"too many: {name}" for name in sorted(got - want)
    ]


def tracked() -> set[str]:
    """Return the files that git has, relative to the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def wheel_names(files: Iterable[str], version: str) -> set[str]:
    """Return what the wheel must contain, by rule."""
    package = {name for name in files if name.startswith("torchcompat/") and name.endswith(".py")}
    return package | DATA | {f"torchcompat_shims-{version}.dist-info/{name}" for name in INFO}


def sdist_names(files: Iterable[str], include: Sequence[str]) -> set[str]:
    """Return what the sdist must contain: what pyproject.toml includes, and what is always added."""
    roots = [name.removeprefix("/") for name in include]
    chosen = {
        name for name in files if any(name == root or name.startswith(f"{root}/") for root in roots)
    }
    return chosen | ADDED


def check_wheel(wheel: Path, files: set[str], project: dict) -> list[str]:
    """Return what is wrong with a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        version = wheel.name.split("-")[1]
        info = f"torchcompat_shims-{version}.dist-info"
        wrong = differences(archive.namelist(), wheel_names(files, version))
        for name in files & set(archive.namelist()):
            if archive.read(name) != (ROOT / name).read_bytes():
                wrong.append(f"not as in the repository: {name}")
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        plain = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
        wrong += [f"requirement {line}" for line in differences(plain, project["dependencies"])]
        points = configparser.ConfigParser()
        points.read_string(archive.read(f"{info}/entry_points.txt").decode())
        wanted = {"console_scripts": project["scripts"], **project["entry-points"]}
        got = {group: dict(points[group]) for group in points.sections()}
        if got != wanted:
            wrong.append(f"entry points are {got}, not {wanted}")
        if b"Tag: py3-none-any" not in archive.read(f"{info}/WHEEL"):
            wrong.append("the wheel is not for every platform")
    return [f"{wheel.name}: {line}" for line in wrong]


def check_sdist(sdist: Path, files: set[str], include: Sequence[str]) -> list[str]:
    """Return what is wrong with an sdist."""
    with tarfile.open(sdist) as archive:
        names = [member.name.partition("/")[2] for member in archive if member.isfile()]
    return [f"{sdist.name}: {line}" for line in differences(names, sdist_names(files, include))]


def fake_torch(folder: Path, version: str) -> Path:
    """Write a wheel named torch, which is all that pip looks at."""
    path = folder / f"torch-{version}-py3-none-any.whl"
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch/__init__.py", "")
        archive.writestr("torch/version.py", f"__version__ = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def check_installation(wheel: Path, folder: Path) -> list[str]:
    """Install the wheel next to each of several torches and compare what is installed."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    python = str(folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "packaging")
    wrong = []
    for torch in TORCHES:
        run(*pip, "install", "--quiet", "--no-deps", "--force-reinstall", str(fake_torch(folder, torch)))
        before = run(python, "-c", INSTALLED).split()
        # Even the extra, which names torch, must find the one that is there good enough.
        run(*pip, "install", "--quiet", f"{wheel}[torch]")
        new = differences(run(python, "-c", INSTALLED).split(), before)
        if len(new) != 1 or not new[0].startswith("too many: torchcompat-shims=="):
            wrong.append(f"next to torch {torch}, installing torchcompat-shims changed: {new}")
        told = run(python, "-I", "-m", "torchcompat", "plan")
        if f"torch {torch}" not in told or "sac_profiler" not in told:
            wrong.append(f"the installed command says: {told}")
        run(*pip, "uninstall", "--quiet", "--yes", "torchcompat-shims")
        if run(python, "-c", INSTALLED).split() != before:
            wrong.append("pip uninstall does not restore what was there before")
    left = sorted((folder / "venv").rglob("torchcompat*"))
    return wrong + [f"left behind by pip uninstall: {path}" for path in left]


def run(*command: str) -> str:
    done = subprocess.run(
        command, cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    include = config["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    files = tracked()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT))
        (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
        with ThreadPoolExecutor() as pool:
            installed = pool.submit(check_installation, wheel, folder)
            run("twine", "check", "--strict", str(wheel), str(sdist))
            run("check-wheel-contents", str(wheel))
            # No address of the project is public yet, which costs pyroma's points for it.
            rating = run("pyroma", "--min", "8", str(sdist))
            wrong = check_wheel(wheel, files, config["project"])
            wrong += check_sdist(sdist, files, include) + installed.result()
    if wrong:
        sys.exit("\n".join(wrong))
    print(rating.strip().splitlines()[-3])
    print(
        f"{wheel.name} and {sdist.name}: as they must be; "
        f"next to torch {' and '.join(TORCHES)} nothing else changes"
    )


if __name__ == "__main__":
    main()

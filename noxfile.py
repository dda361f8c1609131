"""Sessions: tests over torch releases, emulated alphas, nightlies, and what is installed.

    nox                      lint, types and docs
    nox -t matrix            every release of torch, one at a time, and the alphas
    nox -t ci                those that one CI run has time for
    nox -s 'tests(torch-2.13.0)'
    nox -s installed         the torch that this interpreter already has

Environment: TORCHCOMPAT_TORCH_BACKEND=cpu takes torch from PyTorch's index for that
backend (uv's --torch-backend); TORCHCOMPAT_NIGHTLY_INDEX names the index for `nightly`;
TORCHCOMPAT_TEST_ORDERS=all also runs what is slow on every torch of the matrix;
TORCHCOMPAT_DROP=1 removes each torch once it is tested; TORCHCOMPAT_EVIDENCE names the
folder for one evidence file a build (the matrix: evidence/, which is committed).

    nox -t matrix && python tools/catalogue.py

rebuilds all evidence, and the page and the picture that are made of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "docs"]
nox.options.error_on_missing_interpreters = True

HERE = Path(__file__).parent

#: Newest first: neighbours share most of their CUDA packages, which then download once.
MATRIX = [
    "2.15.0",
    "2.14.1",
    "2.13.0",
    "2.12.1",
    "2.11.0",
    "2.10.0",
    "2.9.1",
    "2.8.0",
    "2.7.1",
    "2.5.1",
    "2.4.1",
]
#: The other releases that the registry has; a fault may come or go within a line. One CI run has
#: no time for them.
#: Together these are torchcompat/releases.py, which a test compares.
PATCHES = ["2.14.0", "2.12.0", "2.9.0", "2.7.0", "2.6.0", "2.5.0", "2.4.0"]
#: Version to emulate, the release that it is made of, and whether sac_profiler applies.
ALPHAS = [("2.13.0a0+8145d630e8", "2.13.0", True), ("2.12.0a0+0123abcdef", "2.12.1", False)]

#: uv installs no bytecode: where none may be written either, as in many containers, each of a
#: cell's processes would compile torch anew, for seconds.
WRITE_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}

LOWEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)


def _newest_python(torch: str) -> tuple[int, int]:
    """The newest Python that a torch release has wheels for."""
    minor = int(torch.split(".")[1])
    return (3, 12) if minor <= 5 else (3, 13) if minor <= 8 else NEWEST_PYTHON


def _python_for(torch: str) -> str:
    """Prefer the running interpreter; else the newest suitable one that can be found."""
    newest = _newest_python(torch)
    if LOWEST_PYTHON <= sys.version_info[:2] <= newest:
        return f"{sys.version_info[0]}.{sys.version_info[1]}"
    for minor in range(newest[1], LOWEST_PYTHON[1] - 1, -1):
        name = f"3.{minor}"
        if shutil.which(f"python{name}"):
            return name
        uv = shutil.which("uv")
        if (
            uv
            and subprocess.run([uv, "python", "find", name], capture_output=True, check=False).returncode
            == 0
        ):
            return name
    return f"{newest[0]}.{newest[1]}"  # nox says that it is missing


def _cells(releases: list[str]) -> list:
    return [nox.param(_python_for(torch), torch, id=f"torch-{torch}") for torch in releases]


def _pip_find_links() -> str:
    """The folder of wheels that pip is set up with, which uv does not know about."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"],
        capture_output=True,
        text=True,
        check=False,
    )
    return os.environ.get("PIP_FIND_LINKS") or asked.stdout.strip()


def _install_torch(session: nox.Session, requirement: str) -> float:
    """Install a torch; returns the seconds that download and installation took."""
    started = time.monotonic()
    backend = os.environ.get("TORCHCOMPAT_TORCH_BACKEND")
    env = {}
    if session.venv_backend == "uv" and "UV_FIND_LINKS" not in os.environ and _pip_find_links():
        env["UV_FIND_LINKS"] = _pip_find_links()
    if backend and session.venv_backend != "uv":
        session.error("TORCHCOMPAT_TORCH_BACKEND needs uv: pip install uv")
    extra = [f"--torch-backend={backend}"] if backend else []
    session.install(*extra, requirement, env=env)
    seconds = time.monotonic() - started
    session.log(f"{requirement} installed in {seconds:.0f} s")
    return seconds


def _run_tests(session: nox.Session, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run what depends on torch, or whatever is asked for after ``--``."""
    chosen = session.posargs or [
        "tests/shims",
        "tests/contract",
        "tests/test_laziness.py",
        "tests/test_builds.py",
    ]
    spread = [] if session.posargs else ["-n2"]
    # All orders of the contract and what is slow run in the README's test command, on one
    # torch; here the orders in which a build could differ, and what is quick.
    short = {"TORCHCOMPAT_TEST_ORDERS": os.environ.get("TORCHCOMPAT_TEST_ORDERS", "short")}
    if not session.posargs and short["TORCHCOMPAT_TEST_ORDERS"] == "short":
        spread += ["-m", "torch and not slow"]
    session.run(
        "python",
        "-m",
        "pytest",
        *spread,
        *arguments,
        *chosen,
        env={"OMP_NUM_THREADS": "1", **WRITE_BYTECODE, **short, **(env or {})},
    )


def _evidence() -> dict[str, str]:
    """The folder for evidence of the matrix."""
    folder = os.environ.get("TORCHCOMPAT_EVIDENCE") or "evidence"
    return {"TORCHCOMPAT_EVIDENCE": str(HERE / folder)}


def _test_cell(session: nox.Session, torch: str) -> None:
    started = time.monotonic()
    try:
        installing = _install_torch(session, f"torch=={torch}")
        session.install("-e", ".[test]")
        _timed_tests(session, f"torch {torch}", started, installing)
    finally:
        _drop(session)


def _timed_tests(session: nox.Session, cell: str, started: float, installing: float) -> None:
    """Run a cell's tests, and say where its time went."""
    before = time.monotonic()
    session.run("python", "-c", "import torch", env=WRITE_BYTECODE)
    imported = time.monotonic()
    _run_tests(session, env=_evidence())
    done = time.monotonic()
    session.log(
        f"CELL {cell}: {done - started:.0f} s in all: torch's download and installation "
        f"{installing:.0f}, its first import {imported - before:.0f}, tests {done - imported:.0f}"
    )


def _drop(session: nox.Session) -> None:
    """Give the disk back: with TORCHCOMPAT_DROP, no more than one torch is kept at a time."""
    if not os.environ.get("TORCHCOMPAT_DROP"):
        return
    shutil.rmtree(session.virtualenv.location, ignore_errors=True)
    cache = os.environ.get("UV_CACHE_DIR")
    if cache and _free_gigabytes() < float(os.environ.get("TORCHCOMPAT_KEEP_FREE", "25")):
        session.run("uv", "cache", "clean", "--quiet", external=True)


def _free_gigabytes() -> float:
    return shutil.disk_usage(HERE).free / 1e9


@nox.session(tags=["matrix", "ci", "cpu"])
@nox.parametrize("python,torch", _cells(MATRIX))
def tests(session: nox.Session, torch: str) -> None:
    """Test on one torch release of the matrix."""
    _test_cell(session, torch)


@nox.session(tags=["matrix", "patches", "cpu"])
@nox.parametrize("python,torch", _cells(PATCHES))
def patches(session: nox.Session, torch: str) -> None:
    """Test on the remaining releases, which differ by a patch or were replaced by one."""
    _test_cell(session, torch)


@nox.session(tags=["matrix", "ci", "cpu"])
@nox.parametrize(
    "python,version,base,applies",
    [
        nox.param(_python_for(base), version, base, applies, id=version)
        for version, base, applies in ALPHAS
    ],
)
def alpha(session: nox.Session, version: str, base: str, applies: bool) -> None:
    """Test on a release that is restamped as a real alpha; results are emulated."""
    started = time.monotonic()
    try:
        installing = _install_torch(session, f"torch=={base}")
        session.install("-e", ".[test]")
        session.run("python", "tools/restamp.py", version)
        told = session.run("python", "-m", "torchcompat", "status", "--json", silent=True)
        status = json.loads(told[told.index("{") :])
        states = {shim["key"]: shim["state"] for shim in status["shims"]}
        if status["torch"] != version:
            session.error(f"this is torch {status['torch']}, not {version}")
        if (states["sac_profiler"] == "applied") != applies:
            session.error(f"sac_profiler is {states['sac_profiler']} on {version} (emulated)")
        session.log(
            f"EMULATED {version} on {base}: sac_profiler is {states['sac_profiler']}, as it must be"
        )
        _timed_tests(session, f"torch {version} (emulated)", started, installing)
    finally:
        _drop(session)


@nox.session(tags=["nightly"])
def nightly(session: nox.Session) -> None:
    """Test on last night's torch; fails where its index cannot be reached."""
    index = os.environ.get("TORCHCOMPAT_NIGHTLY_INDEX")
    if not index:
        session.error(
            "CANNOT RUN: set TORCHCOMPAT_NIGHTLY_INDEX to PyTorch's nightly index for your backend "
            "(its install page shows it under Preview); no nightly is on PyPI"
        )
    pre = "--prerelease=allow" if session.venv_backend == "uv" else "--pre"
    session.install(pre, "--index-url", index, "torch")
    session.install("-e", ".[test]")
    raw = session.run(
        "python",
        "-c",
        "import torchcompat as t; b = t.torch_build(); print(b.stage, b.raw)",
        silent=True,
    )
    stage, version = raw.split()
    if stage != "nightly":
        session.error(f"the index gave torch {version}, which is no nightly ({stage})")
    session.log(f"NIGHTLY torch {version}")
    _run_tests(session)


def _with_installed_torch(session: nox.Session, *arguments: str) -> None:
    found = session.run(
        "python", "-c", "import torchcompat.builds as b; print(b.detect())", silent=True,
        env={"PYTHONPATH": str(HERE)},
    )  # fmt: skip
    if "None" in found:
        session.error(
            "CANNOT RUN: the interpreter has no torch, and this session never installs one; "
            "run nox with the interpreter that has it (python -m pip install nox && python -m nox ...)"
        )
    session.log(f"INSTALLED torch {found.strip()}")
    session.install("-e", ".[test]")
    # Whatever pytest plugins the container has: a warning of theirs would be an error here.
    ours = ("-p", "xdist", "-p", "_hypothesis_pytestplugin", "-p", "torchcompat.pytest_plugin")
    _run_tests(session, *ours, *arguments, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})


@nox.session(venv_params=["--system-site-packages"], tags=["installed"])
def installed(session: nox.Session) -> None:
    """Test the torch that the interpreter already has (NGC containers, source builds)."""
    _with_installed_torch(session)


@nox.session(venv_params=["--system-site-packages"], tags=["gpu"])
def gpu(session: nox.Session) -> None:
    """Like installed, with the CUDA reproducers; fails where there is no GPU."""
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidia0").exists():
        session.error(
            "CANNOT RUN: this machine shows no NVIDIA GPU; run this session where there is one"
        )
    _with_installed_torch(session, "--device=cuda")


CLIENTS = json.loads((HERE / "downstream" / "clients.json").read_text(encoding="utf-8"))


@nox.session(tags=["downstream"])
@nox.parametrize(
    "python,client",
    [
        nox.param(_python_for(client["torch"].partition("==")[2]), client, id=client["name"])
        for client in CLIENTS
    ],
)
def downstream(session: nox.Session, client: dict) -> None:
    """Train through a real framework, without and with torchcompat: downstream/clients.json."""
    try:
        _install_torch(session, client["torch"])
        session.install("-e", ".")
        for arguments in client["install"]:
            session.install(*arguments)
        single = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        session.run("python", "downstream/check.py", client["name"], env=single)
        if "also" in client:
            session.run("python", client["also"], env=single)
    finally:
        _drop(session)


@nox.session(name="downstream-old", tags=["downstream"])
def downstream_old(session: nox.Session) -> None:
    """Run older releases of libraries on a newer torch, without torchcompat and with it."""
    cases = json.loads((HERE / "downstream" / "old.json").read_text())
    chosen = [case for case in cases if not session.posargs or case["name"] in session.posargs]
    if not chosen:
        session.error(f"no such case; there are: {', '.join(case['name'] for case in cases)}")
    for torch in sorted({case["torch"] for case in chosen}):
        group = [case for case in chosen if case["torch"] == torch]
        _install_torch(session, torch)
        session.install("-e", ".")
        for case in group:
            for arguments in case["install"]:
                session.install(*arguments)
        session.run("python", "downstream/old/check.py", *(case["name"] for case in group))


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, as a linter and as a formatter."""
    session.install("ruff>=0.15")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict."""
    session.install("mypy>=1.15", "packaging>=22", "pytest>=8")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Check the documents against code and evidence, and build the site in build/site.

    After the matrix `-- --measured-anew` leaves out the wording of errors, which a run decides.
    """
    session.install("-e", ".[test]", "mkdocstrings[python]>=1", "zensical>=0.0.70")
    session.run("python", "tools/catalogue.py", "--check", *session.posargs)
    session.run("python", "tools/api_names.py", "--check")
    session.run("python", "tools/api_diff.py", "page", "--check")
    session.run("python", "benchmarks/report.py", "--check")
    session.run("python", "-m", "pytest", "tests/test_docs.py", "tests/test_evidence.py")
    session.run("python", "tools/site.py")
    session.run("zensical", "build", "--strict", "--config-file", "mkdocs.yml")


@nox.session
def package(session: nox.Session) -> None:
    """Build sdist and wheel; check their contents, and that installing changes no other package."""
    session.install("build", "check-wheel-contents", "hatchling>=1.26", "pip", "pyroma", "twine")
    session.install("tomli; python_version < '3.11'")
    session.run("python", "tools/package.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure costs side by side with an alternative, as ratios."""
    _install_torch(session, os.environ.get("TORCHCOMPAT_BENCH_TORCH", "torch"))
    session.install("-e", ".[test]", "typing_extensions", "wrapt")
    session.run("python", "benchmarks/run.py", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Train the MoE example on the newest torch, through the fault."""
    _install_torch(session, "torch")
    session.install("-e", ".", "numpy")
    session.run("python", "examples/train_moe_sac.py", *session.posargs)


if __name__ == "__main__":
    nox.main()

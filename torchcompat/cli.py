"""The command line. Exit codes: 0 fine, 1 something failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cli_audit import add_audit, run_audit
from .cli_evidence import add_evidence
from .cli_status import run_status
from .errors import GateError, InputError, TorchCompatError, UnknownShimError
from .settings import DISABLE, ONLY

__all__ = ["build_parser", "main"]

FINE, FAILED, USAGE = 0, 1, 2


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; the CLI reference is generated from it."""
    parser = argparse.ArgumentParser(
        prog="torchcompat",
        description="Known faults and API breaks of torch, and reversible cures for them.",
        epilog="Exit codes: 0 fine, 1 something failed or was found, 2 wrong usage.",
    )
    # `status` is to start, and to tell, even where another distribution's __init__ lies over ours.
    version = getattr(sys.modules[__package__], "__version__", "of an unknown version")
    parser.add_argument("--version", action="version", version=f"torchcompat-shims {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str, **extra: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, **extra)
        sub.set_defaults(run=run)
        return sub

    def machine_readable(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--json", action="store_true", help="print JSON instead of text")

    sub = command("list", _list, "List all shims.")
    machine_readable(sub)

    sub = command(
        "status",
        run_status,
        "Import torch, apply all shims here, and say what became of each, and whether this "
        "installation is whole and alone.",
    )
    machine_readable(sub)

    sub = command(
        "plan", _plan, "Say from the version alone what would be applied; torch is not imported."
    )
    sub.add_argument(
        "--torch",
        metavar="VERSION",
        help="a version such as 2.13.0a0+8145d630e8 (default: the installed torch)",
    )
    machine_readable(sub)

    sub = command("explain", _explain, "Tell everything about one shim.")
    sub.add_argument("key", metavar="KEY")
    machine_readable(sub)

    sub = command(
        "verify",
        _verify,
        "Run each shim's reproducers without and with it, in child processes, and conclude "
        "which faults this build of torch has and whether the shims cure them.",
    )
    sub.add_argument("keys", metavar="KEY", nargs="*", help="shims to verify (default: all)")
    sub.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda also runs the GPU reproducers"
    )
    sub.add_argument("--json", metavar="FILE", help="write the evidence to FILE ('-' for stdout)")

    add_evidence(command("evidence", None, "Show or compare what verify --json wrote."))
    add_audit(
        command(
            "audit",
            run_audit,
            "Say for a framework's range of torch which shims it needs, which it can drop once its "
            "lower bound moves, and which fixes upstream has landed.",
        )
    )

    sub = command(
        "scan",
        _scan,
        "Find what a code base does to torch by hand: version gates, evaluated on a table of real "
        "builds, and monkey patches. The code is read and never run; torch is not needed.",
    )
    sub.add_argument("paths", metavar="PATH", nargs="+", help="files and folders")
    sub.add_argument(
        "--torch",
        metavar="VERSION",
        action="append",
        help="evaluate gates on this build instead of the table (may be given again)",
    )
    sub.add_argument(
        "--format",
        choices=("text", "json", "sarif", "github"),
        default="text",
        help="github: annotations for a GitHub workflow",
    )
    sub.add_argument(
        "--json", dest="format", action="store_const", const="json", help="the same as --format json"
    )

    sub = command(
        "run",
        _run,
        "Run a Python script or module with the shims applied, in it and in its children.",
        usage="torchcompat run [--only KEYS] [--skip KEYS] [-v] [-m] TARGET [ARGUMENT ...]",
    )
    _selection(sub)
    sub.add_argument(
        "-m", dest="module", action="store_true", help="TARGET is a module, as in python -m"
    )
    sub.add_argument("target", metavar="TARGET", help="script (or module with -m)")
    sub.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER)

    sub = command(
        "exec",
        _exec,
        "Run any command (torchrun, pytest, accelerate ...); every Python process below it "
        "applies the shims.",
        usage="torchcompat exec [--only KEYS] [--skip KEYS] [-v] -- COMMAND [ARGUMENT ...]",
    )
    _selection(sub)
    sub.add_argument("arguments", metavar="COMMAND", nargs=argparse.REMAINDER)
    return parser


def _selection(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--only", metavar="KEYS", help="apply these shims alone (comma-separated)")
    sub.add_argument("--skip", metavar="KEYS", help="leave these shims out (comma-separated)")
    sub.add_argument("-v", "--verbose", action="store_true", help="log what is applied to stderr")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = build_parser().parse_args(argv)
    warnings.showwarning = _show_warning
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except (UnknownShimError, GateError, InputError) as error:
        return _complain(error, USAGE)
    except TorchCompatError as error:
        return _complain(error, FAILED)
    except BrokenPipeError:
        # `torchcompat list | head`: the reader has gone, and that is fine.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FINE
    return code


def _complain(error: TorchCompatError, code: int) -> int:
    print(f"torchcompat: error: {error}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"torchcompat: warning: {message}", file=sys.stderr)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


# -- list, plan, explain -------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    from .default import registry
    from .report import table

    shims = list(registry)
    if arguments.json:
        _print_json([_shim_dict(shim) for shim in shims])
        return FINE
    rows = [
        (
            shim.key,
            str(shim.affected),
            "by name" if shim.opt_in else "apply_all",
            shim.distribution,
            shim.summary,
        )
        for shim in shims
    ]
    print("\n".join(table(("shim", "builds", "applied", "from", "what it cures"), rows)))
    return FINE


def _plan(arguments: argparse.Namespace) -> int:
    from .default import plan

    report = plan(arguments.torch)
    if arguments.json:
        _print_json(report.as_dict())
    else:
        print(report)
    return FAILED if report.build is None else FINE


def _shim_dict(shim: Any) -> dict[str, Any]:
    return {
        "key": shim.key,
        "summary": shim.summary,
        "symptom": shim.symptom,
        "cause": shim.cause,
        "cure": shim.cure,
        "upstream": list(shim.upstream),
        "since": shim.affected.since,
        "fixed_in": list(shim.affected.fixed_in),
        "modules": list(shim.modules),
        "opt_in": shim.opt_in,
        "removable_when": shim.removable_when,
        "carried_by": list(shim.carried_by),
        "notes": shim.notes,
        "revision": shim.revision,
        "retired": shim.retired,
        "distribution": shim.distribution,
        "reproducers": [
            {"name": r.name, "ranks": r.ranks, "device": r.device, "needs": r.needs}
            for r in shim.reproducers
        ],
    }


def _explain(arguments: argparse.Namespace) -> int:
    from .builds import detect
    from .default import plan, registry

    shim = registry.get(arguments.key)
    here = plan()[shim.key]
    if arguments.json:
        _print_json({**_shim_dict(shim), "here": here.as_dict()})
        return FINE
    reproducers = ", ".join(reproducer.name for reproducer in shim.reproducers)
    fields = [
        ("Symptom", shim.symptom),
        ("Cause", shim.cause),
        ("Builds", f"{shim.affected}"),
        ("Cure", shim.cure),
        ("Applied", "only by name (opt-in)" if shim.opt_in else "by apply_all()"),
        ("Upstream", "\n".join(shim.upstream)),
        ("Removable", f"when {shim.removable_when}"),
        ("Also in", ", ".join(shim.carried_by)),
        ("Notes", shim.notes),
        ("Retired", shim.retired or ""),
        ("Proof", f"torchcompat verify {shim.key}  ({reproducers})"),
        ("From", shim.distribution),
        ("Here", f"torch {detect()}: {here.state} ({here.reason})"),
    ]
    print(f"{shim.key}: {shim.summary}")
    for name, text in fields:
        if text:
            print(_paragraph(name, text))
    return FINE


def _paragraph(name: str, text: str) -> str:
    lines = [
        line for part in text.split("\n") for line in textwrap.wrap(part, 88, break_on_hyphens=False)
    ]
    return "\n".join(f"  {name if i == 0 else '':10} {line}" for i, line in enumerate(lines))


# -- verify --------------------------------------------------------------------------


def _verify(arguments: argparse.Namespace) -> int:
    from .default import registry, torch_build
    from .progress import progress
    from .verify import verify

    shims = [registry.get(key) for key in arguments.keys] or [s for s in registry if s.retired is None]
    torch_build()
    with progress(quiet=arguments.json == "-") as show:
        found = verify(shims, device=arguments.device, on_start=show.start, on_finding=show.finding)
    evidence = json.dumps(found.as_dict(), indent=2) + "\n"
    if arguments.json == "-":
        sys.stdout.write(evidence)
    else:
        show.summary(found)
        if arguments.json:
            try:
                Path(arguments.json).write_text(evidence, encoding="utf-8")
            except OSError as error:
                raise TorchCompatError(f"the evidence could not be written: {error}") from error
    return FAILED if found.wrong else FINE


# -- scan ----------------------------------------------------------------------------


def _scan(arguments: argparse.Namespace) -> int:
    from .default import registry
    from .scan.render import FORMATS
    from .scan.scanner import scan
    from .scan.sources import PathError
    from .scan.table import BUILDS, parse_builds

    builds = parse_builds(arguments.torch) if arguments.torch else BUILDS
    try:
        found = scan(arguments.paths, registry, builds)
    except PathError as error:
        raise InputError(str(error)) from error
    sys.stdout.write(FORMATS[arguments.format](found))
    return FAILED if found.findings else FINE


# -- run and exec --------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    from .launch import python_command, replace_process

    target = ["-m", arguments.target] if arguments.module else [arguments.target]
    return replace_process(python_command([*target, *arguments.arguments]), _environment(arguments))


def _exec(arguments: argparse.Namespace) -> int:
    from .launch import replace_process

    command = arguments.arguments
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise InputError("exec needs a command, such as: torchcompat exec -- torchrun train.py")
    return replace_process(command, _environment(arguments))


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    from .launch import environment

    env = environment(os.environ)
    for name, keys in ((ONLY, arguments.only), (DISABLE, arguments.skip)):
        if keys is not None:
            env[name] = ",".join(_known_keys(keys))
    if arguments.verbose:
        env["TORCHCOMPAT_LOG"] = "info"
    return env


def _known_keys(text: str) -> list[str]:
    from .default import registry

    keys = [key.strip() for key in text.split(",") if key.strip()]
    return [registry.get(key).key for key in keys]

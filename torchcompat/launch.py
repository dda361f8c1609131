"""Start programs whose Python processes apply the shims by themselves.

The program is started through its own interpreter, with a bootstrap folder in front of
PYTHONPATH, and takes this process's place: ``sys.argv``, ``__main__``, tracebacks,
signals and exit codes are Python's own, and every Python process that the program
starts is reached too. The folder is part of the installed package, so there is nothing
to create, to protect or to remove.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import TorchCompatError

__all__ = ["BOOTSTRAP", "environment", "python_command", "replace_process"]

BOOTSTRAP = Path(__file__).parent / "bootstrap"


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return ``base`` with the bootstrap folder in front of PYTHONPATH."""
    # An empty piece would mean the current folder, which nobody asked for.
    rest = [piece for piece in base.get("PYTHONPATH", "").split(os.pathsep) if piece]
    path = [str(BOOTSTRAP), *(piece for piece in rest if piece != str(BOOTSTRAP))]
    return {**base, "PYTHONPATH": os.pathsep.join(path)}


def python_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs ``arguments`` with this interpreter and its flags.

    Raises:
        TorchCompatError: the interpreter was started with flags that ignore PYTHONPATH.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise TorchCompatError(
            "this interpreter ignores PYTHONPATH or sitecustomize (-I, -E or -S), through which "
            "torchcompat reaches the program; leave that flag out, or call torchcompat.apply_all() in it"
        )
    return [sys.executable, *subprocess._args_from_interpreter_flags(), *arguments]  # type: ignore[attr-defined]


def replace_process(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run ``command`` in this process's place; returns only where it could not (or on Windows).

    Raises:
        TorchCompatError: there is no such command.
    """
    found = shutil.which(command[0], path=env.get("PATH"))
    if found is None:
        raise TorchCompatError(f"there is no command {command[0]!r}; check its spelling and PATH")
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "nt":
        # exec on Windows returns to the shell at once; a child keeps the order.
        return subprocess.run([found, *command[1:]], env=dict(env), check=False).returncode
    os.execve(found, list(command), dict(env))

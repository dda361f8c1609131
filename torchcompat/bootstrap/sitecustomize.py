"""Run at the start of every Python process under ``torchcompat run`` and ``exec``.

This folder stands first on PYTHONPATH. It registers the shims with the import hooks and
hands over to the ``sitecustomize`` that it hides. It stays on ``sys.path``, where it holds
nothing but this file: inductor starts its compile workers with ``sys.path`` as their
PYTHONPATH, and they need it too.
"""

import os
import sys


def _hand_over() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _apply() -> None:
    try:
        import torchcompat
    except ImportError as error:
        # Another interpreter, without us: its program must run all the same.
        sys.stderr.write(
            f"torchcompat: not applied in {sys.executable}: {error}; "
            f"install torchcompat-shims for this interpreter too.\n"
        )
        return
    level = os.environ.get("TORCHCOMPAT_LOG")
    if level:
        import logging

        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("torchcompat: %(message)s"))
        logger = logging.getLogger("torchcompat")
        logger.addHandler(handler)
        logger.setLevel(level.upper())
    torchcompat.apply_all()


_apply()
_hand_over()

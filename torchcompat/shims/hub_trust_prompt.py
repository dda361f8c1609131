"""``torch.hub.load`` asks whether a repository is trusted. Opt-in: it asks for a reason."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Sequence
from typing import Any

from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_TARGETS = ("torch.hub:load", "torch.hub:list", "torch.hub:help")

logger = logging.getLogger("torchcompat")


def probe() -> Probe:
    """Look at the default of trust_repo."""
    if all(is_replaced(target) for target in _TARGETS):
        return absent("torch.hub trusts every repository, by this shim", cured=True)
    defaults = set()
    for target in _TARGETS:
        function = lookup(target, None)
        trust = inspect.signature(function).parameters.get("trust_repo") if function else None
        if trust is None:
            return drifted(f"{target} has no trust_repo")
        defaults.add(trust.default)
    if defaults == {None}:
        return absent("torch.hub asks nothing by default", cured=True)
    return present("torch.hub asks about repositories that it has not seen")


def edits() -> Sequence[Edit]:
    """Say trust_repo=None where the caller says nothing, and log it."""

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original, updated=())
        def trusting(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind_partial(*args, **kwargs).arguments
            if "trust_repo" not in bound and bound.get("source", "github") == "github":
                logger.warning(
                    "torch.hub.%s runs the code of the repository %s without asking: the shim "
                    "hub_trust_prompt has switched the question off; pass trust_repo yourself to be "
                    "safe",
                    original.__name__,
                    next(iter(bound.values()), "?"),
                )
                kwargs["trust_repo"] = None
            return original(*args, **kwargs)

        return trusting

    return [ReplaceAttr(target, make) for target in _TARGETS]


def load_a_new_repo() -> None:
    """A repository that is not on the list of trusted ones, and no terminal to ask on."""
    import io
    import os
    import sys
    import tempfile
    from unittest import mock

    import torch

    class Reached(Exception):
        pass

    def no_download(*_: Any, **__: Any) -> None:
        raise Reached

    with tempfile.TemporaryDirectory() as folder:
        torch.hub.set_dir(folder)
        with (
            mock.patch.object(sys, "stdin", io.StringIO()),
            mock.patch.object(torch.hub, "download_url_to_file", no_download),
            mock.patch.dict(os.environ),
        ):
            try:
                torch.hub.load("nobody/nothing:main", "model", skip_validation=True)
            except Reached:
                return
    raise AssertionError("the download was not reached")


SHIM = Shim(
    key="hub_trust_prompt",
    summary="torch.hub does not ask whether a new repository is trusted, as before 2.11",
    symptom=(
        "torch.hub.load waits: `The repository ... does not belong to the list of trusted repositories "
        "... (y/N)?`, or, without a terminal, EOFError: EOF when reading a line"
    ),
    cause=(
        "2.11 made trust_repo='check' the default, for safety: loading a model from a repository runs "
        "that repository's code."
    ),
    cure=(
        "torch.hub.load, list and help trust the repository where the call says nothing, and log a "
        "warning each time. trust_repo='check' and False are heeded as always."
    ),
    upstream=("https://github.com/pytorch/pytorch/blob/v2.11.0/torch/hub.py",),
    affected=Affected(since="2.11.0"),
    modules=("torch.hub",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="load_a_new_repo", run=load_a_new_repo, expect="EOFError: EOF when reading a line"
        ),
    ),
    removable_when="your calls say trust_repo=True themselves where the repository is trusted",
    opt_in=True,
    notes="Dangerous with repositories of others, and never applied unless it is asked for by name.",
)

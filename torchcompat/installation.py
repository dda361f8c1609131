"""Is this installation whole, and is it alone: other owners of the import name, damaged files.

Asked by ``torchcompat status`` only; importing torchcompat never pays for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

__all__ = ["FOREIGN", "NAME", "Trouble", "troubles"]

NAME = "torchcompat-shims"

#: Another project's distribution, which installs into a folder of the same name.
FOREIGN = "torchcompat"

_PACKAGE = Path(__file__).resolve().parent


class Trouble(NamedTuple):
    """What is wrong with the installation.

    Attributes:
        sentence: what it is, and what to do.
        broken: whether it does not work as it is.
    """

    sentence: str
    broken: bool


def troubles(path: Sequence[str] | None = None, package: Path = _PACKAGE) -> tuple[Trouble, ...]:
    """Look at what is installed under our name and under our import name.

    Args:
        path: folders to look for distributions in, instead of ``sys.path``.
        package: the package that runs.
    """
    ours = _found(NAME, path)
    return (*_foreign(_found(FOREIGN, path), package), *_copies(ours), *_state(ours, package))


def _found(name: str, path: Sequence[str] | None) -> list[Distribution]:
    """Return each distribution of this name once, in the order of the path."""
    options = {"name": name} if path is None else {"name": name, "path": list(path)}
    return list({_site(found): found for found in distributions(**options)}.values())


def _site(found: Distribution) -> Path:
    return Path(str(found.locate_file(""))).resolve()


def _foreign(found: Sequence[Distribution], package: Path) -> Iterator[Trouble]:
    for other in found:
        site = _site(other)
        both = (
            f"the distribution {FOREIGN} {other.version} in {site} is another project's, and owns the "
            f"import name torchcompat as {NAME} does"
        )
        way_out = (
            f"keep them in separate environments, or: pip uninstall -y {FOREIGN} {NAME} && "
            f"pip install {NAME}"
        )
        if site == package.parent:
            relation = "both lie in one folder, where a file of one may replace the other's"
        else:
            relation = (
                f"torchcompat comes from {package} and hides it, so that code which needs {FOREIGN} "
                f"does not find it"
            )
        yield Trouble(f"{both}; {relation}; {way_out}", broken=False)


def _copies(ours: Sequence[Distribution]) -> Iterator[Trouble]:
    if len(ours) > 1:
        places = ", ".join(f"{found.version} in {_site(found)}" for found in ours)
        yield Trouble(
            f"{NAME} is installed {len(ours)} times ({places}); the first one counts; "
            f"run pip uninstall {NAME} until it finds no more, then install it once",
            broken=False,
        )


def _state(ours: Sequence[Distribution], package: Path) -> Iterator[Trouble]:
    """Compare what runs with what was installed first on the path."""
    if not ours or _editable(ours[0]):
        return
    site = _site(ours[0])
    if site != package.parent:
        yield Trouble(
            f"torchcompat comes from {package}, not from the installed {NAME} {ours[0].version} in "
            f"{site}; leave that folder, or take it off PYTHONPATH, to get the installed one",
            broken=False,
        )
    changed = list(_changed(ours[0]))
    if changed:
        shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        what = "1 installed file" if len(changed) == 1 else f"{len(changed)} installed files"
        yield Trouble(
            f"{what} of {NAME} {ours[0].version} in {site} missing or changed since ({shown}); "
            f"put back what was installed: pip install --force-reinstall --no-deps {NAME}",
            broken=True,
        )


def _editable(found: Distribution) -> bool:
    """Whether the distribution points into a checkout, whose files are meant to change."""
    text = found.read_text("direct_url.json")
    return bool(text and json.loads(text).get("dir_info", {}).get("editable"))


def _changed(found: Distribution) -> Iterator[str]:
    """Yield the package's files that are not as RECORD has them."""
    for file in found.files or ():
        if file.hash is None or file.parts[:1] != ("torchcompat",):
            continue
        place = Path(str(file.locate()))
        digest = hashlib.new(file.hash.mode, place.read_bytes()).digest() if place.is_file() else b""
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            yield str(file)

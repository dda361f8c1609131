"""Which torch is this: parsing of version strings, and detection without an import.

torch's version strings are not all PEP 440: NVIDIA ships ``2.13.0a0+8145d630e8``
and has shipped ``2.0.0.nv23.05``, source trees say ``2.13.0a0-dirty``, nightlies
``2.13.0.dev20260601+cu130``. :meth:`TorchBuild.parse` reads all of them, never
raises, and keeps the raw text.
"""

from __future__ import annotations

import enum
import functools
import re
import sys
from dataclasses import dataclass, replace

from .records import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OLDEST_TESTED", "Stage", "TorchBuild", "detect", "torch_loaded"]

#: The oldest torch line that the project's matrix runs on.
OLDEST_TESTED = (2, 4, 0)


class Stage(str, enum.Enum):
    """How far a build has come on its line; only RELEASE and POST are cut from a tag."""

    NIGHTLY = "nightly"
    ALPHA = "alpha"
    BETA = "beta"
    RC = "rc"
    RELEASE = "release"
    POST = "post"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value

    @property
    def is_release(self) -> bool:
        """Whether the build was cut from a release tag (post releases included)."""
        return self in (Stage.RELEASE, Stage.POST)


@dataclass(eq=False, repr=False, kw_only=True)
class TorchBuild(Record):
    """One build of torch, read from its version string.

    Attributes:
        raw: the version string as found.
        line: ``(major, minor, patch)``, or None where the string is no version.
        stage: nightly, alpha, beta, rc, release, post or unknown.
        public: the PEP 440 public part in normal form, ``""`` where unknown.
        date: a nightly's date, ``YYYYMMDD``.
        sha: the commit, lower-case hexadecimal, as long as it is known.
        vendor: NVIDIA's container tag as written, such as ``nv26.06``.
        accelerator: ``cu130``, ``rocm6.1``, ``xpu``, ``cpu``, ...
        source: where the string came from: ``given``, ``loaded`` (the imported
            torch), ``version.py`` or ``metadata``.
    """

    raw: str
    line: tuple[int, int, int] | None = None
    stage: Stage = Stage.UNKNOWN
    public: str = ""
    date: str | None = None
    sha: str | None = None
    vendor: str | None = None
    accelerator: str | None = None
    source: str = "given"

    @classmethod
    def parse(cls, raw: str, *, git_version: str | None = None, source: str = "given") -> TorchBuild:
        """Read a version string; text that is no version gives stage ``unknown``.

        Args:
            raw: the string, for example ``torch.__version__``.
            git_version: the commit that ``torch/version.py`` records; it beats a
                commit in the local segment.
            source: recorded as :attr:`source`.
        """
        build = _parse(str(raw).strip())
        commit = git_version.lower() if git_version and _is_sha(git_version.lower()) else None
        return replace(build, raw=str(raw), source=source, sha=commit or build.sha)

    @property
    def known(self) -> bool:
        """Whether the string could be read as a version."""
        return self.line is not None

    def __str__(self) -> str:
        return self.raw or "an unreadable version"


# Patterns are text here, which re compiles and keeps at first use: a release needs none of them.
_HEAD = r"v?\d+(?:\.\d+)+.*"
_VENDOR = r"(?:^|\.)(?P<tag>nv\d+\.\d+(?:\.[0-9a-z.]+)?)$"
# A tail that is not PEP 440 but that real builds carry after the public version.
_TAIL = (
    r"[.-](?P<tail>(?:nv\d+\.\d+[0-9a-z.]*|dirty"
    r"|(?:git|g)?(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}(?:-dirty)?))$"
)
_ACCELERATOR = (
    r"(?P<name>cu\d{2,3}|rocm\d+(?:\.\d+)*(?:(?:a|b|rc|dev)\d+)?|rocm|xpu|cpu|hpu|cann[0-9.]*)(?=$|\.|_)"
)


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> TorchBuild:
    return _parse_plain(text) or _parse_any(text)


def _parse_plain(text: str) -> TorchBuild | None:
    """Read what nearly every string is, ``2.13.0``, ``2.13.0+cu130`` or ``2.13.0a0``.

    Gives what :func:`_parse_any` gives, and takes less time than packaging takes to load.
    """
    public, plus, accelerator = text.partition("+")
    if (
        plus
        and accelerator not in ("cpu", "xpu")
        and not (accelerator[:2] == "cu" and len(accelerator) in (4, 5) and _is_number(accelerator[2:]))
    ):
        return None
    release, alpha, number = public.partition("a")
    pieces = release.split(".")
    if len(pieces) != 3 or not all(map(_is_number, pieces)) or (alpha and not _is_number(number)):
        return None
    major, minor, patch = map(int, pieces)
    return TorchBuild(
        raw=text,
        line=(major, minor, patch),
        stage=Stage.ALPHA if alpha else Stage.RELEASE,
        public=f"{major}.{minor}.{patch}" + (f"a{int(number)}" if alpha else ""),
        accelerator=accelerator or None,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _is_sha(text: str) -> bool:
    return 7 <= len(text) <= 40 and not text.strip("0123456789abcdef")


def _parse_any(text: str) -> TorchBuild:
    public, _, local = text.partition("+")
    tail = re.search(_TAIL, public, re.IGNORECASE)
    if tail is not None:
        public = public[: tail.start()]
        local = ".".join(filter(None, (tail["tail"], local)))
    if re.fullmatch(_HEAD, public, re.IGNORECASE | re.DOTALL) is None:
        return TorchBuild(raw=text)

    from packaging.version import InvalidVersion, Version

    try:
        version = Version(public)
    except (InvalidVersion, ValueError):
        # ValueError: an integer too long for int() to read.
        return TorchBuild(raw=text)
    if version.epoch:
        return TorchBuild(raw=text)

    release = (*version.release, 0, 0)[:3]
    date = None
    if version.dev is not None:
        stage = Stage.NIGHTLY
        digits = str(version.dev)
        date = digits if re.fullmatch(r"20\d{6}", digits) else None
    elif version.pre is not None:
        stage = {"a": Stage.ALPHA, "b": Stage.BETA, "rc": Stage.RC}[version.pre[0]]
    elif version.post is not None:
        stage = Stage.POST
    else:
        stage = Stage.RELEASE
    sha, vendor, accelerator = _parse_local(local)
    return TorchBuild(
        raw=text,
        line=(release[0], release[1], release[2]),
        stage=stage,
        public=str(version),
        date=date,
        sha=sha,
        vendor=vendor,
        accelerator=accelerator,
    )


def _parse_local(local: str) -> tuple[str | None, str | None, str | None]:
    """Split a local segment into commit, vendor tag and accelerator.

    Read as text, not through packaging, which turns ``041361538`` into a number.
    """
    vendor = None
    match = re.search(_VENDOR, local, re.IGNORECASE)
    if match is not None:
        vendor = match["tag"]
        local = local[: match.start()]
    accelerator = None
    match = re.match(_ACCELERATOR, local, re.IGNORECASE)
    if match is not None:
        accelerator = match["name"].lower()
        local = local[match.end() :]
    for piece in re.split(r"[.\-_]", local.lower()):
        sha = piece.removeprefix("git") if piece.startswith("git") else piece.removeprefix("g")
        if _is_sha(sha):
            return sha, vendor, accelerator
    return None, vendor, accelerator


def torch_loaded() -> bool:
    """Whether torch has been imported in this process, completely or in part."""
    return sys.modules.get("torch") is not None


def detect() -> TorchBuild | None:
    """Say which torch this process has or would import, without importing it.

    A loaded torch comes first, then the text of ``torch/version.py`` on disk, then
    the distribution's metadata. Returns None where there is no torch, and a build
    of stage ``unknown`` where there is one whose version cannot be read.
    """
    found = _from_loaded() if torch_loaded() else None
    if found is not None:
        return found
    folder = _torch_folder()
    found = _from_disk(folder) or _from_metadata()
    if found is None and folder is not None:
        return TorchBuild(raw="", source="version.py")  # a torch that hides its version
    return found


def _from_loaded() -> TorchBuild | None:
    version = sys.modules.get("torch.version")
    names = vars(version) if version is not None else vars(sys.modules["torch"])
    raw = names.get("__version__")
    if raw is None:
        return None
    commit = names.get("git_version")
    return TorchBuild.parse(
        str(raw), git_version=commit if isinstance(commit, str) else None, source="loaded"
    )


def _from_disk(folder: Path | None) -> TorchBuild | None:
    if folder is None:
        return None
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    names = _literal_assignments(text)
    raw = names.get("__version__")
    if raw is None:
        return None
    return TorchBuild.parse(raw, git_version=names.get("git_version"), source="version.py")


def _torch_folder() -> Path | None:
    from importlib.util import find_spec
    from pathlib import Path

    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):
        # ValueError: a torch in sys.modules whose __spec__ is None (a test's stub).
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


_ASSIGNMENT = (
    r"^(?P<name>__version__|git_version)\s*(?::[^=\n]+)?="
    r"\s*(?P<quote>['\"])(?P<value>[^'\"\n]*)(?P=quote)"
)


def _literal_assignments(text: str) -> dict[str, str]:
    """Read the string literals of ``version.py``; its code is never executed."""
    return {m["name"]: m["value"] for m in re.finditer(_ASSIGNMENT, text, re.MULTILINE)}


def _from_metadata() -> TorchBuild | None:
    from importlib import metadata

    try:
        raw = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    # A broken dist-info folder can yield None in spite of the annotation.
    return TorchBuild.parse(raw or "", source="metadata")

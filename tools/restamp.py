"""Make the torch of this environment claim to be another version: an honest emulation.

    python tools/restamp.py 2.13.0a0+8145d630e8

Only for throw-away environments. Files are written anew and renamed over the old ones,
never edited in place: uv's are hard links into its cache. ``TORCHCOMPAT_EMULATED`` in
the metadata folder keeps the real version, and verify's evidence shows it.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path


def replace_text(path: Path, pattern: str, replacement: str) -> None:
    text = path.read_text(encoding="utf-8")
    changed, count = re.subn(pattern, lambda _: replacement, text, count=1, flags=re.MULTILINE)
    if not count:
        raise SystemExit(f"{path.name} has no line like {pattern}")
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(changed, encoding="utf-8")
    fresh.replace(path)


def main(version: str) -> None:
    real = metadata.version("torch")
    # The marker comes last, so that a half-made emulation is never taken for a finished one.
    info = next(Path(metadata.distribution("torch").locate_file("")).glob(f"torch-{real}.dist-info"))
    folder = info.parent / "torch"
    replace_text(folder / "version.py", r"^__version__ = .*$", f"__version__ = {version!r}")
    sha = version.partition("+")[2].partition(".")[0]
    if re.fullmatch(r"[0-9a-f]{7,40}", sha):
        replace_text(folder / "version.py", r"^git_version = .*$", f"git_version = {sha!r}")
    replace_text(info / "METADATA", r"^Version: .*$", f"Version: {version}")
    renamed = info.with_name(f"torch-{version}.dist-info")
    info.rename(renamed)
    (renamed / "TORCHCOMPAT_EMULATED").write_text(real + "\n", encoding="utf-8")
    for cached in (folder / "__pycache__").glob("version.*.pyc"):
        cached.unlink()
    print(f"torch {real} now claims to be {version} (emulated)")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: restamp.py VERSION")
    main(sys.argv[1])

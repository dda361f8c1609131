"""The builds that gates are tried on: what people really run, one of each kind a line."""

from __future__ import annotations

from ..builds import TorchBuild

__all__ = ["BUILDS", "RELEASES", "line_of", "parse_builds"]

#: Releases, container alphas, nightlies, source and vendor builds from the oldest line
#: that torchcompat is tested with. Only builds that packaging can read: on others
#: (``2.13.0a0-dirty``) every gate that uses packaging raises, which is no news.
BUILDS: tuple[str, ...] = (
    "2.4.0a0+07cecf4168.nv24.05",
    "2.4.0+rocm6.1",
    "2.4.1+cu124",
    "2.5.0a0+872d972e41.nv24.08",
    "2.5.0.dev20240801+cu124",
    "2.5.1+cu124",
    "2.6.0a0+df5bbc09d1.nv24.11",
    "2.6.0.dev20241112+cu124",
    "2.6.0+cu124",
    "2.6.0.post301",
    "2.7.0a0+7c8ec84dab.nv25.03",
    "2.7.0.dev20250120+cu126",
    "2.7.1+cu128",
    "2.7.10+xpu",
    "2.8.0a0+5228986c39.nv25.05",
    "2.8.0.dev20250401+cu128",
    "2.8.0+cu128",
    "2.9.0a0+50eac811a6.nv25.09",
    "2.9.0.dev20250801+cu129",
    "2.9.0+cu128",
    "2.9.1",
    "2.9.1+rocm7.2.0.lw.git7e1940d4",
    "2.10.0a0+b4e4ee81d3.nv25.12",
    "2.10.0.dev20251115+cu130",
    "2.10.0+cu128",
    "2.10.0+rocm7.13.0a20260318",
    "2.11.0a0+eb65b36914.nv26.02",
    "2.11.0.dev20260115+cu130",
    "2.11.0+cu130",
    "2.12.0a0+5aff3928d8.nv26.05",
    "2.12.0.dev20260301+cu130",
    "2.12.0+cu130",
    "2.12.1+cu130",
    "2.13.0a0+8145d630e8",
    "2.13.0.dev20260601+cu130",
    "2.13.0rc1",
    "2.13.0",
    "2.13.0+gitabcdef0",
    "2.13.0+cu132",
    "2.13.1",
    "2.14.0.dev20260701",
    "2.14.0+cu130",
    "2.14.1",
    "2.15.0a0+git1234567",
    "2.15.0+cu132",
)

#: Plain releases, to see whether a gate depends on the line at all.
RELEASES: tuple[str, ...] = (
    "1.0.0",
    "1.13.1",
    *(f"2.{minor}.{patch}" for minor in range(20) for patch in (0, 1, 2)),
    "3.0.0",
)


def line_of(raw: str) -> tuple[int, int, int]:
    """Return the line of a build that can be read."""
    line = TorchBuild.parse(raw).line
    if line is None:
        raise ValueError(f"{raw!r} is not a version of torch")
    return line


def parse_builds(given: list[str]) -> tuple[str, ...]:
    """Check versions given by hand.

    Raises:
        GateError: one of them is no version.
    """
    from ..errors import GateError

    for raw in given:
        if not TorchBuild.parse(raw).known:
            raise GateError(
                f"{raw!r} is not a version of torch; write it as torch.__version__ "
                f"does, like '2.13.0' or '2.13.0a0+8145d630e8'"
            )
    return tuple(given)

"""Write docs/benchmarks.md and docs/benchmarks.svg from benchmarks/results.json.

nox -s bench -- --json benchmarks/results.json && python benchmarks/report.py
python benchmarks/report.py --check
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from pages import settle  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
CHART = ROOT / "docs" / "benchmarks.svg"
NOTES = ROOT / "benchmarks" / "notes.md"


def figure(value: float, row: dict) -> str:
    """Write a ratio, a share in percent, or a figure with its unit."""
    if row["theirs"] is None:
        return f"{value:.2f} {row['unit']}"
    return f"{value * 100:.2f} %" if row["share"] else f"{value:.3f}"


def absolute(row: dict) -> str:
    """Write the two medians."""
    if row["theirs"] is None:
        return ""
    scale, unit = (1e6, "µs") if row["unit"] == "µs" else (1e3, "ms")
    return f"{row['ours'] * scale:.2f} / {row['theirs'] * scale:.2f} {unit}"


def table(rows: list[dict]) -> Iterator[str]:
    """One group as a table."""
    yield from ("| what | against | ratio | quartiles | medians | aim |", "|---|---|---|---|---|---|")
    for row in rows:
        low, high = (figure(value, row) for value in row["quartiles"])
        aim = "" if row["aim"] is None else f"at most {figure(row['aim'], row)}"
        yield (
            f"| {cell(row['what'])} | {cell(row['against'])} | {figure(row['ratio'], row)} "
            f"| {low} to {high} | {absolute(row)} | {aim} |"
        )


def cell(text: str) -> str:
    """Write what looks like code as code."""
    return (
        f"`{text}`"
        if text.startswith(("import ", "apply_all() ", "python ")) and "," not in text
        else text
    )


def page(result: dict) -> str:
    """Return docs/benchmarks.md."""
    lines = [
        "<!-- Written by benchmarks/report.py from benchmarks/results.json. Do not edit. -->",
        "",
        "# What it costs",
        "",
        f"Measured on torch {result['torch']}, Python {result['python']} ({result['processor']}), "
        "in processor seconds of fresh interpreters, medians over interleaved rounds with their "
        "quartiles. Every figure is a ratio to something measured in the same run; "
        "`nox -s bench` measures anew.",
        "",
        "![Each ratio against its aim](benchmarks.svg)",
    ]
    for group in dict.fromkeys(row["group"] for row in result["rows"]):
        lines += ["", f"## {group}", "", *table([r for r in result["rows"] if r["group"] == group])]
    lines += ["", "## Verifying", "", result["verifying"]]
    lines += ["", NOTES.read_text(encoding="utf-8").strip()]
    lines += ["", "## python -X importtime -c 'import torchcompat'", "", "```text"]
    lines += [*result["importtime"], "```", ""]
    return "\n".join(lines)


def chart(rows: list[dict]) -> str:
    """Draw every ratio that has an aim, as a bar against a line at the aim."""
    rows = [row for row in rows if row["aim"] is not None]
    height, left, width = 34, 430, 300
    total = height * len(rows) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 140} {total}">',
        "<title>What torchcompat costs, against its aims</title>",
        "<style>text{font:13px system-ui,sans-serif;fill:#1b1f24}.bar{fill:#0072b2}.over{fill:#d55e00}"
        ".aim{stroke:#1b1f24;stroke-width:2;stroke-dasharray:4 3}"
        "@media (prefers-color-scheme:dark){text{fill:#e6e8eb}.bar{fill:#56b4e9}.over{fill:#e69f00}"
        ".aim{stroke:#e6e8eb}}</style>",
    ]
    line = left + width * 0.6
    for number, row in enumerate(rows):
        y = 24 + number * height
        share = row["ratio"] / row["aim"]
        # A cost over its aim is drawn to the right end at most, its figure tells how far.
        long = max(2.0, min(width, width * 0.6 * share))
        kind = "bar" if share <= 1.0 else "over"
        name = row["what"] + (f" / {row['against']}" if row["against"] else "")
        name = name if len(name) < 66 else name[:64] + "…"
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="{kind}" x="{left}" y="{y}" width="{long:.1f}" height="18"/>')
        told = f"{figure(row['ratio'], row)} (aim {figure(row['aim'], row)})"
        parts.append(
            f'<text x="{left + max(long, width * 0.6) + 8:.1f}" y="{y + 14}">{escape(told)}</text>'
        )
    parts.append(f'<line class="aim" x1="{line}" x2="{line}" y1="14" y2="{total - 8}"/>')
    parts.append(f'<text x="{line}" y="11" text-anchor="middle">aim</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> int:
    """Write or check page and chart."""
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    texts = {PAGE: page(result), CHART: chart(result["rows"])}
    drift = "benchmarks: {} have drifted; run python benchmarks/report.py"
    return settle(texts, check="--check" in sys.argv[1:], drift=drift)


if __name__ == "__main__":
    raise SystemExit(main())

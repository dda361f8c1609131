"""The grid picture: shims down, builds of torch across.

Shapes and letters tell the cells apart, and colours only help.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cells import Cell, Column, cell, needed_count

from torchcompat.shim import Shim

CELL, LEFT_PAD, CHAR = 26, 14, 7.3

# Colours of Okabe and Ito, which people with any common colour blindness can tell apart.
STYLE = """
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#1f2328}
.bg{fill:#ffffff;stroke:#d1d9e0}
.band{fill:#f3f5f8}
.rule{stroke:#c3ccd5;stroke-width:1}
.soft{fill:#59636e}
.emulated{font-style:italic}
.needed rect{fill:#0072b2}
.needed text,.wrong text{fill:#ffffff;font-weight:700;text-anchor:middle}
.forced rect{fill:none;stroke:#0072b2;stroke-width:1.6}
.forced text{fill:#0072b2;font-weight:700;text-anchor:middle}
.fixed path{fill:none;stroke:#00795a;stroke-width:2.4;stroke-linecap:round;stroke-linejoin:round}
.clear circle{fill:#8b949e}
.notrun rect{fill:none;stroke:#6e7781;stroke-width:1.2;stroke-dasharray:2.5 2.5}
.wrong path{fill:#b84a00}
.count{text-anchor:middle;font-weight:700}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}
.bg{fill:#0d1117;stroke:#30363d}
.band{fill:#161c24}
.rule{stroke:#3d444d}
.soft{fill:#9aa4af}
.needed rect{fill:#56b4e9}
.needed text{fill:#06131d}
.forced rect{stroke:#56b4e9}
.forced text{fill:#56b4e9}
.fixed path{stroke:#2fc79a}
.clear circle{fill:#6e7781}
.notrun rect{stroke:#8b949e}
.wrong path{fill:#ff8c42}
.wrong text{fill:#1a0b00}
}
""".strip()

# Drawn around (0, 0), the middle of a cell.
SHAPES = {
    Cell.NEEDED: (
        '<g class="needed"><rect x="-10" y="-10" width="20" height="20" rx="3"/>'
        '<text y="4.3">N</text></g>'
    ),
    Cell.FORCED: (
        '<g class="forced"><rect x="-9" y="-9" width="18" height="18" rx="3"/><text y="4.3">f</text></g>'
    ),
    Cell.FIXED: '<g class="fixed"><path d="M-5.5 0.5 L-1.5 4.5 L6 -4.5"/></g>',
    Cell.CLEAR: '<g class="clear"><circle r="2.4"/></g>',
    Cell.NOT_RUN: '<g class="notrun"><rect x="-8" y="-8" width="16" height="16" rx="3"/></g>',
    Cell.WRONG: '<g class="wrong"><path d="M0 -11 L11.5 9.5 L-11.5 9.5 Z"/><text y="7">!</text></g>',
}


def draw(shims: Sequence[Shim], columns: Sequence[Column]) -> str:
    """Return the picture as SVG text."""
    left = LEFT_PAD + max((len(shim.key) for shim in shims), default=4) * CHAR + 14
    # Heads lean at 58 degrees; sin(58) is 0.85.
    top = 40 + round(0.85 * CHAR * max((len(_head(column)) for column in columns), default=0))
    table_width = CELL * len(columns)
    width = round(
        left + table_width + 0.53 * CHAR * max((len(_head(c)) for c in columns[-2:]), default=0) + 14
    )
    bottom = top + CELL * (len(shims) + 1)
    legend = list(_legend(left, bottom + 34, width))
    height = bottom + 34 + 24 * (1 + int(legend.pop())) - 6
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title desc">',
        '<title id="title">Which builds of torch need which shim</title>',
        f'<desc id="desc">{escape(_in_words(shims, columns))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="bg" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
    ]
    for row in range(0, len(shims), 2):
        out.append(
            f'<rect class="band" x="{LEFT_PAD - 6}" y="{top + row * CELL}" '
            f'width="{left + table_width - LEFT_PAD + 6:.0f}" height="{CELL}"/>'
        )
    for number, column in enumerate(columns):
        x = left + CELL * number
        if number == 0 or _line(column) != _line(columns[number - 1]):
            out.append(f'<line class="rule" x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{bottom}"/>')
        kind = "emulated" if column.emulated else "release"
        place = f"translate({x + CELL / 2 + 4:.1f} {top - 12}) rotate(-58)"
        out.append(f'<text class="{kind}" transform="{place}">{escape(_head(column))}</text>')
    for row, shim in enumerate(shims):
        y = top + CELL * row + CELL / 2
        out.append(f'<text x="{LEFT_PAD}" y="{y + 4:.1f}">{shim.key}</text>')
        for number, column in enumerate(columns):
            state = cell(shim, column)
            x = left + CELL * number + CELL / 2
            told = escape(f"{shim.key} on {_name(column)}: {state.value}")
            out.append(
                f'<g transform="translate({x:.1f} {y:.1f})"><title>{told}</title>{SHAPES[state]}</g>'
            )
    y = top + CELL * len(shims) + CELL / 2
    out.append(
        f'<line class="rule" x1="{LEFT_PAD - 6}" y1="{y - CELL / 2:.1f}" '
        f'x2="{left + table_width:.1f}" y2="{y - CELL / 2:.1f}"/>'
    )
    out.append(f'<text class="soft" x="{LEFT_PAD}" y="{y + 4:.1f}">needed here</text>')
    for number, column in enumerate(columns):
        x = left + CELL * number + CELL / 2
        out.append(
            f'<text class="count" x="{x:.1f}" y="{y + 4:.1f}">{needed_count(shims, column)}</text>'
        )
    return "\n".join([*out, *legend, "</svg>", ""])


def _legend(left: float, top: float, width: float):
    """Yield the legend's elements, and at last the number of its rows."""
    x, row = float(LEFT_PAD), 0
    for state, shape in SHAPES.items():
        room = 30 + len(state.value) * CHAR + 18
        if x + room > width:
            x, row = float(LEFT_PAD), row + 1
        y = top + 24 * row
        yield f'<g transform="translate({x + 11:.1f} {y:.1f})">{shape}</g>'
        yield f'<text class="soft" x="{x + 28:.1f}" y="{y + 4:.1f}">{escape(state.value)}</text>'
        x += room
    yield str(row + 1)


def _line(column: Column) -> tuple[object, ...]:
    line = column.build.line
    return (column.emulated, line[:2] if line and not column.emulated else None)


def _name(column: Column) -> str:
    return f"{column.label}, emulated" if column.emulated else column.label


def _head(column: Column) -> str:
    """Leave out an emulated build's commit, which would not fit; the cells' titles have it."""
    return f"{column.label.partition('+')[0]} emul." if column.emulated else column.label


def _in_words(shims: Sequence[Shim], columns: Sequence[Column]) -> str:
    told = []
    for shim in shims:
        needed = [_name(column) for column in columns if cell(shim, column) is Cell.NEEDED]
        told.append(f"{shim.key} is needed on {', '.join(needed) or 'none of them'}.")
    return " ".join(told)

"""A drawing in SVG: boxes with lines of text in columns, and arrows between them."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

# In pixels; GAP lies between columns of boxes.
COLUMN_WIDTH, GAP, MARGIN, LINE_HEIGHT = 158, 22, 24, 16
BOX_HEIGHT = 5 * LINE_HEIGHT
_COLUMNS = 7
_STYLE = """\
text { font: 11px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 } .name { font-size: 12px; font-weight: 600 } .soft { fill: #59636e }
rect { stroke: #59636e; stroke-width: 1 } .page { fill: #ffffff; stroke: none }
.group { fill: none; stroke-dasharray: 4 3 } .host { fill: none }
.io { fill: #f1f3f5 } .gdn { fill: #dbeafe } .attention { fill: #fde7c8 } .ffn { fill: #e2f3df }
.mtp { fill: #f0e1fa } .state { fill: #fff7cc }
path { stroke: #59636e; stroke-width: 1.4; fill: none } marker path { fill: #59636e; stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .soft { fill: #9da7b3 } rect { stroke: #9da7b3 } .page { fill: #0d1117 }
.io { fill: #21262d } .gdn { fill: #12305c } .attention { fill: #5a3a0a } .ffn { fill: #17401f }
.mtp { fill: #44235c } .state { fill: #4a4206 } path { stroke: #9da7b3 } marker path { fill: #9da7b3 }
}"""


def column_x(column: int) -> int:
    """The left edge of a column."""
    return MARGIN + column * (COLUMN_WIDTH + GAP)


class Canvas:
    """Shapes of a drawing, which grows to the height that they need; coordinates are in pixels."""

    width = 2 * MARGIN + _COLUMNS * COLUMN_WIDTH + (_COLUMNS - 1) * GAP

    def __init__(self) -> None:
        self._shapes: list[str] = []
        self.height = 0

    def text(self, x: float, y: float, line: str, kind: str = "", most: float = 0, anchor: str = "start") -> None:
        """A line of text, squeezed to `most` pixels where it would be wider. `anchor`: which end of it is at `x`."""
        size = {"title": 17, "name": 12}.get(kind, 11)
        squeezed = (
            f' textLength="{most:g}" lengthAdjust="spacingAndGlyphs"' if 0 < most < 0.6 * size * len(line) else ""
        )
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}"{squeezed}>{escape(line)}</text>'
        )
        self.height = max(self.height, int(y) + MARGIN)

    def box(
        self, column: int, y: float, kind: str, lines: Sequence[str], *, columns: int = 1, height: float = BOX_HEIGHT
    ) -> None:
        """A box that spans `columns`: a name, and lines under it."""
        x, width = column_x(column), columns * COLUMN_WIDTH + (columns - 1) * GAP
        self.rect(x, y, width, height, kind)
        first = y + (height - LINE_HEIGHT * len(lines)) / 2 + 12
        for i, line in enumerate(lines):
            self.text(x + width / 2, first + LINE_HEIGHT * i, line, "soft" if i else "name", width - 12, "middle")

    def rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A rectangle with round corners."""
        self._shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>')

    def path(self, points: str) -> None:
        """A line with an arrow head at its end."""
        self._shapes.append(f'<path d="{points}" marker-end="url(#head)"/>')

    def right(self, column: int, y: float, to: int | None = None) -> None:
        """An arrow between boxes of a row with upper edges at `y`, to the next column unless given."""
        start, end = column_x(column) + COLUMN_WIDTH, column_x(column + 1 if to is None else to)
        self.path(f"M{start:g} {y + BOX_HEIGHT / 2:g}H{end:g}")

    def down(self, column: int, start: float, end: float) -> None:
        """An arrow in the middle of a column."""
        self.path(f"M{column_x(column) + COLUMN_WIDTH / 2:g} {start:g}V{end:g}")

    def both(self, column: int, upper: float, lower: float) -> None:
        """Two arrows in the middle of a column: a step reads state and writes it."""
        middle = column_x(column) + COLUMN_WIDTH / 2
        self.path(f"M{middle - 10:g} {upper:g}V{lower:g}")
        self.path(f"M{middle + 10:g} {lower:g}V{upper:g}")

    def lane(self, top: float, name: str, *notes: str) -> None:
        """The heading of a row of boxes, over the first of them."""
        self.text(MARGIN, top - 18 - LINE_HEIGHT * len(notes), name, "name")
        for i, note in enumerate(reversed(notes)):
            self.text(MARGIN, top - 18 - LINE_HEIGHT * i, note, "soft")

    def svg(self, title: str) -> str:
        """The file."""
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img">',
                f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>",
                '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                'orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
                f'<rect width="{self.width}" height="{self.height}" class="page"/>',
                *self._shapes,
                "</svg>\n",
            )
        )

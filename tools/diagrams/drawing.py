"""Drawing: boxes, arrows and text, written as SVG with colors for light and dark pages.

Pictures are narrow and tall, so that a phone shows them at nearly full size.
"""

from html import escape

WIDTH = 480
SIZE = 16
LINE = 20

# The CSS of each class on a light page and on a dark one.
LIGHT = {
    "panel": "fill: #ffffff; stroke: #d5dce1",
    "ink": "fill: #24323d",
    "pale": "fill: #51606c",
    "edge": "stroke: #51606c",
    "rule": "stroke: #c9d3da",
    "plain": "fill: #ffffff; stroke: #7b8b97",
    "good": "fill: #e3f3e6; stroke: #3c8a4c",
    "busy": "fill: #e2eefb; stroke: #2f6fa8",
    "late": "fill: #fdf0d8; stroke: #b07a1b",
    "bad": "fill: #fbe5e3; stroke: #b5493f",
    "area": "fill: #f0f4f7; stroke: #aebbc4",
}
DARK = {
    "panel": "fill: #15181d; stroke: #333b44",
    "ink": "fill: #e8ecef",
    "pale": "fill: #a9b5c0",
    "edge": "stroke: #a9b5c0",
    "rule": "stroke: #47525d",
    "plain": "fill: #1f252c; stroke: #7b8b97",
    "good": "fill: #17351f; stroke: #58b06b",
    "busy": "fill: #152f4a; stroke: #5b9fdc",
    "late": "fill: #3d2d0d; stroke: #d39b3a",
    "bad": "fill: #451d1a; stroke: #de7a70",
    "area": "fill: #1b2127; stroke: #56626d",
}

Point = tuple[float, float]


class Drawing:
    """A picture. Later shapes cover earlier ones."""

    def __init__(self, title: str, description: str, height: int) -> None:
        self._title = title
        self._description = description
        self._height = height
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, *lines: str, kind: str) -> None:
        """Draw a box with centered lines, the first in bold."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            'rx="8" stroke-width="1.5"/>'
        )
        first = y + height / 2 - (len(lines) - 1) * LINE / 2 + 5.5
        for number, text in enumerate(lines):
            y_of_line = first + number * LINE
            self.text(x + width / 2, y_of_line, text, anchor="middle", bold=number == 0)

    def text(
        self,
        x: float,
        y: float,
        *lines: str,
        anchor: str = "start",
        bold: bool = False,
        pale: bool = False,
    ) -> None:
        """Draw lines of text, the first with its baseline at `y`."""
        weight = ' font-weight="600"' if bold else ""
        color = "pale" if pale else "ink"
        for number, line in enumerate(lines):
            self._parts.append(
                f'<text class="{color}" x="{x:g}" y="{y + number * LINE:g}" '
                f'text-anchor="{anchor}"{weight}>{escape(line, quote=False)}</text>'
            )

    def label(self, x: float, y: float, *lines: str, anchor: str = "middle") -> None:
        """Draw the words of an edge."""
        self.text(x, y, *lines, anchor=anchor, pale=True)

    def arrow(self, *points: Point, both: bool = False, dashed: bool = False) -> None:
        """Draw a line from point to point with a head at its end, or at both ends."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        heads = ' marker-start="url(#head)"' if both else ""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline class="edge" points="{path}" fill="none" stroke-width="1.8"'
            f'{dashes}{heads} marker-end="url(#head)"/>'
        )

    def line(self, start: Point, end: Point) -> None:
        (x1, y1), (x2, y2) = start, end
        self._parts.append(
            f'<line class="rule" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke-width="2"/>'
        )

    def svg(self) -> str:
        return "\n".join([*self._head(), *self._parts, "</svg>", ""])

    def _head(self) -> list[str]:
        size = f'viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" height="{self._height}"'
        return [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            f'font-family="system-ui, sans-serif" font-size="{SIZE}">',
            f"<title>{escape(self._title, quote=False)}</title>",
            f"<desc>{escape(self._description, quote=False)}</desc>",
            f"<style>\n{_rules(LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{_rules(DARK)}\n}}",
            "</style>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse">'
            '<path class="pale" d="M0,0 L10,5 L0,10 z"/></marker></defs>',
            f'<rect class="panel" x="1" y="1" width="{WIDTH - 2}" height="{self._height - 2}" '
            'rx="10"/>',
        ]


def _rules(colors: dict[str, str]) -> str:
    return "\n".join(f".{name} {{{style}}}" for name, style in colors.items())

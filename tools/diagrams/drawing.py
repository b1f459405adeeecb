"""Drawing: boxes, arrows and text on a light background, written as SVG.

Pictures are narrow and tall, so that a phone shows them at nearly full size.
"""

from html import escape

WIDTH = 480
SIZE = 16
LINE = 20

INK = "#24323d"
PALE = "#5d6c78"
GROUND = "#fbfcfd"
EDGE = "#c9d3da"

# Fill and line of a box.
KINDS = {
    "plain": ("#ffffff", "#7b8b97"),
    "good": ("#e3f3e6", "#3c8a4c"),
    "busy": ("#e2eefb", "#2f6fa8"),
    "late": ("#fdf0d8", "#b07a1b"),
    "bad": ("#fbe5e3", "#b5493f"),
    "area": ("#f0f4f7", "#aebbc4"),
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
        fill, line = KINDS[kind]
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" '
            f'fill="{fill}" stroke="{line}" stroke-width="1.5"/>'
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
        color: str = INK,
    ) -> None:
        """Draw lines of text, the first with its baseline at `y`."""
        weight = ' font-weight="600"' if bold else ""
        for number, line in enumerate(lines):
            self._parts.append(
                f'<text x="{x:g}" y="{y + number * LINE:g}" text-anchor="{anchor}" '
                f'fill="{color}"{weight}>{escape(line, quote=False)}</text>'
            )

    def arrow(self, *points: Point, both: bool = False, dashed: bool = False) -> None:
        """Draw a line from point to point with a head at its end, or at both ends."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        heads = ' marker-start="url(#head)"' if both else ""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{PALE}" stroke-width="1.8"'
            f'{dashes}{heads} marker-end="url(#head)"/>'
        )

    def line(self, start: Point, end: Point) -> None:
        (x1, y1), (x2, y2) = start, end
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" '
            f'stroke="{EDGE}" stroke-width="2"/>'
        )

    def number(self, x: float, y: float, number: int) -> None:
        """Draw a number in a circle, which a table of the page explains."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="11" fill="{INK}"/>')
        self.text(x, y + 5.5, str(number), anchor="middle", color="#ffffff", bold=True)

    def svg(self) -> str:
        return "\n".join([*self._head(), *self._parts, "</svg>", ""])

    def _head(self) -> list[str]:
        size = f'viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" height="{self._height}"'
        return [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            f'font-family="system-ui, sans-serif" font-size="{SIZE}">',
            f"<title>{escape(self._title, quote=False)}</title>",
            f"<desc>{escape(self._description, quote=False)}</desc>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0,0 L10,5 L0,10 z" fill="{PALE}"/></marker></defs>',
            f'<rect x="1" y="1" width="{WIDTH - 2}" height="{self._height - 2}" rx="10" '
            f'fill="{GROUND}" stroke="{EDGE}"/>',
        ]

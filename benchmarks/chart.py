"""Charts as SVG, written by hand: no library to install, and the files are small."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 800
LABELS = 370
VALUES = 90
BAR = 20
GAP = 10
TOP = 46
OURS, OTHERS = "#2f6f9f", "#b9c2cc"
SHADE = "#f3e3c3"
TEXT = 'font-family="system-ui, sans-serif" fill="#333"'

# Of the panels of `lines`.
PANEL = 90
ROOM = 40
MARGIN = 12


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    text: str
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """What changed from second to second."""

    label: str
    values: Sequence[float]


def chart(title: str, bars: Sequence[Bar], *, logarithmic: bool = False) -> str:
    """Horizontal bars from zero, or, where values differ by powers of ten, from the smallest."""
    height = TOP + len(bars) * (BAR + GAP) + GAP
    rows = [_row(bar, number, _lengths(bars, logarithmic)) for number, bar in enumerate(bars)]
    return _framed(title, height, rows)


def lines(title: str, panels: Sequence[Line], shaded: range = range(0)) -> str:
    """One panel under the other, all on one axis of seconds, of which some are shaded."""
    height = TOP + len(panels) * (PANEL + ROOM)
    return _framed(
        title,
        height,
        [_panel(line, TOP + number * (PANEL + ROOM), shaded) for number, line in enumerate(panels)],
    )


def _framed(title: str, height: int, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            f'<text x="12" y="26" font-size="15" font-weight="600" {TEXT}>{escape(title)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(line: Line, top: int, shaded: range) -> str:
    most = max(*line.values, 1)
    step = (WIDTH - 2 * MARGIN) / max(1, len(line.values) - 1)
    base = top + ROOM - GAP + PANEL
    points = " ".join(
        f"{MARGIN + number * step:.1f},{base - PANEL * value / most:.1f}"
        for number, value in enumerate(line.values)
    )
    return (
        f'<rect x="{MARGIN + shaded.start * step:.1f}" y="{base - PANEL}" '
        f'width="{len(shaded) * step:.1f}" height="{PANEL}" fill="{SHADE}"/>'
        f'<line x1="{MARGIN}" y1="{base}" x2="{WIDTH - MARGIN}" y2="{base}" stroke="{OTHERS}"/>'
        f'<polyline points="{points}" fill="none" stroke="{OURS}" stroke-width="1.2"/>'
        f'<text x="{MARGIN}" y="{base - PANEL - 6}" font-size="12" {TEXT}>'
        f"{escape(line.label)}, up to {most:,.4g}</text>"
    )


def _row(bar: Bar, number: int, lengths: Sequence[float]) -> str:
    top = TOP + number * (BAR + GAP)
    middle = top + BAR * 0.72
    length = lengths[number]
    colour = OURS if bar.is_ours else OTHERS
    return (
        f'<text x="{LABELS - 10}" y="{middle:.1f}" font-size="12" text-anchor="end" {TEXT}>'
        f"{escape(bar.label)}</text>"
        f'<rect x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'
        f'<text x="{LABELS + length + 6:.1f}" y="{middle:.1f}" font-size="12" {TEXT}>'
        f"{escape(bar.text)}</text>"
    )


def _lengths(bars: Sequence[Bar], logarithmic: bool) -> list[float]:
    room = WIDTH - LABELS - VALUES
    values = [bar.value for bar in bars]
    if logarithmic:
        # The smallest still has a bar to be seen.
        values = [1 + math.log10(value / min(values)) for value in values]
    return [max(1.0, room * value / max(values)) for value in values]

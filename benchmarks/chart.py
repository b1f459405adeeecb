"""Charts as SVG, written by hand: no library to install, and the files are small.

They are drawn for the width of a phone and shown a little larger elsewhere, so that text can be
read on both. The background is painted, so that they can be read on a light page and on a dark
one; where the reader's system is dark, they are dark too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 420
# How wide they are where there is room.
SHOWN = 560
MARGIN = 14
INSIDE = WIDTH - 2 * MARGIN
TOP = 62
OURS, OTHERS = "#2f6f9f", "#a9b4c0"
SHADE = "#f3e3c3"
BACKGROUND, INK, SOFT = "#ffffff", "#2b2f36", "#626a75"

DARK = {
    "back": "#1e2229",
    "ink": "#e6e8eb",
    "soft": "#a3acb8",
    "ours": "#6fb1e4",
    "others": "#66717e",
    "shade": "#4b4130",
}

# Of bars.
LABEL = 20
BAR = 16
BETWEEN = 4
GAP = 10
# The widest that a character of a value can be, about.
CHARACTER = 6.9

# Of the panels of `lines`.
PANEL = 80
ROOM = 34
AXIS = 20


@dataclass(frozen=True, slots=True)
class Bar:
    """One with an empty label belongs to the one above it."""

    label: str
    value: float
    text: str
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """What changed from second to second."""

    label: str
    values: Sequence[float]


def chart(title: str, about: str, bars: Sequence[Bar], *, logarithmic: bool = False) -> str:
    """Horizontal bars from zero, or, where values differ by powers of ten, from the smallest."""
    lengths = _lengths(bars, logarithmic)
    rows, top = [], float(TOP)
    for number, (bar, length) in enumerate(zip(bars, lengths, strict=True)):
        if bar.label and number:
            top += GAP
        rows.append(_row(bar, top, length))
        top += BAR + BETWEEN + (LABEL if bar.label else 0)
    return _framed(title, about, round(top + GAP), rows)


def lines(title: str, about: str, panels: Sequence[Line], shaded: range = range(0)) -> str:
    """One panel under the other, all on one axis of seconds, of which some are shaded."""
    height = TOP + len(panels) * (PANEL + ROOM) + AXIS
    drawn = [_panel(line, TOP + n * (PANEL + ROOM), shaded) for n, line in enumerate(panels)]
    seconds = max(len(line.values) for line in panels)
    return _framed(title, about, height, [*drawn, _axis(seconds, height - AXIS + 4)])


def _framed(title: str, about: str, height: int, parts: Sequence[str]) -> str:
    shown = round(height * SHOWN / WIDTH)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{SHOWN}" height="{shown}" role="img" font-family="system-ui, sans-serif">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(about)}</desc>",
            f"<style>@media (prefers-color-scheme: dark) {{{_dark()}}}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{BACKGROUND}" class="back"/>',
            _text(MARGIN, 26, title, size=15, more=' font-weight="600"'),
            _text(MARGIN, 45, about, size=12, ink="soft"),
            *parts,
            "</svg>\n",
        ]
    )


def _dark() -> str:
    return " ".join(f".{name} {{fill: {colour}}}" for name, colour in DARK.items()) + (
        f" .line {{stroke: {DARK['ours']}}} .axis {{stroke: {DARK['others']}}}"
    )


def _panel(line: Line, top: int, shaded: range) -> str:
    most = max(*line.values, 1)
    step = INSIDE / max(1, len(line.values) - 1)
    base = top + ROOM - GAP + PANEL
    points = " ".join(
        f"{MARGIN + number * step:.1f},{base - PANEL * value / most:.1f}"
        for number, value in enumerate(line.values)
    )
    shade = (
        f'<rect x="{MARGIN + shaded.start * step:.1f}" y="{base - PANEL}" '
        f'width="{len(shaded) * step:.1f}" height="{PANEL}" fill="{SHADE}" class="shade"/>'
    )
    return (
        (shade if shaded else "")
        + f'<line x1="{MARGIN}" y1="{base}" x2="{WIDTH - MARGIN}" y2="{base}" '
        f'stroke="{OTHERS}" class="axis"/>'
        f'<polyline points="{points}" fill="none" stroke="{OURS}" class="line"/>'
        + _text(MARGIN, base - PANEL - 7, f"{line.label}, up to {_number(most)}", size=13)
    )


def _axis(seconds: int, top: int) -> str:
    """Where the time begins and ends."""
    end = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds} s"
    return _text(MARGIN, top, "0", size=12, ink="soft") + _text(
        WIDTH - MARGIN, top, end, size=12, ink="soft", more=' text-anchor="end"'
    )


def _row(bar: Bar, top: float, length: float) -> str:
    name, colour = ("ours", OURS) if bar.is_ours else ("others", OTHERS)
    label = _text(MARGIN, top + 14, bar.label, size=13) if bar.label else ""
    if bar.label:
        top += LABEL
    return (
        f"{label}"
        f'<rect x="{MARGIN}" y="{top:.1f}" width="{length:.1f}" height="{BAR}" rx="2" '
        f'fill="{colour}" class="{name}"/>'
        + _text(MARGIN + length + 6, top + BAR * 0.78, bar.text, size=12.5)
    )


def _lengths(bars: Sequence[Bar], logarithmic: bool) -> list[float]:
    room = INSIDE - 6 - CHARACTER * max(len(bar.text) for bar in bars)
    values = [bar.value for bar in bars]
    if logarithmic:
        # The smallest still has a bar to be seen.
        values = [1 + math.log10(value / min(values)) for value in values]
    return [max(1.0, room * value / max(values)) for value in values]


def _text(x: float, y: float, text: str, *, size: float, ink: str = "ink", more: str = "") -> str:
    colour = INK if ink == "ink" else SOFT
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" class="{ink}"{more}>'
        f"{escape(text)}</text>"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

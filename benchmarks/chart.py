"""Charts as SVG, written by hand: no library to install, and the files are small.

They are drawn for the width of a phone and shown a little larger elsewhere, so that text can be
read on both. Their colors follow the color scheme of the page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 420
# The width in pixels where there is room.
SHOWN = 560
MARGIN = 14
INSIDE = WIDTH - 2 * MARGIN
TOP = 62

# The color of each class on a light page and on a dark one.
LIGHT = {
    "back": "#ffffff",
    "ink": "#2b2f36",
    "soft": "#59616c",
    "ours": "#2f6f9f",
    "others": "#a3aebb",
    "engine": "#d0892c",
    "shade": "#f3e3c3",
    "frame": "#d5dce1",
    "grid": "#e1e6ea",
}
DARK = {
    "back": "#15181d",
    "ink": "#e6e8eb",
    "soft": "#a9b2bd",
    "ours": "#6fb1e4",
    "others": "#66717e",
    "engine": "#e0a458",
    "shade": "#4b4130",
    "frame": "#333b44",
    "grid": "#2c333b",
}
# Classes of lines; the others fill shapes.
STROKES = ("frame", "grid", "line")

# Bars.
LABEL = 20
BAR = 16
BETWEEN = 4
GAP = 10
# The width of a character of a value, at most.
CHARACTER = 7.6
MOST_TICKS = 5
AXIS = 40
NOTE = 18

# The panels of `lines`.
PANEL = 80
ROOM = 34
SECONDS_PER_TICK = 300


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, of the kind `ours`, `others` or `engine`.

    A bar with an empty label belongs to the bar above it.
    """

    label: str
    value: float
    text: str
    kind: str = "others"


@dataclass(frozen=True, slots=True)
class Line:
    """A figure by second."""

    label: str
    values: Sequence[float]


def chart(
    title: str,
    about: str,
    bars: Sequence[Bar],
    *,
    unit: str,
    notes: Sequence[str] = (),
    logarithmic: bool = False,
) -> str:
    """Draw horizontal bars over an axis.

    Bars start at zero, or on a logarithmic axis one power of ten below the smallest value.
    """
    scale = _Scale(bars, logarithmic)
    rows, top = [], float(TOP)
    for number, bar in enumerate(bars):
        if bar.label and number:
            top += GAP
        rows.append(_row(bar, top, scale.length(bar.value)))
        top += BAR + BETWEEN + (LABEL if bar.label else 0)
    axis = _value_axis(scale, top, unit)
    notes_top = top + AXIS + NOTE
    written = [
        _text(MARGIN, notes_top + number * NOTE, note, size=12, ink="soft")
        for number, note in enumerate(notes)
    ]
    height = top + AXIS + GAP + (NOTE * len(notes) if notes else 0)
    return _framed(title, about, round(height), [*axis, *rows, *written])


def lines(title: str, about: str, panels: Sequence[Line], shaded: range = range(0)) -> str:
    """Draw one panel under the other over one axis of minutes, with some seconds shaded."""
    height = TOP + len(panels) * (PANEL + ROOM) + AXIS
    seconds = max(len(line.values) for line in panels)
    drawn = [
        _panel(line, TOP + n * (PANEL + ROOM), seconds, shaded) for n, line in enumerate(panels)
    ]
    axis = _time_axis(seconds, TOP + len(panels) * (PANEL + ROOM) - GAP)
    return _framed(title, about, height, [*drawn, *axis])


class _Scale:
    """The lengths of bars, which leave room for the longest value."""

    def __init__(self, bars: Sequence[Bar], logarithmic: bool) -> None:
        self._room = INSIDE - 6 - CHARACTER * max(len(bar.text) for bar in bars)
        self._logarithmic = logarithmic
        values = [bar.value for bar in bars]
        self._least, self._most = min(values), max(values)

    def length(self, value: float) -> float:
        if self._logarithmic:
            share = (1 + math.log10(value / self._least)) / self._decades()
        else:
            share = value / self._most
        return max(1.0, self._room * share)

    def ticks(self) -> list[float]:
        if self._logarithmic:
            low = math.ceil(math.log10(self._least) - 1)
            return [10.0**power for power in range(low, math.floor(math.log10(self._most)) + 1)]
        step = get_step(self._most)
        return [number * step for number in range(math.floor(self._most / step) + 1)]

    def position(self, tick: float) -> float:
        if self._logarithmic:
            return self._room * (1 + math.log10(tick / self._least)) / self._decades()
        return self._room * tick / self._most

    def _decades(self) -> float:
        return 1 + math.log10(self._most / self._least)


def get_step(most: float) -> float:
    """Return the distance between ticks: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most / MOST_TICKS))
    return next(step * power for step in (1, 2, 5, 10) if most / (step * power) <= MOST_TICKS)


def _framed(title: str, about: str, height: int, parts: Sequence[str]) -> str:
    shown = round(height * SHOWN / WIDTH)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{SHOWN}" height="{shown}" role="img" font-family="system-ui, sans-serif">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(about)}</desc>",
            "<style>",
            _rules(LIGHT),
            f"@media (prefers-color-scheme: dark) {{\n{_rules(DARK)}\n}}",
            "</style>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" '
            'class="back frame"/>',
            _text(MARGIN, 26, title, size=15, more=' font-weight="600"'),
            _text(MARGIN, 45, about, size=12, ink="soft"),
            *parts,
            "</svg>\n",
        ]
    )


def _rules(colors: dict[str, str]) -> str:
    named = {**colors, "line": colors["ours"]}
    return "\n".join(
        f".{name} {{{'stroke' if name in STROKES else 'fill'}: {color}}}"
        for name, color in named.items()
    )


def _value_axis(scale: _Scale, bottom: float, unit: str) -> list[str]:
    """Draw grid lines with their values, and the unit below."""
    parts = []
    for tick in scale.ticks():
        x = MARGIN + scale.position(tick)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP + 2}" x2="{x:.1f}" y2="{bottom + 2:.1f}" class="grid"/>'
        )
        anchor = "start" if x < MARGIN + GAP else "middle"
        more = f' text-anchor="{anchor}"'
        parts.append(_text(x, bottom + 16, _tick(tick), size=12, ink="soft", more=more))
    return [*parts, _text(MARGIN, bottom + 33, unit, size=12, ink="soft")]


def _panel(line: Line, top: int, seconds: int, shaded: range) -> str:
    most = max(*line.values, 1)
    step = INSIDE / max(1, len(line.values) - 1)
    base = top + ROOM - GAP + PANEL
    points = " ".join(
        f"{MARGIN + number * step:.1f},{base - PANEL * value / most:.1f}"
        for number, value in enumerate(line.values)
    )
    shade = (
        f'<rect x="{MARGIN + shaded.start * step:.1f}" y="{base - PANEL}" '
        f'width="{len(shaded) * step:.1f}" height="{PANEL}" class="shade"/>'
    )
    grid = "".join(
        f'<line x1="{MARGIN}" y1="{y}" x2="{WIDTH - MARGIN}" y2="{y}" class="grid"/>'
        for y in (base - PANEL, base)
    )
    end = ' text-anchor="end"'
    return (
        (shade if shaded else "")
        + grid
        + "".join(
            f'<line x1="{x:.1f}" y1="{base - PANEL}" x2="{x:.1f}" y2="{base}" class="grid"/>'
            for x, _ in _time_ticks(seconds)
        )
        + f'<polyline points="{points}" fill="none" class="line"/>'
        + _text(MARGIN, base - PANEL - 7, line.label, size=13)
        + _text(
            WIDTH - MARGIN,
            base - PANEL - 7,
            f"0 to {_number(most)}",
            size=12,
            ink="soft",
            more=end,
        )
    )


def _time_axis(seconds: int, top: int) -> list[str]:
    minutes = [
        _text(x, top + 16, f"{second // 60}", size=12, ink="soft", more=f' text-anchor="{anchor}"')
        for x, second in _time_ticks(seconds)
        for anchor in ["start" if x < MARGIN + GAP else "middle"]
    ]
    return [*minutes, _text(MARGIN, top + 33, "minutes", size=12, ink="soft")]


def _time_ticks(seconds: int) -> list[tuple[float, int]]:
    """Return the position and the second of each tick."""
    width = INSIDE / max(1, seconds - 1)
    return [(MARGIN + second * width, second) for second in range(0, seconds, SECONDS_PER_TICK)]


def _row(bar: Bar, top: float, length: float) -> str:
    label = _text(MARGIN, top + 14, bar.label, size=13) if bar.label else ""
    if bar.label:
        top += LABEL
    return (
        f"{label}"
        f'<rect x="{MARGIN}" y="{top:.1f}" width="{length:.1f}" height="{BAR}" rx="2" '
        f'class="{bar.kind}"/>' + _text(MARGIN + length + 6, top + BAR * 0.78, bar.text, size=12.5)
    )


def _text(x: float, y: float, text: str, *, size: float, ink: str = "ink", more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" class="{ink}"{more}>'
        f"{escape(text)}</text>"
    )


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.3g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

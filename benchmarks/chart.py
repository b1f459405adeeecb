"""Bar charts as SVG, written by hand: no library to install, and the files are small."""

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
TEXT = 'font-family="system-ui, sans-serif" fill="#333"'


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    text: str
    is_ours: bool = False


def chart(title: str, bars: Sequence[Bar], *, logarithmic: bool = False) -> str:
    """Horizontal bars from zero, or, where values differ by powers of ten, from the smallest."""
    height = TOP + len(bars) * (BAR + GAP) + GAP
    rows = [_row(bar, number, _lengths(bars, logarithmic)) for number, bar in enumerate(bars)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            f'<text x="12" y="26" font-size="15" font-weight="600" {TEXT}>{escape(title)}</text>',
            *rows,
            "</svg>\n",
        ]
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

"""Text on a terminal: without control characters, styled, measured, cut and padded in cells."""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from graphile_worker._support.error_format import make_printable

ELLIPSIS = "…"

# The SGR codes of a terminal with colors and without.
TextStyle = tuple[str, str]

PLAIN: TextStyle = ("", "")
STRONG: TextStyle = ("1", "1")
FAINT: TextStyle = ("2", "2")
HEADER: TextStyle = ("1;4", "1;4")
GOOD: TextStyle = ("32", "")
WARNING: TextStyle = ("1;33", "1")
BAD: TextStyle = ("1;31", "1")
COMMAND: TextStyle = ("36", "")
SELECTED: TextStyle = ("7", "7")
ALARM: TextStyle = ("1;37;41", "1;7")

Span = tuple[str, TextStyle]
StyledLine = tuple[Span, ...]

EMPTY_LINE: StyledLine = ()


@lru_cache(10_000)
def sanitize(text: str) -> str:
    """Put a text on one line, without control characters and characters of unclear width."""
    printable = make_printable(text).replace("\t", " ")
    if printable.isascii():
        return printable
    return "".join(letter for letter in printable if not _is_invisible(letter))


def make_line(text: str, style: TextStyle = PLAIN) -> StyledLine:
    return ((sanitize(text), style),)


@lru_cache(10_000)
def display_width(text: str) -> int:
    """Count the cells that a text takes."""
    return len(text) if text.isascii() else sum(map(_measure_letter, text))


def line_width(line: StyledLine) -> int:
    return sum(display_width(text) for text, _ in line)


def clip(text: str, cells: int) -> str:
    """Cut a text to a number of cells, with an ellipsis at the cut."""
    if display_width(text) <= cells:
        return text
    if cells < 1:
        return ""
    taken, left = [], cells - 1
    for letter in text:
        left -= _measure_letter(letter)
        if left < 0:
            break
        taken.append(letter)
    return "".join([*taken, ELLIPSIS])


def fit(text: str, cells: int, *, align_right: bool = False) -> str:
    """Cut or pad a text to a number of cells."""
    clipped = clip(text, cells)
    blank = " " * (cells - display_width(clipped))
    return blank + clipped if align_right else clipped + blank


def clip_line(line: StyledLine, cells: int) -> StyledLine:
    """Cut a line to a number of cells."""
    spans: list[Span] = []
    for text, style in line:
        clipped = clip(text, cells)
        spans.append((clipped, style))
        cells -= display_width(clipped)
        if clipped != text:
            break
    return tuple(spans)


def fit_line(line: StyledLine, cells: int) -> StyledLine:
    """Cut or pad a line to a number of cells."""
    clipped = clip_line(line, cells)
    return (*clipped, (" " * (cells - line_width(clipped)), PLAIN))


def justify(left: StyledLine, right: StyledLine, cells: int) -> StyledLine:
    """Put two parts on one line, at its start and at its end. Only the left one is cut."""
    room = cells - line_width(right) - 1
    return clip_line(left, cells) if room < 1 else (*fit_line(left, room), (" ", PLAIN), *right)


def flow_lines(parts: Iterable[StyledLine], cells: int, gap: int = 3) -> list[StyledLine]:
    """Put parts beside each other, on as many lines as that takes."""
    lines: list[StyledLine] = []
    for part in parts:
        if lines and line_width(lines[-1]) + gap + line_width(part) <= cells:
            lines[-1] = (*lines[-1], (" " * gap, PLAIN), *part)
        else:
            lines.append(part)
    return lines


def wrap_text(text: str, cells: int) -> list[str]:
    """Break a text into lines, between words where possible."""
    lines = [""]
    for word in sanitize(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if display_width(longer) <= cells:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if display_width(lines[-1] + letter) > max(cells, 2):
                lines.append("")
            lines[-1] += letter
    return lines


def render_ansi(line: StyledLine, *, is_color_enabled: bool) -> str:
    """Render a line with the SGR codes of its styles."""
    parts = []
    for text, style in line:
        code = style[0 if is_color_enabled else 1]
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if code and text else text)
    return "".join(parts)


def render_plain(line: StyledLine) -> str:
    return "".join(text for text, _ in line).rstrip()


def _measure_letter(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _is_invisible(letter: str) -> bool:
    is_selector = "\ufe00" <= letter <= "\ufe0f"
    return is_selector or unicodedata.category(letter) in ("Cf", "Cn", "Co", "Zl", "Zp")

"""Text on a terminal: how many cells it takes, cut and filled to fit, and painted."""

import unicodedata
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache

from graphile_worker._support.logs import make_printable

ELLIPSIS = "…"


class TextStyle(Enum):
    """What a text means, with what a terminal is told where it has colours, and where not."""

    PLAIN = ("", "")
    STRONG = ("1", "1")
    FAINT = ("2", "2")
    HEADER = ("1;4", "1;4")
    GOOD = ("32", "")
    WARNING = ("1;33", "1")
    BAD = ("1;31", "1")
    COMMAND = ("36", "")
    SELECTED = ("7", "7")
    ALARM = ("1;37;41", "1;7")


Span = tuple[str, TextStyle]
Line = tuple[Span, ...]

EMPTY_LINE: Line = ()


def make_line(text: str, style: TextStyle = TextStyle.PLAIN) -> Line:
    """A line in one style, harmless whatever others wrote."""
    return ((sanitize(text), style),)


@lru_cache(10_000)
def sanitize(text: str) -> str:
    """As one line without what moves a cursor, or what terminals disagree about how wide it is."""
    shown = make_printable(text).replace("\t", " ")
    if shown.isascii():
        return shown
    return "".join("" if _is_invisible(letter) else letter for letter in shown)


def display_width(text: str) -> int:
    """How many cells it takes."""
    return len(text) if text.isascii() else _measure_unicode(text)


def clip(text: str, cells: int) -> str:
    """The text, or as much of it as fits, with an ellipsis."""
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
    """The text in just so many cells."""
    shown = clip(text, cells)
    blank = " " * (cells - display_width(shown))
    return blank + shown if align_right else shown + blank


def line_width(line: Line) -> int:
    return sum(display_width(text) for text, _ in line)


def clip_line(line: Line, cells: int) -> Line:
    """The line, or as much of it as fits."""
    if line_width(line) <= cells:
        return line
    found: list[Span] = []
    left = cells
    for text, style in line:
        shown = clip(text, left)
        found.append((shown, style))
        left -= display_width(shown)
        if shown != text or left <= 0:
            break
    return tuple(found)


def fit_line(line: Line, cells: int) -> Line:
    """The line in just so many cells."""
    shown = clip_line(line, cells)
    return (*shown, (" " * (cells - line_width(shown)), TextStyle.PLAIN))


def justify(left: Line, right: Line, cells: int) -> Line:
    """One at the beginning and one at the end of a line; what does not fit is cut off the first."""
    room = cells - line_width(right) - 1
    if room < 1:
        return clip_line(left, cells)
    return (*fit_line(left, room), (" ", TextStyle.PLAIN), *right)


def join_columns(
    left: Sequence[Line], right: Sequence[Line], cells: int, gap: int = 2
) -> list[Line]:
    """Two columns of lines; the first takes so many cells."""
    between: Span = (" " * gap, TextStyle.PLAIN)
    height = max(len(left), len(right))
    rows = zip(_pad_lines(left, height), _pad_lines(right, height), strict=True)
    return [(*fit_line(one, cells), between, *other) for one, other in rows]


def restyle(line: Line, style: TextStyle, cells: int) -> Line:
    """All of it in that style, to the end of the line."""
    return ((fit("".join(text for text, _ in line), cells), style),)


def flow_lines(spans: Iterable[Line], cells: int, gap: int = 3) -> list[Line]:
    """One after the other, in as many lines as that takes."""
    lines: list[Line] = [EMPTY_LINE]
    for each in spans:
        last = lines[-1]
        if not last:
            lines[-1] = each
        elif line_width(last) + gap + line_width(each) <= cells:
            lines[-1] = (*last, (" " * gap, TextStyle.PLAIN), *each)
        else:
            lines.append(each)
    return lines


def wrap_text(text: str, cells: int) -> list[str]:
    """The text in as many lines as it takes, broken between words where that can be."""
    lines, current = [], ""
    for word in sanitize(text).split(" "):
        longer = f"{current} {word}" if current else word
        if display_width(longer) <= cells:
            current = longer
            continue
        if current:
            lines.append(current)
        *whole, current = _split_word(word, cells)
        lines.extend(whole)
    return [*lines, current]


def render_ansi(line: Line, *, is_color_enabled: bool) -> str:
    """The line with what tells a terminal how it looks."""
    parts = []
    for text, style in line:
        code = style.value[0 if is_color_enabled else 1]
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if code and text else text)
    return "".join(parts)


def render_plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def _split_word(word: str, cells: int) -> list[str]:
    chunks = [""]
    for letter in word:
        if display_width(chunks[-1]) + _measure_letter(letter) > max(cells, 2):
            chunks.append("")
        chunks[-1] += letter
    return chunks


def _pad_lines(lines: Sequence[Line], height: int) -> list[Line]:
    return [*lines, *[EMPTY_LINE] * (height - len(lines))]


@lru_cache(10_000)
def _measure_unicode(text: str) -> int:
    return sum(map(_measure_letter, text))


@lru_cache(10_000)
def _measure_letter(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _is_invisible(letter: str) -> bool:
    is_selector = "\ufe00" <= letter <= "\ufe0f"
    return is_selector or unicodedata.category(letter) in ("Cf", "Cn", "Co", "Zl", "Zp")

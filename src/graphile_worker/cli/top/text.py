"""Text on a terminal: how many cells it takes, cut and filled to fit, and painted."""

import unicodedata
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache

from graphile_worker.logs import printable

MORE = "…"


class Style(Enum):
    """What a text means, with what a terminal is told where it has colours, and where not."""

    PLAIN = ("", "")
    STRONG = ("1", "1")
    FAINT = ("2", "2")
    HEAD = ("1;4", "1;4")
    GOOD = ("32", "")
    WARNING = ("1;33", "1")
    BAD = ("1;31", "1")
    COMMAND = ("36", "")
    CHOSEN = ("7", "7")
    ALARM = ("1;37;41", "1;7")


Span = tuple[str, Style]
Line = tuple[Span, ...]

EMPTY: Line = ()


def plain(text: str, style: Style = Style.PLAIN) -> Line:
    """A line in one style, harmless whatever others wrote."""
    return ((harmless(text), style),)


@lru_cache(10_000)
def harmless(text: str) -> str:
    """As one line without what moves a cursor, or what terminals disagree about how wide it is."""
    shown = printable(text).replace("\t", " ")
    if shown.isascii():
        return shown
    return "".join("" if _is_invisible(letter) else letter for letter in shown)


def width(text: str) -> int:
    """How many cells it takes."""
    return len(text) if text.isascii() else _wide(text)


def clip(text: str, cells: int) -> str:
    """The text, or as much of it as fits, with an ellipsis."""
    if width(text) <= cells:
        return text
    if cells < 1:
        return ""
    taken, left = [], cells - 1
    for letter in text:
        left -= _cells(letter)
        if left < 0:
            break
        taken.append(letter)
    return "".join([*taken, MORE])


def fit(text: str, cells: int, *, right: bool = False) -> str:
    """The text in just so many cells."""
    shown = clip(text, cells)
    blank = " " * (cells - width(shown))
    return blank + shown if right else shown + blank


def line_width(line: Line) -> int:
    return sum(width(text) for text, _ in line)


def clip_line(line: Line, cells: int) -> Line:
    """The line, or as much of it as fits."""
    if line_width(line) <= cells:
        return line
    found: list[Span] = []
    left = cells
    for text, style in line:
        shown = clip(text, left)
        found.append((shown, style))
        left -= width(shown)
        if shown != text or left <= 0:
            break
    return tuple(found)


def fit_line(line: Line, cells: int) -> Line:
    """The line in just so many cells."""
    shown = clip_line(line, cells)
    return (*shown, (" " * (cells - line_width(shown)), Style.PLAIN))


def apart(left: Line, right: Line, cells: int) -> Line:
    """One at the beginning and one at the end of a line; what does not fit is cut off the first."""
    room = cells - line_width(right) - 1
    if room < 1:
        return clip_line(left, cells)
    return (*fit_line(left, room), (" ", Style.PLAIN), *right)


def beside(left: Sequence[Line], right: Sequence[Line], cells: int, gap: int = 2) -> list[Line]:
    """Two columns of lines; the first takes so many cells."""
    between: Span = (" " * gap, Style.PLAIN)
    height = max(len(left), len(right))
    rows = zip(_filled(left, height), _filled(right, height), strict=True)
    return [(*fit_line(one, cells), between, *other) for one, other in rows]


def restyled(line: Line, style: Style, cells: int) -> Line:
    """All of it in that style, to the end of the line."""
    return ((fit("".join(text for text, _ in line), cells), style),)


def flowing(spans: Iterable[Line], cells: int, gap: int = 3) -> list[Line]:
    """One after the other, in as many lines as that takes."""
    lines: list[Line] = [EMPTY]
    for each in spans:
        last = lines[-1]
        if not last:
            lines[-1] = each
        elif line_width(last) + gap + line_width(each) <= cells:
            lines[-1] = (*last, (" " * gap, Style.PLAIN), *each)
        else:
            lines.append(each)
    return lines


def wrapped(text: str, cells: int) -> list[str]:
    """The text in as many lines as it takes, broken between words where that can be."""
    lines, current = [], ""
    for word in harmless(text).split(" "):
        longer = f"{current} {word}" if current else word
        if width(longer) <= cells:
            current = longer
            continue
        if current:
            lines.append(current)
        *whole, current = _chunks(word, cells)
        lines.extend(whole)
    return [*lines, current]


def paint(line: Line, *, coloured: bool) -> str:
    """The line with what tells a terminal how it looks."""
    parts = []
    for text, style in line:
        code = style.value[0 if coloured else 1]
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if code and text else text)
    return "".join(parts)


def unpainted(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def _chunks(word: str, cells: int) -> list[str]:
    chunks = [""]
    for letter in word:
        if width(chunks[-1]) + _cells(letter) > max(cells, 2):
            chunks.append("")
        chunks[-1] += letter
    return chunks


def _filled(lines: Sequence[Line], height: int) -> list[Line]:
    return [*lines, *[EMPTY] * (height - len(lines))]


@lru_cache(10_000)
def _wide(text: str) -> int:
    return sum(map(_cells, text))


@lru_cache(10_000)
def _cells(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _is_invisible(letter: str) -> bool:
    is_selector = "\ufe00" <= letter <= "\ufe0f"
    return is_selector or unicodedata.category(letter) in ("Cf", "Cn", "Co", "Zl", "Zp")

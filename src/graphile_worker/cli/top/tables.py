"""Tables: columns that are as wide as they need to be, the least important left out first."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphile_worker.cli.top.text import Line, Span, Style, clip_line, fit, width

GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A head, at least and at most so many cells; the higher its rank, the sooner it is left out.

    One that `grows` is cut where a line is too short, and has what is left of it.
    """

    head: str
    rank: int = 0
    least: int = 0
    most: int = 60
    right: bool = False
    grows: bool = False


Cell = str | Span
Row = Sequence[Cell]


def table(columns: Sequence[Column], rows: Sequence[Row], cells: int) -> list[Line]:
    """The heads and the rows, each in so many cells at most."""
    needed = [_needed(column, [row[n] for row in rows]) for n, column in enumerate(columns)]
    kept = _kept(columns, needed, cells)
    widths = _widths(columns, needed, kept, cells)
    heads: Row = [column.head for column in columns]
    lines = [_line(columns, heads, kept, widths, Style.HEAD)]
    lines += [_line(columns, row, kept, widths, Style.PLAIN) for row in rows]
    return [clip_line(line, cells) for line in lines]


def text_of(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _needed(column: Column, cells: Sequence[Cell]) -> int:
    widest = max((width(text_of(cell)) for cell in cells), default=0)
    return max(width(column.head), column.least, min(widest, column.most))


def _least(column: Column, needed: int) -> int:
    """How narrow a column may become: one that grows may be cut."""
    return min(needed, max(column.least, width(column.head))) if column.grows else needed


def _kept(columns: Sequence[Column], needed: Sequence[int], cells: int) -> list[int]:
    """Which columns there is room for."""
    kept = list(range(len(columns)))
    while len(kept) > 1:
        total = sum(_least(columns[n], needed[n]) for n in kept) + GAP * (len(kept) - 1)
        if total <= cells:
            break
        kept.remove(max(kept, key=lambda n: (columns[n].rank, n)))
    return kept


def _widths(
    columns: Sequence[Column], needed: Sequence[int], kept: Sequence[int], cells: int
) -> dict[int, int]:
    widths = {n: _least(columns[n], needed[n]) for n in kept}
    left = cells - sum(widths.values()) - GAP * (len(kept) - 1)
    for n in (n for n in kept if columns[n].grows):
        more = max(0, min(left, needed[n] - widths[n]))
        widths[n] += more
        left -= more
    return widths


def _line(
    columns: Sequence[Column],
    row: Row,
    kept: Sequence[int],
    widths: dict[int, int],
    style: Style,
) -> Line:
    spans: list[Span] = []
    for place, n in enumerate(kept):
        cell = row[n]
        text, own = (cell, style) if isinstance(cell, str) else cell
        if place:
            spans.append((" " * GAP, style))
        spans.append((fit(text, widths[n], right=columns[n].right), own))
    return tuple(spans)

"""Tables: columns that are as wide as they need to be, the least important left out first."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphile_worker._cli.top.text import Line, Span, TextStyle, clip_line, display_width, fit

COLUMN_GAP_CELLS = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A head, at least and at most so many cells; the higher its rank, the sooner it is left out.

    One that `grows` is cut where a line is too short, and has what is left of it.
    """

    header: str
    drop_rank: int = 0
    min_cells: int = 0
    max_cells: int = 60
    align_right: bool = False
    is_flexible: bool = False


Cell = str | Span
TableRow = Sequence[Cell]


def build_table(columns: Sequence[Column], rows: Sequence[TableRow], cells: int) -> list[Line]:
    """The heads and the rows, each in so many cells at most."""
    needed = [_measure_column(column, [row[n] for row in rows]) for n, column in enumerate(columns)]
    kept = _select_columns(columns, needed, cells)
    widths = _allocate_widths(columns, needed, kept, cells)
    heads: TableRow = [column.header for column in columns]
    lines = [_build_line(columns, heads, kept, widths, TextStyle.HEADER)]
    lines += [_build_line(columns, row, kept, widths, TextStyle.PLAIN) for row in rows]
    return [clip_line(line, cells) for line in lines]


def get_cell_text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _measure_column(column: Column, cells: Sequence[Cell]) -> int:
    widest = max((display_width(get_cell_text(cell)) for cell in cells), default=0)
    return max(display_width(column.header), column.min_cells, min(widest, column.max_cells))


def _get_min_cells(column: Column, needed: int) -> int:
    """How narrow a column may become: one that grows may be cut."""
    return (
        min(needed, max(column.min_cells, display_width(column.header)))
        if column.is_flexible
        else needed
    )


def _select_columns(columns: Sequence[Column], needed: Sequence[int], cells: int) -> list[int]:
    """Which columns there is room for."""
    kept = list(range(len(columns)))
    while len(kept) > 1:
        total = sum(_get_min_cells(columns[n], needed[n]) for n in kept) + COLUMN_GAP_CELLS * (
            len(kept) - 1
        )
        if total <= cells:
            break
        kept.remove(max(kept, key=lambda n: (columns[n].drop_rank, n)))
    return kept


def _allocate_widths(
    columns: Sequence[Column], needed: Sequence[int], kept: Sequence[int], cells: int
) -> dict[int, int]:
    widths = {n: _get_min_cells(columns[n], needed[n]) for n in kept}
    left = cells - sum(widths.values()) - COLUMN_GAP_CELLS * (len(kept) - 1)
    for n in (n for n in kept if columns[n].is_flexible):
        more = max(0, min(left, needed[n] - widths[n]))
        widths[n] += more
        left -= more
    return widths


def _build_line(
    columns: Sequence[Column],
    row: TableRow,
    kept: Sequence[int],
    widths: dict[int, int],
    style: TextStyle,
) -> Line:
    spans: list[Span] = []
    for place, n in enumerate(kept):
        cell = row[n]
        text, own = (cell, style) if isinstance(cell, str) else cell
        if place:
            spans.append((" " * COLUMN_GAP_CELLS, style))
        spans.append((fit(text, widths[n], align_right=columns[n].align_right), own))
    return tuple(spans)

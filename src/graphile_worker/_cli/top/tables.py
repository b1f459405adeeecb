"""Tables whose columns fit a width: flexible ones are cut, the least important ones dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphile_worker._cli.top.text import (
    HEADER,
    PLAIN,
    Span,
    StyledLine,
    TextStyle,
    clip_line,
    display_width,
    fit,
)

COLUMN_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column. Where the width is short, columns with the highest drop rank go first."""

    header: str
    drop_rank: int = 0
    min_cells: int = 0
    max_cells: int = 60
    align_right: bool = False
    is_flexible: bool = False


def build_table(
    columns: Sequence[Column], rows: Sequence[Sequence[Span]], cells: int
) -> list[StyledLine]:
    """Build the header line and one line per row."""
    widths = _compute_widths(columns, rows, cells)
    header = [(column.header, HEADER) for column in columns]
    lines = [_build_line(columns, header, widths, HEADER)]
    lines += [_build_line(columns, row, widths, PLAIN) for row in rows]
    return [clip_line(line, cells) for line in lines]


def _compute_widths(
    columns: Sequence[Column], rows: Sequence[Sequence[Span]], cells: int
) -> dict[int, int]:
    """Compute the widths of the columns that are kept, by their number."""
    needed, widths = {}, {}
    for n, column in enumerate(columns):
        least = max(display_width(column.header), column.min_cells)
        widest = max((display_width(row[n][0]) for row in rows), default=0)
        needed[n] = max(least, min(widest, column.max_cells))
        widths[n] = least if column.is_flexible else needed[n]
    while (left := cells - _total_width(widths)) < 0 and len(widths) > 1:
        del widths[max(widths, key=lambda n: (columns[n].drop_rank, n))]
    for n in widths:
        more = max(0, min(left, needed[n] - widths[n]))
        widths[n] += more
        left -= more
    return widths


def _total_width(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(COLUMN_GAP) * (len(widths) - 1)


def _build_line(
    columns: Sequence[Column], row: Sequence[Span], widths: dict[int, int], gap_style: TextStyle
) -> StyledLine:
    spans: list[Span] = []
    for n, width in widths.items():
        text, style = row[n]
        spans += [(COLUMN_GAP, gap_style)] if spans else []
        spans.append((fit(text, width, align_right=columns[n].align_right), style))
    return tuple(spans)

"""The layout of `top`, in which every line fits the rows and columns of the terminal."""

from collections.abc import Iterable, Sequence

from graphile_worker._cli.top.content import (
    TABLES,
    Frame,
    build_alerts,
    build_health,
    build_metrics,
    build_page_table,
    build_title,
)
from graphile_worker._cli.top.text import (
    ALARM,
    COMMAND,
    EMPTY_LINE,
    FAINT,
    PLAIN,
    SELECTED,
    STRONG,
    WARNING,
    StyledLine,
    TextStyle,
    clip_line,
    fit,
    fit_line,
    flow_lines,
    justify,
    line_width,
    make_line,
    render_plain,
    sanitize,
    wrap_text,
)
from graphile_worker._cli.top.view import Page
from graphile_worker.ops.text import format_seconds

# Wide terminals show running jobs beside workers, tall ones show a blank line between blocks.
WIDE_LAYOUT_COLUMNS = 130
TALL_LAYOUT_ROWS = 24
MIN_COLUMNS, MIN_ROWS = 20, 6
TOO_SMALL_MESSAGE = "Terminal too small: enlarge it."
TABLE_PAGES = (Page.TASKS, Page.RUNNING, Page.WORKERS)
INDENT: StyledLine = (("  ", PLAIN),)

# Ended jobs in the output of `--once`.
MAX_ENDED_ROWS = 10

KEY_HELP = (
    ("q", "quit (also Ctrl-C)"),
    ("p", "pause and resume; a paused view sends no queries"),
    ("s", "sort tasks by oldest, ready, running, failing, name"),
    ("/", "show only tasks whose name contains a text; Enter keeps it, Esc clears it"),
    ("1", "overview"),
    ("2", "tasks"),
    ("3", "running jobs"),
    ("4", "workers"),
    ("5", "alerts with the commands to type"),
    ("6", "ended jobs, of tasks that keep outcomes"),
    ("j k", "down and up (also the arrow keys); Enter shows the details of a row"),
    ("?", "this help; any key closes it"),
)


def render(frame: Frame) -> list[StyledLine]:
    """Render one screen."""
    if frame.columns < MIN_COLUMNS or frame.rows < MIN_ROWS:
        return [clip_line(make_line(TOO_SMALL_MESSAGE), frame.columns)]
    if frame.view.has_help:
        lines = _pad_lines(_render_help(frame), frame.rows)
    else:
        header = _render_header(frame)
        room = frame.rows - len(header) - 1
        lines = [*header, *_pad_lines(_render_body(frame, room), room), _render_footer(frame)]
    return [clip_line(line, frame.columns) for line in lines[: frame.rows]]


def render_all(frame: Frame) -> list[StyledLine]:
    """Render the overview at its full length, for `--once`."""
    tables = [build_page_table(frame, page) for page in TABLE_PAGES]
    if frame.recent is not None and frame.recent.ended:
        tables.append(build_page_table(frame, Page.ENDED)[: 1 + MAX_ENDED_ROWS])
    lines = [*_render_header(frame), *_join_blocks([build_alerts(frame.alerts), *tables], 1)]
    return [clip_line(line, frame.columns) for line in lines]


def _render_header(frame: Frame) -> list[StyledLine]:
    health = build_health(frame)
    if frame.outage is not None:
        age = format_seconds(frame.snapshot_age_seconds)
        text = f" DATABASE UNREACHABLE, last snapshot {age} ago: {frame.outage}"
        health = ((fit(sanitize(text), frame.columns), ALARM),)
    metrics = flow_lines(build_metrics(frame), frame.columns)
    title = justify(*build_title(frame), frame.columns)
    return [title, health, *metrics, *[EMPTY_LINE] * _get_gap(frame)]


def _get_gap(frame: Frame) -> int:
    return 1 if frame.rows >= TALL_LAYOUT_ROWS else 0


def _render_body(frame: Frame, room: int) -> list[StyledLine]:
    match frame.view.page:
        case Page.OVERVIEW:
            return _render_overview(frame, room)
        case Page.ALERTS:
            return _render_alerts_page(frame, room)
        case page:
            return _render_table_page(frame, page, room)


# The overview


def _render_overview(frame: Frame, room: int) -> list[StyledLine]:
    """Share the rows between the alerts and the tables."""
    gap = _get_gap(frame)
    is_small = not gap and frame.columns < WIDE_LAYOUT_COLUMNS
    groups = _build_table_groups(frame)
    # On a small screen the workers get only the rows that the other blocks leave.
    last = groups.pop() if is_small else []
    needed = [max(len(lines) for _, lines in group) for group in groups]
    blocks = len(needed) + bool(frame.alerts)
    room -= gap * (blocks - 1)
    alerts = _fit_alerts(frame, _allocate_rows([len(build_alerts(frame.alerts)), *needed], room)[0])
    shares = _allocate_rows([len(alerts), *needed], room)[1:]
    drawn = [alerts, *(_render_group(frame, *each) for each in zip(groups, shares, strict=True))]
    if last:
        drawn.append(_render_group(frame, last, room - sum(map(len, drawn))))
    return _join_blocks(drawn, gap)


def _build_table_groups(frame: Frame) -> list[list[tuple[Page, list[StyledLine]]]]:
    """Build the tables, in groups that are drawn side by side."""
    if frame.columns < WIDE_LAYOUT_COLUMNS:
        return [[(page, build_page_table(frame, page))] for page in TABLE_PAGES]
    half = _get_half_width(frame)
    widths = {Page.RUNNING: half, Page.WORKERS: frame.columns - half - 2}
    return [
        [(Page.TASKS, build_page_table(frame, Page.TASKS))],
        [(page, build_page_table(frame, page, cells)) for page, cells in widths.items()],
    ]


def _render_group(
    frame: Frame, group: Sequence[tuple[Page, list[StyledLine]]], room: int
) -> list[StyledLine]:
    left, *others = (_truncate(lines, room, page) for page, lines in group)
    if not others:
        return left
    height = max(len(left), len(others[0]))
    rows = zip(_pad_lines(left, height), _pad_lines(others[0], height), strict=True)
    return [(*fit_line(one, _get_half_width(frame)), *INDENT, *other) for one, other in rows]


def _get_half_width(frame: Frame) -> int:
    return frame.columns // 2 - 1


def _fit_alerts(frame: Frame, room: int) -> list[StyledLine]:
    """Render the alerts in the most detail that fits."""
    for detail in (3, 2, 1):
        lines = build_alerts(frame.alerts, detail)
        if len(lines) <= room:
            break
    return _truncate(lines, room, Page.ALERTS)


def _allocate_rows(needed: Sequence[int], room: int) -> list[int]:
    """Give each block one row in turn, until all have what they need or no rows are left."""
    shares = [0] * len(needed)
    left = max(0, min(room, sum(needed)))
    while left:
        for n, rows in enumerate(needed):
            if shares[n] < rows and left:
                shares[n] += 1
                left -= 1
    return shares


def _truncate(lines: Sequence[StyledLine], room: int, page: Page) -> list[StyledLine]:
    """Cut a block. Its last line then counts the other lines and names the page with all."""
    if len(lines) <= room:
        return list(lines)
    if room < 2:
        return []
    more = f"{len(lines) - room + 1:,} more: press {page.value}"
    return [*lines[: room - 1], make_line(more, FAINT)]


def _join_blocks(blocks: Iterable[Sequence[StyledLine]], gap: int) -> list[StyledLine]:
    lines: list[StyledLine] = []
    for block in filter(None, blocks):
        lines += [EMPTY_LINE] * gap if lines else []
        lines += block
    return lines


def _pad_lines(lines: Sequence[StyledLine], height: int) -> list[StyledLine]:
    return [*lines[:height], *[EMPTY_LINE] * (height - len(lines))]


# The other pages


def _render_alerts_page(frame: Frame, room: int) -> list[StyledLine]:
    """Render all alerts without cuts, because users copy the commands."""
    lines: list[StyledLine] = []
    for alert in frame.alerts:
        [(mark, *_)] = build_alerts([alert], detail=1)
        lines += [EMPTY_LINE] if lines else []
        lines += _wrap(frame, alert.title, (mark, (" ", PLAIN)), STRONG)
        for text in alert.evidence:
            lines += _wrap(frame, text, INDENT, FAINT)
        if alert.command:
            lines += _wrap(frame, alert.command, INDENT, COMMAND)
    first = max(0, min(frame.view.cursor, len(lines) - room))
    return lines[first : first + room] or [make_line("No alerts.", FAINT)]


def _wrap(frame: Frame, text: str, prefix: StyledLine, style: TextStyle) -> list[StyledLine]:
    parts = wrap_text(text, frame.columns - 2)
    return [(*(INDENT if n else prefix), (part, style)) for n, part in enumerate(parts)]


def _render_table_page(frame: Frame, page: Page, room: int) -> list[StyledLine]:
    """Render the header and the rows around the cursor, with the details of its row below."""
    header, *rows = build_page_table(frame, page)
    cursor = min(frame.view.cursor, len(rows) - 1)
    details = _render_details(frame, page, cursor)[: max(0, room - 4)]
    height = max(1, room - 1 - len(details))
    first = max(0, min(cursor - height // 2, len(rows) - height))
    rows[cursor] = ((fit(render_plain(rows[cursor]), frame.columns), SELECTED),)
    return [header, *_pad_lines(rows[first : first + height], height), *details]


def _render_details(frame: Frame, page: Page, cursor: int) -> list[StyledLine]:
    items = TABLES[page].select(frame)
    if not frame.view.has_detail or not items:
        return []
    lines: list[StyledLine] = [EMPTY_LINE]
    for text in TABLES[page].build_details(items[cursor], frame.schemas):
        style = COMMAND if text.startswith("$ ") else PLAIN
        lines += [((part, style),) for part in wrap_text(text, frame.columns)]
    return lines


def _render_footer(frame: Frame) -> StyledLine:
    view = frame.view
    if view.is_editing_filter:
        return (("task: ", STRONG), *make_line(view.filter), ("▏", SELECTED))
    pause = "resume" if view.is_paused else "pause"
    left = make_line(f"q quit  p {pause}  s sort  / filter  ? help", FAINT)
    filtered = make_line(f"/{sanitize(view.filter)}  ", WARNING) if view.filter else ()
    pages = [
        (f"  {page.value} {page.name.lower()}", STRONG if page is view.page else FAINT)
        for page in Page
    ]
    right = (*filtered, *pages)
    if line_width(left) + line_width(right) >= frame.columns:
        right = (*filtered, *make_line(f"page {view.page.value} of 1-6", FAINT))
    return justify(left, right, frame.columns)


def _render_help(frame: Frame) -> list[StyledLine]:
    lines: list[StyledLine] = [make_line("Keys", STRONG), EMPTY_LINE]
    for key, text in KEY_HELP:
        for n, part in enumerate(wrap_text(text, max(10, frame.columns - 7))):
            lines.append(((f"  {key if n == 0 else '':<5}", STRONG), (part, PLAIN)))
    return lines

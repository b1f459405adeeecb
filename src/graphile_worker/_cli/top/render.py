"""Render: what was seen, turned into lines for a terminal of that size; nothing else happens here.

No line is longer than the terminal is wide, and there are as many as it is high, at most.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from graphile_worker._cli.top.tables import Cell, Column, build_table
from graphile_worker._cli.top.text import (
    EMPTY_LINE,
    Line,
    Span,
    TextStyle,
    clip_line,
    flow_lines,
    join_columns,
    justify,
    make_line,
    restyle,
    sanitize,
    wrap_text,
)
from graphile_worker._cli.top.view import ScreenPage, TaskSort, View
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.ops.alerts import (
    Alert,
    QueueHealth,
    Severity,
    assess_health,
    format_seconds,
)
from graphile_worker.ops.pools import PoolHealth, PoolInfo, list_alive_pools
from graphile_worker.ops.snapshot import LockedJob, Snapshot, TaskCount
from graphile_worker.ops.states import JobState
from graphile_worker.ops.text import format_command, pluralize, summarize_error
from graphile_worker.ops.trends import SnapshotHistory

T = TypeVar("T")

# From so many cells on, two tables stand beside each other; from so many lines on, blanks between.
WIDE_LAYOUT_COLUMNS = 130
TALL_LAYOUT_ROWS = 24

# Seconds.
LATE_SECONDS, VERY_LATE_SECONDS = 60.0, 300.0

TOO_SMALL_MESSAGE = "Too small: make the terminal larger."
MIN_COLUMNS, MIN_ROWS = 20, 6

KEY_HELP = (
    ("q", "leave; so does Ctrl-C"),
    ("p", "pause, and go on: while paused the database is left alone"),
    ("s", "sort tasks by oldest, ready, running, failing, name"),
    ("/", "show only tasks whose name holds a text; Enter keeps it, Esc ends it"),
    ("1", "all on one page"),
    ("2", "tasks"),
    ("3", "running jobs"),
    ("4", "workers"),
    ("5", "what calls for attention, with what to type"),
    ("j k", "down and up, as the arrows do; Enter shows all of a row"),
    ("?", "this; any key ends it"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """All that a screen is made of."""

    history: SnapshotHistory
    alerts: Sequence[Alert]
    schemas: Schemas
    view: View
    columns: int
    rows: int
    interval_seconds: float = 2.0
    """Seconds between two looks."""
    snapshot_age_seconds: float = 0.0
    outage: str | None = None
    """Why the database does not answer."""

    @property
    def snapshot(self) -> Snapshot:
        return self.history.last


def render(frame: Frame) -> list[Line]:
    """The screen."""
    if frame.columns < MIN_COLUMNS or frame.rows < MIN_ROWS:
        return [clip_line(make_line(TOO_SMALL_MESSAGE), frame.columns)]
    if frame.view.has_help:
        lines = _render_help(frame)
    else:
        head = _render_header(frame)
        room = frame.rows - len(head) - 1
        lines = [*head, *_pad_lines(_render_body(frame, room), room), _render_footer(frame)]
    return [clip_line(line, frame.columns) for line in lines[: frame.rows]]


def render_all(frame: Frame) -> list[Line]:
    """The overview as long as it is, for a paper rather than for a screen."""
    blocks = [
        _render_alerts(frame, 3),
        _render_tasks(frame),
        _render_running(frame),
        _render_workers(frame),
    ]
    lines = [*_render_header(frame), *_join_blocks([block for block in blocks if block], 1)]
    return [clip_line(line, frame.columns) for line in lines]


# The head


def _render_header(frame: Frame) -> list[Line]:
    numbers = flow_lines(_render_metrics(frame), frame.columns)
    blank = [EMPTY_LINE] if frame.rows >= TALL_LAYOUT_ROWS else []
    return [_render_title(frame), _render_health(frame), *numbers, *blank]


def _render_title(frame: Frame) -> Line:
    seen = frame.snapshot
    where = f"{seen.server.database}/{frame.schemas.shared}"
    left: Line = (
        ("graphile-worker top  ", TextStyle.FAINT),
        (sanitize(where), TextStyle.STRONG),
        (f"  level {seen.server.level}", TextStyle.FAINT),
    )
    if frame.columns < 80:
        left = left[1:2]
    state = "PAUSED" if frame.view.is_paused else _format_interval(frame)
    right: Line = ((f"{seen.now:%H:%M:%S} UTC  ", TextStyle.PLAIN), (state, TextStyle.FAINT))
    return justify(left, right, frame.columns)


def _format_interval(frame: Frame) -> str:
    """How often it looks; if that is seldom, how long ago it did."""
    every = f"every {frame.interval_seconds:.1f}".removesuffix(".0") + "s"
    return (
        every
        if frame.interval_seconds < 10
        else f"{format_seconds(frame.snapshot_age_seconds)} ago, {every}"
    )


def _render_health(frame: Frame) -> Line:
    if frame.outage is not None:
        said = (
            f" DATABASE AWAY, last seen {format_seconds(frame.snapshot_age_seconds)} ago: "
            f"{frame.outage}"
        )
        return restyle(make_line(said), TextStyle.ALARM, frame.columns)
    found = list(frame.alerts)
    verdict = assess_health(found)
    if verdict is QueueHealth.HEALTHY:
        notes = f", {pluralize(len(found), 'note')}" if found else ""
        return (("● HEALTHY", TextStyle.GOOD), (f"  nothing is wrong{notes}", TextStyle.FAINT))
    mark, style = _get_severity_mark(found[0])
    line: Line = (
        (f"{mark} {verdict.upper()}", style),
        (f"  {_format_severities(found)}", TextStyle.PLAIN),
    )
    # Where the list is to be seen, it need not be said twice.
    is_listed = frame.view.page in (ScreenPage.OVERVIEW, ScreenPage.ALERTS)
    return line if is_listed else (*line, *make_line(f": {found[0].title}"))


def _format_severities(alerts: Sequence[Alert]) -> str:
    counts = [(sum(each.severity is kind for each in alerts), kind) for kind in Severity]
    words = {Severity.CRITICAL: "critical", Severity.WARNING: "warning", Severity.NOTE: "note"}
    said = [
        f"{count} {words[kind]}{'s' * (count > 1 and kind is not Severity.CRITICAL)}"
        for count, kind in counts
        if count
    ]
    return ", ".join(said)


def _render_metrics(frame: Frame) -> Iterator[Line]:
    seen, rates = frame.snapshot, frame.history.rates
    oldest = seen.oldest_ready
    yield _render_metric("READY", f"{seen.count(JobState.READY):,}")
    if oldest is not None:
        yield _render_metric("OLDEST", format_seconds(oldest), _get_lateness_style(oldest))
    if waiting := seen.count(JobState.WAITING):
        yield _render_metric("WAITING", f"{waiting:,}")
    running, slots = seen.running, _count_slots(seen)
    if slots is None:
        yield _render_metric("RUNNING", f"{running:,}")
    else:
        yield _render_metric("RUNNING", f"{min(running, slots):,}/{slots:,}")
        if running > slots:
            # Beyond their slots, workers fetch what they run next.
            yield _render_metric("FETCHED", f"{running - slots:,}")
    if stale := seen.count(JobState.STALE):
        yield _render_metric("STALE", f"{stale:,}", TextStyle.BAD)
    if retrying := seen.count(JobState.RETRYING):
        yield _render_metric("RETRYING", f"{retrying:,}", TextStyle.WARNING)
    yield _render_metric("SCHEDULED", f"{seen.count(JobState.SCHEDULED):,}")
    failed = seen.count(JobState.FAILED)
    yield _render_metric("FAILED", f"{failed:,}", TextStyle.BAD if failed else TextStyle.STRONG)
    yield _render_metric("ADDED", "?" if rates is None else f"{_format_rate(rates.added)}/s")
    yield _render_metric("DONE", "?" if rates is None else f"{_format_rate(rates.completed)}/s")
    if drains := _format_drain_time(frame.history):
        yield _render_metric("DRAINS", drains)
    yield _render_metric("WORKERS", *_format_worker_counts(seen))


def _render_metric(name: str, value: str, style: TextStyle = TextStyle.STRONG) -> Line:
    return ((f"{name} ", TextStyle.FAINT), (value, style))


def _count_slots(snapshot: Snapshot) -> int | None:
    """How many jobs can run at once; None where others work too, of which nobody knows."""
    slots = [pool.concurrency for pool in list_alive_pools(snapshot.pools)]
    known = [each for each in slots if each is not None]
    is_whole = known and len(known) == len(slots) and _has_only_known_pools(snapshot)
    return sum(known) if is_whole else None


def _has_only_known_pools(snapshot: Snapshot) -> bool:
    return all(pool.health is not PoolHealth.UNKNOWN for pool in snapshot.pools)


def _format_drain_time(history: SnapshotHistory) -> str | None:
    """How long the backlog would last, if there is one worth the word."""
    ready, rates = history.last.count(JobState.READY), history.rates
    if rates is None or ready < 100:
        return None
    return (
        "never"
        if history.seconds_until_drained is None
        else f"in {format_seconds(history.seconds_until_drained)}"
    )


def _format_worker_counts(snapshot: Snapshot) -> tuple[str, TextStyle]:
    by_health = [
        (sum(pool.health is health for pool in snapshot.pools), health) for health in PoolHealth
    ]
    said = ", ".join(f"{count} {health}" for count, health in by_health if count)
    is_bad = any(count and health is PoolHealth.DEAD for count, health in by_health)
    return said or "none", TextStyle.BAD if is_bad or not said else TextStyle.STRONG


def _format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


# The body


def _render_body(frame: Frame, room: int) -> list[Line]:
    match frame.view.page:
        case ScreenPage.OVERVIEW:
            return _render_overview(frame, room)
        case ScreenPage.TASKS:
            return _render_selectable(frame, _render_tasks(frame), _build_task_details(frame), room)
        case ScreenPage.RUNNING:
            return _render_selectable(
                frame, _render_running(frame), _build_running_details(frame), room
            )
        case ScreenPage.WORKERS:
            return _render_selectable(
                frame, _render_workers(frame), _build_worker_details(frame), room
            )
        case ScreenPage.ALERTS:
            return _scroll(frame, _render_alert_details(frame), room)


def _render_overview(frame: Frame, room: int) -> list[Line]:
    blank = 1 if frame.rows >= TALL_LAYOUT_ROWS else 0
    tasks = _render_tasks(frame)
    below = _build_lower_blocks(frame)
    wanted = [len(_render_alerts(frame, 3)), len(tasks), *map(_get_height, below)]
    blocks = sum(count > 0 for count in wanted)
    left = room - blank * (blocks - 1)
    first = _fit_alerts(frame, _allocate_rows(wanted, left)[0])
    # What it leaves is for the others.
    shares = _allocate_rows([len(first), *wanted[1:]], left)
    drawn = [first, _truncate(tasks, shares[1], ScreenPage.TASKS)]
    for each, share in zip(below, shares[2:], strict=True):
        cut = [_truncate(block.lines, share, block.page) for block in each]
        drawn.append(
            cut[0] if len(cut) == 1 else join_columns(cut[0], cut[1], _get_half_width(frame))
        )
    rest = left - sum(map(len, drawn))
    if _is_small_screen(frame) and rest >= 2:
        drawn.append(_truncate(_render_workers(frame), rest, ScreenPage.WORKERS))
    return _join_blocks([block for block in drawn if block], blank)


def _is_small_screen(frame: Frame) -> bool:
    return frame.columns < WIDE_LAYOUT_COLUMNS and frame.rows < TALL_LAYOUT_ROWS


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines, and the page on which there are all of them."""

    page: ScreenPage
    lines: list[Line]


def _build_lower_blocks(frame: Frame) -> list[list[_Block]]:
    """Running jobs and workers, beside each other or one below the other."""
    if _is_small_screen(frame):
        # How many workers there are is said above: which they are, if there is room left.
        return [[_Block(ScreenPage.RUNNING, _render_running(frame))]]
    if frame.columns < WIDE_LAYOUT_COLUMNS:
        running, workers = _render_running(frame), _render_workers(frame)
        return [[_Block(ScreenPage.RUNNING, running)], [_Block(ScreenPage.WORKERS, workers)]]
    half = _get_half_width(frame)
    running, workers = (
        _render_running(frame, half),
        _render_workers(frame, frame.columns - half - 2),
    )
    return [[_Block(ScreenPage.RUNNING, running), _Block(ScreenPage.WORKERS, workers)]]


def _get_height(blocks: list[_Block]) -> int:
    return max(len(block.lines) for block in blocks)


def _get_half_width(frame: Frame) -> int:
    return frame.columns // 2 - 1


def _allocate_rows(wanted: Sequence[int], room: int) -> list[int]:
    """How many lines each gets: one after the other in turns, until there are none left."""
    shares = [0] * len(wanted)
    left = max(0, room)
    while left and any(share < want for share, want in zip(shares, wanted, strict=True)):
        for n, want in enumerate(wanted):
            if shares[n] < want and left:
                shares[n] += 1
                left -= 1
    return shares


def _truncate(lines: Sequence[Line], room: int, page: ScreenPage) -> list[Line]:
    """As many as there is room for; the last says where the others are."""
    if len(lines) <= room:
        return list(lines)
    if room < 2:
        return []
    left = len(lines) - room + 1
    return [*lines[: room - 1], ((f"{left:,} more: press {page.value}", TextStyle.FAINT),)]


def _join_blocks(blocks: Iterable[Sequence[Line]], blank: int) -> list[Line]:
    lines: list[Line] = []
    for block in blocks:
        lines += [EMPTY_LINE] * blank if lines else []
        lines += block
    return lines


def _pad_lines(lines: list[Line], room: int) -> list[Line]:
    return [*lines[:room], *[EMPTY_LINE] * (room - len(lines))]


# Attention


def _fit_alerts(frame: Frame, room: int) -> list[Line]:
    """As much of each as there is room for."""
    for detail in (3, 2, 1):
        lines = _render_alerts(frame, detail)
        if len(lines) <= room:
            return lines
    return _truncate(_render_alerts(frame, 1), room, ScreenPage.ALERTS)


def _render_alerts(frame: Frame, detail: int) -> list[Line]:
    """Of each a title, then the command, then the evidence."""
    lines: list[Line] = []
    for each in frame.alerts:
        lines.append(
            (
                _get_severity_mark(each),
                (" ", TextStyle.PLAIN),
                *make_line(each.title, TextStyle.STRONG),
            )
        )
        if detail >= 3 and each.evidence:
            lines.append(make_line("  " + " · ".join(each.evidence), TextStyle.FAINT))
        if detail >= 2 and each.command:
            lines.append(make_line(f"  $ {each.command}", TextStyle.COMMAND))
    return lines


def _render_alert_details(frame: Frame) -> list[Line]:
    """All of it, nothing cut: commands are there to be copied."""
    if not frame.alerts:
        return [make_line("Nothing calls for attention.", TextStyle.FAINT)]
    lines: list[Line] = []
    for each in frame.alerts:
        lines += [EMPTY_LINE] if lines else []
        first: Line = (_get_severity_mark(each), (" ", TextStyle.PLAIN))
        lines += _render_paragraph(each.title, frame.columns, first, TextStyle.STRONG)
        for said in each.evidence:
            lines += _render_paragraph(
                said, frame.columns, (("  ", TextStyle.PLAIN),), TextStyle.FAINT
            )
        if each.command:
            lines += _render_paragraph(
                each.command, frame.columns, (("  ", TextStyle.PLAIN),), TextStyle.COMMAND
            )
    return lines


def _render_paragraph(text: str, columns: int, first: Line, style: TextStyle) -> Iterator[Line]:
    for n, part in enumerate(wrap_text(text, columns - 2)):
        before: Line = first if n == 0 else (("  ", TextStyle.PLAIN),)
        yield (*before, (part, style))


def _get_severity_mark(alert: Alert) -> Span:
    match alert.severity:
        case Severity.CRITICAL:
            return ("✕", TextStyle.BAD)
        case Severity.WARNING:
            return ("▲", TextStyle.WARNING)
        case Severity.NOTE:
            return ("·", TextStyle.FAINT)


# Tasks

TASK_COLUMNS = (
    Column("TASK", min_cells=14, is_flexible=True),
    Column("OLDEST", drop_rank=1, align_right=True, min_cells=6),
    Column("READY", align_right=True, min_cells=6),
    Column("WAIT", drop_rank=3, align_right=True),
    Column("RUN", drop_rank=2, align_right=True, min_cells=4),
    Column("RETRY", drop_rank=5, align_right=True),
    Column("FAILED", drop_rank=4, align_right=True),
    Column("SCHED", drop_rank=6, align_right=True),
    Column("LAST ERROR", drop_rank=8, min_cells=20, max_cells=100, is_flexible=True),
)


def _render_tasks(frame: Frame) -> list[Line]:
    columns = [_mark_sorted_column(column, frame.view.sort) for column in TASK_COLUMNS]
    tasks = select_tasks(frame)
    if not any(task.error for task in tasks):
        columns[-1] = Column("", drop_rank=8)
    lines = build_table(columns, [_build_task_row(task) for task in tasks], frame.columns)
    return lines if tasks else [lines[0], make_line(_format_no_tasks(frame), TextStyle.FAINT)]


def select_tasks(frame: Frame) -> list[TaskCount]:
    """Those that the filter lets through, sorted."""
    wanted = frame.view.filter.lower()
    found = [task for task in frame.snapshot.tasks if wanted in task.identifier.lower()]
    by_name = sorted(found, key=lambda task: task.identifier)
    return sorted(by_name, key=SORT_KEYS[frame.view.sort])


SORT_KEYS: dict[TaskSort, Callable[[TaskCount], float]] = {
    TaskSort.OLDEST: lambda task: -(task.oldest_ready or -1.0),
    TaskSort.READY: lambda task: -task[JobState.READY],
    TaskSort.RUNNING: lambda task: -task.running,
    TaskSort.FAILING: lambda task: -task.failing,
    TaskSort.NAME: lambda task: 0,
}

SORT_BY_COLUMN = {
    "TASK": TaskSort.NAME,
    "OLDEST": TaskSort.OLDEST,
    "READY": TaskSort.READY,
    "RUN": TaskSort.RUNNING,
    "FAILED": TaskSort.FAILING,
}


def _mark_sorted_column(column: Column, sort: TaskSort) -> Column:
    if SORT_BY_COLUMN.get(column.header) is not sort:
        return column
    return Column(
        f"{column.header}▼",
        column.drop_rank,
        column.min_cells,
        column.max_cells,
        column.align_right,
        column.is_flexible,
    )


def _build_task_row(task: TaskCount) -> list[Cell]:
    oldest = task.oldest_ready
    return [
        sanitize(task.identifier),
        "-"
        if oldest is None
        else (format_seconds(oldest), _get_lateness_style(oldest, TextStyle.PLAIN)),
        _format_count(task[JobState.READY]),
        _format_count(task[JobState.WAITING]),
        _format_count(task.running),
        _format_count(task[JobState.RETRYING], TextStyle.WARNING),
        _format_count(task[JobState.FAILED], TextStyle.BAD),
        _format_count(task[JobState.SCHEDULED]),
        (_format_headline(task.error), TextStyle.FAINT),
    ]


def _format_no_tasks(frame: Frame) -> str:
    return "No task is called so." if frame.view.filter else "There are no jobs."


def _format_count(count: int, style: TextStyle = TextStyle.PLAIN) -> Cell:
    return (f"{count:,}", style) if count else ("-", TextStyle.FAINT)


def _get_lateness_style(waited_seconds: float, default: TextStyle = TextStyle.STRONG) -> TextStyle:
    if waited_seconds > VERY_LATE_SECONDS:
        return TextStyle.BAD
    return TextStyle.WARNING if waited_seconds > LATE_SECONDS else default


def _format_headline(text: str | None) -> str:
    return sanitize(summarize_error(text))


def _build_task_details(frame: Frame) -> Iterator[list[str]]:
    for task in select_tasks(frame):
        counts = ", ".join(f"{count:,} {state}" for state, count in task.counts.items())
        lines = [task.identifier, counts]
        if task.first_ready is not None:
            lines += [_format_command(frame, "jobs why", task.first_ready)]
        if task.error is not None:
            lines += [_format_command(frame, "jobs show", task.newest_failing)]
            lines += [f"job {task.newest_failing}: {_format_headline(task.error)}"]
        yield lines


# Running jobs

RUNNING_COLUMNS = (
    Column("JOB", align_right=True, min_cells=4),
    Column("RUNNING", min_cells=10, is_flexible=True),
    Column("FOR", align_right=True, min_cells=5),
    Column("TRY", drop_rank=3, align_right=True),
    Column("QUEUE", drop_rank=4, max_cells=20),
    Column("WORKER", drop_rank=2, max_cells=30),
)


def _render_running(frame: Frame, columns: int | None = None) -> list[Line]:
    jobs = select_running_jobs(frame)
    rows = [_build_job_row(job) for job in jobs[: max(frame.rows, 200)]]
    lines = build_table(RUNNING_COLUMNS, rows, columns or frame.columns)
    return lines if jobs else [lines[0], make_line("No job is locked.", TextStyle.FAINT)]


def select_running_jobs(frame: Frame) -> list[LockedJob]:
    wanted = frame.view.filter.lower()
    return [job for job in frame.snapshot.locked if wanted in job.task_identifier.lower()]


def _build_job_row(job: LockedJob) -> list[Cell]:
    style = TextStyle.BAD if job.state is JobState.STALE else TextStyle.PLAIN
    return [
        str(job.id),
        (sanitize(job.task_identifier), style),
        (format_seconds(job.age), style),
        f"{job.attempts}/{job.max_attempts}",
        sanitize(job.queue_name or "-"),
        sanitize(job.pool_id or "-"),
    ]


def _build_running_details(frame: Frame) -> Iterator[list[str]]:
    for job in select_running_jobs(frame):
        yield [
            f"job {job.id}, {job.task_identifier}, {job.state} for {format_seconds(job.age)}",
            f"attempt {job.attempts} of {job.max_attempts}, "
            f"queue {job.queue_name or 'none'}, held by {job.pool_id or 'nobody'}",
            _format_command(frame, "jobs show", job.id),
        ]


# Workers

WORKER_COLUMNS = (
    Column("WORKER", min_cells=25, max_cells=40, is_flexible=True),
    Column("LIFE", drop_rank=1),
    Column("SEEN", drop_rank=2, align_right=True),
    Column("JOBS", align_right=True),
    Column("RUNTIME", drop_rank=3),
    Column("HOST", drop_rank=4, max_cells=24),
    Column("PID", drop_rank=5, align_right=True),
)


def _render_workers(frame: Frame, columns: int | None = None) -> list[Line]:
    pools = sort_pools(frame)
    lines = build_table(
        WORKER_COLUMNS, [_build_pool_row(pool) for pool in pools], columns or frame.columns
    )
    return lines if pools else [lines[0], make_line("No worker shows itself.", TextStyle.FAINT)]


def sort_pools(frame: Frame) -> list[PoolInfo]:
    """Those that are dead first, then those that hold most."""
    order = [PoolHealth.DEAD, PoolHealth.UNKNOWN, PoolHealth.ALIVE]
    return sorted(frame.snapshot.pools, key=lambda pool: (order.index(pool.health), -pool.jobs))


def _build_pool_row(pool: PoolInfo) -> list[Cell]:
    style = {
        PoolHealth.ALIVE: TextStyle.GOOD,
        PoolHealth.DEAD: TextStyle.BAD,
        PoolHealth.UNKNOWN: TextStyle.FAINT,
    }
    slots = "" if pool.concurrency is None else f"/{pool.concurrency}"
    return [
        sanitize(pool.id),
        (pool.health.value, style[pool.health]),
        "-"
        if pool.seconds_since_heartbeat is None
        else format_seconds(pool.seconds_since_heartbeat),
        f"{pool.jobs:,}{slots}",
        sanitize(pool.runtime or "?"),
        sanitize(pool.host or "?"),
        "?" if pool.pid is None else str(pool.pid),
    ]


def _build_worker_details(frame: Frame) -> Iterator[list[str]]:
    for pool in sort_pools(frame):
        tasks = "not said" if pool.tasks is None else ", ".join(pool.tasks) or "none"
        lines = [
            f"{pool.id}, {pool.health}, {pool.runtime or 'unknown'} {pool.version or ''}",
            f"holds {pluralize(pool.jobs, 'job')} and {pluralize(pool.queues, 'named queue')}",
            f"tasks: {tasks}",
        ]
        if pool.health is PoolHealth.DEAD and (pool.jobs or pool.queues):
            lines += [_format_command(frame, "workers recover", pool.id)]
        yield lines


# Pages with a cursor


def _format_command(frame: Frame, subcommand: str, argument: object) -> str:
    return f"$ {format_command(frame.schemas, subcommand, str(argument))}"


def _render_selectable(
    frame: Frame, lines: Sequence[Line], details: Iterable[list[str]], room: int
) -> list[Line]:
    """Heads, and as many rows as there is room for around the one that is chosen."""
    heads, rows = lines[0], lines[1:]
    cursor = min(frame.view.cursor, len(rows) - 1)
    below = _render_detail(frame, list(details), cursor, room) if frame.view.has_detail else []
    height = max(1, room - 1 - len(below))
    first = max(0, min(cursor - height // 2, len(rows) - height))
    shown = list(rows[first : first + height])
    shown[cursor - first] = restyle(shown[cursor - first], TextStyle.SELECTED, frame.columns)
    return [heads, *_pad_lines(shown, height), *below]


def _render_detail(frame: Frame, details: list[list[str]], cursor: int, room: int) -> list[Line]:
    if cursor >= len(details):
        return []
    lines: list[Line] = [EMPTY_LINE]
    for text in details[cursor]:
        style = TextStyle.COMMAND if text.startswith("$ ") else TextStyle.PLAIN
        lines += [((part, style),) for part in wrap_text(text, frame.columns)]
    return lines[: max(0, room - 4)]


def _scroll(frame: Frame, lines: Sequence[Line], room: int) -> list[Line]:
    first = max(0, min(frame.view.cursor, len(lines) - room))
    return list(lines[first : first + room])


# The foot


def _render_footer(frame: Frame) -> Line:
    view = frame.view
    if view.is_editing_filter:
        return (("task: ", TextStyle.STRONG), *make_line(view.filter), ("▏", TextStyle.SELECTED))
    pause = "go on" if view.is_paused else "pause"
    left = make_line(f"q quit  p {pause}  s sort  / filter  ? help", TextStyle.FAINT)
    right: Line = (*_render_filter(view), *_render_page_keys(frame))
    return justify(left, right, frame.columns)


def _render_page_keys(frame: Frame) -> Iterator[Span]:
    """The pages by their keys, the one that is shown stands out."""
    if frame.columns < 100:
        yield (f"page {frame.view.page.value} of 1-5", TextStyle.FAINT)
        return
    for page in ScreenPage:
        style = TextStyle.STRONG if page is frame.view.page else TextStyle.FAINT
        yield (f"{'  ' * (page > 1)}{page.value} {page.name.lower()}", style)


def _render_filter(view: View) -> Line:
    return ((f"/{sanitize(view.filter)}  ", TextStyle.WARNING),) if view.filter else ()


def _render_help(frame: Frame) -> list[Line]:
    lines: list[Line] = [make_line("Keys", TextStyle.STRONG), EMPTY_LINE]
    for key, said in KEY_HELP:
        first: Line = ((f"  {key:<5}", TextStyle.STRONG),)
        for n, part in enumerate(wrap_text(said, max(10, frame.columns - 7))):
            lines.append(
                (*(first if n == 0 else ((" " * 7, TextStyle.PLAIN),)), (part, TextStyle.PLAIN))
            )
    return _pad_lines(lines, frame.rows)

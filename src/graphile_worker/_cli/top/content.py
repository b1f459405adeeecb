"""The content of `top`: numbers, alerts and tables of a snapshot, without a layout."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphile_worker._cli.top.tables import Column, build_table
from graphile_worker._cli.top.text import (
    BAD,
    COMMAND,
    FAINT,
    GOOD,
    PLAIN,
    STRONG,
    WARNING,
    Span,
    StyledLine,
    TextStyle,
    make_line,
    sanitize,
)
from graphile_worker._cli.top.view import Page, TaskSort, View
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._support.text import pluralize
from graphile_worker.ops.diagnostics.findings import (
    Finding,
    QueueHealth,
    Severity,
    assess_health,
    count_severities,
)
from graphile_worker.ops.diagnostics.thresholds import DEFAULT_THRESHOLDS
from graphile_worker.ops.history import EndedJob, RecentHistory, format_progress
from graphile_worker.ops.pools import PoolHealth, PoolInfo, count_slots
from graphile_worker.ops.snapshot import LockedJob, Snapshot, TaskCount
from graphile_worker.ops.states import JobState
from graphile_worker.ops.text import format_command, format_seconds, summarize_error
from graphile_worker.ops.trends import SnapshotHistory

# The drain time of a smaller backlog is not shown.
MIN_BACKLOG = 100
MAX_JOB_ROWS = 200

SEVERITY_MARKS: dict[Severity, Span] = {
    Severity.CRITICAL: ("✕", BAD),
    Severity.WARNING: ("▲", WARNING),
    Severity.NOTE: ("·", FAINT),
}
HEALTH_STYLES = {PoolHealth.ALIVE: GOOD, PoolHealth.DEAD: BAD, PoolHealth.UNKNOWN: FAINT}


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The input of one screen."""

    history: SnapshotHistory
    alerts: Sequence[Finding]
    schemas: Schemas
    view: View
    columns: int
    rows: int
    interval_seconds: float = 2.0
    snapshot_age_seconds: float = 0.0
    outage: str | None = None
    """Why the database does not answer."""
    recent: RecentHistory | None = None
    """None if no outcomes can be read."""

    @property
    def snapshot(self) -> Snapshot:
        return self.history.last


# The lines at the top


def build_title(frame: Frame) -> tuple[StyledLine, StyledLine]:
    """Build the left and the right part of the first line."""
    server = frame.snapshot.server
    database = (sanitize(f"{server.database}/{frame.schemas.shared}"), STRONG)
    left = (("graphile-worker top  ", FAINT), database, (f"  level {server.level}", FAINT))
    state = f"every {frame.interval_seconds:.1f}".removesuffix(".0") + "s"
    if frame.view.is_paused:
        state = "PAUSED"
    elif frame.interval_seconds >= 10:
        state = f"{format_seconds(frame.snapshot_age_seconds)} ago, {state}"
    right = ((f"{frame.snapshot.now:%H:%M:%S} UTC  ", PLAIN), (state, FAINT))
    return (left if frame.columns >= 80 else (database,)), right


def build_health(frame: Frame) -> StyledLine:
    """Build the line with the health of the queue and the number of alerts."""
    alerts = list(frame.alerts)
    health = assess_health(alerts)
    if health is QueueHealth.HEALTHY:
        notes = f", {pluralize(len(alerts), 'note')}" if alerts else ""
        return (("● HEALTHY", GOOD), (f"  nothing is wrong{notes}", FAINT))
    mark, style = SEVERITY_MARKS[alerts[0].severity]
    # The other pages list the alerts.
    is_listed = frame.view.page in (Page.OVERVIEW, Page.ALERTS)
    title = "" if is_listed else f": {alerts[0].title}"
    return ((f"{mark} {health.upper()}", style), *make_line(f"  {count_severities(alerts)}{title}"))


def build_metrics(frame: Frame) -> Iterator[StyledLine]:
    """Build a part for each number, such as `READY 12`."""
    for name, value, style in _list_metrics(frame):
        yield ((f"{name} ", FAINT), (value, style))


def _list_metrics(frame: Frame) -> Iterator[tuple[str, str, TextStyle]]:
    snapshot, rates = frame.snapshot, frame.history.rates
    oldest, running, slots = snapshot.oldest_ready, snapshot.running, count_slots(snapshot.pools)
    failed = snapshot.count(JobState.FAILED)
    yield "READY", f"{snapshot.count(JobState.READY):,}", STRONG
    if oldest is not None:
        yield "OLDEST", format_seconds(oldest), _style_age(oldest, STRONG)
    if waiting := snapshot.count(JobState.WAITING):
        yield "WAITING", f"{waiting:,}", STRONG
    if slots is None:
        yield "RUNNING", f"{running:,}", STRONG
    else:
        yield "RUNNING", f"{min(running, slots):,}/{slots:,}", STRONG
        if running > slots:
            yield "FETCHED", f"{running - slots:,}", STRONG
    if stale := snapshot.count(JobState.STALE):
        yield "STALE", f"{stale:,}", BAD
    if retrying := snapshot.count(JobState.RETRYING):
        yield "RETRYING", f"{retrying:,}", WARNING
    yield "SCHEDULED", f"{snapshot.count(JobState.SCHEDULED):,}", STRONG
    yield "FAILED", f"{failed:,}", BAD if failed else STRONG
    yield "ADDED", "?" if rates is None else f"{_format_rate(rates.added)}/s", STRONG
    yield "DONE", "?" if rates is None else f"{_format_rate(rates.completed)}/s", STRONG
    if rates is not None and snapshot.count(JobState.READY) >= MIN_BACKLOG:
        drained = frame.history.seconds_until_drained
        yield "DRAINS", "never" if drained is None else f"in {format_seconds(drained)}", STRONG
    counts = {
        health: sum(pool.health is health for pool in snapshot.pools) for health in PoolHealth
    }
    workers = ", ".join(f"{count} {health}" for health, count in counts.items() if count)
    is_bad = not workers or counts[PoolHealth.DEAD]
    yield "WORKERS", workers or "none", BAD if is_bad else STRONG


def _format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _style_age(seconds: float, default: TextStyle = PLAIN) -> TextStyle:
    if seconds > DEFAULT_THRESHOLDS.late_critical.total_seconds():
        return BAD
    return WARNING if seconds > DEFAULT_THRESHOLDS.late_warning.total_seconds() else default


def build_alerts(alerts: Sequence[Finding], detail: int = 3) -> list[StyledLine]:
    """Build the lines of alerts: with detail 1 the titles, 2 also commands, 3 also evidence."""
    lines: list[StyledLine] = []
    for alert in alerts:
        mark = SEVERITY_MARKS[alert.severity]
        lines.append((mark, (" ", PLAIN), *make_line(alert.title, STRONG)))
        if detail >= 3 and alert.evidence:
            lines.append(make_line("  " + " · ".join(alert.evidence), FAINT))
        if detail >= 2 and alert.command:
            lines.append(make_line(f"  $ {alert.command}", COMMAND))
    return lines


# Tables


@dataclass(frozen=True, slots=True)
class TableKind:
    """One of the tables: its columns, and how the parts of a snapshot become rows and details."""

    columns: tuple[Column, ...]
    empty_text: str
    select: Callable[[Frame], Sequence[Any]]
    build_row: Callable[[Any], list[Span]]
    build_details: Callable[[Any, Schemas], list[str]]


def build_page_table(frame: Frame, page: Page, cells: int | None = None) -> list[StyledLine]:
    """Build the table of a page, in the width of the terminal or in a number of cells."""
    kind = TABLES[page]
    rows = [kind.build_row(item) for item in kind.select(frame)]
    columns = list(kind.columns)
    if page is Page.TASKS:
        columns = [
            replace(column, header=f"{column.header}▼")
            if column.header == SORTED_HEADERS[frame.view.sort]
            else column
            for column in columns
        ]
    # The last column of these tables has a text for few rows.
    if page is not Page.WORKERS and not any(row[-1][0] for row in rows):
        columns[-1] = Column("", drop_rank=8)
    lines = build_table(columns, rows, cells or frame.columns)
    if rows:
        return lines
    is_filtered = frame.view.filter and page is not Page.WORKERS
    empty_text = "No task matches the filter." if is_filtered else kind.empty_text
    return [lines[0], make_line(empty_text, FAINT)]


SORT_KEYS: dict[TaskSort, Callable[[TaskCount], float]] = {
    TaskSort.OLDEST: lambda task: -(task.oldest_ready or -1.0),
    TaskSort.READY: lambda task: -task[JobState.READY],
    TaskSort.RUNNING: lambda task: -task.running,
    TaskSort.FAILING: lambda task: -task.failing,
    TaskSort.NAME: lambda task: 0,
}


def _select_tasks(frame: Frame) -> list[TaskCount]:
    text = frame.view.filter.lower()
    tasks = [task for task in frame.snapshot.tasks if text in task.identifier.lower()]
    sort_key = SORT_KEYS[frame.view.sort]
    return sorted(tasks, key=lambda task: (sort_key(task), task.identifier))


def _build_task_row(task: TaskCount) -> list[Span]:
    oldest = task.oldest_ready
    return [
        (sanitize(task.identifier), PLAIN),
        ("-", PLAIN) if oldest is None else (format_seconds(oldest), _style_age(oldest)),
        _format_count(task[JobState.READY]),
        _format_count(task[JobState.WAITING]),
        _format_count(task.running),
        _format_count(task[JobState.RETRYING], WARNING),
        _format_count(task[JobState.FAILED], BAD),
        _format_count(task[JobState.SCHEDULED]),
        (sanitize(summarize_error(task.error)), FAINT),
    ]


def _format_count(count: int, style: TextStyle = PLAIN) -> Span:
    return (f"{count:,}", style) if count else ("-", FAINT)


def _build_task_details(task: TaskCount, schemas: Schemas) -> list[str]:
    lines = [
        task.identifier,
        ", ".join(f"{count:,} {state}" for state, count in task.counts.items()),
    ]
    if task.first_ready is not None:
        lines.append(f"$ {format_command(schemas, 'jobs why', str(task.first_ready))}")
    if task.error is not None:
        lines.append(f"$ {format_command(schemas, 'jobs show', str(task.newest_failing))}")
        lines.append(f"job {task.newest_failing}: {summarize_error(task.error)}")
    return lines


@dataclass(frozen=True, slots=True)
class _RunningJob:
    job: LockedJob
    progress: str


def _select_jobs(frame: Frame) -> list[_RunningJob]:
    text = frame.view.filter.lower()
    jobs = [job for job in frame.snapshot.locked if text in job.task_identifier.lower()]
    progress = {} if frame.recent is None else frame.recent.progress
    return [
        _RunningJob(job, format_progress(progress[job.id]) if job.id in progress else "")
        for job in jobs[: max(frame.rows, MAX_JOB_ROWS)]
    ]


def _build_job_row(running: _RunningJob) -> list[Span]:
    job = running.job
    style = BAD if job.state is JobState.STALE else PLAIN
    return [
        (str(job.id), PLAIN),
        (sanitize(job.task_identifier), style),
        (format_seconds(job.age), style),
        (f"{job.attempts}/{job.max_attempts}", PLAIN),
        (sanitize(job.queue_name or "-"), PLAIN),
        (sanitize(job.pool_id or "-"), PLAIN),
        (sanitize(running.progress), PLAIN),
    ]


def _build_job_details(running: _RunningJob, schemas: Schemas) -> list[str]:
    job = running.job
    return [
        f"job {job.id}, {job.task_identifier}, {job.state} for {format_seconds(job.age)}",
        f"attempt {job.attempts} of {job.max_attempts}, queue {job.queue_name or 'none'}, "
        f"locked by {job.pool_id or 'an unknown worker'}",
        *([f"progress: {running.progress}"] if running.progress else []),
        f"$ {format_command(schemas, 'jobs show', str(job.id))}",
    ]


@dataclass(frozen=True, slots=True)
class _Ended:
    job: EndedJob
    age: float


def _select_ended(frame: Frame) -> list[_Ended]:
    text = frame.view.filter.lower()
    jobs = [] if frame.recent is None else frame.recent.ended
    return [
        _Ended(job, max(0.0, (frame.snapshot.now - job.finished_at).total_seconds()))
        for job in jobs
        if text in job.task_identifier.lower()
    ]


def _build_ended_row(ended: _Ended) -> list[Span]:
    job = ended.job
    return [
        (str(job.job_id), PLAIN),
        (sanitize(job.task_identifier), PLAIN),
        (job.state.value, GOOD if job.succeeded else BAD),
        (format_seconds(ended.age), PLAIN),
        (format_seconds(max(0.0, job.duration.total_seconds())), PLAIN),
        (str(job.attempts), PLAIN),
        (sanitize(job.error or ""), FAINT),
    ]


def _build_ended_details(ended: _Ended, schemas: Schemas) -> list[str]:
    job = ended.job
    lines = [
        f"job {job.job_id}, {job.task_identifier}, {job.state} {format_seconds(ended.age)} ago, "
        f"worker {job.worker}",
        f"$ {format_command(schemas, 'jobs history', str(job.job_id))}",
    ]
    return lines if job.error is None else [*lines, job.error]


def _select_pools(frame: Frame) -> list[PoolInfo]:
    order = [PoolHealth.DEAD, PoolHealth.UNKNOWN, PoolHealth.ALIVE]
    return sorted(frame.snapshot.pools, key=lambda pool: (order.index(pool.health), -pool.jobs))


def _build_pool_row(pool: PoolInfo) -> list[Span]:
    heartbeat = pool.seconds_since_heartbeat
    slots = "" if pool.concurrency is None else f"/{pool.concurrency}"
    return [
        (sanitize(pool.id), PLAIN),
        (pool.health.value, HEALTH_STYLES[pool.health]),
        ("-" if heartbeat is None else format_seconds(heartbeat), PLAIN),
        (f"{pool.jobs:,}{slots}", PLAIN),
        (sanitize(pool.runtime or "?"), PLAIN),
        (sanitize(pool.host or "?"), PLAIN),
        ("?" if pool.pid is None else str(pool.pid), PLAIN),
    ]


def _build_pool_details(pool: PoolInfo, schemas: Schemas) -> list[str]:
    tasks = "unknown" if pool.tasks is None else ", ".join(pool.tasks) or "none"
    lines = [
        f"{pool.id}, {pool.health}, {pool.runtime or 'unknown'} {pool.version or ''}",
        f"locks {pluralize(pool.jobs, 'job')} and {pluralize(pool.queues, 'named queue')}",
        f"tasks: {tasks}",
    ]
    if pool.health is PoolHealth.DEAD and (pool.jobs or pool.queues):
        lines.append(f"$ {format_command(schemas, 'workers recover', pool.id)}")
    return lines


TABLES = {
    Page.TASKS: TableKind(
        (
            Column("TASK", min_cells=14, is_flexible=True),
            Column("OLDEST", 1, 6, align_right=True),
            Column("READY", 0, 6, align_right=True),
            Column("WAIT", 3, align_right=True),
            Column("RUN", 2, 4, align_right=True),
            Column("RETRY", 5, align_right=True),
            Column("FAILED", 4, align_right=True),
            Column("SCHED", 6, align_right=True),
            Column("LAST ERROR", 8, 20, 100, is_flexible=True),
        ),
        "No jobs.",
        _select_tasks,
        _build_task_row,
        _build_task_details,
    ),
    Page.RUNNING: TableKind(
        (
            Column("JOB", 0, 4, align_right=True),
            Column("RUNNING", 0, 10, is_flexible=True),
            Column("FOR", 0, 5, align_right=True),
            Column("TRY", 3, align_right=True),
            Column("QUEUE", 4, max_cells=20),
            Column("WORKER", 2, max_cells=30),
            Column("PROGRESS", 5, 8, 40, is_flexible=True),
        ),
        "No locked jobs.",
        _select_jobs,
        _build_job_row,
        _build_job_details,
    ),
    Page.WORKERS: TableKind(
        (
            Column("WORKER", 0, 25, 40, is_flexible=True),
            Column("HEALTH", 1),
            Column("SEEN", 2, align_right=True),
            Column("JOBS", align_right=True),
            Column("RUNTIME", 3),
            Column("HOST", 4, max_cells=24),
            Column("PID", 5, align_right=True),
        ),
        "No workers are running.",
        _select_pools,
        _build_pool_row,
        _build_pool_details,
    ),
    Page.ENDED: TableKind(
        (
            Column("JOB", 0, 4, align_right=True),
            Column("ENDED", 0, 10, is_flexible=True),
            Column("STATE", 1),
            Column("AGO", 0, 5, align_right=True),
            Column("TOOK", 3, 5, align_right=True),
            Column("TRY", 4, align_right=True),
            Column("ERROR", 5, 20, 100, is_flexible=True),
        ),
        "No ended jobs. Tasks with a Retention keep their outcomes.",
        _select_ended,
        _build_ended_row,
        _build_ended_details,
    ),
}
SORTED_HEADERS = {
    TaskSort.NAME: "TASK",
    TaskSort.OLDEST: "OLDEST",
    TaskSort.READY: "READY",
    TaskSort.RUNNING: "RUN",
    TaskSort.FAILING: "FAILED",
}

"""Render: what was seen, turned into lines for a terminal of that size; nothing else happens here.

No line is longer than the terminal is wide, and there are as many as it is high, at most.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from graphile_worker.administration.attention import (
    Attention,
    Severity,
    Verdict,
    age,
    verdict_of,
)
from graphile_worker.administration.pools import Health, Pool, living
from graphile_worker.administration.snapshot import LockedJob, Snapshot, TaskCount
from graphile_worker.administration.states import State
from graphile_worker.administration.watch import Watch
from graphile_worker.administration.wording import command, counted, headline
from graphile_worker.cli.top.tables import Cell, Column, table
from graphile_worker.cli.top.text import (
    EMPTY,
    Line,
    Span,
    Style,
    apart,
    beside,
    clip_line,
    flowing,
    harmless,
    plain,
    restyled,
    wrapped,
)
from graphile_worker.cli.top.view import Page, Sort, View
from graphile_worker.sql.identifiers import Schemas

T = TypeVar("T")

# From so many cells on, two tables stand beside each other; from so many lines on, blanks between.
WIDE = 130
TALL = 24

# Seconds.
LATE, VERY_LATE = 60.0, 300.0

SMALL = "Too small: make the terminal larger."
LEAST_COLUMNS, LEAST_ROWS = 20, 6

KEYS = (
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

    watch: Watch
    attention: Sequence[Attention]
    schemas: Schemas
    view: View
    columns: int
    rows: int
    every: float = 2.0
    """Seconds between two looks."""
    looked_ago: float = 0.0
    away: str | None = None
    """Why the database does not answer."""

    @property
    def seen(self) -> Snapshot:
        return self.watch.last


def render(frame: Frame) -> list[Line]:
    """The screen."""
    if frame.columns < LEAST_COLUMNS or frame.rows < LEAST_ROWS:
        return [clip_line(plain(SMALL), frame.columns)]
    if frame.view.has_help:
        lines = _help(frame)
    else:
        head = _head(frame)
        room = frame.rows - len(head) - 1
        lines = [*head, *_filled(_body(frame, room), room), _foot(frame)]
    return [clip_line(line, frame.columns) for line in lines[: frame.rows]]


def render_all(frame: Frame) -> list[Line]:
    """The overview as long as it is, for a paper rather than for a screen."""
    blocks = [
        _attention_lines(frame, 3),
        _tasks(frame),
        _running(frame),
        _workers(frame),
    ]
    lines = [*_head(frame), *_joined([block for block in blocks if block], 1)]
    return [clip_line(line, frame.columns) for line in lines]


# The head


def _head(frame: Frame) -> list[Line]:
    numbers = flowing(_numbers(frame), frame.columns)
    blank = [EMPTY] if frame.rows >= TALL else []
    return [_title(frame), _verdict(frame), *numbers, *blank]


def _title(frame: Frame) -> Line:
    seen = frame.seen
    where = f"{seen.server.database}/{frame.schemas.shared}"
    left: Line = (
        ("graphile-worker top  ", Style.FAINT),
        (harmless(where), Style.STRONG),
        (f"  level {seen.server.level}", Style.FAINT),
    )
    if frame.columns < 80:
        left = left[1:2]
    state = "PAUSED" if frame.view.is_paused else _pace(frame)
    right: Line = ((f"{seen.now:%H:%M:%S} UTC  ", Style.PLAIN), (state, Style.FAINT))
    return apart(left, right, frame.columns)


def _pace(frame: Frame) -> str:
    """How often it looks; if that is seldom, how long ago it did."""
    every = f"every {frame.every:.1f}".removesuffix(".0") + "s"
    return every if frame.every < 10 else f"{age(frame.looked_ago)} ago, {every}"


def _verdict(frame: Frame) -> Line:
    if frame.away is not None:
        said = f" DATABASE AWAY, last seen {age(frame.looked_ago)} ago: {frame.away}"
        return restyled(plain(said), Style.ALARM, frame.columns)
    found = list(frame.attention)
    verdict = verdict_of(found)
    if verdict is Verdict.HEALTHY:
        notes = f", {counted(len(found), 'note')}" if found else ""
        return (("● HEALTHY", Style.GOOD), (f"  nothing is wrong{notes}", Style.FAINT))
    mark, style = _mark(found[0])
    line: Line = ((f"{mark} {verdict.upper()}", style), (f"  {_severities(found)}", Style.PLAIN))
    # Where the list is to be seen, it need not be said twice.
    is_listed = frame.view.page in (Page.OVERVIEW, Page.ATTENTION)
    return line if is_listed else (*line, *plain(f": {found[0].title}"))


def _severities(found: Sequence[Attention]) -> str:
    counts = [(sum(each.severity is kind for each in found), kind) for kind in Severity]
    words = {Severity.CRITICAL: "critical", Severity.WARNING: "warning", Severity.NOTE: "note"}
    said = [
        f"{count} {words[kind]}{'s' * (count > 1 and kind is not Severity.CRITICAL)}"
        for count, kind in counts
        if count
    ]
    return ", ".join(said)


def _numbers(frame: Frame) -> Iterator[Line]:
    seen, rates = frame.seen, frame.watch.rates
    oldest = seen.oldest_ready
    yield _number("READY", f"{seen.count(State.READY):,}")
    if oldest is not None:
        yield _number("OLDEST", age(oldest), _lateness(oldest))
    if waiting := seen.count(State.WAITING):
        yield _number("WAITING", f"{waiting:,}")
    running, slots = seen.running, _slots(seen)
    if slots is None:
        yield _number("RUNNING", f"{running:,}")
    else:
        yield _number("RUNNING", f"{min(running, slots):,}/{slots:,}")
        if running > slots:
            # Beyond their slots, workers fetch what they run next.
            yield _number("FETCHED", f"{running - slots:,}")
    if stale := seen.count(State.STALE):
        yield _number("STALE", f"{stale:,}", Style.BAD)
    if retrying := seen.count(State.RETRYING):
        yield _number("RETRYING", f"{retrying:,}", Style.WARNING)
    yield _number("SCHEDULED", f"{seen.count(State.SCHEDULED):,}")
    failed = seen.count(State.FAILED)
    yield _number("FAILED", f"{failed:,}", Style.BAD if failed else Style.STRONG)
    yield _number("ADDED", "?" if rates is None else f"{_rate(rates.added)}/s")
    yield _number("DONE", "?" if rates is None else f"{_rate(rates.done)}/s")
    if drains := _drains(frame.watch):
        yield _number("DRAINS", drains)
    yield _number("WORKERS", *_fleet(seen))


def _number(name: str, value: str, style: Style = Style.STRONG) -> Line:
    return ((f"{name} ", Style.FAINT), (value, style))


def _slots(seen: Snapshot) -> int | None:
    """How many jobs can run at once; None where others work too, of which nobody knows."""
    slots = [pool.concurrency for pool in living(seen.pools)]
    known = [each for each in slots if each is not None]
    is_whole = known and len(known) == len(slots) and _only_known(seen)
    return sum(known) if is_whole else None


def _only_known(seen: Snapshot) -> bool:
    return all(pool.health is not Health.UNKNOWN for pool in seen.pools)


def _drains(watch: Watch) -> str | None:
    """How long the backlog would last, if there is one worth the word."""
    ready, rates = watch.last.count(State.READY), watch.rates
    if rates is None or ready < 100:
        return None
    return "never" if watch.drains_in is None else f"in {age(watch.drains_in)}"


def _fleet(seen: Snapshot) -> tuple[str, Style]:
    by_health = [(sum(pool.health is health for pool in seen.pools), health) for health in Health]
    said = ", ".join(f"{count} {health}" for count, health in by_health if count)
    is_bad = any(count and health is Health.DEAD for count, health in by_health)
    return said or "none", Style.BAD if is_bad or not said else Style.STRONG


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


# The body


def _body(frame: Frame, room: int) -> list[Line]:
    match frame.view.page:
        case Page.OVERVIEW:
            return _overview(frame, room)
        case Page.TASKS:
            return _chosen(frame, _tasks(frame), _task_details(frame), room)
        case Page.RUNNING:
            return _chosen(frame, _running(frame), _running_details(frame), room)
        case Page.WORKERS:
            return _chosen(frame, _workers(frame), _worker_details(frame), room)
        case Page.ATTENTION:
            return _scrolled(frame, _whole_attention(frame), room)


def _overview(frame: Frame, room: int) -> list[Line]:
    blank = 1 if frame.rows >= TALL else 0
    tasks = _tasks(frame)
    below = _below(frame)
    wanted = [len(_attention_lines(frame, 3)), len(tasks), *map(_height, below)]
    blocks = sum(count > 0 for count in wanted)
    left = room - blank * (blocks - 1)
    first = _attention_within(frame, _shares(wanted, left)[0])
    # What it leaves is for the others.
    shares = _shares([len(first), *wanted[1:]], left)
    drawn = [first, _cut(tasks, shares[1], Page.TASKS)]
    for each, share in zip(below, shares[2:], strict=True):
        cut = [_cut(block.lines, share, block.page) for block in each]
        drawn.append(cut[0] if len(cut) == 1 else beside(cut[0], cut[1], _half(frame)))
    rest = left - sum(map(len, drawn))
    if _is_small(frame) and rest >= 2:
        drawn.append(_cut(_workers(frame), rest, Page.WORKERS))
    return _joined([block for block in drawn if block], blank)


def _is_small(frame: Frame) -> bool:
    return frame.columns < WIDE and frame.rows < TALL


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines, and the page on which there are all of them."""

    page: Page
    lines: list[Line]


def _below(frame: Frame) -> list[list[_Block]]:
    """Running jobs and workers, beside each other or one below the other."""
    if _is_small(frame):
        # How many workers there are is said above: which they are, if there is room left.
        return [[_Block(Page.RUNNING, _running(frame))]]
    if frame.columns < WIDE:
        running, workers = _running(frame), _workers(frame)
        return [[_Block(Page.RUNNING, running)], [_Block(Page.WORKERS, workers)]]
    half = _half(frame)
    running, workers = _running(frame, half), _workers(frame, frame.columns - half - 2)
    return [[_Block(Page.RUNNING, running), _Block(Page.WORKERS, workers)]]


def _height(blocks: list[_Block]) -> int:
    return max(len(block.lines) for block in blocks)


def _half(frame: Frame) -> int:
    return frame.columns // 2 - 1


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """How many lines each gets: one after the other in turns, until there are none left."""
    shares = [0] * len(wanted)
    left = max(0, room)
    while left and any(share < want for share, want in zip(shares, wanted, strict=True)):
        for n, want in enumerate(wanted):
            if shares[n] < want and left:
                shares[n] += 1
                left -= 1
    return shares


def _cut(lines: Sequence[Line], room: int, page: Page) -> list[Line]:
    """As many as there is room for; the last says where the others are."""
    if len(lines) <= room:
        return list(lines)
    if room < 2:
        return []
    left = len(lines) - room + 1
    return [*lines[: room - 1], ((f"{left:,} more: press {page.value}", Style.FAINT),)]


def _joined(blocks: Iterable[Sequence[Line]], blank: int) -> list[Line]:
    lines: list[Line] = []
    for block in blocks:
        lines += [EMPTY] * blank if lines else []
        lines += block
    return lines


def _filled(lines: list[Line], room: int) -> list[Line]:
    return [*lines[:room], *[EMPTY] * (room - len(lines))]


# Attention


def _attention_within(frame: Frame, room: int) -> list[Line]:
    """As much of each as there is room for."""
    for detail in (3, 2, 1):
        lines = _attention_lines(frame, detail)
        if len(lines) <= room:
            return lines
    return _cut(_attention_lines(frame, 1), room, Page.ATTENTION)


def _attention_lines(frame: Frame, detail: int) -> list[Line]:
    """Of each a title, then the command, then the evidence."""
    lines: list[Line] = []
    for each in frame.attention:
        lines.append((_mark(each), (" ", Style.PLAIN), *plain(each.title, Style.STRONG)))
        if detail >= 3 and each.evidence:
            lines.append(plain("  " + " · ".join(each.evidence), Style.FAINT))
        if detail >= 2 and each.command:
            lines.append(plain(f"  $ {each.command}", Style.COMMAND))
    return lines


def _whole_attention(frame: Frame) -> list[Line]:
    """All of it, nothing cut: commands are there to be copied."""
    if not frame.attention:
        return [plain("Nothing calls for attention.", Style.FAINT)]
    lines: list[Line] = []
    for each in frame.attention:
        lines += [EMPTY] if lines else []
        first: Line = (_mark(each), (" ", Style.PLAIN))
        lines += _paragraph(each.title, frame.columns, first, Style.STRONG)
        for said in each.evidence:
            lines += _paragraph(said, frame.columns, (("  ", Style.PLAIN),), Style.FAINT)
        if each.command:
            lines += _paragraph(each.command, frame.columns, (("  ", Style.PLAIN),), Style.COMMAND)
    return lines


def _paragraph(text: str, columns: int, first: Line, style: Style) -> Iterator[Line]:
    for n, part in enumerate(wrapped(text, columns - 2)):
        before: Line = first if n == 0 else (("  ", Style.PLAIN),)
        yield (*before, (part, style))


def _mark(each: Attention) -> Span:
    match each.severity:
        case Severity.CRITICAL:
            return ("✕", Style.BAD)
        case Severity.WARNING:
            return ("▲", Style.WARNING)
        case Severity.NOTE:
            return ("·", Style.FAINT)


# Tasks

TASKS = (
    Column("TASK", least=14, grows=True),
    Column("OLDEST", rank=1, right=True, least=6),
    Column("READY", right=True, least=6),
    Column("WAIT", rank=3, right=True),
    Column("RUN", rank=2, right=True, least=4),
    Column("RETRY", rank=5, right=True),
    Column("FAILED", rank=4, right=True),
    Column("SCHED", rank=6, right=True),
    Column("LAST ERROR", rank=8, least=20, most=100, grows=True),
)


def _tasks(frame: Frame) -> list[Line]:
    columns = [_sorted_by(column, frame.view.sort) for column in TASKS]
    tasks = shown_tasks(frame)
    if not any(task.error for task in tasks):
        columns[-1] = Column("", rank=8)
    lines = table(columns, [_task_row(task) for task in tasks], frame.columns)
    return lines if tasks else [lines[0], plain(_no_tasks(frame), Style.FAINT)]


def shown_tasks(frame: Frame) -> list[TaskCount]:
    """Those that the filter lets through, sorted."""
    wanted = frame.view.filter.lower()
    found = [task for task in frame.seen.tasks if wanted in task.identifier.lower()]
    by_name = sorted(found, key=lambda task: task.identifier)
    return sorted(by_name, key=SORTS[frame.view.sort])


SORTS: dict[Sort, Callable[[TaskCount], float]] = {
    Sort.OLDEST: lambda task: -(task.oldest_ready or -1.0),
    Sort.READY: lambda task: -task[State.READY],
    Sort.RUNNING: lambda task: -task.running,
    Sort.FAILING: lambda task: -task.failing,
    Sort.NAME: lambda task: 0,
}

SORTED = {
    "TASK": Sort.NAME,
    "OLDEST": Sort.OLDEST,
    "READY": Sort.READY,
    "RUN": Sort.RUNNING,
    "FAILED": Sort.FAILING,
}


def _sorted_by(column: Column, sort: Sort) -> Column:
    if SORTED.get(column.head) is not sort:
        return column
    return Column(
        f"{column.head}▼", column.rank, column.least, column.most, column.right, column.grows
    )


def _task_row(task: TaskCount) -> list[Cell]:
    oldest = task.oldest_ready
    return [
        harmless(task.identifier),
        "-" if oldest is None else (age(oldest), _lateness(oldest, Style.PLAIN)),
        _count(task[State.READY]),
        _count(task[State.WAITING]),
        _count(task.running),
        _count(task[State.RETRYING], Style.WARNING),
        _count(task[State.FAILED], Style.BAD),
        _count(task[State.SCHEDULED]),
        (_first_line(task.error), Style.FAINT),
    ]


def _no_tasks(frame: Frame) -> str:
    return "No task is called so." if frame.view.filter else "There are no jobs."


def _count(count: int, style: Style = Style.PLAIN) -> Cell:
    return (f"{count:,}", style) if count else ("-", Style.FAINT)


def _lateness(waited: float, otherwise: Style = Style.STRONG) -> Style:
    if waited > VERY_LATE:
        return Style.BAD
    return Style.WARNING if waited > LATE else otherwise


def _first_line(text: str | None) -> str:
    return harmless(headline(text))


def _task_details(frame: Frame) -> Iterator[list[str]]:
    for task in shown_tasks(frame):
        counts = ", ".join(f"{count:,} {state}" for state, count in task.counts.items())
        lines = [task.identifier, counts]
        if task.first_ready is not None:
            lines += [_typed(frame, "jobs why", task.first_ready)]
        if task.error is not None:
            lines += [_typed(frame, "jobs show", task.newest_failing)]
            lines += [f"job {task.newest_failing}: {_first_line(task.error)}"]
        yield lines


# Running jobs

RUNNING = (
    Column("JOB", right=True, least=4),
    Column("RUNNING", least=10, grows=True),
    Column("FOR", right=True, least=5),
    Column("TRY", rank=3, right=True),
    Column("QUEUE", rank=4, most=20),
    Column("WORKER", rank=2, most=30),
)


def _running(frame: Frame, columns: int | None = None) -> list[Line]:
    jobs = shown_jobs(frame)
    rows = [_job_row(job) for job in jobs[: max(frame.rows, 200)]]
    lines = table(RUNNING, rows, columns or frame.columns)
    return lines if jobs else [lines[0], plain("No job is locked.", Style.FAINT)]


def shown_jobs(frame: Frame) -> list[LockedJob]:
    wanted = frame.view.filter.lower()
    return [job for job in frame.seen.locked if wanted in job.task_identifier.lower()]


def _job_row(job: LockedJob) -> list[Cell]:
    style = Style.BAD if job.state is State.STALE else Style.PLAIN
    return [
        str(job.id),
        (harmless(job.task_identifier), style),
        (age(job.age), style),
        f"{job.attempts}/{job.max_attempts}",
        harmless(job.queue_name or "-"),
        harmless(job.pool_id or "-"),
    ]


def _running_details(frame: Frame) -> Iterator[list[str]]:
    for job in shown_jobs(frame):
        yield [
            f"job {job.id}, {job.task_identifier}, {job.state} for {age(job.age)}",
            f"attempt {job.attempts} of {job.max_attempts}, "
            f"queue {job.queue_name or 'none'}, held by {job.pool_id or 'nobody'}",
            _typed(frame, "jobs show", job.id),
        ]


# Workers

WORKERS = (
    Column("WORKER", least=25, most=40, grows=True),
    Column("LIFE", rank=1),
    Column("SEEN", rank=2, right=True),
    Column("JOBS", right=True),
    Column("RUNTIME", rank=3),
    Column("HOST", rank=4, most=24),
    Column("PID", rank=5, right=True),
)


def _workers(frame: Frame, columns: int | None = None) -> list[Line]:
    pools = shown_pools(frame)
    lines = table(WORKERS, [_pool_row(pool) for pool in pools], columns or frame.columns)
    return lines if pools else [lines[0], plain("No worker shows itself.", Style.FAINT)]


def shown_pools(frame: Frame) -> list[Pool]:
    """Those that are dead first, then those that hold most."""
    order = [Health.DEAD, Health.UNKNOWN, Health.ALIVE]
    return sorted(frame.seen.pools, key=lambda pool: (order.index(pool.health), -pool.jobs))


def _pool_row(pool: Pool) -> list[Cell]:
    style = {Health.ALIVE: Style.GOOD, Health.DEAD: Style.BAD, Health.UNKNOWN: Style.FAINT}
    slots = "" if pool.concurrency is None else f"/{pool.concurrency}"
    return [
        harmless(pool.id),
        (pool.health.value, style[pool.health]),
        "-" if pool.silence is None else age(pool.silence),
        f"{pool.jobs:,}{slots}",
        harmless(pool.runtime or "?"),
        harmless(pool.host or "?"),
        "?" if pool.pid is None else str(pool.pid),
    ]


def _worker_details(frame: Frame) -> Iterator[list[str]]:
    for pool in shown_pools(frame):
        tasks = "not said" if pool.tasks is None else ", ".join(pool.tasks) or "none"
        lines = [
            f"{pool.id}, {pool.health}, {pool.runtime or 'unknown'} {pool.version or ''}",
            f"holds {counted(pool.jobs, 'job')} and {counted(pool.queues, 'named queue')}",
            f"tasks: {tasks}",
        ]
        if pool.health is Health.DEAD and (pool.jobs or pool.queues):
            lines += [_typed(frame, "workers recover", pool.id)]
        yield lines


# Pages with a cursor


def _typed(frame: Frame, words: str, argument: object) -> str:
    return f"$ {command(frame.schemas, words, str(argument))}"


def _chosen(
    frame: Frame, lines: Sequence[Line], details: Iterable[list[str]], room: int
) -> list[Line]:
    """Heads, and as many rows as there is room for around the one that is chosen."""
    heads, rows = lines[0], lines[1:]
    cursor = min(frame.view.cursor, len(rows) - 1)
    below = _detail(frame, list(details), cursor, room) if frame.view.has_detail else []
    height = max(1, room - 1 - len(below))
    first = max(0, min(cursor - height // 2, len(rows) - height))
    shown = list(rows[first : first + height])
    shown[cursor - first] = restyled(shown[cursor - first], Style.CHOSEN, frame.columns)
    return [heads, *_filled(shown, height), *below]


def _detail(frame: Frame, details: list[list[str]], cursor: int, room: int) -> list[Line]:
    if cursor >= len(details):
        return []
    lines: list[Line] = [EMPTY]
    for text in details[cursor]:
        style = Style.COMMAND if text.startswith("$ ") else Style.PLAIN
        lines += [((part, style),) for part in wrapped(text, frame.columns)]
    return lines[: max(0, room - 4)]


def _scrolled(frame: Frame, lines: Sequence[Line], room: int) -> list[Line]:
    first = max(0, min(frame.view.cursor, len(lines) - room))
    return list(lines[first : first + room])


# The foot


def _foot(frame: Frame) -> Line:
    view = frame.view
    if view.is_typing:
        return (("task: ", Style.STRONG), *plain(view.filter), ("▏", Style.CHOSEN))
    pause = "go on" if view.is_paused else "pause"
    left = plain(f"q quit  p {pause}  s sort  / filter  ? help", Style.FAINT)
    right: Line = (*_filter(view), *_pages(frame))
    return apart(left, right, frame.columns)


def _pages(frame: Frame) -> Iterator[Span]:
    """The pages by their keys, the one that is shown stands out."""
    if frame.columns < 100:
        yield (f"page {frame.view.page.value} of 1-5", Style.FAINT)
        return
    for page in Page:
        style = Style.STRONG if page is frame.view.page else Style.FAINT
        yield (f"{'  ' * (page > 1)}{page.value} {page.name.lower()}", style)


def _filter(view: View) -> Line:
    return ((f"/{harmless(view.filter)}  ", Style.WARNING),) if view.filter else ()


def _help(frame: Frame) -> list[Line]:
    lines: list[Line] = [plain("Keys", Style.STRONG), EMPTY]
    for key, said in KEYS:
        first: Line = ((f"  {key:<5}", Style.STRONG),)
        for n, part in enumerate(wrapped(said, max(10, frame.columns - 7))):
            lines.append((*(first if n == 0 else ((" " * 7, Style.PLAIN),)), (part, Style.PLAIN)))
    return _filled(lines, frame.rows)

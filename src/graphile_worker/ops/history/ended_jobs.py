"""List ended jobs that match a filter, the last one first.

Only jobs of tasks with a `Retention` leave an outcome. Lists do not disturb workers: each statement
has a timeout and a lock timeout.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.ended_jobs import (
    encode_time,
    list_failed_outcomes,
    list_kept_tasks,
    list_outcomes,
    list_task_outcomes,
)
from graphile_worker._sql.queries.history import (
    NEVER,
    HistoryRing,
    get_history,
)
from graphile_worker._sql.query import Plan, Query, Row
from graphile_worker._sql.statement import Clause, Condition
from graphile_worker.jobs import MAX_DATETIME, parse_timestamp
from graphile_worker.ops.filters import (
    BARE_FIELDS,
    Bound,
    Filter,
    FilterField,
    Range,
    Term,
    TextPattern,
    check_ended_filter,
)
from graphile_worker.ops.history.access import plan_require_history
from graphile_worker.ops.search import (
    DEFAULT_LIMITS,
    MAX_ERROR_CHARS,
    MAX_ID,
    QueryLimits,
    limit_plan,
)
from graphile_worker.ops.text import summarize_error
from graphile_worker.results import JobStatusState

T = TypeVar("T")

# With more tasks, a list reads windows of time, and not the newest outcomes of each task.
MAX_TASKS = 200

# A list of all tasks reads the outcomes of these times, until the page is full.
WINDOWS = (
    timedelta(minutes=1),
    timedelta(minutes=10),
    timedelta(hours=2),
    timedelta(days=1),
)

# The fields that a task may match or not.
TASK_FIELDS = (FilterField.TASK, *BARE_FIELDS)

# Times of a range without a bound.
OPEN_START, OPEN_END = "-infinity", "infinity"


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedJob:
    """The outcome of a job: it succeeded, or has permanently failed.

    Attributes:
        job_id: Id of the job.
        task_identifier: Name of its task.
        succeeded: Whether its task returned.
        attempts: Number of attempts that started.
        created_at: When the job was added.
        run_at: When its last attempt was due.
        started_at: Start of the last attempt.
        finished_at: End of the last attempt.
        worker: The worker of the last attempt.
        error: Error of the last attempt, in a list only its first line.
        has_result: Whether the result is kept.
        result_text: The result as JSON, None in a list.
        payload_text: The payload as JSON, None in a list, or if its task keeps no payloads.
    """

    job_id: int
    task_identifier: str
    succeeded: bool
    attempts: int
    created_at: datetime
    run_at: datetime
    started_at: datetime
    finished_at: datetime
    worker: str
    error: str | None
    has_result: bool
    result_text: str | None = None
    payload_text: str | None = None

    @property
    def state(self) -> JobStatusState:
        """The state, as in a filter: succeeded or failed."""
        return JobStatusState.SUCCEEDED if self.succeeded else JobStatusState.FAILED

    @property
    def duration(self) -> timedelta:
        """The duration of the last attempt."""
        return self.finished_at - self.started_at


class EndedPosition(NamedTuple):
    """The position of an ended job in a list, for the next page."""

    finished_at: datetime
    job_id: int


@dataclass(frozen=True, slots=True)
class EndedPage:
    """Ended jobs, the last one first, the time of the database, and the start of the next page."""

    jobs: list[EndedJob]
    now: datetime
    next: EndedPosition | None


def plan_list_outcomes(
    job_filter: Filter,
    schemas: Schemas,
    *,
    limit: int = 50,
    before: EndedPosition | None = None,
    max_tasks: int = MAX_TASKS,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[EndedPage]:
    """List ended jobs, the last one first.

    Args:
        job_filter: Which jobs. See `graphile_worker.ops.filters.parse_ended_filter`.
        schemas: The schemas of the queue.
        limit: The size of the page.
        before: Only jobs after this position in the list, for the next page.
        max_tasks: Search the outcomes of up to this number of tasks one task at a time.
        limits: The timeouts of each statement.

    Returns:
        A plan for one page of jobs.

    Raises:
        FilterError: A term of the filter has no meaning for ended jobs.
        HistoryMissing: The tables do not exist, or this role may not read them.
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    check_ended_filter(job_filter)
    yield from plan_require_history(schemas, limits)
    plan = plan_read_outcomes(job_filter, limit=limit, before=before, max_tasks=max_tasks)
    return (yield from limit_plan(plan, schemas, limits))


def plan_read_outcomes(
    job_filter: Filter,
    *,
    limit: int,
    before: EndedPosition | None = None,
    max_tasks: int = MAX_TASKS,
) -> Plan[EndedPage]:
    ring: HistoryRing | None = yield get_history()
    assert ring is not None
    search = _build_search(job_filter, ring.now, limit + 1, before)
    rows = yield from _plan_search(search, max_tasks)
    jobs = [read_ended_job(row) for row in rows[:limit]]
    last = EndedPosition(jobs[-1].finished_at, jobs[-1].job_id) if len(rows) > limit else None
    return EndedPage(jobs, ring.now, last)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
    """A filter of ended jobs, and what the indexes need of it."""

    terms: tuple[Term, ...]
    now: datetime
    clauses: tuple[Clause, ...]
    since: str
    until: str
    before_id: int
    limit: int

    @property
    def args(self) -> tuple[str, str, int, int]:
        return self.since, self.until, self.before_id, self.limit

    @property
    def has_ids(self) -> bool:
        return any(each.field is FilterField.ID and not each.is_negated for each in self.terms)

    @property
    def exact_tasks(self) -> list[str] | None:
        """The only tasks that match, or None if they are unknown."""
        for term in self.terms:
            names = [each.exact if isinstance(each, TextPattern) else None for each in term.values]
            if term.field is FilterField.TASK and not term.is_negated and None not in names:
                return [name for name in names if name is not None]
        return None

    @property
    def is_any_task(self) -> bool:
        return not any(term.field in TASK_FIELDS for term in self.terms)

    @property
    def has_wanted_tasks(self) -> bool:
        return any(term.field in TASK_FIELDS and not term.is_negated for term in self.terms)

    def may_match(self, succeeded: bool, task: str | None = None) -> bool:
        """Return whether jobs with this outcome may match, of this task or of any task."""
        return all(_may_match(term, succeeded, task) for term in self.terms)


def _plan_search(search: _Search, max_tasks: int) -> Plan[Sequence[Row]]:
    """Choose the index that finds the newest outcomes without reading many others."""
    outcomes = [succeeded for succeeded in (True, False) if search.may_match(succeeded)]
    if not outcomes:
        return ()
    if search.has_ids:
        return (yield from _plan_query(list_outcomes(*search.args, search.clauses)))
    if outcomes == [False] and search.is_any_task:
        return (yield from _plan_query(list_failed_outcomes(*search.args, search.clauses)))
    if not search.has_wanted_tasks:
        # In a busy queue, the last minute fills a page.
        rows = yield from _plan_search_windows(search, WINDOWS[:1])
        if len(rows) >= search.limit:
            return rows
    tasks = search.exact_tasks
    if tasks is None:
        tasks = yield from _plan_query(list_kept_tasks(max_tasks + 1))
    if len(tasks) > max_tasks:
        rows = yield from _plan_search_windows(search, WINDOWS)
        if len(rows) >= search.limit:
            return rows
        return (yield from _plan_query(list_outcomes(*search.args, search.clauses)))
    succeeded = [task for task in tasks if search.may_match(True, task)]
    failed = [task for task in tasks if search.may_match(False, task)]
    if not succeeded and not failed:
        return ()
    query = list_task_outcomes(*search.args, succeeded, failed, search.clauses)
    return (yield from _plan_query(query))


def _plan_query(query: Query[T]) -> Plan[T]:
    answer: T = yield query
    return answer


def _plan_search_windows(search: _Search, windows: Iterable[timedelta]) -> Plan[Sequence[Row]]:
    """Read windows of time, each longer than the one before, until the page is full."""
    until = search.now
    if search.until != OPEN_END:
        until = min(until, parse_timestamp(search.until))
    rows: Sequence[Row] = ()
    for window in windows:
        # A filter can name the first times of Python's calendar.
        since = encode_time(until - min(window, until - NEVER))
        if float(since) <= float(search.since):
            break
        rows = yield from _plan_query(list_outcomes(since, *search.args[1:], search.clauses))
        if len(rows) >= search.limit:
            break
    return rows


def _build_search(
    job_filter: Filter, now: datetime, limit: int, before: EndedPosition | None
) -> _Search:
    lows, highs = [], []
    for term in job_filter.terms:
        if term.field is FilterField.FINISHED:
            low, high = _find_hull(term, now)
            lows += [low] if low is not None else []
            highs += [high] if high is not None else []
    until, before_id = (min(highs), MAX_ID) if highs else (None, MAX_ID)
    if before is not None and (until is None or before.finished_at <= until):
        until, before_id = before
    return _Search(
        terms=job_filter.terms,
        now=now,
        clauses=tuple(_build_clause(term, now) for term in job_filter.terms),
        since=encode_time(max(lows)) if lows else OPEN_START,
        until=OPEN_END if until is None else encode_time(until),
        before_id=before_id,
        limit=limit,
    )


def _find_hull(term: Term, now: datetime) -> tuple[datetime | None, datetime | None]:
    """Return the first and the last time that a term may match."""
    ranges = [_resolve_range(value, now) for value in term.values if isinstance(value, Range)]
    if term.is_negated:
        # Only one range with an open side leaves one range.
        if len(ranges) != 1 or None not in ranges[0]:
            return None, None
        low, high = ranges[0]
        return high, low
    lows, highs = zip(*ranges, strict=True)
    low = None if None in lows else min(lows)
    return low, None if None in highs else max(highs)


def _resolve_range(value: Range, now: datetime) -> tuple[datetime | None, datetime | None]:
    return _resolve_time(value.low, now), _resolve_time(value.high, now)


def _resolve_time(bound: Bound | None, now: datetime) -> datetime | None:
    if isinstance(bound, timedelta):
        try:
            return now + bound
        except OverflowError:
            return MAX_DATETIME if bound > timedelta(0) else NEVER
    return bound if isinstance(bound, datetime) else None


def _may_match(term: Term, succeeded: bool, task: str | None) -> bool:
    match term.field:
        case FilterField.STATE:
            state = JobStatusState.SUCCEEDED if succeeded else JobStatusState.FAILED
            return (state in [str(value) for value in term.values]) is not term.is_negated
        case FilterField.ERROR:
            # Jobs that succeeded have no error.
            return not succeeded or term.is_negated
        case FilterField.TASK:
            is_match = task is None or _match_name(term, task, ignores_case=False)
            return is_match is not term.is_negated or task is None
        case FilterField.TEXT if task is not None and not _has_other_letters(term, task):
            is_match = _match_name(term, task, ignores_case=True)
            # The error of a failed job may match.
            return not is_match if term.is_negated else is_match or not succeeded
        case FilterField.NAME if task is not None and not _has_other_letters(term, task):
            return _match_name(term, task, ignores_case=True) is not term.is_negated
        case _:
            return True


def _match_name(term: Term, name: str, *, ignores_case: bool) -> bool:
    flags = re.DOTALL | (re.IGNORECASE if ignores_case else 0)
    patterns = [
        ".*".join(map(re.escape, value.parts))
        for value in term.values
        if isinstance(value, TextPattern)
    ]
    if ignores_case:
        # A bare word is a part of the name.
        return any(re.search(pattern, name, flags) for pattern in patterns)
    return any(re.fullmatch(pattern, name, flags) for pattern in patterns)


def _has_other_letters(term: Term, name: str) -> bool:
    """Return whether PostgreSQL and Python may disagree about upper and lower case."""
    return not (name.isascii() and str(term).isascii())


def _build_clause(term: Term, now: datetime) -> Clause:
    return Clause(tuple(_build_conditions(term, now)), is_negated=term.is_negated)


def _build_conditions(term: Term, now: datetime) -> Iterator[Condition]:
    patterns = [value.like_pattern for value in term.values if isinstance(value, TextPattern)]
    ranges = [value for value in term.values if isinstance(value, Range)]
    match term.field:
        case FilterField.STATE:
            yield Condition("ended_state", ([str(each) == "succeeded" for each in term.values],))
        case FilterField.TASK:
            yield Condition("ended_task", (patterns,))
        case FilterField.ERROR | FilterField.TEXT | FilterField.NAME:
            yield Condition(f"ended_{term.field}", ([f"%{each}%" for each in patterns],))
        case FilterField.FINISHED:
            for each in ranges:
                low, high = _resolve_range(each, now)
                bounds = (
                    OPEN_START if low is None else encode_time(low),
                    OPEN_END if high is None else encode_time(high),
                )
                yield Condition("ended_finished_range", bounds)
        case _:
            if exact := [each.low for each in ranges if each.low == each.high]:
                yield Condition("ended_id", (exact,))
            for each in ranges:
                if each.low != each.high:
                    yield Condition("ended_id_range", (each.low, each.high))


def read_ended_job(
    row: Row,
    *,
    is_listed: bool = True,
    results: Mapping[str, tuple[str | None, str | None]] = MappingProxyType({}),
) -> EndedJob:
    """Read an outcome. `results` has results and payloads of its job by the times of the ends."""
    job_id, task, succeeded, attempts, created, run, started, finished, worker, *rest = row
    has_result, error = rest[:2]
    result, payload = results.get(finished, (None, None))
    if is_listed and error is not None:
        error = summarize_error(error)[:MAX_ERROR_CHARS]
    return EndedJob(
        job_id=job_id,
        task_identifier=task,
        succeeded=succeeded,
        attempts=attempts,
        created_at=parse_timestamp(created),
        run_at=parse_timestamp(run),
        started_at=parse_timestamp(started),
        finished_at=parse_timestamp(finished),
        worker=worker,
        error=error,
        has_result=has_result,
        result_text=result,
        payload_text=payload,
    )

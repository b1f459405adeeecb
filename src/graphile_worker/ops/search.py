"""Finding: the jobs that a filter means; in pages from the newest on, in numbers, and bit by bit.

Whoever looks must not be in the way of those who work: no look takes long or waits for a lock, and
each has one process of the server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn, TypeVar

from graphile_worker._sql.conditions import Clause, Condition
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_schema_missing
from graphile_worker._sql.queries.diagnostics import inspect_access
from graphile_worker._sql.queries.jobs import encode_when
from graphile_worker._sql.queries.search import (
    Clauses,
    count_jobs,
    find_job_ids,
    list_jobs,
    set_query_limits,
)
from graphile_worker._sql.query import Atomic, Plan, Query, Row
from graphile_worker._sql.sqlstate import LOCK_NOT_AVAILABLE, QUERY_CANCELED, get_sqlstate
from graphile_worker.errors import QueryTimeoutError
from graphile_worker.jobs import parse_timestamp
from graphile_worker.ops.filters import (
    Absent,
    Bound,
    Filter,
    FilterField,
    JsonValue,
    Range,
    Term,
    TextPattern,
)
from graphile_worker.ops.pools import list_dead_pool_ids, plan_get_pools
from graphile_worker.ops.states import JobState, estimate_failed_at
from graphile_worker.ops.text import summarize_error

T = TypeVar("T")

JOBS_TABLE = "_private_jobs"

MAX_ERROR_CHARS = 500

# No id is as large, or as small.
MAX_ID = 2**63 - 1
MIN_ID = -(2**63)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryLimits:
    """How long a statement may take, and wait for a lock."""

    statement_timeout: timedelta = timedelta(seconds=10)
    lock_timeout: timedelta = timedelta(milliseconds=500)


DEFAULT_LIMITS = QueryLimits()


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job as a list shows it: without its payload, and with the first line of its error.

    `failed_at`: when it failed, if no attempts are left.
    """

    id: int
    task_identifier: str | None
    queue_name: str | None
    state: JobState
    priority: int
    run_at: datetime
    attempts: int
    max_attempts: int
    error: str | None
    created_at: datetime
    key: str | None
    locked_at: datetime | None
    locked_by: str | None
    failed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobPage:
    """Jobs from the newest on, the database's time, and whether there are more before the last.

    `has_hidden_rows`: there are none to be seen, as row level security shows this role no row.
    """

    jobs: list[ListedJob]
    now: datetime | None
    has_more: bool
    has_hidden_rows: bool = False


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How many jobs are in which state, and the first and the last id of all of them."""

    by_state: Mapping[JobState, int]
    first_id: int | None = None
    last_id: int | None = None

    @property
    def total(self) -> int:
        return sum(self.by_state.values())


def plan_list_jobs(
    job_filter: Filter,
    schemas: Schemas,
    *,
    limit: int = 50,
    before: int | None = None,
    newest: int | None = None,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[JobPage]:
    """The newest of the jobs that are meant, before that id; only among the newest so many."""
    dead = yield from plan_get_dead_pools(schemas, limits)
    clauses = (*build_clauses(job_filter, dead), *_build_newest_clause(newest))
    query = list_jobs(dead, MAX_ID if before is None else before, limit + 1, clauses)
    rows = yield from with_limits(query, schemas, limits)
    if not rows:
        access = yield from with_limits(inspect_access(schemas), schemas, limits)
        return JobPage(
            [], None, False, any(each.has_hidden_rows for each in access if each.name == JOBS_TABLE)
        )
    jobs = [_read_listed_job(row) for row in rows[:limit]]
    return JobPage(jobs, parse_timestamp(rows[0][-1]), len(rows) > limit)


def plan_count_jobs(
    job_filter: Filter,
    schemas: Schemas,
    *,
    newest: int | None = None,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[JobCounts]:
    """How many jobs are meant."""
    dead = yield from plan_get_dead_pools(schemas, limits)
    clauses = (*build_clauses(job_filter, dead), *_build_newest_clause(newest))
    rows = yield from with_limits(count_jobs(dead, clauses), schemas, limits)
    return _read_count(rows)


def plan_find_job_ids(
    clauses: Clauses,
    schemas: Schemas,
    *,
    after: int,
    until: int,
    scan_limit: int,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[tuple[int | None, list[int]]]:
    """Among the next so many jobs those that are meant, and where to go on; None at the end."""
    query = find_job_ids(after, until, scan_limit, clauses)
    return (yield from with_limits(query, schemas, limits))


def plan_get_dead_pools(schemas: Schemas, limits: QueryLimits = DEFAULT_LIMITS) -> Plan[list[str]]:
    """The pools of which a registry says that they are dead."""
    pools = yield from plan_get_pools(schemas, lambda query: with_limits(query, schemas, limits))
    return list_dead_pool_ids(pools)


def with_limits(query: Query[T], schemas: Schemas, limits: QueryLimits = DEFAULT_LIMITS) -> Plan[T]:
    """What a query says if that does not take too long."""
    try:
        answers = yield Atomic((build_limits_query(limits), query))
    except Exception as error:
        raise_query_error(error, schemas, limits)
    answer: T = answers[1]
    return answer


def limit_plan(plan: Plan[T], schemas: Schemas, limits: QueryLimits = DEFAULT_LIMITS) -> Plan[T]:
    """A plan of single queries, none of which may take too long."""
    try:
        step = next(plan)
        while True:
            assert isinstance(step, Query)
            step = plan.send((yield from with_limits(step, schemas, limits)))
    except StopIteration as end:
        result: T = end.value
        return result


def build_limits_query(limits: QueryLimits) -> Query[None]:
    return set_query_limits(
        _to_milliseconds(limits.statement_timeout), _to_milliseconds(limits.lock_timeout)
    )


def raise_query_error(error: Exception, schemas: Schemas, limits: QueryLimits) -> NoReturn:
    """Raise what an error of the database stands for, or the error as it is."""
    if get_sqlstate(error) == QUERY_CANCELED:
        seconds = limits.statement_timeout.total_seconds()
        raise QueryTimeoutError(
            f"the database was not done within {seconds:g} s: narrow the filter, or look only "
            "among the newest jobs"
        ) from error
    if get_sqlstate(error) == LOCK_NOT_AVAILABLE:
        raise QueryTimeoutError(
            "somebody has locked a table of the queue, a migration perhaps: try again later"
        ) from error
    raise_schema_missing(error, schemas)


# From words to conditions


def build_clauses(job_filter: Filter, dead: Sequence[str]) -> tuple[Clause, ...]:
    """What a filter says, for a statement about jobs; these pools are dead."""
    if not all(term.values for term in job_filter.terms):
        raise ValueError("a term without values would mean every job")
    return tuple(
        Clause(tuple(_build_conditions(term, dead)), is_negated=term.is_negated)
        for term in job_filter.terms
    )


def _build_conditions(term: Term, dead: Sequence[str]) -> Iterator[Condition]:
    match term.field:
        case FilterField.STATE:
            yield Condition("state", (list(dead), [str(each) for each in term.values]))
        case FilterField.PAYLOAD:
            yield _build_payload_condition(term)
        case FilterField.FLAG:
            yield Condition("flag", ([each.exact for each in _list_patterns(term)],))
        case (
            FilterField.ID
            | FilterField.ATTEMPTS
            | FilterField.PRIORITY
            | FilterField.AGE
            | FilterField.RUN
            | FilterField.CREATED
        ):
            yield from _build_range_conditions(term)
        case _:
            yield from _build_name_conditions(term)


def _build_name_conditions(term: Term) -> Iterator[Condition]:
    words = _list_patterns(term)
    exact = [each.exact for each in words if each.exact is not None]
    if term.field is FilterField.KEY and len(exact) == len(words):
        # For the index.
        if exact:
            yield Condition("key", (exact,))
    elif words:
        name = "key_like" if term.field is FilterField.KEY else term.field.value
        yield Condition(name, ([_build_like_pattern(term.field, each) for each in words],))
    if Absent() in term.values:
        yield Condition(f"no_{term.field}")


def _build_like_pattern(field: FilterField, pattern: TextPattern) -> str:
    """Names are meant as a whole; an error, or a bare word, is only a part."""
    return (
        f"%{pattern.like_pattern}%"
        if field in (FilterField.ERROR, FilterField.TEXT)
        else pattern.like_pattern
    )


def _build_range_conditions(term: Term) -> Iterator[Condition]:
    ranges = [each for each in term.values if isinstance(each, Range)]
    if term.field is FilterField.ID:
        exact = [each.low for each in ranges if each.low == each.high]
        ranges = [each for each in ranges if each.low != each.high]
        if exact:
            yield Condition("id", (exact,))
    for each in ranges:
        yield _build_range_condition(term.field, each)


def _build_range_condition(field: FilterField, bounds: Range) -> Condition:
    match field:
        case FilterField.AGE:
            # How long it has been due, if it is.
            low = timedelta(0) if bounds.low is None else bounds.low
            return Condition(
                "run_range",
                (
                    *_to_when_args(_negate_duration(bounds.high)),
                    *_to_when_args(_negate_duration(low)),
                ),
            )
        case FilterField.RUN | FilterField.CREATED:
            return Condition(
                f"{field}_range", (*_to_when_args(bounds.low), *_to_when_args(bounds.high))
            )
        case _:
            first = MIN_ID if bounds.low is None else bounds.low
            last = MAX_ID if bounds.high is None else bounds.high
            return Condition(f"{field}_range", (first, last))


def _negate_duration(span: Bound | None) -> timedelta | None:
    return -span if isinstance(span, timedelta) else None


def _to_when_args(bound: Bound | None) -> tuple[str | None, int | None]:
    return encode_when(None if isinstance(bound, int) else bound)


def _build_payload_condition(term: Term) -> Condition:
    values = [each for each in term.values if isinstance(each, JsonValue)]
    strings = [each.string for each in values if each.string is not None]
    others = [each.text for each in values if each.string is None]
    texts = list(dict.fromkeys(strings + others))
    # It stands there as it is, but for what JSON writes with a backslash.
    signs = [r"%\\%", *(f"%{TextPattern((text,)).like_pattern}%" for text in texts)]
    return Condition("payload", (list(term.path), texts, others, "null" in others, signs))


def _list_patterns(term: Term) -> list[TextPattern]:
    return [each for each in term.values if isinstance(each, TextPattern)]


def _build_newest_clause(newest: int | None) -> tuple[Clause, ...]:
    return () if newest is None else (Clause((Condition("newest", (newest,)),)),)


# From rows to values


def _read_listed_job(row: Row) -> ListedJob:
    id, task, queue, state, priority, run_at, attempts, most, error, created, key, *rest = row
    locked_at, locked_by, updated, now = rest
    state = JobState(state)
    failed = None
    if state is JobState.FAILED:
        failed = estimate_failed_at(
            run_at=parse_timestamp(run_at),
            updated_at=parse_timestamp(updated),
            attempts=attempts,
            now=parse_timestamp(now),
        )
    return ListedJob(
        id=id,
        task_identifier=task,
        queue_name=queue,
        state=state,
        priority=priority,
        run_at=parse_timestamp(run_at),
        attempts=attempts,
        max_attempts=most,
        error=summarize_error(error)[:MAX_ERROR_CHARS] or None,
        created_at=parse_timestamp(created),
        key=key,
        locked_at=None if locked_at is None else parse_timestamp(locked_at),
        locked_by=locked_by,
        failed_at=failed,
    )


def _read_count(rows: Sequence[Row]) -> JobCounts:
    by_state = {JobState(state): count for state, count, _, _ in rows}
    return JobCounts(
        {state: by_state[state] for state in JobState if state in by_state},
        min((row[2] for row in rows), default=None),
        max((row[3] for row in rows), default=None),
    )


def _to_milliseconds(span: timedelta) -> int:
    return max(1, round(span.total_seconds() * 1000))

"""Find the jobs that match a filter: list them, the newest first, or count them.

Searches do not disturb workers: each statement has a timeout and a lock timeout, and uses one
server process.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_schema_missing
from graphile_worker._sql.queries.diagnostics import inspect_access
from graphile_worker._sql.queries.jobs import encode_when
from graphile_worker._sql.queries.search import (
    count_jobs,
    count_some_jobs,
    list_jobs,
    set_query_limits,
)
from graphile_worker._sql.query import Atomic, Plan, Query, Row, Transaction
from graphile_worker._sql.sqlstate import LOCK_NOT_AVAILABLE, QUERY_CANCELED, get_sqlstate
from graphile_worker._sql.statement import Clause, Condition
from graphile_worker.errors import QueryTimeoutError
from graphile_worker.jobs import parse_flags, parse_timestamp
from graphile_worker.ops.filters import (
    BARE_FIELDS,
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
MAX_ID = 2**63 - 1
# One more than the least bigint: drivers that write values into the text send its digits alone.
MIN_ID = -(2**63) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryLimits:
    """The limits of the time that a statement runs and waits for a lock."""

    statement_timeout: timedelta = timedelta(seconds=10)
    lock_timeout: timedelta = timedelta(milliseconds=500)
    prefer_indexes: bool = False
    """Find locked jobs by the index on locks, which the planner estimates to cost too much."""


DEFAULT_LIMITS = QueryLimits()


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in a list: without its payload, and with the first line of its last error.

    `failed_at` is the time of the last attempt if no attempts are left.
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
    flags: tuple[str, ...]
    locked_at: datetime | None
    locked_by: str | None
    failed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobPage:
    """Jobs from the newest on, the time of the database, and whether older ones follow.

    `has_hidden_rows` is true if row level security hides all jobs from this role.
    """

    jobs: list[ListedJob]
    now: datetime | None
    has_more: bool
    has_hidden_rows: bool = False


@dataclass(frozen=True, slots=True)
class JobCounts:
    """The number of jobs in each state, and the lowest and highest id of all of them."""

    by_state: Mapping[JobState, int]
    first_id: int | None = None
    last_id: int | None = None

    @property
    def total(self) -> int:
        """The number of jobs in all states."""
        return sum(self.by_state.values())

    def __add__(self, other: "JobCounts") -> "JobCounts":
        states = [each for each in JobState if each in self.by_state or each in other.by_state]
        first_ids = [each for each in (self.first_id, other.first_id) if each is not None]
        last_ids = [each for each in (self.last_id, other.last_id) if each is not None]
        return JobCounts(
            {each: self.by_state.get(each, 0) + other.by_state.get(each, 0) for each in states},
            min(first_ids, default=None),
            max(last_ids, default=None),
        )


def plan_list_jobs(
    job_filter: Filter,
    schemas: Schemas,
    *,
    limit: int = 50,
    before: int | None = None,
    newest: int | None = None,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[JobPage]:
    """List jobs, the newest first.

    Args:
        job_filter: Which jobs.
        schemas: The schemas of the queue.
        limit: The size of the page.
        before: Only jobs with a lower id, for the next page.
        newest: Search only among this number of newest jobs.
        limits: The timeouts of each statement.

    Returns:
        A plan for one page of jobs.

    Raises:
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    dead = yield from plan_get_dead_pools(schemas, limits)
    clauses = (*build_clauses(job_filter, dead), *_build_newest_clause(newest))
    query = list_jobs(dead, MAX_ID if before is None else before, limit + 1, clauses)
    rows = yield from with_limits(query, schemas, limits)
    if not rows:
        access = yield from with_limits(inspect_access(schemas), schemas, limits)
        is_hidden = any(each.has_hidden_rows for each in access if each.name == JOBS_TABLE)
        return JobPage([], None, has_more=False, has_hidden_rows=is_hidden)
    jobs = [_read_listed_job(row) for row in rows[:limit]]
    return JobPage(jobs, parse_timestamp(rows[0][-1]), len(rows) > limit)


def plan_count_jobs(
    job_filter: Filter,
    schemas: Schemas,
    *,
    newest: int | None = None,
    max_count: int | None = None,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[JobCounts]:
    """Count jobs by state.

    Args:
        job_filter: Which jobs.
        schemas: The schemas of the queue.
        newest: Count only among this number of newest jobs.
        max_count: Stop after this number of jobs. The ids are then those of the counted jobs.
        limits: The timeouts of each statement.

    Returns:
        A plan for the counts.

    Raises:
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    dead = yield from plan_get_dead_pools(schemas, limits)
    clauses = (*build_clauses(job_filter, dead), *_build_newest_clause(newest))
    query = count_jobs(dead, clauses)
    if max_count is not None:
        query = count_some_jobs(dead, max_count, clauses)
    rows = yield from with_limits(query, schemas, limits)
    counts = {JobState(state): count for state, count, _, _ in rows}
    return JobCounts(
        {state: counts[state] for state in JobState if state in counts},
        min((row[2] for row in rows), default=None),
        max((row[3] for row in rows), default=None),
    )


def plan_get_dead_pools(schemas: Schemas, limits: QueryLimits = DEFAULT_LIMITS) -> Plan[list[str]]:
    """Get the ids of the pools whose lease has expired.

    Args:
        schemas: The schemas of the queue.
        limits: The timeouts of each statement.

    Returns:
        A plan for the ids.
    """
    pools = yield from plan_get_pools(schemas, lambda query: with_limits(query, schemas, limits))
    return list_dead_pool_ids(pools)


def with_limits(query: Query[T], schemas: Schemas, limits: QueryLimits = DEFAULT_LIMITS) -> Plan[T]:
    """Run a query with timeouts.

    Args:
        query: The query.
        schemas: The schemas of the queue.
        limits: The timeouts.

    Returns:
        A plan for the result of the query.

    Raises:
        QueryTimeoutError: The query took too long or waited too long for a lock.
        SchemaMissing: The schema is not installed.
    """
    try:
        results = yield Atomic((_set_limits(limits), query))
    except Exception as error:
        _raise_query_error(error, schemas, limits)
    result: T = results[1]
    return result


def _with_limits_in_transaction(
    transaction: Transaction, schemas: Schemas, limits: QueryLimits
) -> Plan[Any]:
    def build_plan() -> Plan[Any]:
        yield _set_limits(limits)
        return (yield from transaction.build_plan())

    try:
        result = yield Transaction(build_plan)
    except Exception as error:
        _raise_query_error(error, schemas, limits)
    return result


def _set_limits(limits: QueryLimits) -> Query[None]:
    milliseconds = (
        max(1, round(timeout.total_seconds() * 1000))
        for timeout in (limits.statement_timeout, limits.lock_timeout)
    )
    return set_query_limits(*milliseconds, prefer_indexes=limits.prefer_indexes)


def limit_plan(plan: Plan[T], schemas: Schemas, limits: QueryLimits = DEFAULT_LIMITS) -> Plan[T]:
    """Run each query of a plan with timeouts.

    Args:
        plan: A plan of queries and transactions.
        schemas: The schemas of the queue.
        limits: The timeouts of each query.

    Returns:
        A plan for the same result.

    Raises:
        QueryTimeoutError: A query took too long or waited too long for a lock.
    """
    try:
        step = next(plan)
        while True:
            try:
                if isinstance(step, Transaction):
                    answer = yield from _with_limits_in_transaction(step, schemas, limits)
                else:
                    assert isinstance(step, Query)
                    answer = yield from with_limits(step, schemas, limits)
            except Exception as error:
                # The plan may translate it.
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _raise_query_error(error: Exception, schemas: Schemas, limits: QueryLimits) -> NoReturn:
    if get_sqlstate(error) == QUERY_CANCELED:
        seconds = limits.statement_timeout.total_seconds()
        raise QueryTimeoutError(
            f"the query took longer than {seconds:g} s. Narrow the filter, or search only among "
            "the newest jobs."
        ) from error
    if get_sqlstate(error) == LOCK_NOT_AVAILABLE:
        raise QueryTimeoutError(
            "another session has locked a table of the queue, for example a migration. "
            "Run the command again later."
        ) from error
    raise_schema_missing(error, schemas)


# Filters as SQL conditions


def build_clauses(job_filter: Filter, dead_pool_ids: Sequence[str]) -> tuple[Clause, ...]:
    """Turn a filter into SQL conditions.

    Args:
        job_filter: The filter.
        dead_pool_ids: The pools whose locks count as stale.

    Returns:
        One clause for each term.

    Raises:
        ValueError: A term has no values.
    """
    if not all(term.values for term in job_filter.terms):
        raise ValueError("a term without values would match every job")
    return tuple(
        Clause(tuple(_build_conditions(term, dead_pool_ids)), is_negated=term.is_negated)
        for term in job_filter.terms
    )


def _build_conditions(term: Term, dead_pool_ids: Sequence[str]) -> Iterator[Condition]:
    if term.field is FilterField.FINISHED:
        raise ValueError("jobs that have not ended do not have the field finished")
    if any(isinstance(value, Range) for value in term.values):
        return _build_range_conditions(term)
    match term.field:
        case FilterField.STATE:
            states = [str(state) for state in term.values]
            return iter([Condition("state", (list(dead_pool_ids), states))])
        case FilterField.PAYLOAD:
            return iter([_build_payload_condition(term)])
        case FilterField.FLAG:
            return iter([Condition("flag", ([each.exact for each in _list_patterns(term)],))])
        case _:
            return _build_name_conditions(term)


def _build_name_conditions(term: Term) -> Iterator[Condition]:
    patterns = _list_patterns(term)
    exact = [each.exact for each in patterns if each.exact is not None]
    if term.field is FilterField.KEY and len(exact) == len(patterns):
        # Only equality uses the index on keys.
        if exact:
            yield Condition("key", (exact,))
    elif patterns:
        name = "key_like" if term.field is FilterField.KEY else term.field.value
        # A name matches as a whole, an error or a bare word also as a part.
        around = "%" if term.field in (FilterField.ERROR, *BARE_FIELDS) else ""
        yield Condition(name, ([f"{around}{each.like_pattern}{around}" for each in patterns],))
    if Absent() in term.values:
        yield Condition(f"no_{term.field}")


def _build_range_conditions(term: Term) -> Iterator[Condition]:
    ranges = [value for value in term.values if isinstance(value, Range)]
    if term.field is FilterField.ID:
        exact = [each.low for each in ranges if each.low == each.high]
        ranges = [each for each in ranges if each.low != each.high]
        if exact:
            yield Condition("id", (exact,))
    for each in ranges:
        low, high = each.low, each.high
        match term.field:
            case FilterField.AGE:
                # The age of a job is the time since its run_at, if that has passed.
                times = (_negate(high), _negate(timedelta(0) if low is None else low))
                yield Condition("run_range", _encode_times(*times))
            case FilterField.RUN | FilterField.CREATED:
                yield Condition(f"{term.field}_range", _encode_times(low, high))
            case _:
                numbers = (MIN_ID if low is None else low, MAX_ID if high is None else high)
                yield Condition(f"{term.field}_range", numbers)


def _negate(duration: Bound | None) -> timedelta | None:
    return -duration if isinstance(duration, timedelta) else None


def _encode_times(low: Bound | None, high: Bound | None) -> tuple[str | int | None, ...]:
    times = [None if isinstance(bound, int) else bound for bound in (low, high)]
    return (*encode_when(times[0]), *encode_when(times[1]))


def _build_payload_condition(term: Term) -> Condition:
    values = [value for value in term.values if isinstance(value, JsonValue)]
    strings = [value.string for value in values if value.string is not None]
    others = [value.text for value in values if value.string is None]
    texts = list(dict.fromkeys(strings + others))
    # A payload contains the text as it is, or a backslash where JSON escapes it.
    text_patterns = [r"%\\%", *(f"%{TextPattern((text,)).like_pattern}%" for text in texts)]
    return Condition("payload", (list(term.path), texts, others, "null" in others, text_patterns))


def _list_patterns(term: Term) -> list[TextPattern]:
    return [value for value in term.values if isinstance(value, TextPattern)]


def _build_newest_clause(newest: int | None) -> tuple[Clause, ...]:
    return () if newest is None else (Clause((Condition("newest", (newest,)),)),)


def _read_listed_job(row: Row) -> ListedJob:
    id, task, queue, state, priority, run_at, attempts, max_attempts, error, created, *rest = row
    key, flags, locked_at, locked_by, updated, now = rest
    failed_at = None
    if state == JobState.FAILED:
        failed_at = estimate_failed_at(
            run_at=parse_timestamp(run_at),
            updated_at=parse_timestamp(updated),
            attempts=attempts,
            now=parse_timestamp(now),
        )
    return ListedJob(
        id=id,
        task_identifier=task,
        queue_name=queue,
        state=JobState(state),
        priority=priority,
        run_at=parse_timestamp(run_at),
        attempts=attempts,
        max_attempts=max_attempts,
        error=summarize_error(error)[:MAX_ERROR_CHARS] or None,
        created_at=parse_timestamp(created),
        key=key,
        flags=tuple(sorted(parse_flags(flags))),
        locked_at=None if locked_at is None else parse_timestamp(locked_at),
        locked_by=locked_by,
        failed_at=failed_at,
    )

"""Finding: the jobs that a filter means; in pages from the newest on, in numbers, and bit by bit.

Whoever looks must not be in the way of those who work: no look takes long or waits for a lock, and
each has one process of the server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn, TypeVar

from graphile_worker.administration.filters import (
    Bound,
    Field,
    Filter,
    Json,
    Nothing,
    Term,
    Within,
    Words,
)
from graphile_worker.administration.pools import dead_pools, getting_pools
from graphile_worker.administration.states import State, failed_at
from graphile_worker.administration.wording import headline
from graphile_worker.errors import SearchTooLong
from graphile_worker.jobs import moment
from graphile_worker.sql.adding import raise_absence
from graphile_worker.sql.conditions import Clause, Condition
from graphile_worker.sql.failures import CANCELLED, LOCK_NOT_AVAILABLE, sqlstate_of
from graphile_worker.sql.finding import (
    Clauses,
    count_jobs,
    find_job_ids,
    limit_time,
    list_jobs,
)
from graphile_worker.sql.health import inspect_access
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.jobs import when_args
from graphile_worker.sql.query import Atomic, Plan, Query, Row

T = TypeVar("T")

JOBS = "_private_jobs"

LONGEST_ERROR = 500

# No id is as large, or as small.
END = 2**63 - 1
BEGINNING = -(2**63)


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long a statement may take, and wait for a lock."""

    statement: timedelta = timedelta(seconds=10)
    lock: timedelta = timedelta(milliseconds=500)


PATIENCE = Patience()


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job as a list shows it: without its payload, and with the first line of its error.

    `failed_at`: when it failed, if no attempts are left.
    """

    id: int
    task_identifier: str | None
    queue_name: str | None
    state: State
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
class Page:
    """Jobs from the newest on, the database's time, and whether there are more before the last.

    `hides_rows`: there are none to be seen, as row level security shows this role no row.
    """

    jobs: list[ListedJob]
    now: datetime | None
    has_more: bool
    hides_rows: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs are in which state, and the first and the last id of all of them."""

    by_state: Mapping[State, int]
    first_id: int | None = None
    last_id: int | None = None

    @property
    def total(self) -> int:
        return sum(self.by_state.values())


def listing(
    wanted: Filter,
    schemas: Schemas,
    *,
    limit: int = 50,
    before: int | None = None,
    newest: int | None = None,
    patience: Patience = PATIENCE,
) -> Plan[Page]:
    """The newest of the jobs that are meant, before that id; only among the newest so many."""
    dead = yield from getting_dead(schemas, patience)
    clauses = (*clauses_of(wanted, dead), *_window(newest))
    query = list_jobs(dead, END if before is None else before, limit + 1, clauses)
    rows = yield from patiently(query, schemas, patience)
    if not rows:
        access = yield from patiently(inspect_access(schemas), schemas, patience)
        return Page([], None, False, any(each.hides_rows for each in access if each.name == JOBS))
    jobs = [_read_listed(row) for row in rows[:limit]]
    return Page(jobs, moment(rows[0][-1]), len(rows) > limit)


def counting(
    wanted: Filter,
    schemas: Schemas,
    *,
    newest: int | None = None,
    patience: Patience = PATIENCE,
) -> Plan[Count]:
    """How many jobs are meant."""
    dead = yield from getting_dead(schemas, patience)
    clauses = (*clauses_of(wanted, dead), *_window(newest))
    rows = yield from patiently(count_jobs(dead, clauses), schemas, patience)
    return _read_count(rows)


def finding_ids(
    clauses: Clauses,
    schemas: Schemas,
    *,
    after: int,
    until: int,
    among: int,
    patience: Patience = PATIENCE,
) -> Plan[tuple[int | None, list[int]]]:
    """Among the next so many jobs those that are meant, and where to go on; None at the end."""
    query = find_job_ids(after, until, among, clauses)
    return (yield from patiently(query, schemas, patience))


def getting_dead(schemas: Schemas, patience: Patience = PATIENCE) -> Plan[list[str]]:
    """The pools of which a registry says that they are dead."""
    pools = yield from getting_pools(schemas, lambda query: patiently(query, schemas, patience))
    return dead_pools(pools)


def patiently(query: Query[T], schemas: Schemas, patience: Patience = PATIENCE) -> Plan[T]:
    """What a query says if that does not take too long."""
    try:
        answers = yield Atomic((limit(patience), query))
    except Exception as error:
        raise_explained(error, schemas, patience)
    answer: T = answers[1]
    return answer


def within_limits(plan: Plan[T], schemas: Schemas, patience: Patience = PATIENCE) -> Plan[T]:
    """A plan of single queries, none of which may take too long."""
    try:
        step = next(plan)
        while True:
            assert isinstance(step, Query)
            step = plan.send((yield from patiently(step, schemas, patience)))
    except StopIteration as end:
        result: T = end.value
        return result


def limit(patience: Patience) -> Query[None]:
    return limit_time(_milliseconds(patience.statement), _milliseconds(patience.lock))


def raise_explained(error: Exception, schemas: Schemas, patience: Patience) -> NoReturn:
    """Raise what an error of the database stands for, or the error as it is."""
    if sqlstate_of(error) == CANCELLED:
        seconds = patience.statement.total_seconds()
        raise SearchTooLong(
            f"the database was not done within {seconds:g} s: narrow the filter, or look only "
            "among the newest jobs"
        ) from error
    if sqlstate_of(error) == LOCK_NOT_AVAILABLE:
        raise SearchTooLong(
            "somebody has locked a table of the queue, a migration perhaps: try again later"
        ) from error
    raise_absence(error, schemas)


# From words to conditions


def clauses_of(wanted: Filter, dead: Sequence[str]) -> tuple[Clause, ...]:
    """What a filter says, for a statement about jobs; these pools are dead."""
    if not all(term.values for term in wanted.terms):
        raise ValueError("a term without values would mean every job")
    return tuple(
        Clause(tuple(_conditions(term, dead)), is_negated=term.is_negated) for term in wanted.terms
    )


def _conditions(term: Term, dead: Sequence[str]) -> Iterator[Condition]:
    match term.field:
        case Field.STATE:
            yield Condition("state", (list(dead), [str(each) for each in term.values]))
        case Field.PAYLOAD:
            yield _in_payload(term)
        case Field.FLAG:
            yield Condition("flag", ([each.exact for each in _words(term)],))
        case Field.ID | Field.ATTEMPTS | Field.PRIORITY | Field.AGE | Field.RUN | Field.CREATED:
            yield from _within(term)
        case _:
            yield from _named(term)


def _named(term: Term) -> Iterator[Condition]:
    words = _words(term)
    exact = [each.exact for each in words if each.exact is not None]
    if term.field is Field.KEY and len(exact) == len(words):
        # For the index.
        if exact:
            yield Condition("key", (exact,))
    elif words:
        name = "key_like" if term.field is Field.KEY else term.field.value
        yield Condition(name, ([_pattern(term.field, each) for each in words],))
    if Nothing() in term.values:
        yield Condition(f"no_{term.field}")


def _pattern(field: Field, words: Words) -> str:
    """Names are meant as a whole; an error, or a bare word, is only a part."""
    return f"%{words.like}%" if field in (Field.ERROR, Field.TEXT) else words.like


def _within(term: Term) -> Iterator[Condition]:
    ranges = [each for each in term.values if isinstance(each, Within)]
    if term.field is Field.ID:
        exact = [each.low for each in ranges if each.low == each.high]
        ranges = [each for each in ranges if each.low != each.high]
        if exact:
            yield Condition("id", (exact,))
    for each in ranges:
        yield _range(term.field, each)


def _range(field: Field, within: Within) -> Condition:
    match field:
        case Field.AGE:
            # How long it has been due, if it is.
            low = timedelta(0) if within.low is None else within.low
            return Condition("run_within", (*_moment(_ago(within.high)), *_moment(_ago(low))))
        case Field.RUN | Field.CREATED:
            return Condition(f"{field}_within", (*_moment(within.low), *_moment(within.high)))
        case _:
            first = BEGINNING if within.low is None else within.low
            last = END if within.high is None else within.high
            return Condition(f"{field}_within", (first, last))


def _ago(span: Bound | None) -> timedelta | None:
    return -span if isinstance(span, timedelta) else None


def _moment(bound: Bound | None) -> tuple[str | None, int | None]:
    return when_args(None if isinstance(bound, int) else bound)


def _in_payload(term: Term) -> Condition:
    values = [each for each in term.values if isinstance(each, Json)]
    strings = [each.string for each in values if each.string is not None]
    others = [each.text for each in values if each.string is None]
    texts = list(dict.fromkeys(strings + others))
    # It stands there as it is, but for what JSON writes with a backslash.
    signs = [r"%\\%", *(f"%{Words((text,)).like}%" for text in texts)]
    return Condition("payload", (list(term.path), texts, others, "null" in others, signs))


def _words(term: Term) -> list[Words]:
    return [each for each in term.values if isinstance(each, Words)]


def _window(newest: int | None) -> tuple[Clause, ...]:
    return () if newest is None else (Clause((Condition("newest", (newest,)),)),)


# From rows to values


def _read_listed(row: Row) -> ListedJob:
    id, task, queue, state, priority, run_at, attempts, most, error, created, key, *rest = row
    locked_at, locked_by, updated, now = rest
    state = State(state)
    failed = None
    if state is State.FAILED:
        failed = failed_at(
            run_at=moment(run_at), updated_at=moment(updated), attempts=attempts, now=moment(now)
        )
    return ListedJob(
        id=id,
        task_identifier=task,
        queue_name=queue,
        state=state,
        priority=priority,
        run_at=moment(run_at),
        attempts=attempts,
        max_attempts=most,
        error=headline(error)[:LONGEST_ERROR] or None,
        created_at=moment(created),
        key=key,
        locked_at=None if locked_at is None else moment(locked_at),
        locked_by=locked_by,
        failed_at=failed,
    )


def _read_count(rows: Sequence[Row]) -> Count:
    by_state = {State(state): count for state, count, _, _ in rows}
    return Count(
        {state: by_state[state] for state in State if state in by_state},
        min((row[2] for row in rows), default=None),
        max((row[3] for row in rows), default=None),
    )


def _milliseconds(span: timedelta) -> int:
    return max(1, round(span.total_seconds() * 1000))

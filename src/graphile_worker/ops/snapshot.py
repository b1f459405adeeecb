"""Snapshot: one look at a whole queue, and how long to wait before the next.

A look reads every job once, in one short transaction that only reads; it says how many there are,
not what is in them. The larger the table, the longer it takes, and the rarer it is: whoever watches
a queue must not be what slows it down.
"""

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from graphile_worker._db.database import TransactionalRunner, run_plan_on
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_schema_missing
from graphile_worker._sql.queries.jobs import get_task_and_queue_names
from graphile_worker._sql.queries.snapshot import (
    JobCountRow,
    LockRow,
    QueueRow,
    ServerRow,
    get_last_errors,
    set_limits,
    snapshot_jobs,
    snapshot_locks,
    snapshot_queues,
    snapshot_server,
)
from graphile_worker._sql.query import Plan, Row
from graphile_worker.errors import SchemaMissing
from graphile_worker.jobs import parse_timestamp
from graphile_worker.ops.pools import (
    PAUSED_PREFIX,
    PoolHealth,
    PoolInfo,
    detect_runtime,
    list_dead_pool_ids,
    plan_get_pools,
)
from graphile_worker.ops.states import LOCKED_STATES, JobState

# A look costs less than one part in so many of the time of one backend.
PAUSE_FACTOR = 100

# Seconds: nobody waits longer for the next look, however long they take.
MAX_PAUSE_SECONDS = 60.0

# A statement that takes longer is given up; and a look, by a server that does not answer.
STATEMENT_TIMEOUT = timedelta(seconds=10)
SNAPSHOT_TIMEOUT_SECONDS = 20.0

# Rows that are read of one table; locked jobs beyond that are counted, not named.
MAX_ROWS = 20_000
MAX_QUEUES = 1_000

# Errors that are read, those of the tasks with most jobs that fail.
MAX_ERRORS = 20

# A named queue that is locked until far in the future was paused by somebody.
PAUSED_LOCK_AGE_SECONDS = -86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCount:
    """How many jobs of a task are in which state, and the ages and ids that matter."""

    identifier: str
    counts: Mapping[JobState, int] = field(default_factory=dict)
    oldest_ready: float | None = None
    """Seconds since the first of those that are ready was due."""
    first_ready: int | None = None
    newest_failing: int | None = None
    """The newest that failed, and waits for another attempt or has none left."""
    error: str | None = None
    """How its last error begins."""

    def __getitem__(self, state: JobState) -> int:
        return self.counts.get(state, 0)

    @property
    def running(self) -> int:
        return self[JobState.RUNNING] + self[JobState.STALE]

    @property
    def failing(self) -> int:
        return self[JobState.RETRYING] + self[JobState.FAILED]


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedJob:
    """A job that a pool holds: it runs, or was fetched and waits for its turn there."""

    id: int
    task_identifier: str
    state: JobState
    pool_id: str | None
    age: float
    attempts: int
    max_attempts: int
    queue_name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedQueue:
    """A named queue that somebody holds, and the jobs that wait for it."""

    name: str
    pool_id: str | None
    age: float
    waiting: int = 0
    oldest_waiting: float | None = None
    first_waiting: int | None = None
    job_id: int | None = None
    """The job for which it is held."""

    @property
    def is_paused(self) -> bool:
        return (self.pool_id or "").startswith(PAUSED_PREFIX) or self.age < PAUSED_LOCK_AGE_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStats:
    """How the table of jobs fares, and what in the database may be in its way."""

    database: str
    role: str
    level: int | None
    rows_added: int
    """Rows that were added since the counters began; the same of those that are gone."""
    rows_deleted: int
    live_rows: int = 0
    dead_rows: int = 0
    seconds_since_vacuum: float | None = None
    owner: str = ""
    has_hidden_rows: bool = False
    oldest_transaction: str | None = None
    """The session that has had a transaction open for longest."""
    oldest_transaction_state: str | None = None
    oldest_transaction_seconds: float | None = None
    uptime_seconds: float = math.inf
    clock_offset: float = 0.0
    """Seconds by which the database's clock is ahead of ours, as far as that can be told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What one look saw; ages are in seconds, by the database's clock."""

    now: datetime
    server: ServerStats
    tasks: tuple[TaskCount, ...] = ()
    locked: tuple[LockedJob, ...] = ()
    """Those that are locked longest first."""
    queues: tuple[LockedQueue, ...] = ()
    pools: tuple[PoolInfo, ...] = ()
    duration: float = 0.0

    def count(self, state: JobState) -> int:
        return sum(task[state] for task in self.tasks)

    @property
    def running(self) -> int:
        return sum(task.running for task in self.tasks)

    @property
    def oldest_ready(self) -> float | None:
        ages = [task.oldest_ready for task in self.tasks if task.oldest_ready is not None]
        return max(ages, default=None)


def compute_pause(duration: float, interval: float) -> float:
    """Seconds until the next look, after one that took so long; `interval` is the least."""
    return max(interval, min(duration * PAUSE_FACTOR, MAX_PAUSE_SECONDS))


class PollPacer:
    """How long to wait after each look of a row of them."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        # The shortest of them counts: what a look takes longer than that, it was kept waiting on a
        # busy machine, and cost nothing.
        self._durations: deque[float] = deque(maxlen=3)

    def compute_pause(self, duration: float) -> float:
        self._durations.append(duration)
        return compute_pause(min(self._durations), self._interval)


async def take_snapshot(database: TransactionalRunner) -> Snapshot:
    """One look; it raises SchemaMissing, or whatever the driver does."""
    return await _run_timed(database, plan_snapshot(database.schemas))


async def take_counter_snapshot(database: TransactionalRunner) -> Snapshot:
    """Only the time and the counters, which costs next to nothing: two of them make a rate."""
    return await _run_timed(database, _plan_counter_snapshot(database.schemas))


async def _run_timed(database: TransactionalRunner, plan: Plan[Snapshot]) -> Snapshot:
    try:
        async with asyncio.timeout(SNAPSHOT_TIMEOUT_SECONDS), database.transaction() as connection:
            began = time.monotonic()
            await connection.run(set_limits(STATEMENT_TIMEOUT // timedelta(milliseconds=1)))
            seen = await run_plan_on(connection, plan)
    except Exception as error:
        raise_schema_missing(error, database.schemas)
    return replace(seen, duration=time.monotonic() - began)


def plan_snapshot(schemas: Schemas) -> Plan[Snapshot]:
    """Who is there, what is locked, and how many jobs there are of each kind."""
    now, server = yield from _plan_get_server(schemas)
    known = yield from plan_get_pools(schemas, _plan_query)
    pools = [_mark_unconfirmed(pool, server) for pool in known]
    queues = yield snapshot_queues(MAX_QUEUES)
    rows = yield snapshot_jobs(list_dead_pool_ids(pools), MAX_ROWS)
    locks = yield from _plan_get_locks(rows)
    names = yield from _plan_get_names(rows, locks)
    tasks = tuple(_count_tasks(rows, names))
    errors = yield from _plan_get_errors(tasks)
    held = _build_locked_queues(queues, rows, locks)
    return Snapshot(
        now=now,
        server=server,
        tasks=tuple(_with_error(task, errors) for task in tasks),
        locked=tuple(_build_locked_jobs(rows, locks, names)),
        queues=held,
        pools=tuple(_build_pools(pools, locks, held, now)),
    )


def _plan_counter_snapshot(schemas: Schemas) -> Plan[Snapshot]:
    now, server = yield from _plan_get_server(schemas)
    return Snapshot(now=now, server=server)


def _plan_query(query: object) -> Plan[object]:
    return (yield query)  # type: ignore[misc]  # a query, whatever its answer is


def _plan_get_server(schemas: Schemas) -> Plan[tuple[datetime, ServerStats]]:
    before = time.time()
    row: ServerRow | None = yield snapshot_server(schemas)
    if row is None:
        raise SchemaMissing(schemas.shared)
    return parse_timestamp(row.now), _read_server(row, before, time.time())


def _read_server(row: ServerRow, before: float, after: float) -> ServerStats:
    """Its clock was read at some time between the two of ours."""
    theirs = float(row.now)
    return ServerStats(
        database=row.database,
        role=row.role,
        level=row.level,
        rows_added=row.rows_added,
        rows_deleted=row.rows_deleted,
        live_rows=row.live_rows,
        dead_rows=row.dead_rows,
        seconds_since_vacuum=row.seconds_since_vacuum,
        owner=row.owner,
        has_hidden_rows=row.has_hidden_rows,
        oldest_transaction=row.oldest_transaction,
        oldest_transaction_state=row.oldest_transaction_state,
        oldest_transaction_seconds=row.oldest_transaction_seconds,
        uptime_seconds=row.uptime_seconds,
        clock_offset=theirs - min(max(theirs, before), after),
    )


# Names


@dataclass(frozen=True, slots=True)
class _NameLookup:
    tasks: Mapping[int, str]
    queues: Mapping[int, str]

    def get_task(self, id: int) -> str:
        # A cleanup may have deleted it while jobs were added.
        return self.tasks.get(id, f"task id {id}")


def _plan_get_names(rows: Iterable[JobCountRow], locks: Iterable[LockRow]) -> Plan[_NameLookup]:
    task_ids = sorted({row.task_id for row in rows})
    queue_ids = sorted({lock.queue_id for lock in locks if lock.queue_id is not None})
    found: Sequence[Row] = (yield get_task_and_queue_names(task_ids, queue_ids)) if task_ids else ()
    names: dict[str, dict[int, str]] = {"task": {}, "queue": {}}
    for kind, id, name in found:
        names[kind][id] = name
    return _NameLookup(names["task"], names["queue"])


# Tasks


def _count_tasks(rows: Iterable[JobCountRow], names: _NameLookup) -> Iterable[TaskCount]:
    of_task: dict[int, list[JobCountRow]] = defaultdict(list)
    for row in rows:
        of_task[row.task_id].append(row)
    for task_id, found in of_task.items():
        yield _count_task(names.get_task(task_id), found)


def _count_task(identifier: str, rows: Sequence[JobCountRow]) -> TaskCount:
    counts: dict[JobState, int] = defaultdict(int)
    for row in rows:
        counts[JobState(row.state)] += row.count
    ready = [row for row in rows if row.state == JobState.READY]
    failing = [row.last_id for row in rows if row.state in (JobState.RETRYING, JobState.FAILED)]
    first = max(ready, key=lambda row: row.overdue_seconds, default=None)
    return TaskCount(
        identifier=identifier,
        counts=dict(counts),
        oldest_ready=None if first is None else first.overdue_seconds,
        first_ready=None if first is None else first.first_id,
        newest_failing=max(failing, default=None),
    )


def _plan_get_errors(tasks: Iterable[TaskCount]) -> Plan[Mapping[int, str]]:
    failing = _select_failing_jobs(tasks)
    return (yield get_last_errors(failing)) if failing else {}


def _select_failing_jobs(tasks: Iterable[TaskCount]) -> list[int]:
    """The newest job that fails of each of the tasks with most of them."""
    most = sorted(tasks, key=lambda task: -task.failing)[:MAX_ERRORS]
    return [task.newest_failing for task in most if task.newest_failing is not None]


def _with_error(task: TaskCount, errors: Mapping[int, str]) -> TaskCount:
    if task.newest_failing is None:
        return task
    return replace(task, error=errors.get(task.newest_failing))


# Locks


def _mark_unconfirmed(pool: PoolInfo, server: ServerStats) -> PoolInfo:
    """After a restart of the server nobody could be heard for a while: that is not death."""
    if pool.health is PoolHealth.DEAD and server.uptime_seconds < (pool.lease or 0.0):
        return replace(pool, health=PoolHealth.UNKNOWN)
    return pool


def _plan_get_locks(rows: Iterable[JobCountRow]) -> Plan[Sequence[LockRow]]:
    locked = [row.first_id for row in rows if row.state in LOCKED_STATES]
    return (yield snapshot_locks(locked)) if locked else ()


def _build_locked_jobs(
    rows: Iterable[JobCountRow], locks: Iterable[LockRow], names: _NameLookup
) -> Iterable[LockedJob]:
    seen = {row.first_id: row for row in rows if row.state in LOCKED_STATES}
    for lock in sorted(locks, key=lambda lock: -lock.age_seconds):
        row = seen[lock.job_id]
        yield LockedJob(
            id=lock.job_id,
            task_identifier=names.get_task(row.task_id),
            state=JobState(row.state),
            pool_id=lock.locked_by,
            # By the clock of its worker it may be of the future.
            age=max(0.0, lock.age_seconds),
            attempts=lock.attempts,
            max_attempts=lock.max_attempts,
            queue_name=None if lock.queue_id is None else names.queues.get(lock.queue_id),
        )


def _build_locked_queues(
    queues: Iterable[QueueRow], rows: Iterable[JobCountRow], locks: Iterable[LockRow]
) -> tuple[LockedQueue, ...]:
    waiting: dict[int | None, list[JobCountRow]] = defaultdict(list)
    for row in rows:
        if row.state == JobState.WAITING:
            waiting[row.locked_id].append(row)
    jobs = {lock.queue_id: lock.job_id for lock in locks}
    return tuple(_build_locked_queue(each, waiting[each.id], jobs.get(each.id)) for each in queues)


def _build_locked_queue(
    queue: QueueRow, waiting: Sequence[JobCountRow], job_id: int | None
) -> LockedQueue:
    return LockedQueue(
        name=queue.name,
        pool_id=queue.locked_by,
        age=queue.age_seconds,
        waiting=sum(row.count for row in waiting),
        oldest_waiting=max((row.overdue_seconds for row in waiting), default=None),
        first_waiting=min((row.first_id for row in waiting), default=None),
        job_id=job_id,
    )


def _build_pools(
    known: Iterable[PoolInfo],
    locks: Iterable[LockRow],
    queues: Iterable[LockedQueue],
    now: datetime,
) -> Iterable[PoolInfo]:
    """The pools of a registry and those that only their locks tell of, with what each holds."""
    jobs: dict[str, list[float]] = defaultdict(list)
    held: dict[str, list[float]] = defaultdict(list)
    for lock in locks:
        jobs[lock.locked_by or ""].append(lock.age_seconds)
    for queue in queues:
        if not queue.is_paused:
            held[queue.pool_id or ""].append(queue.age)
    pools = {pool.id: pool for pool in known}
    for pool_id in sorted((jobs.keys() | held.keys()) - pools.keys() - {""}):
        pools[pool_id] = PoolInfo(
            id=pool_id, health=PoolHealth.UNKNOWN, runtime=detect_runtime(pool_id)
        )
    for pool_id, pool in pools.items():
        ages = jobs[pool_id] + held[pool_id]
        since = now - _clamp_age(max(ages)) if ages else None
        yield replace(pool, jobs=len(jobs[pool_id]), queues=len(held[pool_id]), oldest_lock=since)


def _clamp_age(seconds: float) -> timedelta:
    """As far back as people count, at most: a lock may have any age."""
    return timedelta(seconds=min(max(seconds, 0.0), 36_500 * 86_400.0))

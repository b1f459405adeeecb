"""A snapshot of a queue, and the pause before the next one.

A snapshot reads every job once, without payloads, in one short read-only transaction. The pause
after it grows with the size of the table, so that watching a queue does not slow it down.
"""

import asyncio
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta

from graphile_worker._db.database import TransactionalRunner, run_plan_on
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_schema_missing
from graphile_worker._sql.plans.limits import plan_list_limits
from graphile_worker._sql.plans.pauses import join_pauses
from graphile_worker._sql.queries.diagnostics import DeadRows, get_dead_rows
from graphile_worker._sql.queries.jobs import get_task_and_queue_names
from graphile_worker._sql.queries.limits import LimitState
from graphile_worker._sql.queries.pauses import (
    PAUSED_PREFIX,
    Pause,
    PauseAccess,
    PauseKind,
    check_pauses,
    list_pauses,
)
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
from graphile_worker._sql.queries.storage import (
    MAX_TRANSACTION_AGE,
    VacuumBlocker,
    get_vacuum_blockers,
)
from graphile_worker._sql.query import Plan, Row
from graphile_worker.errors import SchemaMissing
from graphile_worker.jobs import parse_timestamp
from graphile_worker.ops.pauses import is_paused_lock
from graphile_worker.ops.pools import (
    PoolHealth,
    PoolInfo,
    build_unknown_pool,
    find_task_limits,
    list_dead_pool_ids,
    plan_get_pools,
)
from graphile_worker.ops.states import LOCKED_STATES, JobState

# The pause after a snapshot is at least this many times as long as the snapshot took.
PAUSE_FACTOR = 100
MAX_PAUSE_SECONDS = 60.0

STATEMENT_TIMEOUT = timedelta(seconds=10)
SNAPSHOT_TIMEOUT_SECONDS = 20.0

# Rows to read of a table. Locked jobs beyond that are counted without their holder.
MAX_ROWS = 20_000
MAX_QUEUES = 1_000

# Errors to read, of the tasks with the most failing jobs.
MAX_ERRORS = 20

MAX_LOCK_AGE_SECONDS = 36_500 * 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCount:
    """The number of jobs of a task in each state, with the ages and ids to report."""

    identifier: str
    counts: Mapping[JobState, int] = field(default_factory=dict)
    oldest_ready: float | None = None
    """Seconds since the first ready job was due."""
    first_ready: int | None = None
    newest_failing: int | None = None
    """The newest job that waits for a retry or failed permanently."""
    oldest_failure: float | None = None
    """Seconds since the first of the permanently failed jobs failed."""
    newest_failure: float | None = None
    error: str | None = None
    """The beginning of the last error of `newest_failing`."""

    def __getitem__(self, state: JobState) -> int:
        return self.counts.get(state, 0)

    @property
    def running(self) -> int:
        """The number of locked jobs."""
        return self[JobState.RUNNING] + self[JobState.STALE]

    @property
    def failing(self) -> int:
        """The number of jobs that wait for a retry or failed permanently."""
        return self[JobState.RETRYING] + self[JobState.FAILED]


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedJob:
    """A job that a pool has claimed: it runs, or waits in the pool for a free slot."""

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
    """A named queue that is locked, and the jobs that wait for it."""

    name: str
    pool_id: str | None
    age: float
    waiting: int = 0
    oldest_waiting: float | None = None
    first_waiting: int | None = None
    job_id: int | None = None
    """The locked job of the queue."""

    @property
    def is_paused(self) -> bool:
        """Whether a person locked the queue, not a worker."""
        return is_paused_lock(self.pool_id, self.age)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStats:
    """The state of the database and of the tables of the queue."""

    database: str
    role: str
    level: int | None
    rows_added: int
    """Rows inserted into the table of jobs since the server's statistics began."""
    rows_deleted: int
    breaking_level: int | None = None
    """The highest level that is marked as breaking."""
    owner: str = ""
    has_hidden_rows: bool = False
    uptime_seconds: float = math.inf
    clock_offset: float = 0.0
    """Seconds by which the database's clock is at least ahead of the local clock."""
    tables: tuple[DeadRows, ...] = ()
    vacuum_blockers: tuple[VacuumBlocker, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The state of a queue at one time. Ages are in seconds, by the database's clock."""

    now: datetime
    server: ServerStats
    tasks: tuple[TaskCount, ...] = ()
    locked: tuple[LockedJob, ...] = ()
    """Locked jobs, the longest locked first."""
    queues: tuple[LockedQueue, ...] = ()
    pools: tuple[PoolInfo, ...] = ()
    pauses: tuple[Pause, ...] = ()
    """Paused tasks and named queues."""
    limits: tuple[LimitState, ...] = ()
    """The limits of tasks, if pools that are alive have any."""
    missing_tasks: Mapping[int, int] = field(default_factory=dict)
    """The number of jobs of each task id that has no row."""
    missing_queues: Mapping[int, int] = field(default_factory=dict)
    duration: float = 0.0

    def find_pause(self, kind: PauseKind, name: str) -> Pause | None:
        """Find the pause of a task or named queue."""
        return next((each for each in self.pauses if (each.kind, each.name) == (kind, name)), None)

    def find_exhausted_limits(self) -> dict[str, list[LimitState]]:
        """Find the limits that let no other job start now, by task."""
        limits: dict[str, list[LimitState]] = defaultdict(list)
        task_limits = find_task_limits(self.pools)
        for each in self.limits:
            for task, names in task_limits.items():
                if each.is_exhausted and each.name in names:
                    limits[task].append(each)
        return dict(limits)

    def count(self, state: JobState) -> int:
        """Count the jobs in a state."""
        return sum(task[state] for task in self.tasks)

    @property
    def running(self) -> int:
        """The number of locked jobs."""
        return sum(task.running for task in self.tasks)

    @property
    def oldest_ready(self) -> float | None:
        """Seconds since the first ready job was due."""
        ages = [task.oldest_ready for task in self.tasks if task.oldest_ready is not None]
        return max(ages, default=None)


class PollPacer:
    """Computes the pause after each of a series of snapshots.

    Args:
        interval: The shortest pause.
        factor: The pause is at least this many times as long as the snapshot took.
        max_pause: The longest pause.
    """

    def __init__(
        self,
        interval: float,
        *,
        factor: float = PAUSE_FACTOR,
        max_pause: float = MAX_PAUSE_SECONDS,
    ) -> None:
        self._interval = interval
        self._factor = factor
        self._max_pause = max_pause
        # The shortest duration counts: on a busy machine, most of the time is waiting.
        self._durations: deque[float] = deque(maxlen=3)

    def compute_pause(self, duration: float) -> float:
        """Compute the seconds to wait after a snapshot that took `duration` seconds."""
        self._durations.append(duration)
        pause = min(self._durations) * self._factor
        return max(self._interval, min(pause, self._max_pause))


async def take_snapshot(database: TransactionalRunner) -> Snapshot:
    """Take a snapshot.

    Raises:
        SchemaMissing: If the schema is not installed.
    """
    return await _run_timed(database, plan_snapshot(database.schemas))


async def take_counter_snapshot(database: TransactionalRunner) -> Snapshot:
    """Read only the time and the counters of the table of jobs, which is cheap.

    Raises:
        SchemaMissing: If the schema is not installed.
    """
    return await _run_timed(database, plan_counter_snapshot(database.schemas))


async def _run_timed(database: TransactionalRunner, plan: Plan[Snapshot]) -> Snapshot:
    try:
        async with asyncio.timeout(SNAPSHOT_TIMEOUT_SECONDS), database.transaction() as connection:
            started = time.monotonic()
            await connection.run(set_limits(STATEMENT_TIMEOUT, "top"))
            snapshot = await run_plan_on(connection, plan)
    except Exception as error:
        raise_schema_missing(error, database.schemas)
    return replace(snapshot, duration=time.monotonic() - started)


def plan_snapshot(
    schemas: Schemas, max_transaction_age: timedelta = MAX_TRANSACTION_AGE
) -> Plan[Snapshot]:
    """Read the pools, the locks, and the number of jobs of each task in each state.

    Args:
        schemas: The schemas of the queue.
        max_transaction_age: Report transactions that are open for longer.
    """
    now, server = yield from _plan_get_server(schemas)
    tables = yield get_dead_rows(schemas)
    blockers = yield get_vacuum_blockers(max_transaction_age)
    server = replace(server, tables=tuple(tables), vacuum_blockers=tuple(blockers))
    known = yield from plan_get_pools(schemas, _plan_query)
    pools = [_mark_unconfirmed(pool, server) for pool in known]
    queues = yield snapshot_queues(MAX_QUEUES)
    rows = yield snapshot_jobs(list_dead_pool_ids(pools), MAX_ROWS)
    locks = yield from _plan_get_locks(rows)
    names = yield from _plan_get_names(rows, locks)
    tasks = yield from _plan_add_errors(_count_tasks(rows, names))
    locked_queues = _build_locked_queues(queues, rows, locks)
    pauses = yield from _plan_get_pauses(schemas, locked_queues)
    limits = (yield from plan_list_limits(schemas)) if find_task_limits(pools) else ()
    return Snapshot(
        now=now,
        server=server,
        tasks=tasks,
        locked=tuple(_build_locked_jobs(rows, locks, names)),
        queues=locked_queues,
        pauses=pauses,
        limits=tuple(limits),
        pools=tuple(_build_pools(pools, locks, locked_queues, now)),
        missing_tasks=_sum_counts(
            (row.task_id, row.count) for row in rows if row.task_id not in names.tasks
        ),
        missing_queues=_sum_counts(
            (row.missing_queue_id, row.count) for row in rows if row.missing_queue_id is not None
        ),
    )


def plan_counter_snapshot(schemas: Schemas) -> Plan[Snapshot]:
    """Read only the time and the counters of the table of jobs."""
    now, server = yield from _plan_get_server(schemas)
    return Snapshot(now=now, server=server)


def _plan_query(query: object) -> Plan[object]:
    return (yield query)  # type: ignore[misc]  # the answer of any query


def _plan_get_server(schemas: Schemas) -> Plan[tuple[datetime, ServerStats]]:
    before = time.time()
    row: ServerRow | None = yield snapshot_server(schemas)
    if row is None:
        raise SchemaMissing(schemas.shared)
    offset = compute_clock_offset(float(row.now), before)
    facts = asdict(row)
    return parse_timestamp(facts.pop("now")), ServerStats(**facts, clock_offset=offset)


def compute_clock_offset(server_time: float, before: float) -> float:
    """Compute by how much the server's clock, read after `before`, is at least ahead of here."""
    # The server read its clock at some time between these two.
    return server_time - min(max(server_time, before), time.time())


def _sum_counts(counts: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Sum the counts of each id, the most first."""
    totals = Counter[int]()
    for id, count in counts:
        totals[id] += count
    return dict(totals.most_common())


# Names


@dataclass(frozen=True, slots=True)
class _NameLookup:
    tasks: Mapping[int, str]
    queues: Mapping[int, str]

    def get_task(self, id: int) -> str:
        return self.tasks.get(id, f"task id {id}")


def _plan_get_names(rows: Iterable[JobCountRow], locks: Iterable[LockRow]) -> Plan[_NameLookup]:
    task_ids = sorted({row.task_id for row in rows})
    queue_ids = sorted({lock.queue_id for lock in locks if lock.queue_id is not None})
    name_rows: Sequence[Row] = (
        (yield get_task_and_queue_names(task_ids, queue_ids)) if task_ids else ()
    )
    names: dict[str, dict[int, str]] = {"task": {}, "queue": {}}
    for kind, id, name in name_rows:
        names[kind][id] = name
    return _NameLookup(names["task"], names["queue"])


# Tasks


def _count_tasks(rows: Iterable[JobCountRow], names: _NameLookup) -> list[TaskCount]:
    by_task: dict[int, list[JobCountRow]] = defaultdict(list)
    for row in rows:
        by_task[row.task_id].append(row)
    return [_count_task(id, task_rows, names) for id, task_rows in by_task.items()]


def _count_task(id: int, rows: Sequence[JobCountRow], names: _NameLookup) -> TaskCount:
    failed = [row for row in rows if row.state == JobState.FAILED]
    retrying = [row for row in rows if row.state == JobState.RETRYING]
    # No worker can run a job whose task or queue has no row, so it does not count as late.
    ready = [
        row
        for row in rows
        if row.state == JobState.READY and id in names.tasks and row.missing_queue_id is None
    ]
    first = max(ready, key=lambda row: row.overdue_seconds, default=None)
    counts = Counter[JobState]()
    for row in rows:
        counts[JobState(row.state)] += row.count
    return TaskCount(
        identifier=names.get_task(id),
        counts=dict(counts),
        oldest_ready=None if first is None else first.overdue_seconds,
        first_ready=None if first is None else first.first_id,
        newest_failing=max((row.last_id for row in failed + retrying), default=None),
        oldest_failure=max((row.oldest_failure_seconds or 0.0 for row in failed), default=None),
        newest_failure=min((row.newest_failure_seconds or 0.0 for row in failed), default=None),
    )


def _plan_add_errors(tasks: list[TaskCount]) -> Plan[tuple[TaskCount, ...]]:
    most_failing = sorted(tasks, key=lambda task: -task.failing)[:MAX_ERRORS]
    ids = [task.newest_failing for task in most_failing if task.newest_failing is not None]
    errors: Mapping[int | None, str] = (yield get_last_errors(ids)) if ids else {}
    return tuple(replace(task, error=errors.get(task.newest_failing)) for task in tasks)


# Locks


def _mark_unconfirmed(pool: PoolInfo, server: ServerStats) -> PoolInfo:
    # Pools could not send heartbeats while the server was down.
    if pool.health is PoolHealth.DEAD and server.uptime_seconds < (pool.lease or 0.0):
        return replace(pool, health=PoolHealth.UNKNOWN)
    return pool


def _plan_get_locks(rows: Iterable[JobCountRow]) -> Plan[Sequence[LockRow]]:
    locked = [row.first_id for row in rows if row.state in LOCKED_STATES]
    return (yield snapshot_locks(locked)) if locked else ()


def _build_locked_jobs(
    rows: Iterable[JobCountRow], locks: Iterable[LockRow], names: _NameLookup
) -> Iterable[LockedJob]:
    locked = {row.first_id: row for row in rows if row.state in LOCKED_STATES}
    for lock in sorted(locks, key=lambda lock: -lock.age_seconds):
        row = locked[lock.job_id]
        yield LockedJob(
            id=lock.job_id,
            task_identifier=names.get_task(row.task_id),
            state=JobState(row.state),
            pool_id=lock.locked_by,
            # A worker with --use-local-time may write a time in the future.
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
    return tuple(
        LockedQueue(
            name=queue.name,
            pool_id=queue.locked_by,
            age=queue.age_seconds,
            waiting=sum(row.count for row in waiting[queue.id]),
            oldest_waiting=max((row.overdue_seconds for row in waiting[queue.id]), default=None),
            first_waiting=min((row.first_id for row in waiting[queue.id]), default=None),
            job_id=jobs.get(queue.id),
        )
        for queue in queues
    )


def _plan_get_pauses(schemas: Schemas, queues: Iterable[LockedQueue]) -> Plan[tuple[Pause, ...]]:
    access: PauseAccess = yield check_pauses(schemas)
    described: list[Pause] = (yield list_pauses()) if access.can_read else []
    paused = {
        queue.name: (queue.pool_id or "").removeprefix(PAUSED_PREFIX)
        for queue in queues
        if queue.is_paused
    }
    return tuple(join_pauses(described, paused))


def _build_pools(
    known: Iterable[PoolInfo],
    locks: Iterable[LockRow],
    queues: Iterable[LockedQueue],
    now: datetime,
) -> Iterable[PoolInfo]:
    """Add unregistered lock holders, and to each pool the number of its locks."""
    jobs: dict[str, list[float]] = defaultdict(list)
    locked_queues: dict[str, list[float]] = defaultdict(list)
    for lock in locks:
        jobs[lock.locked_by or ""].append(lock.age_seconds)
    for queue in queues:
        if not queue.is_paused:
            locked_queues[queue.pool_id or ""].append(queue.age)
    pools = {pool.id: pool for pool in known}
    for pool_id in sorted((jobs.keys() | locked_queues.keys()) - pools.keys() - {""}):
        pools[pool_id] = build_unknown_pool(pool_id)
    for pool_id, pool in pools.items():
        own_jobs, own_queues = jobs[pool_id], locked_queues[pool_id]
        # A lock may have an infinite age.
        age = min(max([0.0, *own_jobs, *own_queues]), MAX_LOCK_AGE_SECONDS)
        since = now - timedelta(seconds=age) if own_jobs or own_queues else None
        yield replace(pool, jobs=len(own_jobs), queues=len(own_queues), oldest_lock=since)

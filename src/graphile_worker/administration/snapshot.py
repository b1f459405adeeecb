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

from graphile_worker.administration.pools import (
    PAUSED,
    Health,
    Pool,
    dead_pools,
    getting_pools,
    runtime_of,
)
from graphile_worker.administration.states import LOCKED, State
from graphile_worker.db.database import Transacting, perform_on
from graphile_worker.errors import SchemaMissing
from graphile_worker.jobs import moment
from graphile_worker.sql.adding import raise_absence
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.jobs import get_names
from graphile_worker.sql.looking import (
    JobsRow,
    LockRow,
    QueueRow,
    ServerRow,
    get_last_errors,
    limit_look,
    look_at_jobs,
    look_at_locks,
    look_at_queues,
    look_at_server,
)
from graphile_worker.sql.query import Plan, Row

# A look costs less than one part in so many of the time of one backend.
SHARE = 100

# Seconds: nobody waits longer for the next look, however long they take.
LONGEST_PAUSE = 60.0

# A statement that takes longer is given up; and a look, by a server that does not answer.
LONGEST_STATEMENT = timedelta(seconds=10)
LONGEST_LOOK = 20.0

# Rows that are read of one table; locked jobs beyond that are counted, not named.
MOST_ROWS = 20_000
MOST_QUEUES = 1_000

# Errors that are read, those of the tasks with most jobs that fail.
MOST_ERRORS = 20

# A named queue that is locked until far in the future was paused by somebody.
FAR_AHEAD = -86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCount:
    """How many jobs of a task are in which state, and the ages and ids that matter."""

    identifier: str
    counts: Mapping[State, int] = field(default_factory=dict)
    oldest_ready: float | None = None
    """Seconds since the first of those that are ready was due."""
    first_ready: int | None = None
    newest_failing: int | None = None
    """The newest that failed, and waits for another attempt or has none left."""
    error: str | None = None
    """How its last error begins."""

    def __getitem__(self, state: State) -> int:
        return self.counts.get(state, 0)

    @property
    def running(self) -> int:
        return self[State.RUNNING] + self[State.STALE]

    @property
    def failing(self) -> int:
        return self[State.RETRYING] + self[State.FAILED]


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedJob:
    """A job that a pool holds: it runs, or was fetched and waits for its turn there."""

    id: int
    task_identifier: str
    state: State
    pool_id: str | None
    age: float
    attempts: int
    max_attempts: int
    queue_name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldQueue:
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
        return (self.pool_id or "").startswith(PAUSED) or self.age < FAR_AHEAD


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """How the table of jobs fares, and what in the database may be in its way."""

    database: str
    role: str
    level: int | None
    added: int
    """Rows that were added since the counters began; the same of those that are gone."""
    deleted: int
    live_rows: int = 0
    dead_rows: int = 0
    since_vacuum: float | None = None
    owner: str = ""
    hides_rows: bool = False
    holder: str | None = None
    """The session that has had a transaction open for longest."""
    holder_state: str | None = None
    held_for: float | None = None
    up_for: float = math.inf
    clock_offset: float = 0.0
    """Seconds by which the database's clock is ahead of ours, as far as that can be told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What one look saw; ages are in seconds, by the database's clock."""

    now: datetime
    server: Server
    tasks: tuple[TaskCount, ...] = ()
    locked: tuple[LockedJob, ...] = ()
    """Those that are locked longest first."""
    queues: tuple[HeldQueue, ...] = ()
    pools: tuple[Pool, ...] = ()
    took: float = 0.0

    def count(self, state: State) -> int:
        return sum(task[state] for task in self.tasks)

    @property
    def running(self) -> int:
        return sum(task.running for task in self.tasks)

    @property
    def oldest_ready(self) -> float | None:
        ages = [task.oldest_ready for task in self.tasks if task.oldest_ready is not None]
        return max(ages, default=None)


def pause_after(took: float, interval: float) -> float:
    """Seconds until the next look, after one that took so long; `interval` is the least."""
    return max(interval, min(took * SHARE, LONGEST_PAUSE))


class Pace:
    """How long to wait after each look of a row of them."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        # The shortest of them counts: what a look takes longer than that, it was kept waiting on a
        # busy machine, and cost nothing.
        self._took: deque[float] = deque(maxlen=3)

    def pause_after(self, took: float) -> float:
        self._took.append(took)
        return pause_after(min(self._took), self._interval)


async def look(database: Transacting) -> Snapshot:
    """One look; it raises SchemaMissing, or whatever the driver does."""
    return await _timed(database, looking(database.schemas))


async def look_at_counters(database: Transacting) -> Snapshot:
    """Only the time and the counters, which costs next to nothing: two of them make a rate."""
    return await _timed(database, _looking_at_counters(database.schemas))


async def _timed(database: Transacting, plan: Plan[Snapshot]) -> Snapshot:
    try:
        async with asyncio.timeout(LONGEST_LOOK), database.transaction() as connection:
            began = time.monotonic()
            await connection.run(limit_look(LONGEST_STATEMENT // timedelta(milliseconds=1)))
            seen = await perform_on(connection, plan)
    except Exception as error:
        raise_absence(error, database.schemas)
    return replace(seen, took=time.monotonic() - began)


def looking(schemas: Schemas) -> Plan[Snapshot]:
    """Who is there, what is locked, and how many jobs there are of each kind."""
    now, server = yield from _asking_server(schemas)
    known = yield from getting_pools(schemas, _ask)
    pools = [_doubted(pool, server) for pool in known]
    queues = yield look_at_queues(MOST_QUEUES)
    rows = yield look_at_jobs(dead_pools(pools), MOST_ROWS)
    locks = yield from _asking_locks(rows)
    names = yield from _asking_names(rows, locks)
    tasks = tuple(_count_tasks(rows, names))
    errors = yield from _asking_errors(tasks)
    held = _held_queues(queues, rows, locks)
    return Snapshot(
        now=now,
        server=server,
        tasks=tuple(_with_error(task, errors) for task in tasks),
        locked=tuple(_locked_jobs(rows, locks, names)),
        queues=held,
        pools=tuple(_holders(pools, locks, held, now)),
    )


def _looking_at_counters(schemas: Schemas) -> Plan[Snapshot]:
    now, server = yield from _asking_server(schemas)
    return Snapshot(now=now, server=server)


def _ask(query: object) -> Plan[object]:
    return (yield query)  # type: ignore[misc]  # a query, whatever its answer is


def _asking_server(schemas: Schemas) -> Plan[tuple[datetime, Server]]:
    before = time.time()
    row: ServerRow | None = yield look_at_server(schemas)
    if row is None:
        raise SchemaMissing(schemas.shared)
    return moment(row.now), _read_server(row, before, time.time())


def _read_server(row: ServerRow, before: float, after: float) -> Server:
    """Its clock was read at some time between the two of ours."""
    theirs = float(row.now)
    return Server(
        database=row.database,
        role=row.role,
        level=row.level,
        added=row.added,
        deleted=row.deleted,
        live_rows=row.live_rows,
        dead_rows=row.dead_rows,
        since_vacuum=row.since_vacuum,
        owner=row.owner,
        hides_rows=row.hides_rows,
        holder=row.holder,
        holder_state=row.holder_state,
        held_for=row.held_for,
        up_for=row.up_for,
        clock_offset=theirs - min(max(theirs, before), after),
    )


# Names


@dataclass(frozen=True, slots=True)
class _Names:
    tasks: Mapping[int, str]
    queues: Mapping[int, str]

    def task(self, id: int) -> str:
        # A cleanup may have deleted it while jobs were added.
        return self.tasks.get(id, f"task id {id}")


def _asking_names(rows: Iterable[JobsRow], locks: Iterable[LockRow]) -> Plan[_Names]:
    task_ids = sorted({row.task_id for row in rows})
    queue_ids = sorted({lock.queue_id for lock in locks if lock.queue_id is not None})
    found: Sequence[Row] = (yield get_names(task_ids, queue_ids)) if task_ids else ()
    names: dict[str, dict[int, str]] = {"task": {}, "queue": {}}
    for kind, id, name in found:
        names[kind][id] = name
    return _Names(names["task"], names["queue"])


# Tasks


def _count_tasks(rows: Iterable[JobsRow], names: _Names) -> Iterable[TaskCount]:
    of_task: dict[int, list[JobsRow]] = defaultdict(list)
    for row in rows:
        of_task[row.task_id].append(row)
    for task_id, found in of_task.items():
        yield _count_task(names.task(task_id), found)


def _count_task(identifier: str, rows: Sequence[JobsRow]) -> TaskCount:
    counts: dict[State, int] = defaultdict(int)
    for row in rows:
        counts[State(row.state)] += row.count
    ready = [row for row in rows if row.state == State.READY]
    failing = [row.last_id for row in rows if row.state in (State.RETRYING, State.FAILED)]
    first = max(ready, key=lambda row: row.due_for, default=None)
    return TaskCount(
        identifier=identifier,
        counts=dict(counts),
        oldest_ready=None if first is None else first.due_for,
        first_ready=None if first is None else first.first_id,
        newest_failing=max(failing, default=None),
    )


def _asking_errors(tasks: Iterable[TaskCount]) -> Plan[Mapping[int, str]]:
    failing = _failing(tasks)
    return (yield get_last_errors(failing)) if failing else {}


def _failing(tasks: Iterable[TaskCount]) -> list[int]:
    """The newest job that fails of each of the tasks with most of them."""
    most = sorted(tasks, key=lambda task: -task.failing)[:MOST_ERRORS]
    return [task.newest_failing for task in most if task.newest_failing is not None]


def _with_error(task: TaskCount, errors: Mapping[int, str]) -> TaskCount:
    if task.newest_failing is None:
        return task
    return replace(task, error=errors.get(task.newest_failing))


# Locks


def _doubted(pool: Pool, server: Server) -> Pool:
    """After a restart of the server nobody could be heard for a while: that is not death."""
    if pool.health is Health.DEAD and server.up_for < (pool.lease or 0.0):
        return replace(pool, health=Health.UNKNOWN)
    return pool


def _asking_locks(rows: Iterable[JobsRow]) -> Plan[Sequence[LockRow]]:
    locked = [row.first_id for row in rows if row.state in LOCKED]
    return (yield look_at_locks(locked)) if locked else ()


def _locked_jobs(
    rows: Iterable[JobsRow], locks: Iterable[LockRow], names: _Names
) -> Iterable[LockedJob]:
    seen = {row.first_id: row for row in rows if row.state in LOCKED}
    for lock in sorted(locks, key=lambda lock: -lock.age):
        row = seen[lock.job_id]
        yield LockedJob(
            id=lock.job_id,
            task_identifier=names.task(row.task_id),
            state=State(row.state),
            pool_id=lock.locked_by,
            # By the clock of its worker it may be of the future.
            age=max(0.0, lock.age),
            attempts=lock.attempts,
            max_attempts=lock.max_attempts,
            queue_name=None if lock.queue_id is None else names.queues.get(lock.queue_id),
        )


def _held_queues(
    queues: Iterable[QueueRow], rows: Iterable[JobsRow], locks: Iterable[LockRow]
) -> tuple[HeldQueue, ...]:
    waiting: dict[int | None, list[JobsRow]] = defaultdict(list)
    for row in rows:
        if row.state == State.WAITING:
            waiting[row.apart].append(row)
    jobs = {lock.queue_id: lock.job_id for lock in locks}
    return tuple(_held_queue(each, waiting[each.id], jobs.get(each.id)) for each in queues)


def _held_queue(queue: QueueRow, waiting: Sequence[JobsRow], job_id: int | None) -> HeldQueue:
    return HeldQueue(
        name=queue.name,
        pool_id=queue.locked_by,
        age=queue.age,
        waiting=sum(row.count for row in waiting),
        oldest_waiting=max((row.due_for for row in waiting), default=None),
        first_waiting=min((row.first_id for row in waiting), default=None),
        job_id=job_id,
    )


def _holders(
    known: Iterable[Pool], locks: Iterable[LockRow], queues: Iterable[HeldQueue], now: datetime
) -> Iterable[Pool]:
    """The pools of a registry and those that only their locks tell of, with what each holds."""
    jobs: dict[str, list[float]] = defaultdict(list)
    held: dict[str, list[float]] = defaultdict(list)
    for lock in locks:
        jobs[lock.locked_by or ""].append(lock.age)
    for queue in queues:
        if not queue.is_paused:
            held[queue.pool_id or ""].append(queue.age)
    pools = {pool.id: pool for pool in known}
    for pool_id in sorted((jobs.keys() | held.keys()) - pools.keys() - {""}):
        pools[pool_id] = Pool(id=pool_id, health=Health.UNKNOWN, runtime=runtime_of(pool_id))
    for pool_id, pool in pools.items():
        ages = jobs[pool_id] + held[pool_id]
        since = now - _span(max(ages)) if ages else None
        yield replace(pool, jobs=len(jobs[pool_id]), queues=len(held[pool_id]), oldest_lock=since)


def _span(seconds: float) -> timedelta:
    """As far back as people count, at most: a lock may have any age."""
    return timedelta(seconds=min(max(seconds, 0.0), 36_500 * 86_400.0))

"""List named queues: which worker has locked each, and which jobs wait for it.

A list reads one page of queues, and of each at most a number of its jobs, so the size of the table
does not matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import has_fetch_indexes
from graphile_worker._sql.queries.cron import get_server_time
from graphile_worker._sql.queries.search import (
    count_queue_jobs,
    get_queue_holders,
    list_queues,
    scan_queue_jobs,
)
from graphile_worker._sql.query import Plan, Row
from graphile_worker.errors import QueryTimeoutError
from graphile_worker.jobs import parse_timestamp
from graphile_worker.ops.filters import TextPattern
from graphile_worker.ops.pauses import is_paused_lock
from graphile_worker.ops.pools import (
    PoolHealth,
    PoolInfo,
    build_unknown_pool,
    list_dead_pool_ids,
    plan_get_pools,
)
from graphile_worker.ops.search import (
    DEFAULT_LIMITS,
    QueryLimits,
    with_limits,
)

# Jobs to count of each queue.
MAX_COUNT = 1_000

# A lock of a worker that is not known to be alive counts as stale after this time.
STALE_SECONDS = 4 * 3600.0

# Before the first queue.
FIRST_RANK = -1


class QueueState(StrEnum):
    """Whether the jobs of a named queue can run."""

    FREE = "free"
    """Not locked: a worker can claim its next job."""
    LOCKED = "locked"
    """A worker has locked it and runs its job."""
    BLOCKED = "blocked"
    """Its lock is stale: the worker is dead, or the lock is older than four hours."""
    PAUSED = "paused"
    """A person has paused it."""


class QueuePosition(NamedTuple):
    """The position of a queue in a list, for the next page."""

    rank: int
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedQueue:
    """A named queue.

    Attributes:
        name: Its name.
        state: Whether its jobs can run.
        locked_by: The worker that has locked it, or the mark of a pause.
        locked_at: Since when.
        worker_health: Whether that worker sends heartbeats, None if no worker has locked it.
        job_id: The locked job of the queue.
        task_identifier: The task of that job.
        due: Number of due jobs that no worker has locked, None if they could not be counted in
            time.
        is_capped: Whether there may be more.
        oldest_due_seconds: Seconds since the first of them was due.
    """

    name: str
    state: QueueState
    locked_by: str | None = None
    locked_at: datetime | None = None
    worker_health: PoolHealth | None = None
    job_id: int | None = None
    task_identifier: str | None = None
    due: int | None = 0
    is_capped: bool = False
    oldest_due_seconds: float | None = None

    @property
    def ready(self) -> int | None:
        """The number of jobs that can run now."""
        return self.due if self.state is QueueState.FREE else 0

    @property
    def waiting(self) -> int | None:
        """The number of jobs that wait for the queue."""
        return 0 if self.state is QueueState.FREE else self.due


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Named queues, those that are locked first, the time of the database, and the next page."""

    queues: list[NamedQueue]
    now: datetime
    next: QueuePosition | None


def plan_list_queues(
    schemas: Schemas,
    *,
    search: str = "",
    after: QueuePosition | None = None,
    limit: int = 100,
    max_count: int = MAX_COUNT,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[QueuePage]:
    """List named queues: blocked and paused ones, then other locked ones, then the rest by name.

    Args:
        schemas: The schemas of the queue.
        search: Only queues whose name contains this text, upper or lower case.
        after: Only queues after this position, for the next page.
        limit: The size of the page.
        max_count: Count at most this number of jobs of each queue.
        limits: The timeouts of each statement.

    Returns:
        A plan for one page of queues.

    Raises:
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    pools = yield from plan_get_pools(schemas, lambda query: with_limits(query, schemas, limits))
    position = after or QueuePosition(FIRST_RANK, "")
    pattern = f"%{TextPattern((search,)).like_pattern}%"
    query = list_queues(list_dead_pool_ids(pools), pattern, *position, limit + 1)
    rows = yield from with_limits(query, schemas, limits)
    if not rows:
        now = yield from with_limits(get_server_time(), schemas, limits)
        return QueuePage([], now, None)
    shown = rows[:limit]
    counts, count_limit = yield from _plan_count(
        [row[0] for row in shown], max_count, schemas, limits
    )
    locked_ids = [row[0] for row in shown if row[2] is not None]
    holders: Mapping[int, Row] = {}
    if locked_ids:
        by_index = replace(limits, prefer_indexes=True)
        found = yield from with_limits(get_queue_holders(locked_ids), schemas, by_index)
        holders = {row[0]: row for row in found}
    known = {pool.id: pool for pool in pools}
    queues = [_build_queue(row, known, counts, holders, count_limit) for row in shown]
    following = QueuePosition(shown[-1][4], shown[-1][1]) if len(rows) > limit else None
    return QueuePage(queues, parse_timestamp(rows[0][5]), following)


def _plan_count(
    ids: list[int], max_count: int, schemas: Schemas, limits: QueryLimits
) -> Plan[tuple[Mapping[int, Row] | None, int | None]]:
    """Count the due jobs of queues. None if that took too long."""
    has_indexes = yield from with_limits(has_fetch_indexes(), schemas, limits)
    query = count_queue_jobs(ids, max_count) if has_indexes else scan_queue_jobs(ids)
    try:
        rows = yield from with_limits(query, schemas, limits)
    except QueryTimeoutError:
        return None, None
    return {row[0]: row for row in rows}, max_count if has_indexes else None


def _build_queue(
    row: Row,
    pools: Mapping[str, PoolInfo],
    counts: Mapping[int, Row] | None,
    holders: Mapping[int, Sequence[Any]],
    count_limit: int | None,
) -> NamedQueue:
    id, name, locked_at, locked_by, _, now = row
    age = 0.0 if locked_at is None else float(now) - float(locked_at)
    is_paused = is_paused_lock(locked_by, age)
    health = None
    if locked_by is not None and not is_paused:
        health = pools.get(locked_by, build_unknown_pool(locked_by)).health
    state = QueueState.FREE
    if locked_at is not None:
        state = QueueState.LOCKED
        if is_paused:
            state = QueueState.PAUSED
        elif health is PoolHealth.DEAD or age > STALE_SECONDS:
            state = QueueState.BLOCKED
    _, due, oldest = (None, None, None) if counts is None else counts.get(id, (id, 0, None))
    _, job_id, task = holders.get(id, (id, None, None))
    return NamedQueue(
        name=name,
        state=state,
        locked_by=locked_by,
        locked_at=None if locked_at is None else parse_timestamp(locked_at),
        worker_health=health,
        job_id=job_id,
        task_identifier=task,
        due=due,
        is_capped=due is not None and count_limit is not None and due >= count_limit,
        oldest_due_seconds=oldest,
    )

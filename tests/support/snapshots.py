"""Looks at a queue without a database: only what the test is about."""

from datetime import UTC, datetime, timedelta
from typing import Any

from graphile_worker.ops.pools import PoolHealth, PoolInfo
from graphile_worker.ops.snapshot import LockedJob, ServerStats, Snapshot, TaskCount
from graphile_worker.ops.states import JobState

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def make_server(**given: Any) -> ServerStats:
    facts: dict[str, Any] = {
        "database": "shop",
        "role": "app",
        "level": 20,
        "rows_added": 0,
        "rows_deleted": 0,
        "owner": "app",
    }
    return ServerStats(**{**facts, **given})


def make_snapshot(*tasks: TaskCount, after: float = 0.0, **given: Any) -> Snapshot:
    """What was seen so many seconds after noon; what Server has may be given as well."""
    facts = {name: given.pop(name) for name in list(given) if name in ServerStats.__slots__}
    now = NOON + timedelta(seconds=after)
    return Snapshot(now=now, server=make_server(**facts), tasks=tasks, **given)


def make_task(identifier: str = "resize", **given: Any) -> TaskCount:
    """A task with counts by the names of states."""
    counts = {JobState(name): given.pop(name) for name in list(given) if name in set(JobState)}
    if counts.get(JobState.READY) and "oldest_ready" not in given:
        given["oldest_ready"] = 1.0
    return TaskCount(identifier=identifier, counts=counts, **given)


def make_pool(id: str = "pypool-000000000000000001", **given: Any) -> PoolInfo:
    """A pool of ours that lives."""
    facts: dict[str, Any] = {
        "health": PoolHealth.ALIVE,
        "runtime": "python",
        "seconds_since_heartbeat": 1.0,
        "lease": 30.0,
        "host": "web-1",
        "pid": 412,
        "concurrency": 10,
        "tasks": ("resize",),
    }
    return PoolInfo(id=id, **{**facts, **given})


def make_locked(id: int = 7, **given: Any) -> LockedJob:
    facts: dict[str, Any] = {
        "task_identifier": "resize",
        "state": JobState.RUNNING,
        "pool_id": "pypool-000000000000000001",
        "age": 3.0,
        "attempts": 1,
        "max_attempts": 25,
    }
    return LockedJob(id=id, **{**facts, **given})

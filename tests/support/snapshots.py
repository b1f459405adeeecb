"""Snapshots of a queue without a database, with the values that a test needs."""

from datetime import UTC, datetime, timedelta
from typing import Any

from graphile_worker.ops.pools import PoolHealth, PoolInfo
from graphile_worker.ops.snapshot import LockedJob, ServerStats, Snapshot, TaskCount
from graphile_worker.ops.states import JobState
from graphile_worker.ops.trends import SnapshotHistory

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def make_server(**values: Any) -> ServerStats:
    defaults: dict[str, Any] = {
        "database": "shop",
        "role": "app",
        "level": 20,
        "rows_added": 0,
        "rows_deleted": 0,
        "owner": "app",
    }
    return ServerStats(**{**defaults, **values})


def make_snapshot(*tasks: TaskCount, after: float = 0.0, **values: Any) -> Snapshot:
    """Make a snapshot `after` seconds past noon. The fields of ServerStats are accepted too."""
    server = {name: values.pop(name) for name in list(values) if name in ServerStats.__slots__}
    now = NOON + timedelta(seconds=after)
    return Snapshot(now=now, server=make_server(**server), tasks=tasks, **values)


def make_task(identifier: str = "resize", **values: Any) -> TaskCount:
    """Make a task, with its counts as keyword arguments named by state."""
    counts = {JobState(name): values.pop(name) for name in list(values) if name in set(JobState)}
    if counts.get(JobState.READY) and "oldest_ready" not in values:
        values["oldest_ready"] = 1.0
    return TaskCount(identifier=identifier, counts=counts, **values)


def make_history(*snapshots: Snapshot) -> SnapshotHistory:
    """Make the history of these snapshots, the oldest first."""
    history = SnapshotHistory(snapshots[0])
    for each in snapshots[1:]:
        history.add(each)
    return history


def make_pool(id: str = "pypool-000000000000000001", **values: Any) -> PoolInfo:
    """Make a Python pool that is alive."""
    defaults: dict[str, Any] = {
        "health": PoolHealth.ALIVE,
        "runtime": "python",
        "seconds_since_heartbeat": 1.0,
        "lease": 30.0,
        "host": "web-1",
        "pid": 412,
        "concurrency": 10,
        "tasks": ("resize",),
    }
    return PoolInfo(id=id, **{**defaults, **values})


def make_locked(id: int = 7, **values: Any) -> LockedJob:
    defaults: dict[str, Any] = {
        "task_identifier": "resize",
        "state": JobState.RUNNING,
        "pool_id": "pypool-000000000000000001",
        "age": 3.0,
        "attempts": 1,
        "max_attempts": 25,
    }
    return LockedJob(id=id, **{**defaults, **values})

"""Worker pools: registered by Python or Rust workers, or unregistered with locks."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.pauses import PAUSED_PREFIX
from graphile_worker._sql.queries.workers import (
    LIMITS_KEY,
    MAX_TASK_NAMES,
    check_registries,
    get_lock_holders,
    get_pools,
    get_rust_workers,
)
from graphile_worker._sql.query import Plan, Query, Row
from graphile_worker.jobs import parse_timestamp

# The default of Rust workers: a worker without a heartbeat for this time is dead.
RUST_LEASE_SECONDS = 300.0

POOL_ID_PATTERNS = {
    "python": re.compile(r"pypool-[0-9a-f]{18}"),
    "node": re.compile(r"(pool|otpool|worker)-[0-9a-f]{18}"),
    "rust": re.compile(r"graphile_worker_[0-9a-f]+"),
}


class PoolHealth(StrEnum):
    """Whether a pool sends heartbeats."""

    ALIVE = "alive"
    """Its last heartbeat is younger than its lease."""
    DEAD = "dead"
    """Its lease has expired, or another worker recovered its jobs."""
    UNKNOWN = "unknown"
    """It holds locks and is not registered, for example a Node worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolInfo:
    """A pool of workers: its health, its locks, and the details that it registered."""

    id: str
    health: PoolHealth
    runtime: str | None
    started_at: datetime | None = None
    seconds_since_heartbeat: float | None = None
    lease: float | None = None
    """Seconds without a heartbeat after which the pool is dead."""
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    concurrency: int | None = None
    tasks: tuple[str, ...] | None = None
    """The tasks that it runs, or None if it does not report them."""
    limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the limits of its tasks."""
    is_rescued: bool = False
    """Another worker has recovered its jobs."""
    clock_offset: float = 0.0
    """Seconds by which the database's clock was ahead of the pool's when it registered."""
    jobs: int = 0
    queues: int = 0
    oldest_lock: datetime | None = None


RunQuery = Callable[[Query[Any]], Plan[Any]]


def plan_get_pools(schemas: Schemas, run_query: RunQuery) -> Plan[list[PoolInfo]]:
    """Get the registered pools.

    Args:
        schemas: The schemas of the queue.
        run_query: Runs each query, for example with time limits.
    """
    has_python, has_rust = yield from run_query(check_registries(schemas))
    pools: dict[str, PoolInfo] = {}
    if has_rust:
        rows = yield from run_query(get_rust_workers())
        pools |= {row[0]: _read_rust_pool(row) for row in rows}
    if has_python:
        # Python workers may be in both registries; theirs has more details.
        for row in (yield from run_query(get_pools())):
            details = _PoolDetails(row[-1])
            if details.has_stopped:
                # The row stays for jobs that a late fetch of the pool may lock.
                pools.pop(row[0], None)
            else:
                pools[row[0]] = _read_python_pool(row, details)
    return [pools[id] for id in sorted(pools)]


def plan_get_lock_holders(schemas: Schemas, run_query: RunQuery) -> Plan[list[PoolInfo]]:
    """Get the registered pools and the pools that hold locks, with the number of their locks.

    Args:
        schemas: The schemas of the queue.
        run_query: Runs each query, for example with time limits.
    """
    known = yield from plan_get_pools(schemas, run_query)
    rows = yield from run_query(get_lock_holders())
    locks = {row[0]: row[1:] for row in rows if not row[0].startswith(PAUSED_PREFIX)}
    unknown = [build_unknown_pool(id) for id in locks.keys() - {each.id for each in known}]
    pools = sorted([*known, *unknown], key=lambda pool: pool.id)
    return [_with_locks(pool, *locks.get(pool.id, (0, 0, None))) for pool in pools]


def build_unknown_pool(id: str) -> PoolInfo:
    """Build the entry of a pool that is not registered."""
    runtimes = (name for name, pattern in POOL_ID_PATTERNS.items() if pattern.fullmatch(id))
    return PoolInfo(id=id, health=PoolHealth.UNKNOWN, runtime=next(runtimes, None))


def list_dead_pool_ids(pools: Iterable[PoolInfo]) -> list[str]:
    """List the ids of the dead pools."""
    return [pool.id for pool in pools if pool.health is PoolHealth.DEAD]


def list_alive_pools(pools: Iterable[PoolInfo]) -> list[PoolInfo]:
    """List the pools that send heartbeats."""
    return [pool for pool in pools if pool.health is PoolHealth.ALIVE]


def count_slots(pools: Collection[PoolInfo]) -> int | None:
    """Count the jobs that can run at once, or return None if a worker does not report it."""
    if any(pool.health is PoolHealth.UNKNOWN for pool in pools):
        return None
    slots = [pool.concurrency or 0 for pool in list_alive_pools(pools)]
    return sum(slots) if slots and all(slots) else None


def list_served_tasks(pools: Iterable[PoolInfo]) -> list[str]:
    """List the tasks that pools which are alive report to run."""
    return sorted({name for pool in list_alive_pools(pools) for name in pool.tasks or ()})


def find_task_limits(pools: Iterable[PoolInfo]) -> dict[str, set[str]]:
    """Return the names of the limits of each task, as the pools that are alive report them."""
    limits: dict[str, set[str]] = {}
    for pool in list_alive_pools(pools):
        for task, names in pool.limits.items():
            limits.setdefault(task, set()).update(names)
    return limits


def is_served(pools: Iterable[PoolInfo], task: str | None) -> bool | None:
    """Check whether a pool runs a task.

    Returns:
        None if that is unknown: no pool is alive or unregistered, or one does not report its tasks.
    """
    served = [pool.tasks for pool in pools if pool.health is not PoolHealth.DEAD]
    if any(task in (tasks or ()) for tasks in served):
        return True
    return None if not served or None in served else False


def _read_python_pool(row: Row, details: "_PoolDetails") -> PoolInfo:
    id, started_at, heartbeat_age, lease, is_rescued, _ = row
    pool = _build_pool(id, started_at, heartbeat_age, lease, details)
    offset = details.get_clock_offset(float(started_at))
    health = PoolHealth.DEAD if is_rescued else pool.health
    return replace(pool, health=health, is_rescued=is_rescued, clock_offset=offset)


def _read_rust_pool(row: Row) -> PoolInfo:
    id, started_at, heartbeat_age, details = row
    return _build_pool(id, started_at, heartbeat_age, RUST_LEASE_SECONDS, _PoolDetails(details))


def _build_pool(
    id: str, started_at: str, heartbeat_age: float, lease: float, details: "_PoolDetails"
) -> PoolInfo:
    return PoolInfo(
        id=id,
        health=PoolHealth.DEAD if heartbeat_age > lease else PoolHealth.ALIVE,
        runtime=details.get_text("runtime") or build_unknown_pool(id).runtime,
        started_at=parse_timestamp(started_at),
        seconds_since_heartbeat=heartbeat_age,
        lease=lease,
        host=details.get_text("host"),
        pid=details.get_int("pid"),
        version=details.get_text("version"),
        concurrency=details.get_int("concurrency"),
        tasks=details.get_tasks(),
        limits=details.get_limits(),
    )


class _PoolDetails:
    """The JSON that a pool registered. Other programs write it too, so each value is checked."""

    def __init__(self, details: str | None) -> None:
        try:
            parsed = json.loads(details or "{}")
        except (ValueError, RecursionError):
            parsed = {}
        self._details: dict[str, Any] = parsed if isinstance(parsed, dict) else {}

    @property
    def has_stopped(self) -> bool:
        return self._details.get("stopped") is True

    def get_text(self, name: str) -> str | None:
        value = self._details.get(name)
        return value if isinstance(value, str) else None

    def get_int(self, name: str) -> int | None:
        value = self._details.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def get_tasks(self) -> tuple[str, ...] | None:
        names = self._details.get("tasks")
        # A list of this length may be cut off.
        if not isinstance(names, list) or len(names) >= MAX_TASK_NAMES:
            return None
        return tuple(each for each in names if isinstance(each, str))

    def get_limits(self) -> dict[str, tuple[str, ...]]:
        limits = self._details.get(LIMITS_KEY)
        if not isinstance(limits, dict):
            return {}
        return {
            task: tuple(each for each in names if isinstance(each, str))
            for task, names in limits.items()
            if isinstance(names, list)
        }

    def get_clock_offset(self, started_at: float) -> float:
        try:
            return started_at - float(self._details["clock"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return 0.0


def _with_locks(pool: PoolInfo, jobs: int, queues: int, oldest: str | None) -> PoolInfo:
    since = None if oldest is None else parse_timestamp(oldest)
    return replace(pool, jobs=jobs, queues=queues, oldest_lock=since)

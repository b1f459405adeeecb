"""The pools that are known: from our registry, from that of Rust workers, from what is locked."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.workers import (
    MAX_TASK_NAMES,
    check_registries,
    get_lock_holders,
    get_pools,
    get_rust_workers,
)
from graphile_worker._sql.query import Plan, Query, Row
from graphile_worker.jobs import parse_timestamp

# Seconds of silence after which Rust workers take others for dead, unless told otherwise.
RUST_LEASE_SECONDS = 300.0

# What begins the locked_by of a named queue that somebody has paused, with who did.
PAUSED_PREFIX = "paused:"

POOL_ID_PATTERNS = {
    "python": re.compile(r"pypool-[0-9a-f]{18}"),
    "node": re.compile(r"(pool|otpool|worker)-[0-9a-f]{18}"),
    "rust": re.compile(r"graphile_worker_[0-9a-f]+"),
}


class PoolHealth(StrEnum):
    ALIVE = "alive"
    """It was heard of within its lease."""
    DEAD = "dead"
    """It was not; or others have taken its jobs already."""
    UNKNOWN = "unknown"
    """It holds something, and no registry knows it: such as a Node worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolInfo:
    """A pool of workers: whether it lives, what it holds, and what it says of itself."""

    id: str
    health: PoolHealth
    runtime: str | None
    started_at: datetime | None = None
    seconds_since_heartbeat: float | None = None
    """Seconds since it was heard of."""
    lease: float | None = None
    """Seconds of silence after which it is taken for dead."""
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    concurrency: int | None = None
    tasks: tuple[str, ...] | None = None
    """Those that it runs; None if nobody knows."""
    jobs: int = 0
    queues: int = 0
    oldest_lock: datetime | None = None


RunQuery = Callable[[Query[Any]], Plan[Any]]


def plan_get_pools(schemas: Schemas, run_query: RunQuery) -> Plan[list[PoolInfo]]:
    """The pools that registries know."""
    has_ours, has_rust = yield from run_query(check_registries(schemas))
    found: dict[str, PoolInfo] = {}
    stopped: set[str] = set()
    if has_rust:
        rows = yield from run_query(get_rust_workers())
        found |= {row[0]: _read_rust_pool(row) for row in rows}
    if has_ours:
        # They know better of their own.
        rows = yield from run_query(get_pools())
        found |= {row[0]: _read_python_pool(row) for row in rows}
        stopped = {row[0] for row in rows if _has_stopped(row)}
    return [found[id] for id in sorted(found.keys() - stopped)]


def plan_get_lock_holders(schemas: Schemas, run_query: RunQuery) -> Plan[list[PoolInfo]]:
    """All pools that a registry knows or that hold something, with what they hold."""
    known = yield from plan_get_pools(schemas, run_query)
    rows = yield from run_query(get_lock_holders())
    holding = {row[0]: row[1:] for row in rows if not row[0].startswith(PAUSED_PREFIX)}
    strangers = [_build_unknown_pool(id) for id in holding.keys() - {each.id for each in known}]
    pools = sorted([*known, *strangers], key=lambda pool: pool.id)
    return [_with_locks(pool, *holding.get(pool.id, (0, 0, None))) for pool in pools]


def list_dead_pool_ids(pools: Iterable[PoolInfo]) -> list[str]:
    return [pool.id for pool in pools if pool.health is PoolHealth.DEAD]


def list_alive_pools(pools: Iterable[PoolInfo]) -> list[PoolInfo]:
    return [pool for pool in pools if pool.health is PoolHealth.ALIVE]


def detect_runtime(pool_id: str) -> str | None:
    """Which implementation calls its pools like that."""
    return next(
        (name for name, shape in POOL_ID_PATTERNS.items() if shape.fullmatch(pool_id)), None
    )


def _read_python_pool(row: Row) -> PoolInfo:
    id, started_at, silence, lease, was_swept, details = row
    is_dead = was_swept or silence > lease
    return _build_pool(
        PoolHealth.DEAD if is_dead else PoolHealth.ALIVE, id, started_at, silence, lease, details
    )


def _has_stopped(row: Row) -> bool:
    """Did it sign off? Then its row stays for what a fetch of it may still lock."""
    return _PoolDetails(row[-1]).is_true("stopped")


def _read_rust_pool(row: Row) -> PoolInfo:
    id, started_at, silence, details = row
    health = PoolHealth.DEAD if silence > RUST_LEASE_SECONDS else PoolHealth.ALIVE
    return _build_pool(health, id, started_at, silence, RUST_LEASE_SECONDS, details)


def _build_pool(
    health: PoolHealth,
    id: str,
    started_at: str,
    seconds_since_heartbeat: float,
    lease: float,
    details: str | None,
) -> PoolInfo:
    said = _PoolDetails(details)
    return PoolInfo(
        id=id,
        health=health,
        runtime=said.get_text("runtime") or detect_runtime(id),
        started_at=parse_timestamp(started_at),
        seconds_since_heartbeat=seconds_since_heartbeat,
        lease=lease,
        host=said.get_text("host"),
        pid=said.get_int("pid"),
        version=said.get_text("version"),
        concurrency=said.get_int("concurrency"),
        tasks=said.get_tasks(),
    )


class _PoolDetails:
    """What a pool says of itself, which may be anything: others write there, too."""

    def __init__(self, details: str | None) -> None:
        try:
            said = json.loads(details or "{}")
        except (ValueError, RecursionError):
            said = {}
        self._details: dict[str, Any] = said if isinstance(said, dict) else {}

    def get_text(self, name: str) -> str | None:
        found = self._details.get(name)
        return found if isinstance(found, str) else None

    def get_int(self, name: str) -> int | None:
        found = self._details.get(name)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def is_true(self, name: str) -> bool:
        return self._details.get(name) is True

    def get_tasks(self) -> tuple[str, ...] | None:
        """The tasks that it runs, if it says them all."""
        found = self._details.get("tasks")
        if not isinstance(found, list) or len(found) >= MAX_TASK_NAMES:
            return None
        return tuple(each for each in found if isinstance(each, str))


def _build_unknown_pool(id: str) -> PoolInfo:
    return PoolInfo(id=id, health=PoolHealth.UNKNOWN, runtime=detect_runtime(id))


def _with_locks(pool: PoolInfo, jobs: int, queues: int, oldest: str | None) -> PoolInfo:
    since = None if oldest is None else parse_timestamp(oldest)
    return replace(pool, jobs=jobs, queues=queues, oldest_lock=since)

"""The pools that are known: from our registry, from that of Rust workers, from what is locked."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from graphile_worker.jobs import moment
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Plan, Query, Row
from graphile_worker.sql.workers import (
    MOST_NAMES,
    find_registries,
    get_lock_holders,
    get_pools,
    get_rust_workers,
)

# Seconds of silence after which Rust workers take others for dead, unless told otherwise.
RUST_LEASE = 300.0

# What begins the locked_by of a named queue that somebody has paused, with who did.
PAUSED = "paused:"

RUNTIMES = {
    "python": re.compile(r"pypool-[0-9a-f]{18}"),
    "node": re.compile(r"(pool|otpool|worker)-[0-9a-f]{18}"),
    "rust": re.compile(r"graphile_worker_[0-9a-f]+"),
}


class Health(StrEnum):
    ALIVE = "alive"
    """It was heard of within its lease."""
    DEAD = "dead"
    """It was not; or others have taken its jobs already."""
    UNKNOWN = "unknown"
    """It holds something, and no registry knows it: such as a Node worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A pool of workers: whether it lives, what it holds, and what it says of itself."""

    id: str
    health: Health
    runtime: str | None
    started_at: datetime | None = None
    silence: float | None = None
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


Asking = Callable[[Query[Any]], Plan[Any]]


def getting_pools(schemas: Schemas, ask: Asking) -> Plan[list[Pool]]:
    """The pools that registries know."""
    has_ours, has_rust = yield from ask(find_registries(schemas))
    found: dict[str, Pool] = {}
    stopped: set[str] = set()
    if has_rust:
        rows = yield from ask(get_rust_workers())
        found |= {row[0]: _read_rust(row) for row in rows}
    if has_ours:
        # They know better of their own.
        rows = yield from ask(get_pools())
        found |= {row[0]: _read_own(row) for row in rows}
        stopped = {row[0] for row in rows if _has_stopped(row)}
    return [found[id] for id in sorted(found.keys() - stopped)]


def getting_holders(schemas: Schemas, ask: Asking) -> Plan[list[Pool]]:
    """All pools that a registry knows or that hold something, with what they hold."""
    known = yield from getting_pools(schemas, ask)
    rows = yield from ask(get_lock_holders())
    holding = {row[0]: row[1:] for row in rows if not row[0].startswith(PAUSED)}
    strangers = [_stranger(id) for id in holding.keys() - {each.id for each in known}]
    pools = sorted([*known, *strangers], key=lambda pool: pool.id)
    return [_with_locks(pool, *holding.get(pool.id, (0, 0, None))) for pool in pools]


def dead_pools(pools: Iterable[Pool]) -> list[str]:
    return [pool.id for pool in pools if pool.health is Health.DEAD]


def living(pools: Iterable[Pool]) -> list[Pool]:
    return [pool for pool in pools if pool.health is Health.ALIVE]


def runtime_of(pool_id: str) -> str | None:
    """Which implementation calls its pools like that."""
    return next((name for name, shape in RUNTIMES.items() if shape.fullmatch(pool_id)), None)


def _read_own(row: Row) -> Pool:
    id, started_at, silence, lease, was_swept, details = row
    is_dead = was_swept or silence > lease
    return _described(
        Health.DEAD if is_dead else Health.ALIVE, id, started_at, silence, lease, details
    )


def _has_stopped(row: Row) -> bool:
    """Did it sign off? Then its row stays for what a fetch of it may still lock."""
    return _Said(row[-1]).is_true("stopped")


def _read_rust(row: Row) -> Pool:
    id, started_at, silence, details = row
    health = Health.DEAD if silence > RUST_LEASE else Health.ALIVE
    return _described(health, id, started_at, silence, RUST_LEASE, details)


def _described(
    health: Health, id: str, started_at: str, silence: float, lease: float, details: str | None
) -> Pool:
    said = _Said(details)
    return Pool(
        id=id,
        health=health,
        runtime=said.text("runtime") or runtime_of(id),
        started_at=moment(started_at),
        silence=silence,
        lease=lease,
        host=said.text("host"),
        pid=said.number("pid"),
        version=said.text("version"),
        concurrency=said.number("concurrency"),
        tasks=said.tasks(),
    )


class _Said:
    """What a pool says of itself, which may be anything: others write there, too."""

    def __init__(self, details: str | None) -> None:
        try:
            said = json.loads(details or "{}")
        except (ValueError, RecursionError):
            said = {}
        self._said: dict[str, Any] = said if isinstance(said, dict) else {}

    def text(self, name: str) -> str | None:
        found = self._said.get(name)
        return found if isinstance(found, str) else None

    def number(self, name: str) -> int | None:
        found = self._said.get(name)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def is_true(self, name: str) -> bool:
        return self._said.get(name) is True

    def tasks(self) -> tuple[str, ...] | None:
        """The tasks that it runs, if it says them all."""
        found = self._said.get("tasks")
        if not isinstance(found, list) or len(found) >= MOST_NAMES:
            return None
        return tuple(each for each in found if isinstance(each, str))


def _stranger(id: str) -> Pool:
    return Pool(id=id, health=Health.UNKNOWN, runtime=runtime_of(id))


def _with_locks(pool: Pool, jobs: int, queues: int, oldest: str | None) -> Pool:
    since = None if oldest is None else moment(oldest)
    return replace(pool, jobs=jobs, queues=queues, oldest_lock=since)

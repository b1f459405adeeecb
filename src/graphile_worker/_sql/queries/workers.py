"""Queries about pools: the registry, heartbeats, and the jobs of dead pools."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.jobs import (
    JOB_COLUMNS,
    MICROSECOND,
    encode_when,
    read_ids,
    read_job,
    read_jobs,
)
from graphile_worker._sql.query import (
    Query,
    Row,
    read_as,
    read_bool,
    read_column,
    read_count,
    read_first,
)
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.jobs import Job, RunAt

# Task names that the details of a pool list, for people.
MAX_TASK_NAMES = 100

# The member of the details of a pool that lists its cron items.
CRONTAB_KEY = "crontab"
LIMITS_KEY = "limits"

# The member with the time at which a pool first started, if it registers again under another id.
FIRST_START_KEY = "first_started_at"

# The start of the error that Python and Rust workers write to jobs of a dead pool.
RECOVERED_MESSAGE = "Job recovered after worker interruption"


class RecoveredJob(LazyDataclass):
    """A job taken over from a dead pool. Pools of other implementations do not record starts."""

    job: Job
    pool_id: str
    was_started: bool | None
    crash_count: int
    is_quarantined: bool


class HeartbeatResult(LazyDataclass):
    """The server's time for each pool that was still registered, and when the server started."""

    server_times: dict[str, float]
    server_started_at: float | None


class RescueLockHolder(LazyDataclass):
    """A session that holds the rescue lock.

    A prepared transaction has no process. `seconds` is None if this role may not see it.
    """

    pid: int | None
    role: str | None
    application: str | None
    seconds: float | None

    def __str__(self) -> str:
        if self.pid is None:
            return "a prepared transaction"
        return f"pid={self.pid} role={self.role} application={self.application or '-'}"


def use_generic_plans(backend_pid: int) -> Query[None]:
    return Query("use_generic_plans", (backend_pid,))


def register_pool(pool_id: str, lease: timedelta, details: Mapping[str, Any]) -> Query[None]:
    return Query("register_pool", (pool_id, lease // MICROSECOND, json.dumps(details)))


def heartbeat(pool_ids: list[str], started_jobs: list[int]) -> Query[HeartbeatResult]:
    return Query("heartbeat", (pool_ids, started_jobs), _read_heartbeat)


def unregister_pools(pool_ids: list[str]) -> Query[None]:
    return Query("unregister_pools", (pool_ids,))


def mark_pools_stopped(pool_ids: list[str]) -> Query[None]:
    return Query("mark_pools_stopped", (pool_ids,))


def is_pool_alive(pool_id: str) -> Query[bool]:
    return Query("is_pool_alive", (pool_id,), read_bool)


def has_registry(schemas: Schemas) -> Query[bool]:
    return Query("has_registry", (schemas.companion, schemas.shared), read_bool)


def check_registries(schemas: Schemas) -> Query[tuple[bool, bool]]:
    args = (schemas.companion, schemas.shared)
    return Query("check_registries", args, lambda rows: (rows[0][0], rows[0][1]))


def get_pools() -> Query[list[Row]]:
    return Query("get_pools", (), list)


def get_rust_workers() -> Query[list[Row]]:
    return Query("get_rust_workers", (), list)


def get_lock_holders() -> Query[list[Row]]:
    return Query("get_lock_holders", (), list)


def has_rust_registry(schemas: Schemas) -> Query[bool]:
    return Query("has_rust_registry", (schemas.shared,), read_bool)


def rust_heartbeat(pool_ids: list[str], details: Mapping[str, Any]) -> Query[None]:
    return Query("rust_heartbeat", (pool_ids, json.dumps(details)))


def rust_unregister(pool_ids: list[str]) -> Query[None]:
    return Query("rust_unregister", (pool_ids,))


def renew_locks(pool_ids: list[str], job_ids: list[int], queue_ids: list[int]) -> Query[set[int]]:
    return Query("renew_locks", (pool_ids, job_ids, queue_ids), read_ids)


def record_start(
    job_id: int, pool_id: str, attempt: int, *, max_crashes: int | None = None
) -> Query[int | None]:
    return Query("record_start", (job_id, pool_id, attempt, max_crashes), read_first)


def get_dead_pools(own_id: str) -> Query[list[str]]:
    return Query("get_dead_pools", (own_id,), read_column)


def begin_rescue() -> Query[bool]:
    return Query("begin_rescue", (), read_bool)


def has_rescue_lock(schemas: Schemas) -> Query[bool]:
    return Query("has_rescue_lock", (schemas.companion,), read_bool)


def try_lock_rescue() -> Query[bool]:
    return Query("try_lock_rescue", (), bool)


def get_rescue_lock_holders(schemas: Schemas) -> Query[list[RescueLockHolder]]:
    return Query("get_rescue_lock_holders", (schemas.companion,), read_as(RescueLockHolder))


def recover_jobs(
    pool_ids: list[str], delay: timedelta, max_crashes: int, *, is_confirmed_dead: bool = False
) -> Query[list[RecoveredJob]]:
    args = (pool_ids, delay // MICROSECOND, max_crashes, is_confirmed_dead)
    return Query("recover_jobs", args, _read_recovered_jobs)


def unlock_pool_jobs(pool_ids: list[str], delay: timedelta) -> Query[list[Job]]:
    return Query("unlock_pool_jobs", (pool_ids, delay // MICROSECOND), read_jobs)


def delete_dead_pools() -> Query[list[str]]:
    return Query("delete_dead_pools", (), read_column)


def delete_orphaned_recoveries() -> Query[None]:
    return Query("delete_orphaned_recoveries")


def get_jobs_locked_by(pool_ids: list[str]) -> Query[list[Job]]:
    return Query("get_jobs_locked_by", (pool_ids,), read_jobs)


def unlock_stale_jobs(
    now: RunAt | None = None,
    *,
    except_pool_id: str | None = None,
    except_job_ids: Sequence[int] = (),
    except_queue_ids: Sequence[int] = (),
) -> Query[int]:
    """Unlock jobs and queues with stale locks, except these ones of `except_pool_id`."""
    args = (encode_when(now)[0], except_pool_id, list(except_job_ids), list(except_queue_ids))
    return Query("unlock_stale_jobs", args, read_count)


def has_been_recovered(job: Job) -> bool:
    """Return whether this job was taken over from a dead pool, with no attempt that ended since."""
    return job.last_error is not None and job.last_error.startswith(RECOVERED_MESSAGE)


def _read_heartbeat(rows: Sequence[Row]) -> HeartbeatResult:
    started = rows[0][2] if rows else None
    return HeartbeatResult({row[0]: row[1] for row in rows}, started)


def _read_recovered_jobs(rows: Sequence[Row]) -> list[RecoveredJob]:
    return [RecoveredJob(read_job(row), *row[JOB_COLUMNS:]) for row in rows]

"""Queries about pools: which live, which are gone, and what those left locked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from graphile_worker.jobs import Job, When
from graphile_worker.sql.admin import read_truth
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.jobs import JOB_COLUMNS, MICROSECOND, read_job, read_jobs, when_args
from graphile_worker.sql.query import Query, Row, read_nothing

# Details are for people: a worker of thousands of tasks need not list them all.
MOST_NAMES = 100

# What Rust workers write to jobs that they take from a dead one; ours says more after it.
RECOVERED = "Job recovered after worker interruption"


@dataclass(frozen=True, slots=True)
class Recovery:
    """A job that was taken from a dead pool; nobody knows what a stranger's pool had started."""

    job: Job
    pool_id: str
    was_started: bool | None
    count: int
    is_parked: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """Pools whose heartbeat counted, each with the server's time; when the server started."""

    times: dict[str, float]
    server_started: float | None


@dataclass(frozen=True, slots=True)
class TurnHolder:
    """A session that holds the turn to sweep.

    A prepared transaction has no process. `seconds` is None if this role may not know.
    """

    pid: int | None
    role: str | None
    application: str | None
    seconds: float | None

    def __str__(self) -> str:
        if self.pid is None:
            return "a prepared transaction"
        return f"pid={self.pid} role={self.role} application={self.application or '-'}"


def register_pool(pool_id: str, lease: timedelta, details: Mapping[str, Any]) -> Query[None]:
    args = (pool_id, lease // MICROSECOND, json.dumps(details))
    return Query("register_pool", args, read_nothing)


def heartbeat(pool_ids: list[str], started_jobs: list[int]) -> Query[Heard]:
    return Query("heartbeat", (pool_ids, started_jobs), _read_heard)


def sign_off(pool_ids: list[str]) -> Query[None]:
    return Query("sign_off", (pool_ids,), read_nothing)


def leave_registry(pool_ids: list[str]) -> Query[None]:
    return Query("leave_registry", (pool_ids,), read_nothing)


def find_pool(pool_id: str) -> Query[bool]:
    return Query("find_pool", (pool_id,), read_truth)


def find_registry(schemas: Schemas) -> Query[bool]:
    return Query("find_registry", (schemas.companion, schemas.shared), read_truth)


def find_registries(schemas: Schemas) -> Query[tuple[bool, bool]]:
    args = (schemas.companion, schemas.shared)
    return Query("find_registries", args, lambda rows: (rows[0][0], rows[0][1]))


def get_pools() -> Query[list[Row]]:
    return Query("get_pools", (), list)


def get_rust_workers() -> Query[list[Row]]:
    return Query("get_rust_workers", (), list)


def get_lock_holders() -> Query[list[Row]]:
    return Query("get_lock_holders", (), list)


def find_rust_registry(schemas: Schemas) -> Query[bool]:
    return Query("find_rust_registry", (schemas.shared,), read_truth)


def rust_heartbeat(pool_ids: list[str], details: Mapping[str, Any]) -> Query[None]:
    return Query("rust_heartbeat", (pool_ids, json.dumps(details)), read_nothing)


def rust_sign_off(pool_ids: list[str]) -> Query[None]:
    return Query("rust_sign_off", (pool_ids,), read_nothing)


def renew_locks(pool_ids: list[str], job_ids: list[int], queue_ids: list[int]) -> Query[set[int]]:
    args = (pool_ids, job_ids, queue_ids)
    return Query("renew_locks", args, lambda rows: {row[0] for row in rows})


def note_start(
    job_id: int, pool_id: str, attempt: int, *, fewer_than: int | None = None
) -> Query[int | None]:
    args = (job_id, pool_id, attempt, fewer_than)
    return Query("note_start", args, lambda rows: rows[0][0] if rows else None)


def get_silent_pools(own_id: str) -> Query[list[str]]:
    return Query("get_silent_pools", (own_id,), lambda rows: [row[0] for row in rows])


def begin_sweep() -> Query[bool]:
    return Query("begin_sweep", (), read_truth)


def find_turns(schemas: Schemas) -> Query[bool]:
    return Query("find_turns", (schemas.companion,), read_truth)


def take_sweep_turn() -> Query[bool]:
    return Query("take_sweep_turn", (), bool)


def get_turn_holders(schemas: Schemas) -> Query[list[TurnHolder]]:
    def read(rows: Sequence[Row]) -> list[TurnHolder]:
        return [TurnHolder(*row) for row in rows]

    return Query("get_turn_holders", (schemas.companion,), read)


def recover_jobs(
    pool_ids: list[str], delay: timedelta, max_recoveries: int, *, surely_dead: bool = False
) -> Query[list[Recovery]]:
    args = (pool_ids, delay // MICROSECOND, max_recoveries, surely_dead)
    return Query("recover_jobs", args, _read_recoveries)


def unlock_jobs_of(pool_ids: list[str], delay: timedelta) -> Query[list[Job]]:
    return Query("unlock_jobs_of", (pool_ids, delay // MICROSECOND), read_jobs)


def forget_pools() -> Query[list[str]]:
    return Query("forget_pools", (), lambda rows: [row[0] for row in rows])


def forget_recoveries() -> Query[None]:
    return Query("forget_recoveries", (), read_nothing)


def get_jobs_locked_by(pool_ids: list[str]) -> Query[list[Job]]:
    return Query("get_jobs_locked_by", (pool_ids,), read_jobs)


def unlock_stale_jobs(
    now: When | None = None,
    *,
    but_of: str | None = None,
    jobs: Sequence[int] = (),
    queues: Sequence[int] = (),
) -> Query[int]:
    """Unlock what was locked for too long, except these jobs and queues of pool `but_of`."""
    args = (when_args(now)[0], but_of, list(jobs), list(queues))
    return Query("unlock_stale_jobs", args, lambda rows: rows[0][0])


def has_been_recovered(job: Job) -> bool:
    """Did a dead pool leave this job behind, and has nothing else become of it since?"""
    return job.last_error is not None and job.last_error.startswith(RECOVERED)


def _read_heard(rows: Sequence[Row]) -> Heard:
    started = rows[0][2] if rows else None
    return Heard({row[0]: row[1] for row in rows}, started)


def _read_recoveries(rows: Sequence[Row]) -> list[Recovery]:
    return [Recovery(read_job(row), *row[JOB_COLUMNS:]) for row in rows]

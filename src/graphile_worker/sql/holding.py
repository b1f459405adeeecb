"""Queries by which a pool takes jobs and lets go of them; the latter are fenced by its id."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphile_worker.jobs import Job, When
from graphile_worker.sql.jobs import JOB_COLUMNS, read_job, when_args
from graphile_worker.sql.query import Query, Row, read_nothing


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that this pool has locked, and the row of its named queue."""

    job: Job
    queue_id: int | None

    @property
    def pool_id(self) -> str:
        """Under which id: by now its pool may go on under another one."""
        return self.job.locked_by or ""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a held job failed. Without `when` it backs off as usual."""

    job: Job
    message: str
    when: When | None = None
    give_up: bool = False


@dataclass(frozen=True, slots=True)
class Return:
    """A held job that is handed back as if it had not been taken, perhaps for later."""

    job: Job
    when: When | None = None


def register_tasks(identifiers: list[str]) -> Query[None]:
    return Query("register_tasks", (identifiers,), read_nothing)


def get_task_ids(identifiers: list[str]) -> Query[dict[int, str]]:
    return Query("get_task_ids", (identifiers,), lambda rows: {row[0]: row[1] for row in rows})


def get_jobs(
    pool_id: str,
    tasks: Mapping[int, str],
    *,
    skip_flags: list[str] | None = None,
    limit: int = 1,
    now: When | None = None,
) -> Query[list[HeldJob]]:
    def read(rows: Sequence[Row]) -> list[HeldJob]:
        return [_read_held(row, tasks) for row in rows]

    return Query("get_jobs", (pool_id, list(tasks), skip_flags, limit, when_args(now)[0]), read)


def finish_jobs(
    pool_id: str, job_ids: list[int], queue_ids: list[int], *, again: bool = False
) -> Query[set[int]]:
    return Query("finish_jobs", (job_ids, pool_id, queue_ids, again), _read_ids)


def fail_jobs(
    pool_id: str, failures: Sequence[Failure], queue_ids: list[int], *, again: bool = False
) -> Query[set[int]]:
    listing = [
        {
            "id": failure.job.id,
            "message": failure.message,
            "give_up": failure.give_up,
            **_when(failure.when),
        }
        for failure in failures
    ]
    return Query("fail_jobs", (json.dumps(listing), pool_id, queue_ids, again), _read_ids)


def return_jobs(
    pool_id: str, returns: Sequence[Return], queue_ids: list[int], *, again: bool = False
) -> Query[set[int]]:
    listing = [
        {
            "id": each.job.id,
            "attempts": each.job.attempts,
            "keyed": each.job.key is not None,
            **_when(each.when),
        }
        for each in returns
    ]
    return Query("return_jobs", (json.dumps(listing), pool_id, queue_ids, again), _read_ids)


def return_unheld_jobs(
    pool_id: str, held_ids: list[int], held_queue_ids: list[int]
) -> Query[set[int]]:
    return Query("return_unheld_jobs", (pool_id, held_ids, held_queue_ids), _read_ids)


def queues_to_free(held: HeldJob, all_held: Mapping[int, HeldJob]) -> list[int]:
    """The named queue of a job that ends, unless its pool has locked it for another one by now."""
    if held.queue_id is None:
        return []
    for other in all_held.values():
        if other.queue_id == held.queue_id and other is not held and other.pool_id == held.pool_id:
            return []
    return [held.queue_id]


def _when(when: When | None) -> dict[str, object]:
    moment, delay = when_args(when)
    return {"run_at": moment, "delay": delay}


def _read_held(row: Row, tasks: Mapping[int, str]) -> HeldJob:
    job = read_job(row)
    job.task_identifier = tasks[row[1]]
    return HeldJob(job, row[JOB_COLUMNS])


def _read_ids(rows: Sequence[Row]) -> set[int]:
    return {row[0] for row in rows}

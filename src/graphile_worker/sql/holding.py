"""Queries by which a pool takes jobs and lets go of them; the latter are fenced by its id."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from graphile_worker.jobs import Job, When
from graphile_worker.sql.jobs import JOB_COLUMNS, read_job, when_args
from graphile_worker.sql.migrations import INDEXES
from graphile_worker.sql.query import Query, Row, read_nothing

# Where a job stands among the others: its priority and run_at.
Place = tuple[int, datetime]


@dataclass(slots=True)
class HeldJob:
    """A job that this pool has locked, the row of its named queue, and when we got it.

    One is made for every job: not frozen, which would take three times as long.
    """

    job: Job
    queue_id: int | None
    taken_at: float = field(default=0.0, compare=False)

    @property
    def pool_id(self) -> str:
        """Under which id: by now its pool may go on under another one."""
        return self.job.locked_by or ""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a held job failed. Without `when` it backs off as usual.

    Of a batch `payload` is what is left of it, as JSON.
    """

    job: Job
    message: str
    when: When | None = None
    give_up: bool = False
    payload: str | None = None


@dataclass(frozen=True, slots=True)
class Return:
    """A held job that is handed back as if it had not been taken, perhaps for later."""

    job: Job
    when: When | None = None


def register_tasks(identifiers: list[str]) -> Query[None]:
    return Query("register_tasks", (identifiers,), read_nothing)


def get_task_ids(identifiers: list[str]) -> Query[dict[int, str]]:
    return Query("get_task_ids", (identifiers,), lambda rows: {row[0]: row[1] for row in rows})


def find_indexes() -> Query[bool]:
    """Can `get_jobs` be used, or does it lack its indexes? Asked by those who have a task."""
    return Query("find_indexes", (list(INDEXES),), lambda rows: bool(rows[0][0]))


def _take_jobs(
    statement: str,
    pool_id: str,
    tasks: Mapping[int, str],
    *,
    skip_flags: list[str] | None = None,
    limit: int = 1,
    now: When | None = None,
    since: Place | None = None,
) -> Query[list[HeldJob]]:
    """Take jobs; with `since` none that would go before that place."""
    priority, run_at = since or (None, None)
    moment, first = when_args(now)[0], when_args(run_at)[0]
    args = (pool_id, list(tasks), skip_flags, limit, moment, priority, first)
    return Query(statement, args, lambda rows: _read_all_held(rows, tasks))


# Only an empty answer means that there is nothing to take, a short one does not. The second one is
# for a schema without our indexes.
get_jobs = partial(_take_jobs, "get_jobs")
get_jobs_unindexed = partial(_take_jobs, "get_jobs_unindexed")

# The same for a third of the price, if they succeed: an empty answer says nothing.
get_plain_jobs = partial(_take_jobs, "get_plain_jobs")
get_soonest_jobs = partial(_take_jobs, "get_soonest_jobs")


def finish_jobs(
    pool_id: str, job_ids: list[int], queue_ids: list[int], *, again: bool = False
) -> Query[set[int]]:
    return Query("finish_jobs", (ids_text(job_ids), pool_id, queue_ids, again), _read_ids)


def fail_jobs(
    pool_id: str, failures: Sequence[Failure], queue_ids: list[int], *, again: bool = False
) -> Query[set[int]]:
    listing = [
        {
            "id": failure.job.id,
            "attempts": failure.job.attempts,
            "message": failure.message,
            "give_up": failure.give_up,
            "payload": failure.payload,
            **_when(failure.when),
        }
        for failure in failures
    ]
    # As it is: a database that is not UTF-8 can read few escapes, if any.
    text = json.dumps(listing, ensure_ascii=False)
    return Query("fail_jobs", (text, pool_id, queue_ids, again), _read_ids)


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


def announce_jobs(count: int) -> Query[None]:
    return Query("announce_jobs", (count,), read_nothing)


def queues_to_free(ending: Sequence[HeldJob], all_held: Mapping[int, HeldJob]) -> list[int]:
    """The named queues of jobs that end, unless their pool has locked them for later ones by now.

    An earlier one may still be among the held: it is written, and we have not heard of that yet.
    """
    queued = [held for held in ending if held.queue_id is not None]
    if not queued:
        return []
    known = {id(held) for held in queued}
    last: dict[tuple[int | None, str], float] = {}
    for other in all_held.values():
        if id(other) not in known:
            queue = (other.queue_id, other.pool_id)
            last[queue] = max(other.taken_at, last.get(queue, other.taken_at))
    return [
        held.queue_id
        for held in queued
        if held.queue_id is not None
        and last.get((held.queue_id, held.pool_id), -math.inf) < held.taken_at
    ]


def ids_text(ids: Iterable[int]) -> str:
    """An array as PostgreSQL writes it: drivers take three times as long to make it of a list."""
    return f"{{{','.join(map(str, ids))}}}"


def _when(when: When | None) -> dict[str, object]:
    moment, delay = when_args(when)
    return {"run_at": moment, "delay": delay}


def _read_all_held(rows: Sequence[Row], tasks: Mapping[int, str]) -> list[HeldJob]:
    return [_read_held(row, tasks) for row in sorted(rows, key=_place)]


def _place(row: Row) -> tuple[int, float, int]:
    """The order in which jobs run: by priority, then run_at, then id."""
    return row[4], float(row[5] or row[9]), row[0]


def _read_held(row: Row, tasks: Mapping[int, str]) -> HeldJob:
    job = read_job(row)
    job.task_identifier = tasks[row[1]]
    return HeldJob(job, row[JOB_COLUMNS])


def _read_ids(rows: Sequence[Row]) -> set[int]:
    return {row[0] for row in rows}

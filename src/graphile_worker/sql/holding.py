"""Queries by which a pool takes jobs and lets go of them; the latter are fenced by its id."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from graphile_worker.jobs import Job, When
from graphile_worker.sql.jobs import JOB_COLUMNS, read_job, when_args
from graphile_worker.sql.migrations import FETCH_INDEXES
from graphile_worker.sql.query import Query, Row, read_nothing

# In place of a payload that was not sent: this and its size in bytes.
UNREAD = "#"

# The largest limit that a statement takes; no payload can be as large.
NO_LIMIT = 2**31 - 1

# Where a job stands among the others: its priority and run_at.
Place = tuple[int, datetime]


@dataclass(slots=True)
class HeldJob:
    """A job that this pool has locked, the row of its named queue, and when we got it.

    The first job of a fetch by `get_plain_jobs` also has for how long the server searched.
    A payload that did not come with the fetch has `unread_bytes`, and no text until it is read.
    One is made for every job: not frozen, which would take three times as long.
    """

    job: Job
    queue_id: int | None
    taken_at: float = field(default=0.0, compare=False)
    search_seconds: float = field(default=0.0, compare=False)
    unread_bytes: int = 0
    size: int = field(init=False, compare=False)
    """How large its payload is, read or not."""

    def __post_init__(self) -> None:
        self.size = self.unread_bytes or len(self.job.payload_text)

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


@dataclass(frozen=True, slots=True)
class Unheld:
    """What is locked for a pool that does not know of it."""

    job_ids: set[int]
    queue_ids: set[int]


def register_tasks(identifiers: list[str], milliseconds: int | None = None) -> Query[None]:
    return Query("register_tasks", (identifiers, milliseconds), read_nothing)


def get_task_ids(identifiers: list[str]) -> Query[dict[int, str]]:
    return Query("get_task_ids", (identifiers,), lambda rows: {row[0]: row[1] for row in rows})


def find_indexes() -> Query[bool]:
    """Can `get_jobs` be used, or does it lack its indexes? Asked by those who have a task."""
    return Query("find_indexes", (list(FETCH_INDEXES),), lambda rows: bool(rows[0][0]))


def _take_jobs(
    statement: str,
    pool_id: str,
    tasks: Mapping[int, str],
    *,
    skip_flags: list[str] | None = None,
    limit: int = 1,
    now: When | None = None,
    since: Place | None = None,
    max_bytes: int = NO_LIMIT,
) -> Query[list[HeldJob]]:
    """Take jobs; with `since` none that would go before that place.

    A payload of more than `max_bytes` does not come along.
    """
    priority, run_at = since or (None, None)
    moment, first = when_args(now)[0], when_args(run_at)[0]
    most = min(max_bytes, NO_LIMIT)
    args = (pool_id, list(tasks), skip_flags, limit, moment, priority, first, most)
    read = _read_plain if statement == "get_plain_jobs" else _read_all_held
    return Query(statement, args, lambda rows: read(rows, tasks))


def find_waiting_tasks(
    limit: int, *, after: int, most: int, now: When | None = None, since: Place | None = None
) -> Query[tuple[dict[int, str], int]]:
    """Find tasks that have jobs: those of the soonest jobs, and the next ones behind an id.

    Returns them with the id behind which there may be more, 0 if there are none.
    """
    priority, run_at = since or (None, None)
    moment, first = when_args(now)[0], when_args(run_at)[0]
    args = (limit, moment, priority, first, after, most)
    return Query("find_waiting_tasks", args, lambda rows: _read_waiting(rows, most))


# Only an empty answer means that there is nothing to take, a short one does not. The second one is
# for a schema without our indexes.
get_jobs = partial(_take_jobs, "get_jobs")
get_jobs_unindexed = partial(_take_jobs, "get_jobs_unindexed")

# The same for a third of the price, if they succeed: an empty answer says nothing.
get_plain_jobs = partial(_take_jobs, "get_plain_jobs")
get_soonest_jobs = partial(_take_jobs, "get_soonest_jobs")


def get_payload(job_id: int, pool_id: str) -> Query[str | None]:
    return Query("get_payload", (job_id, pool_id), lambda rows: rows[0][0] if rows else None)


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


def find_unheld_jobs(pool_id: str, held_ids: list[int], held_queue_ids: list[int]) -> Query[Unheld]:
    return Query("find_unheld_jobs", (pool_id, held_ids, held_queue_ids), _read_unheld)


def return_unheld_jobs(
    pool_id: str, found: Unheld, held_ids: list[int], held_queue_ids: list[int]
) -> Query[set[int]]:
    args = (pool_id, sorted(found.job_ids), sorted(found.queue_ids), held_ids, held_queue_ids)
    return Query("return_unheld_jobs", args, _read_ids)


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


def _read_plain(rows: Sequence[Row], tasks: Mapping[int, str]) -> list[HeldJob]:
    taken = _read_all_held(rows, tasks)
    if taken:
        taken[0].search_seconds = float(rows[0][JOB_COLUMNS + 1])
    return taken


def _place(row: Row) -> tuple[int, float, int]:
    """The order in which jobs run: by priority, then run_at, then id."""
    return row[4], float(row[5] or row[9]), row[0]


def _read_held(row: Row, tasks: Mapping[int, str]) -> HeldJob:
    job = read_job(row)
    job.task_identifier = tasks[row[1]]
    if job.payload_text[0] != UNREAD:
        return HeldJob(job, row[JOB_COLUMNS])
    unread_bytes, job.payload_text = int(job.payload_text[1:]), ""
    return HeldJob(job, row[JOB_COLUMNS], unread_bytes=unread_bytes)


def _read_unheld(rows: Sequence[Row]) -> Unheld:
    return Unheld(
        {job_id for job_id, _ in rows if job_id is not None},
        {queue_id for _, queue_id in rows if queue_id is not None},
    )


def _read_waiting(rows: Sequence[Row], most: int) -> tuple[dict[int, str], int]:
    following = [task_id for task_id, _, is_next in rows if is_next]
    found = {task_id: name for task_id, name, _ in rows if name is not None}
    return found, max(following) if len(following) == most else 0


def _read_ids(rows: Sequence[Row]) -> set[int]:
    return {row[0] for row in rows}

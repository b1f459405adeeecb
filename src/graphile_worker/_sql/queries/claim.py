"""Queries with which a pool claims jobs, and completes, fails or releases them as their owner."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import NamedTuple

from graphile_worker._sql.queries.history import KeptRun, encode_runs
from graphile_worker._sql.queries.jobs import JOB_COLUMNS, encode_when, read_ids, read_job
from graphile_worker._sql.queries.migrations import FETCH_INDEXES
from graphile_worker._sql.query import Query, Row, read_bool, read_dict, read_first
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.jobs import Job, RunAt

# The statement sends this character and the size in bytes instead of a payload over the limit.
UNREAD_MARK = "#"

# The largest limit that a statement takes. Payloads are smaller.
NO_BYTE_LIMIT = 2**31 - 1

# The priority and run_at of a job, by which jobs are ordered.
JobPosition = tuple[int, datetime]


@dataclass(slots=True)
class ClaimedJob:
    """A job that this pool has locked, the id of its named queue, and when it was claimed.

    Not frozen: one is made for every job, and frozen ones take three times as long.
    """

    job: Job
    queue_id: int | None
    claimed_at: float = field(default=0.0, compare=False)
    search_seconds: float = field(default=0.0, compare=False)
    """The search time of the server, for the first job of `claim_plain_jobs` and `claim_jobs`."""
    is_all_ready: bool = field(default=False, compare=False)
    """Whether no other job was ready, set for the first job of `claim_plain_jobs` and
    `claim_soonest_jobs`."""
    is_behind_soonest: bool = field(default=False, compare=False)
    """Whether `claim_jobs` found the job behind the soonest jobs, too few of which are ready."""
    unread_bytes: int = 0
    """The size of a payload that was not sent with the claim, otherwise 0."""
    size: int = field(init=False, compare=False)
    """The size of the payload, sent or not."""

    def __post_init__(self) -> None:
        self.size = self.unread_bytes or len(self.job.payload_text)

    @property
    def pool_id(self) -> str:
        """Return the id of the pool at the time of the claim. The pool may have a new id since."""
        return self.job.locked_by or ""


class FailedAttempt(LazyDataclass):
    """How a claimed job failed. Without `when` the usual backoff applies.

    For a batch job `payload` contains the items that remain, as JSON.
    """

    job: Job
    message: str
    when: RunAt | None = None
    is_permanent: bool = False
    payload: str | None = None
    error_class: str | None = None
    """The import path of the class of the error, which outcomes and attempts keep."""


class ReleasedJob(LazyDataclass):
    """A claimed job to release, its attempt not counted. `when` sets a later run_at."""

    job: Job
    when: RunAt | None = None


class OrphanedClaims(LazyDataclass):
    """Jobs and queues that are locked for a pool which does not know about them."""

    job_ids: set[int]
    queue_ids: set[int]


class ReadyCheck(NamedTuple):
    """What a cheap query shows about ready jobs."""

    may_be_ready: bool
    """False if no job is ready. True does not mean that one is."""
    are_few: bool
    """Whether `claim_soonest_jobs` reads all jobs."""


def register_tasks(identifiers: list[str], milliseconds: int | None = None) -> Query[None]:
    return Query("register_tasks", (identifiers, milliseconds))


def get_task_ids(identifiers: list[str]) -> Query[dict[int, str]]:
    return Query("get_task_ids", (identifiers,), read_dict)


def has_fetch_indexes() -> Query[bool]:
    """Return whether the indexes that `claim_jobs` needs are complete."""
    return Query("has_fetch_indexes", (list(FETCH_INDEXES),), read_bool)


def _build_claim_query(
    statement: str,
    pool_id: str,
    tasks: Mapping[int, str],
    *,
    skip_flags: list[str] | None = None,
    limit: int = 1,
    now: RunAt | None = None,
    since: JobPosition | None = None,
    max_bytes: int = NO_BYTE_LIMIT,
) -> Query[list[ClaimedJob]]:
    """Claim jobs at or after the position `since`, without payloads of more than `max_bytes`."""
    search_range = _encode_range(now, since)
    size_limit = min(max_bytes, NO_BYTE_LIMIT)
    args = (pool_id, list(tasks), skip_flags, limit, *search_range, size_limit)
    read = _CLAIM_READERS.get(statement, _read_claimed_jobs)
    return Query(statement, args, lambda rows: read(rows, tasks))


def find_waiting_tasks(
    limit: int,
    *,
    after_id: int,
    max_tasks: int,
    now: RunAt | None = None,
    since: JobPosition | None = None,
) -> Query[tuple[dict[int, str], int]]:
    """Find tasks with jobs: those of the soonest jobs, and the next ones after an id.

    Returns the tasks, and the id after which there may be more, 0 if there are none.
    """
    args = (limit, *_encode_range(now, since), after_id, max_tasks)
    return Query("find_waiting_tasks", args, lambda rows: _read_waiting_tasks(rows, max_tasks))


# An empty result means that no job is ready. A result below the limit does not. The second
# statement is for a schema without the indexes of this package.
claim_jobs = partial(_build_claim_query, "claim_jobs")
claim_jobs_unindexed = partial(_build_claim_query, "claim_jobs_unindexed")

# These two cost a third. After an empty result, jobs may still be ready.
claim_plain_jobs = partial(_build_claim_query, "claim_plain_jobs")
claim_soonest_jobs = partial(_build_claim_query, "claim_soonest_jobs")

# At most one job. The same holds.
claim_first_job = partial(_build_claim_query, "claim_first_job")

# Around the position of a job that `claim_jobs` found behind many others. The same holds.
claim_jobs_around = partial(_build_claim_query, "claim_jobs_around")


def check_ready_jobs(
    tasks: Mapping[int, str], skip_flags: list[str] | None = None, now: RunAt | None = None
) -> Query[ReadyCheck]:
    args = (list(tasks), skip_flags, encode_when(now)[0])
    return Query("check_ready_jobs", args, lambda rows: ReadyCheck(*rows[0]))


def get_payload(job_id: int, pool_id: str) -> Query[str | None]:
    return Query("get_payload", (job_id, pool_id), read_first)


def complete_claimed_jobs(
    pool_id: str, job_ids: list[int], queue_ids: list[int], *, is_retry: bool = False
) -> Query[set[int]]:
    return Query(
        "complete_claimed_jobs", (format_ids(job_ids), pool_id, queue_ids, is_retry), read_ids
    )


def complete_and_keep_jobs(
    pool_id: str,
    job_ids: list[int],
    queue_ids: list[int],
    runs: Sequence[KeptRun],
    *,
    is_retry: bool = False,
) -> Query[set[int]]:
    """Complete jobs, and keep the outcomes of some of them."""
    args = (format_ids(job_ids), pool_id, queue_ids, is_retry, encode_runs(runs))
    return Query("complete_and_keep_jobs", args, read_ids)


def fail_claimed_jobs(
    pool_id: str, failures: Sequence[FailedAttempt], queue_ids: list[int], *, is_retry: bool = False
) -> Query[set[int]]:
    args = (_encode_failures(failures), pool_id, queue_ids, is_retry)
    return Query("fail_claimed_jobs", args, read_ids)


def fail_and_keep_jobs(
    pool_id: str,
    failures: Sequence[FailedAttempt],
    queue_ids: list[int],
    runs: Sequence[KeptRun],
    *,
    is_retry: bool = False,
) -> Query[set[int]]:
    """Record failures, and keep the attempts and outcomes of some of them."""
    listing = _encode_failures(failures, has_classes=True)
    args = (listing, pool_id, queue_ids, is_retry, encode_runs(runs))
    return Query("fail_and_keep_jobs", args, read_ids)


def release_claimed_jobs(
    pool_id: str, releases: Sequence[ReleasedJob], queue_ids: list[int], *, is_retry: bool = False
) -> Query[set[int]]:
    listing = [
        {
            "id": each.job.id,
            "attempts": each.job.attempts,
            "keyed": each.job.key is not None,
            **_encode_run_at(each.when),
        }
        for each in releases
    ]
    return Query(
        "release_claimed_jobs", (json.dumps(listing), pool_id, queue_ids, is_retry), read_ids
    )


def find_blocked_jobs(pool_id: str, job_ids: list[int]) -> Query[set[int]]:
    return Query("find_blocked_jobs", (job_ids, pool_id), read_ids)


def find_orphaned_claims(
    pool_id: str, claimed_ids: list[int], claimed_queue_ids: list[int]
) -> Query[OrphanedClaims]:
    return Query(
        "find_orphaned_claims", (pool_id, claimed_ids, claimed_queue_ids), _read_orphaned_claims
    )


def release_orphaned_claims(
    pool_id: str, orphaned: OrphanedClaims, claimed_ids: list[int], claimed_queue_ids: list[int]
) -> Query[set[int]]:
    args = (
        pool_id,
        sorted(orphaned.job_ids),
        sorted(orphaned.queue_ids),
        claimed_ids,
        claimed_queue_ids,
    )
    return Query("release_orphaned_claims", args, read_ids)


def notify_jobs(count: int) -> Query[None]:
    return Query("notify_jobs", (count,))


def find_releasable_queues(
    ended: Sequence[ClaimedJob], claimed_jobs: Mapping[int, ClaimedJob]
) -> list[int]:
    """Return the named queues of jobs that end, except those that their pool has locked again.

    A job that was claimed earlier does not count: it ended, and its result is still on the way.
    """
    queued = [claimed for claimed in ended if claimed.queue_id is not None]
    if not queued:
        return []
    known = {id(claimed) for claimed in queued}
    last: dict[tuple[int | None, str], float] = {}
    for other in claimed_jobs.values():
        if id(other) not in known:
            queue = (other.queue_id, other.pool_id)
            last[queue] = max(other.claimed_at, last.get(queue, other.claimed_at))
    return [
        claimed.queue_id
        for claimed in queued
        if claimed.queue_id is not None
        and last.get((claimed.queue_id, claimed.pool_id), -math.inf) < claimed.claimed_at
    ]


def format_ids(ids: Iterable[int]) -> str:
    """Format ids as an array literal. Drivers take three times as long to adapt a list."""
    return f"{{{','.join(map(str, ids))}}}"


def _encode_failures(failures: Sequence[FailedAttempt], *, has_classes: bool = False) -> str:
    listing = [
        {
            "id": failure.job.id,
            "attempts": failure.job.attempts,
            "message": failure.message,
            "give_up": failure.is_permanent,
            "payload": failure.payload,
            **_encode_run_at(failure.when),
            **({"error_class": failure.error_class} if has_classes else {}),
        }
        for failure in failures
    ]
    # No escapes: a database that is not UTF-8 can read few of them, if any.
    return json.dumps(listing, ensure_ascii=False)


def _encode_range(now: RunAt | None, since: JobPosition | None) -> tuple[object, ...]:
    priority, run_at = since or (None, None)
    return encode_when(now)[0], priority, encode_when(run_at)[0]


def _encode_run_at(when: RunAt | None) -> dict[str, object]:
    run_at, delay = encode_when(when)
    return {"run_at": run_at, "delay": delay}


def _read_claimed_jobs(rows: Sequence[Row], tasks: Mapping[int, str]) -> list[ClaimedJob]:
    return [_read_claimed_job(row, tasks) for row in sorted(rows, key=_get_position)]


def _read_plain_jobs(rows: Sequence[Row], tasks: Mapping[int, str]) -> list[ClaimedJob]:
    claimed = _read_soonest_jobs(rows, tasks)
    if claimed:
        claimed[0].search_seconds = float(rows[0][JOB_COLUMNS + 2])
    return claimed


def _read_soonest_jobs(rows: Sequence[Row], tasks: Mapping[int, str]) -> list[ClaimedJob]:
    claimed = _read_claimed_jobs(rows, tasks)
    if claimed:
        # Fewer were claimed if another session has locked some of them.
        claimed[0].is_all_ready = rows[0][JOB_COLUMNS + 1] == len(claimed)
    return claimed


def _read_scanned_jobs(rows: Sequence[Row], tasks: Mapping[int, str]) -> list[ClaimedJob]:
    claimed = _read_claimed_jobs(rows, tasks)
    if claimed:
        claimed[0].search_seconds = float(rows[0][JOB_COLUMNS + 1])
        behind = {row[0] for row in rows if row[JOB_COLUMNS + 2]}
        for each in claimed:
            each.is_behind_soonest = each.job.id in behind
    return claimed


_CLAIM_READERS = {
    "claim_first_job": _read_plain_jobs,
    "claim_plain_jobs": _read_plain_jobs,
    "claim_soonest_jobs": _read_soonest_jobs,
    "claim_jobs": _read_scanned_jobs,
}


def _get_position(row: Row) -> tuple[int, float, int]:
    """Return the sort key of the order in which jobs run: priority, run_at, id."""
    return row[4], float(row[5] or row[9]), row[0]


def _read_claimed_job(row: Row, tasks: Mapping[int, str]) -> ClaimedJob:
    job = read_job(row)
    job.task_identifier = tasks[row[1]]
    if job.payload_text[0] != UNREAD_MARK:
        return ClaimedJob(job, row[JOB_COLUMNS])
    unread_bytes, job.payload_text = int(job.payload_text[1:]), ""
    return ClaimedJob(job, row[JOB_COLUMNS], unread_bytes=unread_bytes)


def _read_orphaned_claims(rows: Sequence[Row]) -> OrphanedClaims:
    return OrphanedClaims(
        {job_id for job_id, _ in rows if job_id is not None},
        {queue_id for _, queue_id in rows if queue_id is not None},
    )


def _read_waiting_tasks(rows: Sequence[Row], max_tasks: int) -> tuple[dict[int, str], int]:
    following = [task_id for task_id, _, is_next in rows if is_next]
    tasks = {task_id: name for task_id, name, _ in rows if name is not None}
    return tasks, max(following) if len(following) == max_tasks else 0

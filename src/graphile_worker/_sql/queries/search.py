"""Queries that list, count and change the jobs that a filter selects."""

from collections.abc import Sequence
from typing import Any, TypeVar

from graphile_worker._sql.queries.jobs import encode_when
from graphile_worker._sql.query import Query, Row, RowReader, read_column, read_count, read_first
from graphile_worker._sql.statement import Clause, Statement, collect_args
from graphile_worker.jobs import RunAt

T = TypeVar("T")

Clauses = Sequence[Clause]

# The ids of the jobs that a statement changed, and the number of jobs that it left to the worker
# that has locked them.
ChangedJobs = tuple[list[int], int]


def set_query_limits(
    milliseconds: int, lock_milliseconds: int, *, prefer_indexes: bool = False
) -> Query[None]:
    return Query("set_query_limits", (milliseconds, lock_milliseconds, prefer_indexes))


def list_jobs(
    dead_pool_ids: list[str], before: int, limit: int, clauses: Clauses
) -> Query[list[Row]]:
    return _build_query("list_jobs", (dead_pool_ids, before, limit), clauses, list)


def count_jobs(dead_pool_ids: list[str], clauses: Clauses) -> Query[list[Row]]:
    return _build_query("count_jobs", (dead_pool_ids,), clauses, list)


def count_some_jobs(dead_pool_ids: list[str], max_count: int, clauses: Clauses) -> Query[list[Row]]:
    return _build_query("count_some_jobs", (dead_pool_ids, max_count), clauses, list)


def list_task_names(limit: int) -> Query[list[str]]:
    return Query("list_task_names", (limit,), read_column)


def list_queue_names(limit: int) -> Query[list[str]]:
    return Query("list_queue_names", (limit,), read_column)


def list_queues(
    dead_pool_ids: list[str], name_pattern: str, after_rank: int, after_name: str, limit: int
) -> Query[list[Row]]:
    """Return named queues after a position, those that are locked first."""
    args = (dead_pool_ids, name_pattern, after_rank, after_name, limit)
    return Query("list_queues", args, list)


def count_queue_jobs(queue_ids: list[int], max_count: int) -> Query[list[Row]]:
    return Query("count_queue_jobs", (queue_ids, max_count), list)


def scan_queue_jobs(queue_ids: list[int]) -> Query[list[Row]]:
    return Query("scan_queue_jobs", (queue_ids,), list)


def get_queue_holders(queue_ids: list[int]) -> Query[list[Row]]:
    return Query("get_queue_holders", (queue_ids,), list)


def find_job_ids(
    after: int, until: int, limit: int, clauses: Clauses
) -> Query[tuple[int | None, list[int]]]:
    """Return the id at which the search stopped, None at the end, and the matching ids."""
    return _build_query("find_job_ids", (after, until, limit), clauses, _read_pair)


def retry_jobs(ids: list[int], clauses: Clauses) -> Query[ChangedJobs]:
    return _build_query("retry_jobs", (ids,), clauses, _read_pair)


def reschedule_chosen_jobs(
    ids: list[int],
    run_at: RunAt | None,
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
    clauses: Clauses,
) -> Query[ChangedJobs]:
    args = (ids, *encode_when(run_at), priority, attempts, max_attempts)
    return _build_query("reschedule_chosen_jobs", args, clauses, _read_pair)


def fail_chosen_jobs(ids: list[int], reason: str | None, clauses: Clauses) -> Query[ChangedJobs]:
    return _build_query("fail_chosen_jobs", (ids, reason), clauses, _read_pair)


def complete_chosen_jobs(ids: list[int], clauses: Clauses) -> Query[ChangedJobs]:
    return _build_query("complete_chosen_jobs", (ids,), clauses, _read_pair)


def unlock_chosen_jobs(ids: list[int], clauses: Clauses) -> Query[ChangedJobs]:
    return _build_query("unlock_chosen_jobs", (ids,), clauses, _read_pair)


def get_scan_end(before: int, count: int) -> Query[int | None]:
    """Return the lowest id of this number of jobs before an id, None if there are fewer."""
    return Query("get_scan_end", (before, count), read_first)


def list_failing_jobs(from_id: int, before: int, limit: int) -> Query[list[Row]]:
    return Query("list_failing_jobs", (from_id, before, limit), list)


def get_job_status(dead_pool_ids: list[str], job_id: int) -> Query[Row | None]:
    return Query("get_job_status", (dead_pool_ids, job_id), lambda rows: rows[0] if rows else None)


def get_payload_text(job_id: int, max_chars: int) -> Query[tuple[str, int] | None]:
    """Return the start of a payload and its size in bytes, or None if the job does not exist."""
    args = (job_id, max_chars)
    return Query("get_payload_text", args, lambda rows: _read_pair(rows) if rows else None)


def get_queue_holder(queue_id: int) -> Query[tuple[int, str | None] | None]:
    return Query("get_queue_holder", (queue_id,), lambda rows: _read_pair(rows) if rows else None)


def count_jobs_ahead(
    job_id: int, tasks: list[str] | None, max_count: int
) -> Query[tuple[int, bool]]:
    """Count the jobs that run before a job, and return whether there may be more."""
    return Query("count_jobs_ahead", (job_id, tasks, max_count), lambda rows: tuple(rows[0]))


def count_queue_ahead(job_id: int, max_count: int) -> Query[int]:
    return Query("count_queue_ahead", (job_id, max_count), read_count)


def _build_query(
    name: str, args: tuple[object, ...], clauses: Clauses, read: RowReader[T]
) -> Query[T]:
    statement = Statement.with_clauses(name, clauses)
    return Query(statement, (*args, *collect_args(clauses)), read)


def _read_pair(rows: Sequence[Row]) -> tuple[Any, Any]:
    return rows[0][0], rows[0][1]

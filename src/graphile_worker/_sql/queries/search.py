"""Queries that look for jobs, in a list, in numbers or bit by bit, and change what they find."""

from collections.abc import Sequence

from graphile_worker._sql.conditions import Clause, add_clauses, collect_args
from graphile_worker._sql.queries.cleanup import read_count
from graphile_worker._sql.queries.jobs import encode_when
from graphile_worker._sql.query import Query, Row, read_nothing
from graphile_worker.jobs import RunAt

# Which jobs are meant.
Clauses = Sequence[Clause]


def set_query_limits(
    milliseconds: int, lock_milliseconds: int, *, prefer_indexes: bool = False
) -> Query[None]:
    return Query(
        "set_query_limits", (milliseconds, lock_milliseconds, prefer_indexes), read_nothing
    )


def list_jobs(
    dead_pool_ids: list[str], before: int, limit: int, clauses: Clauses
) -> Query[list[Row]]:
    args = (dead_pool_ids, before, limit, *collect_args(clauses))
    return Query(add_clauses("list_jobs", clauses), args, list)


def count_jobs(dead_pool_ids: list[str], clauses: Clauses) -> Query[list[Row]]:
    return Query(add_clauses("count_jobs", clauses), (dead_pool_ids, *collect_args(clauses)), list)


def find_job_ids(
    after: int, until: int, limit: int, clauses: Clauses
) -> Query[tuple[int | None, list[int]]]:
    """Where the looking ended, None if nothing was left, and what was found."""
    args = (after, until, limit, *collect_args(clauses))
    return Query(add_clauses("find_job_ids", clauses), args, lambda rows: (rows[0][0], rows[0][1]))


# Changes: each says how many jobs it changed, and how many it left to whoever holds them.
ChangeCounts = tuple[int, int]


def retry_jobs(ids: list[int], clauses: Clauses) -> Query[ChangeCounts]:
    return Query(
        add_clauses("retry_jobs", clauses), (ids, *collect_args(clauses)), _read_change_counts
    )


def reschedule_chosen_jobs(
    ids: list[int],
    run_at: RunAt | None,
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
    clauses: Clauses,
) -> Query[ChangeCounts]:
    given = (ids, *encode_when(run_at), priority, attempts, max_attempts)
    statement = add_clauses("reschedule_chosen_jobs", clauses)
    return Query(statement, (*given, *collect_args(clauses)), _read_change_counts)


def fail_chosen_jobs(ids: list[int], reason: str | None, clauses: Clauses) -> Query[ChangeCounts]:
    statement = add_clauses("fail_chosen_jobs", clauses)
    return Query(statement, (ids, reason, *collect_args(clauses)), _read_change_counts)


def complete_chosen_jobs(ids: list[int], clauses: Clauses) -> Query[ChangeCounts]:
    statement = add_clauses("complete_chosen_jobs", clauses)
    return Query(statement, (ids, *collect_args(clauses)), _read_change_counts)


def unlock_chosen_jobs(ids: list[int], clauses: Clauses) -> Query[ChangeCounts]:
    statement = add_clauses("unlock_chosen_jobs", clauses)
    return Query(statement, (ids, *collect_args(clauses)), _read_change_counts)


def _read_change_counts(rows: Sequence[Row]) -> ChangeCounts:
    return rows[0][0], rows[0][1]


# What one job waits for


def get_job_status(dead_pool_ids: list[str], job_id: int) -> Query[Row | None]:
    return Query("get_job_status", (dead_pool_ids, job_id), lambda rows: rows[0] if rows else None)


def get_queue_holder(queue_id: int) -> Query[tuple[int, str | None] | None]:
    return Query(
        "get_queue_holder", (queue_id,), lambda rows: (rows[0][0], rows[0][1]) if rows else None
    )


def count_jobs_ahead(job_id: int, tasks: list[str] | None, max_count: int) -> Query[int]:
    return Query("count_jobs_ahead", (job_id, tasks, max_count), read_count)


def count_queue_ahead(job_id: int, max_count: int) -> Query[int]:
    return Query("count_queue_ahead", (job_id, max_count), read_count)

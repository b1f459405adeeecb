"""Queries that look for jobs, in a list, in numbers or bit by bit, and change what they find."""

from collections.abc import Sequence

from graphile_worker.jobs import When
from graphile_worker.sql.admin import read_count
from graphile_worker.sql.conditions import Clause, args_of, with_clauses
from graphile_worker.sql.jobs import when_args
from graphile_worker.sql.query import Query, Row, read_nothing

# Which jobs are meant.
Clauses = Sequence[Clause]


def limit_time(
    milliseconds: int, lock_milliseconds: int, *, by_indexes: bool = False
) -> Query[None]:
    return Query("limit_time", (milliseconds, lock_milliseconds, by_indexes), read_nothing)


def list_jobs(dead: list[str], before: int, limit: int, clauses: Clauses) -> Query[list[Row]]:
    args = (dead, before, limit, *args_of(clauses))
    return Query(with_clauses("list_jobs", clauses), args, list)


def count_jobs(dead: list[str], clauses: Clauses) -> Query[list[Row]]:
    return Query(with_clauses("count_jobs", clauses), (dead, *args_of(clauses)), list)


def find_job_ids(
    after: int, until: int, limit: int, clauses: Clauses
) -> Query[tuple[int | None, list[int]]]:
    """Where the looking ended, None if nothing was left, and what was found."""
    args = (after, until, limit, *args_of(clauses))
    return Query(with_clauses("find_job_ids", clauses), args, lambda rows: (rows[0][0], rows[0][1]))


# Changes: each says how many jobs it changed, and how many it left to whoever holds them.
Changed = tuple[int, int]


def retry_jobs(ids: list[int], clauses: Clauses) -> Query[Changed]:
    return Query(with_clauses("retry_jobs", clauses), (ids, *args_of(clauses)), _read_changed)


def reschedule_chosen_jobs(
    ids: list[int],
    run_at: When | None,
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
    clauses: Clauses,
) -> Query[Changed]:
    given = (ids, *when_args(run_at), priority, attempts, max_attempts)
    statement = with_clauses("reschedule_chosen_jobs", clauses)
    return Query(statement, (*given, *args_of(clauses)), _read_changed)


def fail_chosen_jobs(ids: list[int], reason: str | None, clauses: Clauses) -> Query[Changed]:
    statement = with_clauses("fail_chosen_jobs", clauses)
    return Query(statement, (ids, reason, *args_of(clauses)), _read_changed)


def complete_chosen_jobs(ids: list[int], clauses: Clauses) -> Query[Changed]:
    statement = with_clauses("complete_chosen_jobs", clauses)
    return Query(statement, (ids, *args_of(clauses)), _read_changed)


def unlock_chosen_jobs(ids: list[int], clauses: Clauses) -> Query[Changed]:
    statement = with_clauses("unlock_chosen_jobs", clauses)
    return Query(statement, (ids, *args_of(clauses)), _read_changed)


def _read_changed(rows: Sequence[Row]) -> Changed:
    return rows[0][0], rows[0][1]


# What one job waits for


def get_situation(dead: list[str], job_id: int) -> Query[Row | None]:
    return Query("get_situation", (dead, job_id), lambda rows: rows[0] if rows else None)


def get_queue_holder(queue_id: int) -> Query[tuple[int, str | None] | None]:
    return Query(
        "get_queue_holder", (queue_id,), lambda rows: (rows[0][0], rows[0][1]) if rows else None
    )


def count_jobs_ahead(job_id: int, tasks: list[str] | None, most: int) -> Query[int]:
    return Query("count_jobs_ahead", (job_id, tasks, most), read_count)


def count_queue_ahead(job_id: int, most: int) -> Query[int]:
    return Query("count_queue_ahead", (job_id, most), read_count)

"""Queries that list ended jobs, read what is kept of one, and inspect the slots of the history."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.search import Clauses
from graphile_worker._sql.query import (
    Query,
    Row,
    RowReader,
    read_as,
    read_bool,
    read_column,
    read_first,
)
from graphile_worker._sql.statement import Statement, collect_args
from graphile_worker.jobs import EPOCH, parse_timestamp

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot of the history: estimated outcomes, bytes, and whether this role may empty it."""

    slot: int
    rows: int
    bytes: int
    can_truncate: bool
    can_update: bool


def can_read_history(schemas: Schemas) -> Query[bool]:
    """Return whether the tables of the history exist, and this role may read them."""
    return Query("can_read_history", (schemas.companion,), read_bool)


def list_outcomes(
    since: str, until: str, before: int, limit: int, clauses: Clauses
) -> Query[list[Row]]:
    """Return outcomes from `since` on, and before the time `until` and the job id `before`."""
    return _build_query("list_outcomes", (since, until, before, limit), clauses)


def list_failed_outcomes(
    since: str, until: str, before: int, limit: int, clauses: Clauses
) -> Query[list[Row]]:
    return _build_query("list_failed_outcomes", (since, until, before, limit), clauses)


def list_task_outcomes(
    since: str,
    until: str,
    before: int,
    limit: int,
    succeeded_tasks: list[str],
    failed_tasks: list[str],
    clauses: Clauses,
) -> Query[list[Row]]:
    args = (since, until, before, limit, succeeded_tasks, failed_tasks)
    return _build_query("list_task_outcomes", args, clauses)


def summarize_outcomes(
    since: str, until: str, step_seconds: int, limit: int, clauses: Clauses
) -> Query[list[Row]]:
    """Return counts and percentiles of outcomes in buckets of time."""
    return _build_query("summarize_outcomes", (since, until, step_seconds, limit), clauses)


def sample_outcomes(
    since: str, until: str, step_seconds: int, percent: str, slots: list[int], clauses: Clauses
) -> Query[list[Row]]:
    """Return counts and percentiles of a part of the outcomes of some slots."""
    return _build_query("sample_outcomes", (since, until, step_seconds, percent, slots), clauses)


def list_kept_tasks(limit: int) -> Query[list[str]]:
    """Return the names of tasks that have outcomes."""
    return Query("list_kept_tasks", (limit,), read_column)


def get_job_outcomes(job_id: int, limit: int) -> Query[list[Row]]:
    return Query("get_job_outcomes", (job_id, limit), list)


def can_read_results(schemas: Schemas) -> Query[bool]:
    """Return whether this role may read results and payloads, which have their own privileges."""
    return Query("can_read_results", (schemas.companion,), read_bool)


def get_job_results(job_id: int, limit: int) -> Query[dict[str, tuple[str | None, str | None]]]:
    """Return the results and payloads of a job, by the times at which its runs ended."""
    return Query(
        "get_job_results",
        (job_id, limit),
        lambda rows: {time: (result, payload) for time, result, payload in rows},
    )


def get_job_attempts(job_id: int, limit: int) -> Query[list[Row]]:
    return Query("get_job_attempts", (job_id, limit), list)


def get_job_progress(job_ids: list[int]) -> Query[list[Row]]:
    return Query("get_job_progress", (job_ids,), list)


def inspect_slots(schemas: Schemas) -> Query[list[SlotRow]]:
    return Query("inspect_slots", (schemas.companion,), read_as(SlotRow))


def get_oldest_outcome(slot: int) -> Query[datetime | None]:
    """Return when the first outcome of a slot ended, or None if it has no outcomes."""
    return Query("get_oldest_outcome", (slot,), _read_time)


def encode_time(time: datetime) -> str:
    """Encode a time as seconds since 1970, in a text."""
    # Without astimezone(UTC), which cannot convert the first and last hours of Python's calendar.
    seconds, microseconds = divmod((time - EPOCH) // MICROSECOND, 1_000_000)
    # In two numbers, the fraction counts up from the seconds also before 1970.
    if seconds < 0 and microseconds:
        return f"-{-seconds - 1}.{1_000_000 - microseconds:06}"
    return f"{seconds}.{microseconds:06}"


def _build_query(name: str, args: tuple[object, ...], clauses: Clauses) -> Query[list[Row]]:
    read: RowReader[list[Row]] = list
    return Query(Statement.with_clauses(name, clauses), (*args, *collect_args(clauses)), read)


def _read_time(rows: Sequence[Row]) -> datetime | None:
    value = read_first(rows)
    return None if value is None else parse_timestamp(value)

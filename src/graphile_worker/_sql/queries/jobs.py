"""Queries that add, get and change jobs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, Row
from graphile_worker.jobs import Job, JobKeyMode, JobSpec, RunAt

# The columns of a Job in a row: id, two names, and those of fragments/job_columns.sql.
JOB_COLUMNS = 16

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class AddingState:
    """The functions and the table with which a schema adds jobs."""

    version: str
    """An argument of the statements that insert jobs. It changes with the functions."""
    is_plain: bool
    """Whether this role may call the functions, they run with its privileges, no trigger sees
    inserts, and the session reads nulls in arrays."""
    add_job_body: str
    add_jobs_body: str
    can_read_ledger: bool


@dataclass(frozen=True, slots=True)
class InsertedJobs:
    """The ids of jobs that were inserted, in order, and the time. No ids: nothing was inserted."""

    is_current: bool
    """Whether the version is still valid, and still no trigger sees inserts."""
    ids: list[int]
    now: str


@dataclass(frozen=True, slots=True)
class UpsertedJobs:
    """The rows of jobs that were added or changed, with the columns of `add_jobs`."""

    is_current: bool
    """Whether the version is still valid, and still no trigger sees inserts."""
    rows: list[Row]


def add_job(spec: JobSpec, payload: str | None) -> Query[list[Row]]:
    flags = list(spec.flags) if spec.flags else None
    args = (
        spec.identifier,
        payload,
        spec.queue_name,
        *encode_when(spec.run_at),
        spec.max_attempts,
        spec.job_key,
        spec.priority,
        flags,
        str(spec.job_key_mode or "replace"),
    )
    return Query("add_job", args, list)


def add_jobs(specs_json: str, expected: int | None) -> Query[list[Row]]:
    return Query("add_jobs", (specs_json, expected), list)


def inspect_adding(schemas: Schemas) -> Query[AddingState | None]:
    return Query("inspect_adding", (schemas.shared,), _read_adding_state)


def insert_job(
    spec: JobSpec, payload: str | None, version: str, *, notify: bool
) -> Query[InsertedJobs]:
    args = (
        spec.identifier,
        payload,
        spec.queue_name,
        *encode_when(spec.run_at),
        spec.max_attempts,
        spec.priority,
        list(spec.flags) if spec.flags else None,
        version,
        notify,
    )
    return Query("insert_job", args, _read_inserted)


def insert_jobs(
    specs: Sequence[JobSpec], payloads: Sequence[str | None], version: str, *, notify: bool
) -> Query[InsertedJobs]:
    args = (*_encode_specs(specs, payloads, version), notify)
    return Query("insert_jobs", args, _read_inserted)


def upsert_jobs(
    specs: Sequence[JobSpec], payloads: Sequence[str | None], version: str, expected: int | None
) -> Query[UpsertedJobs]:
    keyed = [spec for spec in specs if spec.job_key is not None]
    preserved = [spec.job_key for spec in keyed if spec.job_key_mode == JobKeyMode.PRESERVE_RUN_AT]
    args = (
        *_encode_specs(specs, payloads, version),
        encode_array([spec.job_key for spec in specs]),
        encode_array(preserved),
        expected,
    )
    return Query("upsert_jobs", args, _read_upserted)


def dedupe_job(spec: JobSpec, payload: str | None, version: str) -> Query[UpsertedJobs]:
    args = (*_encode_specs([spec], [payload], version), encode_array([spec.job_key]))
    return Query("dedupe_job", args, _read_upserted)


def create_names(
    identifiers: Sequence[str | None], queue_names: Sequence[str | None]
) -> Query[None]:
    return Query("create_names", (encode_array(identifiers), encode_array(queue_names)))


def get_task_and_queue_names(task_ids: list[int], queue_ids: list[int]) -> Query[list[Row]]:
    return Query("get_task_and_queue_names", (task_ids, queue_ids), list)


def get_job(job_id: int) -> Query[Job | None]:
    return Query("get_job", (job_id,), read_one_job)


def get_job_by_key(job_key: str) -> Query[Job | None]:
    return Query("get_job_by_key", (job_key,), read_one_job)


def remove_job(job_key: str) -> Query[Job | None]:
    return Query("remove_job", (job_key,), read_one_job)


def complete_jobs(job_ids: list[int]) -> Query[list[Job]]:
    return Query("complete_jobs", (job_ids,), read_jobs)


def permanently_fail_jobs(job_ids: list[int], reason: str | None) -> Query[list[Job]]:
    return Query("permanently_fail_jobs", (job_ids, reason), read_jobs)


def reschedule_jobs(
    job_ids: list[int],
    *,
    run_at: RunAt | None,
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
) -> Query[list[Job]]:
    args = (job_ids, *encode_when(run_at), priority, attempts, max_attempts)
    return Query("reschedule_jobs", args, read_jobs)


def force_unlock_workers(pool_ids: list[str]) -> Query[tuple[list[int], int]]:
    """Return the ids of the unlocked jobs, and the number of unlocked queues."""
    return Query("force_unlock_workers", (pool_ids,), lambda rows: (rows[0][0], rows[0][1]))


def encode_when(when: RunAt | None) -> tuple[str | None, int | None]:
    """Encode a time for every driver: ISO text in UTC, or microseconds from the server's now()."""
    if isinstance(when, datetime):
        return when.astimezone(UTC).isoformat(), None
    if isinstance(when, timedelta):
        return None, when // MICROSECOND
    return None, None


def encode_array(values: Iterable[str | int | None]) -> str | None:
    """Encode values as the text of an array, for every driver. None if all are None."""
    elements = ["null" if value is None else _encode_element(value) for value in values]
    if elements.count("null") == len(elements):
        return None
    return "{" + ",".join(elements) + "}"


def _encode_specs(
    specs: Sequence[JobSpec], payloads: Sequence[str | None], version: str
) -> tuple[str | None, ...]:
    """Encode the arguments of fragments/given_jobs.sql, and the version."""
    whens = [encode_when(spec.run_at) for spec in specs]
    return (
        encode_array([spec.identifier for spec in specs]),
        encode_array(payloads),
        encode_array([spec.queue_name for spec in specs]),
        encode_array([moment for moment, _ in whens]),
        encode_array([delay for _, delay in whens]),
        encode_array([spec.max_attempts for spec in specs]),
        encode_array([spec.priority for spec in specs]),
        encode_array([encode_array(spec.flags) if spec.flags else None for spec in specs]),
        version,
    )


def _encode_element(value: str | int) -> str:
    if isinstance(value, int):
        return str(int(value))
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    # The quotes also keep the text "null" apart from a missing value.
    return '"' + value.replace('"', '\\"') + '"'


def _read_adding_state(rows: Sequence[Row]) -> AddingState | None:
    """Return the state, or None without the schema or one of its functions."""
    if not rows:
        return None
    state = AddingState(*rows[0])
    # A function with overloads is not from any known installer.
    return state if len(rows) == 1 else replace(state, is_plain=False)


def _read_inserted(rows: Sequence[Row]) -> InsertedJobs:
    is_current, ids, now = rows[0]
    numbers = [] if ids is None else [int(number) for number in ids.strip("{}").split(",")]
    return InsertedJobs(is_current, numbers, now)


def _read_upserted(rows: Sequence[Row]) -> UpsertedJobs:
    return UpsertedJobs(rows[0][0], [row[1:] for row in rows if row[1] is not None])


def read_ids(rows: Sequence[Row]) -> set[int]:
    return {row[0] for row in rows}


def read_jobs(rows: Sequence[Row]) -> list[Job]:
    return [read_job(row) for row in rows]


def read_one_job(rows: Sequence[Row]) -> Job | None:
    return read_job(rows[0]) if rows else None


def read_job(row: Row) -> Job:
    return Job(*row[:JOB_COLUMNS])

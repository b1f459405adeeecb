"""Plans that add jobs, and the errors of rejected jobs."""

import json
import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any, NoReturn

from graphile_worker._payloads import encode
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.insert import (
    DEFAULT_MAX_ATTEMPTS,
    DirectInserts,
    compute_run_at,
)
from graphile_worker._sql.queries import jobs as sql
from graphile_worker._sql.queries.jobs import JOB_COLUMNS, encode_when, read_job
from graphile_worker._sql.query import Plan, Row, Transaction
from graphile_worker._sql.sqlstate import (
    MISSING_OBJECT,
    DatabaseErrorInfo,
    get_error_info,
    get_sqlstate,
)
from graphile_worker.errors import JobSpecError, SchemaError, SchemaMissing
from graphile_worker.jobs import Job, JobKeyMode, JobSpec, parse_microseconds

logger = logging.getLogger("graphile_worker")

# A keyed add returns nothing if a worker claims the job at the same moment. The next call sees the
# lock and creates a successor, so this limit needs many such moments in a row.
MAX_ADD_ATTEMPTS = 100

# The error of add_jobs.sql if it lost a key and must not: a division by zero.
LOST_KEY_SQLSTATE = "22012"

# The columns after those of a Job in add_job and add_jobs.
QUEUE_ID_COLUMN, TASK_ID_COLUMN, NOW_COLUMN = JOB_COLUMNS, JOB_COLUMNS + 1, JOB_COLUMNS + 2

# Parts of the keys that _build_spec_key and _build_row_key return.
_NAMES, _VALUES, _NOTHING = slice(2), slice(2, None), slice(0)

_CONSTRAINT_ERRORS = {
    "tasks_identifier_check": ("identifier", "at most 128 characters", "GWBID"),
    "job_queues_queue_name_check": ("queue_name", "at most 128 characters", "GWBQN"),
    "jobs_key_check": ("job_key", "1 to 512 characters", "GWBJK"),
    "jobs_max_attempts_check": ("max_attempts", "must be at least 1", "GWBMA"),
    "unique_keys_key_check": ("unique", "1 to 512 characters", "22023"),
}

_SQLSTATE_ERRORS = {
    "22003": ("priority or max_attempts", "must be from -32768 to 32767"),
    "22008": ("run_at", "outside the range of PostgreSQL"),
    "22P02": ("payload", "not valid JSON for PostgreSQL"),
    "22P05": (
        "payload",
        "it or a name contains NUL, or a character that the database encoding lacks",
    ),
    "21000": ("job_key", "occurs twice in one call"),
    "23502": ("identifier", "must not be null"),
    "54001": ("payload", "nested too deeply"),
    "GWBKM": ("job_key_mode", "expected one of replace, preserve_run_at, unsafe_dedupe"),
    "GWNOR": ("job_key", "stayed locked by other sessions"),
}


def has_windows(specs: Iterable[JobSpec]) -> bool:
    """Return whether one of the specs has a unique key."""
    # A value that is not a spec is rejected later.
    return any(getattr(spec, "unique", None) is not None for spec in specs)


def plan_add_job(
    spec: JobSpec,
    schemas: Schemas,
    *,
    max_bytes: int | None,
    inserts: DirectInserts | None = None,
) -> Plan[Job]:
    """Add one job and return it. Without `inserts`, the function of the database adds it."""
    payload = encode(spec.payload, max_bytes=max_bytes)
    if inserts is not None:
        try:
            inserted = yield from inserts.plan_insert([spec], [payload], schemas)
        except Exception as error:
            raise_job_spec_error(error, schemas, spec)
        if inserted is not None:
            return inserted[0]
    query = sql.add_job(spec, payload)
    for _ in range(MAX_ADD_ATTEMPTS):
        try:
            rows = yield from _plan_upsert(inserts, [spec], [payload], schemas)
            if rows is None:
                rows = yield query
        except Exception as error:
            raise_job_spec_error(error, schemas, spec)
        if rows:
            return (yield from _plan_read_job(rows[0], spec))
    if spec.job_key is None:
        raise _build_discarded_error(1, 1, schemas)
    raise _build_lost_key_error(spec)


def plan_add_jobs(
    specs: Sequence[JobSpec],
    schemas: Schemas,
    *,
    max_bytes: int | None,
    all_or_nothing: bool,
    inserts: DirectInserts | None = None,
) -> Plan[list[Job]]:
    """Add many jobs in one round trip, and return them in the order of the specs.

    Without `inserts`, the function of the database adds them.

    With `all_or_nothing` a batch that lost a key is rolled back and sent again. An error would
    abort a caller's transaction, so there only the jobs with lost keys are sent again.

    Raises:
        SchemaError: A trigger of the table discards jobs.
    """
    payloads = encode_payloads(specs, max_bytes=max_bytes)
    if inserts is not None and specs:
        try:
            inserted = yield from inserts.plan_insert(specs, payloads, schemas)
        except Exception as error:
            raise_job_spec_error(error, schemas)
        if inserted is not None:
            return inserted
    jobs: list[Job | None] = [None] * len(specs)
    missing = list(range(len(specs)))
    for _ in range(MAX_ADD_ATTEMPTS):
        if not missing:
            return [job for job in jobs if job is not None]
        expected = len(missing) if all_or_nothing else None
        try:
            rows = yield from _plan_upsert(
                inserts,
                [specs[index] for index in missing],
                [payloads[index] for index in missing],
                schemas,
                expected=expected,
            )
            if rows is None:
                rows = yield sql.add_jobs(encode_specs(specs, payloads, missing), expected)
        except Exception as error:
            # Without `expected`, it is the error of a trigger.
            if expected is None or get_sqlstate(error) != LOST_KEY_SQLSTATE:
                raise_job_spec_error(error, schemas)
            if all(spec.job_key is None for spec in specs):
                break
            continue
        rows = yield from _plan_fill_names(rows, [specs[index] for index in missing])
        missing = match_rows_to_specs(rows, specs, payloads, missing, jobs=jobs)
        if any(specs[index].job_key is None for index in missing):
            raise _build_discarded_error(len(missing), len(specs), schemas)
    if all_or_nothing:
        # The division by zero does not contain how many rows were missing. If a trigger discards
        # them, the SchemaError rolls this transaction back.
        plan = partial(plan_add_jobs, specs, schemas, max_bytes=max_bytes, all_or_nothing=False)
        added: list[Job] = yield Transaction(plan)
        return added
    raise _build_lost_key_error(
        next(specs[index] for index in missing if specs[index].job_key is not None)
    )


def _plan_upsert(
    inserts: DirectInserts | None,
    specs: Sequence[JobSpec],
    payloads: Sequence[str | None],
    schemas: Schemas,
    *,
    expected: int | None = None,
) -> Plan[Sequence[Row] | None]:
    if inserts is None:
        return None
    return (yield from inserts.plan_upsert(specs, payloads, schemas, expected=expected))


def match_rows_to_specs(
    rows: Sequence[Row],
    specs: Sequence[JobSpec],
    payloads: Sequence[str | None],
    positions: Sequence[int],
    *,
    jobs: list[Job | None],
) -> list[int]:
    """Put each row at the position of its spec, and return the positions without a row.

    A keyed row is matched by its key, others by all values of the spec. Between two equal specs,
    it does not matter which gets which row.
    """
    now = parse_microseconds(rows[0][NOW_COLUMN]) if rows else 0
    keyed: dict[str, int] = {}
    alike: dict[tuple[object, ...], deque[int]] = defaultdict(deque)
    for index in positions:
        spec = specs[index]
        if spec.job_key is not None:
            keyed[spec.job_key] = index
        else:
            alike[_build_spec_key(spec, payloads[index], now)].append(index)
    leftover = []
    for row in rows:
        job = read_job(row)
        if job.key is not None and job.key in keyed:
            jobs[keyed.pop(job.key)] = job
        elif equal := alike.get(_build_row_key(row)):
            jobs[equal.popleft()] = job
        else:
            leftover.append(row)
    if leftover:
        left = [
            (index, _build_spec_key(specs[index], payloads[index], now))
            for index in positions
            if jobs[index] is None
        ]
        _match_leftover_rows(leftover, left, specs, jobs)
    if len(rows) >= len(positions):
        return []
    return [index for index in positions if jobs[index] is None]


def _match_leftover_rows(
    rows: Sequence[Row],
    left: Sequence[tuple[int, tuple[object, ...]]],
    specs: Sequence[JobSpec],
    jobs: list[Job | None],
) -> None:
    """Match rows that equal no spec. `left` has the positions and keys of the specs without rows.

    A row has no names if its job already ran and a cleanup deleted them. A trigger may have changed
    any other value, and the jobs are added: after an error the caller would add them again.
    """
    # Ids follow the order of the specs.
    rows = sorted(rows, key=lambda row: int(row[0]))
    # Specs without a key first, because only a lost key has no row.
    for is_keyed, part in product((False, True), (_NAMES, _VALUES, _NOTHING)):
        alike: dict[tuple[object, ...], deque[int]] = defaultdict(deque)
        for index, key in left:
            if jobs[index] is None and (specs[index].job_key is not None) is is_keyed:
                alike[key[part]].append(index)
        unmatched = []
        for row in rows:
            if equal := alike.get(_build_row_key(row)[part]):
                index = equal.popleft()
                jobs[index] = _read_job_with_names(row, specs[index])
            else:
                unmatched.append(row)
        rows = unmatched


def _read_job_with_names(row: Row, spec: JobSpec) -> Job:
    job = read_job(row)
    if row[1] is None:
        job.task_identifier = spec.identifier
    if row[2] is None and row[QUEUE_ID_COLUMN] is not None:
        job.queue_name = spec.queue_name
    return job


def _plan_get_names(task_ids: list[int], queue_ids: list[int]) -> Plan[Sequence[Row]]:
    try:
        names: Sequence[Row] = yield sql.get_task_and_queue_names(task_ids, queue_ids)
    except Exception:
        # The jobs are added: after an error the caller would add them again.
        logger.warning("reading the names of new tasks and queues failed", exc_info=True)
        return []
    return names


def encode_specs(
    specs: Sequence[JobSpec], payloads: Sequence[str | None], positions: Iterable[int]
) -> str:
    """Encode the specs at these positions as the argument of add_jobs.sql."""
    listing = [encode_spec(specs[index], payloads[index]) for index in positions]
    return json.dumps(listing, ensure_ascii=False, separators=(",", ":"))


def raise_job_spec_error(
    error: Exception, schemas: Schemas, spec: JobSpec | None = None
) -> NoReturn:
    """Raise `JobSpecError` or `SchemaMissing` for a database error, or the error itself."""
    info = get_error_info(error)
    spec_error = None if info is None else _build_spec_error(info, spec)
    if spec_error is None:
        raise_schema_missing(error, schemas)
    raise spec_error from error


def raise_schema_missing(error: Exception, schemas: Schemas) -> NoReturn:
    """Raise `SchemaMissing` if that is the cause of a database error, or the error itself."""
    if get_sqlstate(error) in MISSING_OBJECT:
        raise SchemaMissing(schemas.shared) from error
    raise error


def _build_spec_error(info: DatabaseErrorInfo, spec: JobSpec | None) -> JobSpecError | None:
    if info.sqlstate == "23514" and info.constraint in _CONSTRAINT_ERRORS:
        argument, reason, code = _CONSTRAINT_ERRORS[info.constraint]
    elif info.sqlstate in _SQLSTATE_ERRORS:
        code = info.sqlstate
        argument, reason = _SQLSTATE_ERRORS[code]
    else:
        return None
    return JobSpecError(argument, getattr(spec, argument, None), reason, code)


def _build_lost_key_error(spec: JobSpec) -> JobSpecError:
    return JobSpecError("job_key", spec.job_key, _SQLSTATE_ERRORS["GWNOR"][1], "GWNOR")


def _build_discarded_error(count: int, total: int, schemas: Schemas) -> SchemaError:
    return SchemaError(
        f"{count} of {total} jobs were not stored: a trigger of table "
        f"{schemas.shared}._private_jobs discards them. Change the trigger to return each row."
    )


def encode_payloads(specs: Sequence[JobSpec], *, max_bytes: int | None) -> list[str | None]:
    """Encode the payloads of jobs that are added together.

    Raises:
        JobSpecError: One of the jobs cannot be stored, or they cannot be added together.
    """
    _check_specs(specs)
    return [encode(spec.payload, max_bytes=max_bytes) for spec in specs]


def _check_specs(specs: Sequence[JobSpec]) -> None:
    seen: set[str] = set()
    for spec in specs:
        if not isinstance(spec, JobSpec):
            raise TypeError(f"add_jobs takes JobSpec values, got {type(spec).__name__}")
        if spec.job_key is None:
            continue
        if spec.job_key_mode == JobKeyMode.UNSAFE_DEDUPE:
            reason = "not supported by add_jobs: use add_job"
            raise JobSpecError("job_key_mode", spec.job_key_mode, reason, "GWBKM")
        if spec.job_key in seen:
            raise JobSpecError("job_key", spec.job_key, _SQLSTATE_ERRORS["21000"][1], "21000")
        seen.add(spec.job_key)


def _plan_read_job(row: Row, spec: JobSpec) -> Plan[Job]:
    """Return the job of a row, whose names may be newer than the snapshot of the statement."""
    job = read_job(row)
    known = job.task_identifier is not None and (
        job.queue_name is not None or row[QUEUE_ID_COLUMN] is None
    )
    if known:
        return job
    if spec.job_key is not None and spec.job_key_mode == JobKeyMode.UNSAFE_DEDUPE and job.revision:
        # An existing job: its names may differ from those of the spec.
        stored: Job | None = yield sql.get_job(job.id)
        return stored or job
    job.task_identifier = spec.identifier
    job.queue_name = spec.queue_name
    return job


def _plan_fill_names(rows: Sequence[Row], specs: Sequence[JobSpec]) -> Plan[list[Row]]:
    """Return the rows with the names of tasks and queues that the same statement created."""
    tasks = {row[TASK_ID_COLUMN] for row in rows if row[1] is None}
    queues = {
        row[QUEUE_ID_COLUMN] for row in rows if row[2] is None and row[QUEUE_ID_COLUMN] is not None
    }
    if not tasks and not queues:
        return list(rows)
    new_tasks = {spec.identifier for spec in specs} - {row[1] for row in rows}
    new_queues = {spec.queue_name for spec in specs} - {row[2] for row in rows} - {None}
    if max(len(tasks), len(new_tasks), len(queues), len(new_queues)) <= 1:
        task_names = dict.fromkeys(tasks, next(iter(new_tasks), None))
        queue_names = dict.fromkeys(queues, next(iter(new_queues), None))
    else:
        # Several new names: only the tables show which id has which name.
        names = yield from _plan_get_names(sorted(tasks), sorted(queues))
        task_names = {number: name for kind, number, name in names if kind == "task"}
        queue_names = {number: name for kind, number, name in names if kind == "queue"}
    return [
        (
            row[0],
            row[1] or task_names.get(row[TASK_ID_COLUMN]),
            row[2] if row[2] is not None else queue_names.get(row[QUEUE_ID_COLUMN]),
            *row[3:],
        )
        for row in rows
    ]


def encode_spec(spec: JobSpec, payload: str | None) -> dict[str, Any]:
    """Encode a spec as an element of the argument of add_jobs.sql."""
    fields: dict[str, Any] = {
        "identifier": spec.identifier,
        "preserve_run_at": spec.job_key_mode == JobKeyMode.PRESERVE_RUN_AT,
    }
    # Most specs have few values, and the server need not parse the others.
    if payload is not None:
        fields["payload"] = payload
    if spec.queue_name is not None:
        fields["queue_name"] = spec.queue_name
    if spec.run_at is not None:
        fields["run_at"], fields["delay"] = encode_when(spec.run_at)
    if spec.max_attempts is not None:
        fields["max_attempts"] = spec.max_attempts
    if spec.job_key is not None:
        fields["job_key"] = spec.job_key
    if spec.priority is not None:
        fields["priority"] = spec.priority
    if spec.flags:
        fields["flags"] = list(spec.flags)
    return fields


def _build_spec_key(spec: JobSpec, payload: str | None, now: int) -> tuple[object, ...]:
    return (
        spec.identifier,
        spec.queue_name,
        "{}" if payload is None else payload,
        compute_run_at(spec.run_at, now),
        DEFAULT_MAX_ATTEMPTS if spec.max_attempts is None else spec.max_attempts,
        spec.priority or 0,
        frozenset(spec.flags) if spec.flags else None,
    )


def _build_row_key(row: Row) -> tuple[object, ...]:
    flags = row[15]
    return (
        row[1],
        row[2],
        row[3],
        parse_microseconds(row[5]),
        row[7],
        row[4],
        None if flags is None else frozenset(json.loads(flags)),
    )

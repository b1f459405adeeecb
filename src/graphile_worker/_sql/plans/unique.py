"""Plans that add jobs unless the window of their unique key is open.

The functions of the companion schema decide, each in one statement. So an add is exact under
concurrency, atomic in autocommit mode, and part of the transaction of a caller.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from graphile_worker._payloads import encode
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import (
    encode_spec,
    has_windows,
    plan_add_jobs,
    raise_job_spec_error,
)
from graphile_worker._sql.plans.insert import DEFAULT_MAX_ATTEMPTS, DirectInserts
from graphile_worker._sql.queries.jobs import JOB_COLUMNS, MICROSECOND, read_job
from graphile_worker._sql.queries.unique_keys import (
    UniqueKeysAccess,
    add_unique_jobs,
    check_unique_keys,
)
from graphile_worker._sql.query import Plan, Row, Transaction
from graphile_worker._sql.sqlstate import MISSING_OBJECT, get_sqlstate
from graphile_worker.errors import SchemaError
from graphile_worker.jobs import Job, JobSpec

IS_DUPLICATE_COLUMN = JOB_COLUMNS


def plan_add_unique_jobs(
    specs: Sequence[JobSpec],
    schemas: Schemas,
    *,
    max_bytes: int | None,
    inserts: DirectInserts | None = None,
    decided_at: datetime | None = None,
) -> Plan[list[Job]]:
    """Add jobs, some or all of which have unique keys, and return them in the order of the specs.

    `decided_at` is the time that decides which windows are open, by default the database's.
    """
    if inserts is None or not inserts.can_use_windows:
        yield from plan_require_unique_keys(schemas)
        if inserts is not None:
            inserts.can_use_windows = True
    plain = [spec for spec in specs if not has_windows([spec])]
    unique = [spec for spec in specs if has_windows([spec])]
    payloads = [encode(spec.payload, max_bytes=max_bytes) for spec in unique]
    if not plain:
        return (yield from plan_add_windows(unique, payloads, schemas, decided_at))

    def plan_add() -> Plan[list[Job]]:
        # First, as it checks these specs. An error of the database would abort the transaction, so
        # lost keys are sent again, as on a connection of the caller.
        others = yield from plan_add_jobs(plain, schemas, max_bytes=max_bytes, all_or_nothing=False)
        rest = iter(others)
        added = iter((yield from plan_add_windows(unique, payloads, schemas, decided_at)))
        return [next(added if has_windows([spec]) else rest) for spec in specs]

    jobs: list[Job] = yield Transaction(plan_add)
    return jobs


def plan_add_windows(
    specs: Sequence[JobSpec],
    payloads: Sequence[str | None],
    schemas: Schemas,
    decided_at: datetime | None = None,
) -> Plan[list[Job]]:
    """Add jobs with unique keys in one statement."""
    listing = [_encode_spec(*each) for each in zip(specs, payloads, strict=True)]
    specs_json = json.dumps(listing, ensure_ascii=False, separators=(",", ":"))
    try:
        rows: list[Row] = yield add_unique_jobs(specs_json, decided_at)
    except Exception as error:
        if get_sqlstate(error) in MISSING_OBJECT:
            raise _build_missing_error(schemas) from error
        raise_job_spec_error(error, schemas, specs[0] if len(specs) == 1 else None)
    return [_read_job(*each) for each in zip(rows, specs, payloads, strict=True)]


def plan_require_unique_keys(schemas: Schemas) -> Plan[None]:
    """Raise SchemaError if the companion has no unique keys, before a statement fails.

    A failed statement would abort the transaction of a caller.
    """
    access: UniqueKeysAccess = yield check_unique_keys(schemas)
    if not access.exists:
        raise _build_missing_error(schemas)
    if not access.is_usable:
        raise SchemaError(
            f"this role may not use the unique keys of schema {schemas.companion!r}. Grant it the "
            "permissions of docs/operations/permissions-and-security.md, or add the job without "
            "unique."
        )


def _build_missing_error(schemas: Schemas) -> SchemaError:
    return SchemaError(
        f"schema {schemas.companion!r} has no unique keys, which `unique` needs. Run "
        "`graphile-worker migrate` as the owner."
    )


def _encode_spec(spec: JobSpec, payload: str | None) -> dict[str, Any]:
    fields = encode_spec(spec, payload)
    del fields["preserve_run_at"]
    assert spec.unique_for is not None
    return fields | {"unique_key": spec.unique, "unique_for": _encode_interval(spec.unique_for)}


def _encode_interval(length: timedelta) -> str:
    # Without days, as a day of an interval is 23 hours long when daylight saving time begins.
    hours, rest = divmod(length, timedelta(hours=1))
    seconds, microseconds = divmod(rest // MICROSECOND, 1_000_000)
    return f"{hours} hours {seconds}.{microseconds:06} seconds"


def _read_job(row: Row, spec: JobSpec, payload: str | None) -> Job:
    is_duplicate = row[IS_DUPLICATE_COLUMN]
    # Without a task, the row of the earlier job is deleted.
    job = read_job(row) if row[1] is not None else _build_ended_job(row, spec, payload)
    if is_duplicate:
        job._is_duplicate = True
    return job


def _build_ended_job(row: Row, spec: JobSpec, payload: str | None) -> Job:
    created_at = row[9]
    return Job(
        row[0],
        spec.identifier,
        spec.queue_name,
        "{}" if payload is None else payload,
        spec.priority or 0,
        None,
        0,
        DEFAULT_MAX_ATTEMPTS if spec.max_attempts is None else spec.max_attempts,
        None,
        created_at,
        None,
        None,
        None,
        None,
        0,
        None if not spec.flags else json.dumps(dict.fromkeys(spec.flags, True)),
    )

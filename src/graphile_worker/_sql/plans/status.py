"""Plans that read the status of a job, and that find jobs that ended."""

import json
from collections.abc import Collection, Iterable

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_schema_missing
from graphile_worker._sql.queries.outcomes import (
    HistoryAccess,
    StoredOutcome,
    find_deleted_jobs,
    find_ended_jobs,
    get_status,
    get_status_attempts,
    get_status_outcome,
    get_status_progress,
    inspect_history_access,
)
from graphile_worker._sql.queries.workers import check_registries, get_pools, get_rust_workers
from graphile_worker._sql.query import Plan, Row
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.errors import JobSpecError
from graphile_worker.results import Attempt, JobStatus, JobStatusState

# The default of Rust workers: a worker without a heartbeat for this time is dead.
RUST_LEASE_SECONDS = 300.0

UNKNOWN_DETAIL = (
    "is not in the queue and left no outcome: it ended under a worker that keeps nothing (for "
    "example Node or Rust, or a task without retention), was removed, or is older than the time "
    "that outcomes are kept"
)


class EndedJob(LazyDataclass):
    """A job that failed permanently, or is deleted.

    The state is failed, succeeded or unknown. `result` is JSON text, or None if it is not kept.
    """

    job_id: int
    state: JobStatusState
    task_identifier: str | None = None
    result: str | None = None
    error: str | None = None
    detail: str | None = None


class EndedJobFinder:
    """Find the ended ones among jobs, with one query as soon as outcomes are known to be readable.

    The access is checked first, because an error would abort the transaction of a caller.
    """

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._access: HistoryAccess | None = None

    def plan_find(self, job_ids: Collection[int]) -> Plan[dict[int, EndedJob]]:
        """Find the jobs that ended. Those that wait or run are left out."""
        ids = list(job_ids)
        access = self._access or (yield inspect_history_access(self._schemas))
        query = find_ended_jobs(ids) if access.can_read_results else find_deleted_jobs(ids)
        try:
            rows = yield query
        except Exception as error:
            raise_schema_missing(error, self._schemas)
        if access.can_read_results:
            self._access = access
        detail = build_unknown_detail(access, self._schemas, needs_results=True)
        return {row[0]: _read_ended_job(row, detail) for row in rows}


def check_job_id(job_id: object) -> None:
    """Raise JobSpecError unless the value can be the id of a job."""
    if not isinstance(job_id, int) or isinstance(job_id, bool) or abs(job_id) >= 2**63:
        raise JobSpecError("job_id", job_id, "expected the id of a job, an int", "22003")


def plan_get_status(job_id: int, schemas: Schemas) -> Plan[JobStatus]:
    """Get the status of a job, from its row if it has one, else from its outcome."""
    check_job_id(job_id)
    access: HistoryAccess = yield inspect_history_access(schemas)
    try:
        row = yield get_status([], job_id)
    except Exception as error:
        raise_schema_missing(error, schemas)
    attempts: tuple[Attempt, ...] = ()
    outcome = None
    if access.can_read_outcomes and (row is None or row.state == JobStatusState.FAILED):
        outcome = yield get_status_outcome(job_id)
    if access.can_read_attempts:
        attempts = yield get_status_attempts(job_id)
    if row is None:
        return _build_ended_status(job_id, outcome, attempts, access, schemas)
    progress = None
    state = JobStatusState(row.state)
    if row.locked_by is not None:
        if access.can_read_progress:
            progress = yield get_status_progress(job_id, row.locked_by)
        if state is JobStatusState.RUNNING and row.locked_by in (yield from _plan_dead(schemas)):
            state = JobStatusState.STALE
    if outcome is not None and outcome.error != row.error:
        # The job failed again later without an outcome, for example because a person failed it.
        outcome = None
    return JobStatus(
        job_id=job_id,
        state=state,
        task_identifier=row.task_identifier,
        attempts=attempts,
        attempt_count=row.attempt_count,
        progress=progress,
        error=row.error,
        created_at=row.created_at,
        started_at=None if outcome is None else outcome.started_at,
        finished_at=None if outcome is None else outcome.finished_at,
    )


def build_unknown_detail(
    access: HistoryAccess, schemas: Schemas, *, needs_results: bool = False
) -> str:
    """Build the detail of a status that is unknown."""
    if access.has_hidden_jobs:
        return (
            f"{UNKNOWN_DETAIL}. This role cannot see jobs, because of row level security: "
            "connect as a role that runs workers"
        )
    if not access.has_outcomes:
        return (
            f"{UNKNOWN_DETAIL}. Schema {schemas.companion!r} has no table of outcomes: "
            "run `graphile-worker migrate`"
        )
    if not access.can_read_outcomes:
        return (
            f"{UNKNOWN_DETAIL}. This role may not read the outcomes: "
            f"grant it select on the table outcomes of schema {schemas.companion!r}"
        )
    if needs_results and not access.can_read_results:
        return (
            f"{UNKNOWN_DETAIL}. This role may not read results: grant it select on the column "
            f"result of the table outcomes of schema {schemas.companion!r}"
        )
    return UNKNOWN_DETAIL


def _read_ended_job(row: Row, unknown_detail: str) -> EndedJob:
    job_id, succeeded, task, result, error = row
    if succeeded is None:
        return EndedJob(job_id, JobStatusState.UNKNOWN, detail=unknown_detail)
    state = JobStatusState.SUCCEEDED if succeeded else JobStatusState.FAILED
    return EndedJob(job_id, state, task, result, error)


def _build_ended_status(
    job_id: int,
    outcome: StoredOutcome | None,
    attempts: tuple[Attempt, ...],
    access: HistoryAccess,
    schemas: Schemas,
) -> JobStatus:
    if outcome is None:
        return JobStatus(
            job_id=job_id,
            state=JobStatusState.UNKNOWN,
            attempts=attempts,
            detail=build_unknown_detail(access, schemas),
        )
    return JobStatus(
        job_id=job_id,
        state=JobStatusState.SUCCEEDED if outcome.succeeded else JobStatusState.FAILED,
        task_identifier=outcome.task_identifier,
        attempts=attempts,
        attempt_count=outcome.attempt_count,
        error=outcome.error,
        created_at=outcome.created_at,
        started_at=outcome.started_at,
        finished_at=outcome.finished_at,
    )


def _plan_dead(schemas: Schemas) -> Plan[set[str]]:
    """Get the ids of the pools of both registries that are dead, as `jobs list` does."""
    has_python, has_rust = yield check_registries(schemas)
    rust = (yield get_rust_workers()) if has_rust else []
    python = (yield get_pools()) if has_python else []
    # Python workers may be in both registries; theirs is more exact.
    known = {row[0] for row in python}
    dead = {row[0] for row in rust if row[2] > RUST_LEASE_SECONDS and row[0] not in known}
    return dead | set(_list_dead_python_pools(python))


def _list_dead_python_pools(rows: Iterable[Row]) -> Iterable[str]:
    for pool_id, _, heartbeat_age, lease, is_rescued, details in rows:
        if (is_rescued or heartbeat_age > lease) and not _has_stopped(details):
            yield pool_id


def _has_stopped(details: str | None) -> bool:
    try:
        parsed = json.loads(details or "{}")
    except (ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and parsed.get("stopped") is True

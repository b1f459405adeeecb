"""Plans that get and change jobs, with checked arguments and translated errors."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import NoReturn, TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_job_spec_error, raise_schema_missing
from graphile_worker._sql.plans.audit import AuditLabel, plan_audited
from graphile_worker._sql.queries import jobs as sql
from graphile_worker._sql.queries.audit import (
    AuditAccess,
    AuditAction,
    begin_audit,
    begin_recovery_audit,
)
from graphile_worker._sql.queries.cron import KnownCrontab, get_known_crontabs
from graphile_worker._sql.queries.pauses import PAUSED_PREFIX
from graphile_worker._sql.queries.workers import (
    get_jobs_locked_by,
    has_registry,
    recover_jobs,
    unlock_pool_jobs,
)
from graphile_worker._sql.query import Plan, Query, Transaction
from graphile_worker._support.durations import format_exact_duration
from graphile_worker._support.text import pluralize
from graphile_worker.errors import JobSpecError
from graphile_worker.jobs import (
    Job,
    RunAt,
    check_max_attempts,
    check_run_at,
    check_smallint,
    check_text,
)
from graphile_worker.options import RecoveryOptions

T = TypeVar("T")


def plan_get_job(job_id: int, schemas: Schemas) -> Plan[Job | None]:
    return _plan_query(sql.get_job(_check_job_ids([job_id])[0]), schemas)


def plan_get_job_by_key(job_key: str, schemas: Schemas) -> Plan[Job | None]:
    return _plan_query(sql.get_job_by_key(check_text("job_key", job_key)), schemas)


def plan_remove_job(job_key: str, schemas: Schemas) -> Plan[Job | None]:
    return _plan_query(sql.remove_job(check_text("job_key", job_key)), schemas)


def plan_remove_running_job(
    job_key: str, schemas: Schemas, *, actor: str | None = None
) -> Plan[Job | None]:
    """Remove the job with this key, also a running one, and add an entry to the audit."""
    query = sql.remove_job(check_text("job_key", job_key))
    label = AuditLabel(action=AuditAction.JOBS_REMOVE, actor=actor, filter=f"key:{job_key}")
    return _plan_change(query, lambda job: [] if job is None else [job.id], schemas, label)


def plan_list_known_crontabs(schemas: Schemas) -> Plan[dict[str, KnownCrontab]]:
    return _plan_query(get_known_crontabs(), schemas)


def plan_complete_jobs(
    job_ids: Iterable[int], schemas: Schemas, *, actor: str | None = None
) -> Plan[list[Job]]:
    ids = _check_job_ids(job_ids)
    label = _build_label(AuditAction.JOBS_COMPLETE, actor, ids)
    return _plan_change(sql.complete_jobs(ids), _list_ids, schemas, label)


def plan_permanently_fail_jobs(
    job_ids: Iterable[int], reason: str | None, schemas: Schemas, *, actor: str | None = None
) -> Plan[list[Job]]:
    if reason is not None:
        check_text("reason", reason)
    ids = _check_job_ids(job_ids)
    label = _build_label(AuditAction.JOBS_FAIL, actor, ids, note=reason)
    return _plan_change(sql.permanently_fail_jobs(ids, reason), _list_ids, schemas, label)


def plan_reschedule_jobs(
    job_ids: Iterable[int],
    schemas: Schemas,
    *,
    run_at: RunAt | None,
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
    actor: str | None = None,
) -> Plan[list[Job]]:
    if run_at is not None:
        check_run_at("run_at", run_at)
    if priority is not None:
        check_smallint("priority", priority)
    if attempts is not None:
        check_smallint("attempts", attempts)
    if max_attempts is not None:
        check_max_attempts(max_attempts)
    ids = _check_job_ids(job_ids)
    query = sql.reschedule_jobs(
        ids,
        run_at=run_at,
        priority=priority,
        attempts=attempts,
        max_attempts=max_attempts,
    )
    note = format_changed_values(
        run_at=run_at, priority=priority, attempts=attempts, max_attempts=max_attempts
    )
    label = _build_label(AuditAction.JOBS_RESCHEDULE, actor, ids, note=note)
    return _plan_change(query, _list_ids, schemas, label, raise_job_spec_error)


def format_changed_values(**values: RunAt | int | None) -> str | None:
    """Format new values of jobs for the audit, for example `run_at=1h priority=5`."""
    texts = [
        f"{name}={_format_value(value)}" for name, value in values.items() if value is not None
    ]
    return " ".join(texts) or None


def _format_value(value: RunAt | int | None) -> str:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"now{'-' if value < timedelta(0) else '+'}{format_exact_duration(abs(value))}"
        case _:
            return str(value)


def plan_force_unlock_workers(
    pool_ids: Iterable[str], schemas: Schemas, *, actor: str | None = None
) -> Plan[None]:
    checked = _check_pool_ids(pool_ids)

    def build_plan() -> Plan[None]:
        access: AuditAccess = yield begin_audit(schemas)
        job_ids, queue_count = yield sql.force_unlock_workers(checked)
        if access.is_granted:
            label = _build_recovery_label(AuditAction.WORKERS_UNLOCK, actor, checked, queue_count)
            yield label.build_entry(access, job_ids or queue_count)

    return _plan_query(Transaction(build_plan), schemas)


def plan_list_locked_jobs(pool_ids: Iterable[str], schemas: Schemas) -> Plan[list[Job]]:
    return _plan_query(get_jobs_locked_by(_check_pool_ids(pool_ids)), schemas)


def plan_recover_jobs(
    pool_ids: Iterable[str], delay: timedelta, schemas: Schemas, *, actor: str | None = None
) -> Plan[list[Job]]:
    """Take over the jobs of pools that are known to be dead, as a rescue does."""
    checked = _check_pool_ids(pool_ids)
    _check_delay(delay)
    is_registered: bool = yield has_registry(schemas)

    def build_plan() -> Plan[list[Job]]:
        access, queue_count = yield begin_recovery_audit(schemas, checked)
        if is_registered:
            max_crashes = RecoveryOptions().max_crashes
            recovered = yield recover_jobs(checked, delay, max_crashes, is_confirmed_dead=True)
            jobs = [each.job for each in recovered]
        else:
            jobs = yield unlock_pool_jobs(checked, delay)
        if access.is_granted:
            label = _build_recovery_label(AuditAction.WORKERS_RECOVER, actor, checked, queue_count)
            yield label.build_entry(access, _list_ids(jobs) or queue_count)
        return jobs

    return (yield from _plan_query(Transaction(build_plan), schemas))


def _build_label(
    action: AuditAction, actor: str | None, ids: Iterable[int], note: str | None = None
) -> AuditLabel:
    chosen = f"id:{','.join(map(str, ids))}"
    return AuditLabel(action=action, actor=actor, filter=chosen, note=note)


def _build_recovery_label(
    action: AuditAction, actor: str | None, pool_ids: Iterable[str], queue_count: int
) -> AuditLabel:
    note = pluralize(queue_count, "named queue") if queue_count else None
    return AuditLabel(action=action, actor=actor, filter=f"worker:{','.join(pool_ids)}", note=note)


def _list_ids(jobs: Iterable[Job]) -> list[int]:
    return [job.id for job in jobs]


def _check_delay(delay: timedelta) -> None:
    if not isinstance(delay, timedelta) or delay < timedelta(0):
        raise JobSpecError("crash_retry_delay", delay, "expected a timedelta from 0", "22023")
    check_run_at("crash_retry_delay", delay)


def _check_pool_ids(pool_ids: Iterable[str]) -> list[str]:
    if isinstance(pool_ids, str):
        raise JobSpecError("pool_ids", pool_ids, "expected a list of str", "22023")
    checked = [check_text("pool_ids", pool_id) for pool_id in pool_ids]
    for pool_id in checked:
        if pool_id.startswith(PAUSED_PREFIX):
            reason = "not a worker but a pause: resume the queue instead"
            raise JobSpecError("pool_ids", pool_id, reason, "22023")
    return list(dict.fromkeys(checked))


def _check_job_ids(job_ids: Iterable[int]) -> list[int]:
    ids = list(job_ids)
    for job_id in ids:
        if not isinstance(job_id, int) or isinstance(job_id, bool) or abs(job_id) >= 2**63:
            raise JobSpecError("job_ids", job_id, "expected the id of a job, an int", "22003")
    return ids


def _plan_change(
    query: Query[T],
    find_ids: Callable[[T], list[int]],
    schemas: Schemas,
    label: AuditLabel,
    raise_translated: Callable[[Exception, Schemas], NoReturn] = raise_schema_missing,
) -> Plan[T]:
    try:
        return (yield from plan_audited(query, find_ids, schemas, label))
    except Exception as error:
        raise_translated(error, schemas)


def _plan_query(
    query: Query[T] | Transaction,
    schemas: Schemas,
    raise_translated: Callable[[Exception, Schemas], NoReturn] = raise_schema_missing,
) -> Plan[T]:
    try:
        answer: T = yield query
    except Exception as error:
        raise_translated(error, schemas)
    return answer

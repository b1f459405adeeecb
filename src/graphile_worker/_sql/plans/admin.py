"""Plans that get and change jobs, with checked arguments and translated errors."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NoReturn, TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_job_spec_error, raise_schema_missing
from graphile_worker._sql.queries import jobs as sql
from graphile_worker._sql.queries.cron import KnownCrontab, get_known_crontabs
from graphile_worker._sql.queries.workers import (
    get_jobs_locked_by,
    has_registry,
    recover_jobs,
    unlock_pool_jobs,
)
from graphile_worker._sql.query import Plan, Query
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


def plan_list_known_crontabs(schemas: Schemas) -> Plan[dict[str, KnownCrontab]]:
    return _plan_query(get_known_crontabs(), schemas)


def plan_complete_jobs(job_ids: Iterable[int], schemas: Schemas) -> Plan[list[Job]]:
    return _plan_query(sql.complete_jobs(_check_job_ids(job_ids)), schemas)


def plan_permanently_fail_jobs(
    job_ids: Iterable[int], reason: str | None, schemas: Schemas
) -> Plan[list[Job]]:
    if reason is not None:
        check_text("reason", reason)
    return _plan_query(sql.permanently_fail_jobs(_check_job_ids(job_ids), reason), schemas)


def plan_reschedule_jobs(
    job_ids: Iterable[int],
    schemas: Schemas,
    *,
    run_at: RunAt | None,
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
) -> Plan[list[Job]]:
    if run_at is not None:
        check_run_at("run_at", run_at)
    if priority is not None:
        check_smallint("priority", priority)
    if attempts is not None:
        check_smallint("attempts", attempts)
    if max_attempts is not None:
        check_max_attempts(max_attempts)
    query = sql.reschedule_jobs(
        _check_job_ids(job_ids),
        run_at=run_at,
        priority=priority,
        attempts=attempts,
        max_attempts=max_attempts,
    )
    return _plan_query(query, schemas, raise_job_spec_error)


def plan_force_unlock_workers(pool_ids: Iterable[str], schemas: Schemas) -> Plan[None]:
    return _plan_query(sql.force_unlock_workers(_check_pool_ids(pool_ids)), schemas)


def plan_list_locked_jobs(pool_ids: Iterable[str], schemas: Schemas) -> Plan[list[Job]]:
    return _plan_query(get_jobs_locked_by(_check_pool_ids(pool_ids)), schemas)


def plan_recover_jobs(
    pool_ids: Iterable[str], delay: timedelta, schemas: Schemas
) -> Plan[list[Job]]:
    """Take over the jobs of pools that are known to be dead, as a rescue does."""
    checked = _check_pool_ids(pool_ids)
    _check_delay(delay)
    if not (yield has_registry(schemas)):
        return (yield from _plan_query(unlock_pool_jobs(checked, delay), schemas))
    max_crashes = RecoveryOptions().max_crashes
    query = recover_jobs(checked, delay, max_crashes, is_confirmed_dead=True)
    recovered = yield from _plan_query(query, schemas)
    return [each.job for each in recovered]


def _check_delay(delay: timedelta) -> None:
    if not isinstance(delay, timedelta) or delay < timedelta(0):
        raise JobSpecError("crash_retry_delay", delay, "expected a timedelta from 0", "22023")
    check_run_at("crash_retry_delay", delay)


def _check_pool_ids(pool_ids: Iterable[str]) -> list[str]:
    if isinstance(pool_ids, str):
        raise JobSpecError("pool_ids", pool_ids, "expected a list of str", "22023")
    checked = [check_text("pool_ids", pool_id) for pool_id in pool_ids]
    return list(dict.fromkeys(checked))


def _check_job_ids(job_ids: Iterable[int]) -> list[int]:
    ids = list(job_ids)
    for job_id in ids:
        if not isinstance(job_id, int) or isinstance(job_id, bool) or abs(job_id) >= 2**63:
            raise JobSpecError("job_ids", job_id, "expected the id of a job, an int", "22003")
    return ids


def _plan_query(
    query: Query[T],
    schemas: Schemas,
    raise_translated: Callable[[Exception, Schemas], NoReturn] = raise_schema_missing,
) -> Plan[T]:
    try:
        answer: T = yield query
    except Exception as error:
        raise_translated(error, schemas)
    return answer

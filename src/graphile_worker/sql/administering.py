"""Plans for looking jobs up and after them: arguments checked, refusals explained."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NoReturn, TypeVar

from graphile_worker.errors import JobSpecError
from graphile_worker.jobs import (
    Job,
    When,
    check_max_attempts,
    check_smallint,
    check_text,
    check_when,
)
from graphile_worker.options import RecoveryOptions
from graphile_worker.sql import jobs as sql
from graphile_worker.sql.adding import raise_absence, raise_refusal
from graphile_worker.sql.cron import KnownCrontab, get_known_crontabs
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Plan, Query
from graphile_worker.sql.workers import (
    find_registry,
    get_jobs_locked_by,
    recover_jobs,
    unlock_jobs_of,
)

T = TypeVar("T")


def getting_job(job_id: int, schemas: Schemas) -> Plan[Job | None]:
    return _explained(sql.get_job(_checked_ids([job_id])[0]), schemas)


def getting_job_by_key(job_key: str, schemas: Schemas) -> Plan[Job | None]:
    return _explained(sql.get_job_by_key(check_text("job_key", job_key)), schemas)


def removing_job(job_key: str, schemas: Schemas) -> Plan[Job | None]:
    return _explained(sql.remove_job(check_text("job_key", job_key)), schemas)


def getting_known_crontabs(schemas: Schemas) -> Plan[dict[str, KnownCrontab]]:
    return _explained(get_known_crontabs(), schemas)


def completing_jobs(job_ids: Iterable[int], schemas: Schemas) -> Plan[list[Job]]:
    return _explained(sql.complete_jobs(_checked_ids(job_ids)), schemas)


def failing_jobs(job_ids: Iterable[int], reason: str | None, schemas: Schemas) -> Plan[list[Job]]:
    if reason is not None:
        check_text("reason", reason)
    return _explained(sql.permanently_fail_jobs(_checked_ids(job_ids), reason), schemas)


def rescheduling_jobs(
    job_ids: Iterable[int],
    schemas: Schemas,
    *,
    run_at: When | None,
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
) -> Plan[list[Job]]:
    if run_at is not None:
        check_when("run_at", run_at)
    if priority is not None:
        check_smallint("priority", priority)
    if attempts is not None:
        check_smallint("attempts", attempts)
    if max_attempts is not None:
        check_max_attempts(max_attempts)
    query = sql.reschedule_jobs(
        _checked_ids(job_ids),
        run_at=run_at,
        priority=priority,
        attempts=attempts,
        max_attempts=max_attempts,
    )
    return _explained(query, schemas, raise_refusal)


def unlocking_workers(pool_ids: Iterable[str], schemas: Schemas) -> Plan[None]:
    return _explained(sql.force_unlock_workers(_checked_pools(pool_ids)), schemas)


def getting_jobs_of(pool_ids: Iterable[str], schemas: Schemas) -> Plan[list[Job]]:
    return _explained(get_jobs_locked_by(_checked_pools(pool_ids)), schemas)


def recovering_jobs_of(
    pool_ids: Iterable[str], delay: timedelta, schemas: Schemas
) -> Plan[list[Job]]:
    """What a sweep does to pools that are silent, to pools that somebody knows are dead."""
    checked = _checked_pools(pool_ids)
    _check_delay(delay)
    if not (yield find_registry(schemas)):
        return (yield from _explained(unlock_jobs_of(checked, delay), schemas))
    most = RecoveryOptions().max_recoveries
    query = recover_jobs(checked, delay, most, surely_dead=True)
    recovered = yield from _explained(query, schemas)
    return [each.job for each in recovered]


def _check_delay(delay: timedelta) -> None:
    if not isinstance(delay, timedelta) or delay < timedelta(0):
        raise JobSpecError("recovery_delay", delay, "expected a timedelta from 0", "22023")
    check_when("recovery_delay", delay)


def _checked_pools(pool_ids: Iterable[str]) -> list[str]:
    if isinstance(pool_ids, str):
        raise JobSpecError("pool_ids", pool_ids, "expected a list of str", "22023")
    checked = [check_text("pool_ids", pool_id) for pool_id in pool_ids]
    return list(dict.fromkeys(checked))


def _checked_ids(job_ids: Iterable[int]) -> list[int]:
    ids = list(job_ids)
    for job_id in ids:
        if not isinstance(job_id, int) or isinstance(job_id, bool) or abs(job_id) >= 2**63:
            raise JobSpecError("job_ids", job_id, "expected the id of a job, an int", "22003")
    return ids


def _explained(
    query: Query[T],
    schemas: Schemas,
    explain: Callable[[Exception, Schemas], NoReturn] = raise_absence,
) -> Plan[T]:
    try:
        answer: T = yield query
    except Exception as error:
        explain(error, schemas)
    return answer

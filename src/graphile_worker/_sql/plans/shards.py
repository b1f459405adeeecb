"""Plans about the jobs of a shard whose keys may move to another one."""

from collections.abc import Callable
from datetime import datetime

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_schema_missing
from graphile_worker._sql.plans.unique import plan_require_unique_keys
from graphile_worker._sql.queries.shards import (
    DatabaseIdentity,
    count_shard_jobs,
    identify_database,
    list_shard_keys,
    lock_keyed_job,
    lock_used_queue,
)
from graphile_worker._sql.queries.unique_keys import lock_open_window
from graphile_worker._sql.query import Plan
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.jobs import JobSpec

# Keys of one query of `plan_get_shard_status`.
KEYS_PER_PAGE = 10_000


class ShardJobs(LazyDataclass):
    """The jobs of a shard: all, those without a key and a queue, and those that route elsewhere."""

    total: int
    unkeyed: int
    misplaced: int


def plan_identify() -> Plan[DatabaseIdentity]:
    identity: DatabaseIdentity = yield identify_database()
    return identity


def plan_lock_kept(
    spec: JobSpec, schemas: Schemas, decided_at: datetime | None = None
) -> Plan[bool]:
    """Return whether this database holds a job with the key or in the queue of a spec.

    Or an open window of its unique key, at the time `decided_at` or now. The job or the window
    stays until the end of the transaction.
    """
    if spec.job_key is not None and (yield lock_keyed_job(spec.job_key)):
        return True
    if spec.unique is not None:
        yield from plan_require_unique_keys(schemas)
        if (yield lock_open_window(spec.unique, decided_at)):
            return True
    return spec.queue_name is not None and bool((yield lock_used_queue(spec.queue_name)))


def plan_count_shard_jobs(
    schemas: Schemas, is_elsewhere: Callable[[str | None, str | None], bool]
) -> Plan[ShardJobs]:
    """Count jobs; `is_elsewhere` takes the key and the queue of a job that has at least one."""
    try:
        total, unkeyed = yield count_shard_jobs()
    except Exception as error:
        raise_schema_missing(error, schemas)
    misplaced, last_id = 0, 0
    while True:
        page = yield list_shard_keys(last_id, KEYS_PER_PAGE)
        misplaced += sum(is_elsewhere(each.key, each.queue_name) for each in page)
        if len(page) < KEYS_PER_PAGE:
            return ShardJobs(total, unkeyed, misplaced)
        last_id = page[-1].job_id

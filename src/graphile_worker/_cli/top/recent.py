"""Read what `top` shows beside a snapshot: the jobs that ended last, and progress."""

from datetime import timedelta

from graphile_worker._db.database import TransactionalRunner, run_plan
from graphile_worker.errors import QueryTimeoutError
from graphile_worker.ops.history import RecentHistory, plan_get_recent_history
from graphile_worker.ops.search import QueryLimits
from graphile_worker.ops.snapshot import Snapshot

# Running jobs whose progress is read.
MAX_RUNNING_JOBS = 200

LIMITS = QueryLimits(statement_timeout=timedelta(seconds=1))


async def read_recent_history(
    database: TransactionalRunner, snapshot: Snapshot
) -> RecentHistory | None:
    """Return None if this role cannot read the tables, or reading takes too long."""
    ids = [job.id for job in snapshot.locked[:MAX_RUNNING_JOBS]]
    try:
        plan = plan_get_recent_history(database.schemas, ids, limits=LIMITS)
        return await run_plan(database, plan)
    except QueryTimeoutError:
        return None

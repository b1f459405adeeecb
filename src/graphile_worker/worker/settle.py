"""Settler: record how jobs ended. Awaited, fenced by the pool's id, and never given up."""

from typing import assert_never

from graphile_worker.db.database import Database, perform
from graphile_worker.db.retry import lasting
from graphile_worker.sql.holding import Failure, Return, fail_jobs, finish_jobs, return_jobs
from graphile_worker.sql.query import Query
from graphile_worker.worker.error_text import error_text
from graphile_worker.worker.outcomes import (
    Completed,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
    Written,
)


class Settler:
    """Writes outcomes one by one."""

    def __init__(self, database: Database, pool_id: str) -> None:
        self._db = database
        self._pool_id = pool_id

    async def settle(self, outcome: Outcome) -> bool:
        """Write the outcome, however long that takes; False if the job was no longer ours."""
        query = self._query(outcome)
        if query is None:
            return True
        # All of these may be repeated: an answer that got lost on the way costs nothing.
        held = await perform(self._db, lasting(query))
        return outcome.held.job.id in held

    def _query(self, outcome: Outcome) -> Query[set[int]] | None:
        job = outcome.held.job
        queue = [] if outcome.held.queue_id is None else [outcome.held.queue_id]
        match outcome:
            case Completed():
                return finish_jobs(self._pool_id, [job.id], queue)
            case Failed(_, error, when, give_up):
                return fail_jobs(
                    self._pool_id, [Failure(job, error_text(error), when, give_up)], queue
                )
            case Snoozed(_, when):
                return return_jobs(self._pool_id, [Return(job, when)], queue)
            case Interrupted():
                return return_jobs(self._pool_id, [Return(job)], queue)
            case Written():
                return None
            case _:
                assert_never(outcome)

"""Settler: record how jobs ended. Awaited, fenced by the pool's id, and never given up."""

import asyncio
from datetime import timedelta
from typing import assert_never

from graphile_worker.db.database import Answering
from graphile_worker.db.retry import delay_after, is_passing
from graphile_worker.error_text import error_text
from graphile_worker.events import PoolFatalError
from graphile_worker.hooks import Hooks
from graphile_worker.sql.failures import sqlstate_of
from graphile_worker.sql.holding import Failure, Return, fail_jobs, finish_jobs, return_jobs
from graphile_worker.sql.query import Query
from graphile_worker.worker.outcomes import (
    Completed,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
    Written,
)

# The next job must run soon after a database is back.
LONGEST_PAUSE = 0.6

# Class of SQLSTATE.
DATA_EXCEPTION = "22"


class Settler:
    """Writes outcomes one by one."""

    def __init__(
        self,
        database: Answering,
        pool_id: str,
        hooks: Hooks,
        *,
        interrupted_delay: timedelta | None = None,
        again: bool = True,
    ) -> None:
        self._db = database
        self._pool_id = pool_id
        self._hooks = hooks
        self._interrupted_delay = interrupted_delay
        # In a caller's transaction nothing can be tried again.
        self._again = again

    async def settle(self, outcome: Outcome) -> bool:
        """Write the outcome, however long that takes; False if the job was no longer ours."""
        query = self._query(outcome)
        if query is None:
            return True
        attempt = 0
        while True:
            try:
                held = await self._db.run(query)
            except Exception as error:
                if not self._again:
                    raise
                self._complain(outcome, error)
                query = self._after(error, outcome) or query
            else:
                # Where an earlier try may have got through, its row looks like somebody else's.
                return attempt > 0 or outcome.held.job.id in held
            await asyncio.sleep(delay_after(attempt, LONGEST_PAUSE))
            attempt += 1

    def _complain(self, outcome: Outcome, error: Exception) -> None:
        """Say what will not pass by itself: somebody may have to help, then the write lands."""
        if is_passing(error):
            return
        action = "completeJob" if isinstance(outcome, Completed) else "failJob"
        self._hooks.emit(PoolFatalError(pool_id=self._pool_id, error=error, action=action))

    def _after(self, error: Exception, outcome: Outcome) -> Query[set[int]] | None:
        """What to write instead where PostgreSQL refuses the values: a time beyond its calendar."""
        if (sqlstate_of(error) or "")[:2] != DATA_EXCEPTION:
            return None
        job = outcome.held.job
        queue = [] if outcome.held.queue_id is None else [outcome.held.queue_id]
        if isinstance(outcome, Interrupted):
            return return_jobs(self._pool_id, [Return(job)], queue)
        return fail_jobs(self._pool_id, [Failure(job, error_text(error))], queue)

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
                return return_jobs(self._pool_id, [Return(job, self._interrupted_delay)], queue)
            case Written():
                return None
            case _:
                assert_never(outcome)

"""An ending whose answer got lost is sent again, and must not meet the next run of the job.

If the first try got through and the job is due at once, the pool may have taken it anew meanwhile.
"""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import sync
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.sql.holding import HeldJob
from graphile_worker.sql.query import Query
from graphile_worker.worker.outcomes import Failed, Interrupted, Snoozed
from graphile_worker.worker.settle import Settler
from tests.support.pools import Pool, pool_on, row


class Losing:
    """The first answer gets lost, and the pool takes the job again before it asks again."""

    def __init__(self, pool: Pool, held: dict[int, HeldJob]) -> None:
        self.pool, self.held, self.calls = pool, held, 0

    async def run(self, query: Query[Any]) -> Any:
        answer = self.pool.connection.run(query)
        self.calls += 1
        if self.calls == 1:
            self.again = self.pool.take_one()
            self.held[self.again.job.id] = self.again
            raise psycopg.OperationalError("the answer got lost")
        return answer


NOW = timedelta(0)


@pytest.mark.parametrize(
    "outcome",
    [
        lambda held: Snoozed(held, NOW),
        lambda held: Failed(held, RuntimeError("boom"), when=NOW),
        lambda held: Interrupted(held),
    ],
)
async def test_an_ending_that_is_sent_again_does_not_touch_the_next_claim(database, sql, outcome):
    with pool_on(database) as pool, sync.Client(database.dsn, schema=database.schema) as client:
        client.add_job("task")
        first = pool.take_one()
        known = {first.job.id: first}
        losing = Losing(pool, known)
        settler = Settler(losing, Lease(pool_id=pool.id), Hooks(), held=known)

        await settler.settle(outcome(first))

        found = row(sql, first.job)
        assert (found["locked_by"], found["attempts"]) == (pool.id, losing.again.job.attempts)

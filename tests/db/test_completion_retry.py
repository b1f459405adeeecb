"""An ending whose answer got lost is sent again, and must not meet the next run of the job.

If the first try got through and the job is due at once, the pool may have taken it anew meanwhile.
"""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import sync
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.query import Query
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.outcomes import Failed, Interrupted, Snoozed
from graphile_worker.hooks import Hooks
from tests.support.pools import Pool, open_pool, read_job_row


class Losing:
    """The first answer gets lost, and the pool takes the job again before it asks again."""

    def __init__(self, pool: Pool, held: dict[int, ClaimedJob]) -> None:
        self.pool, self.held, self.calls = pool, held, 0

    async def run(self, query: Query[Any]) -> Any:
        answer = self.pool.connection.run(query)
        self.calls += 1
        if self.calls == 1:
            self.again = self.pool.claim_one()
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
    with open_pool(database) as pool, sync.Client(database.dsn, schema=database.schema) as client:
        client.add_job("task")
        first = pool.claim_one()
        known = {first.job.id: first}
        losing = Losing(pool, known)
        settler = Completer(losing, Lease(pool_id=pool.id), Hooks(), claimed_jobs=known)

        await settler.complete(outcome(first))

        found = read_job_row(sql, first.job)
        assert (found["locked_by"], found["attempts"]) == (pool.id, losing.again.job.attempts)

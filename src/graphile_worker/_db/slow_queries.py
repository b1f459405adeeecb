"""SlowQueryDatabase: statements that may read a whole table, each with its own time limit."""

import asyncio
from collections.abc import Collection
from typing import Any, TypeVar

from graphile_worker._db.database import TransactionalRunner, drive
from graphile_worker._sql.queries.search import set_query_limits
from graphile_worker._sql.query import Plan, Query, Step
from graphile_worker._sql.sqlstate import QUERY_CANCELED, get_sqlstate

T = TypeVar("T")

# The first and the longest time limit of a statement.
MIN_TIMEOUT_SECONDS = 60.0
MAX_TIMEOUT_SECONDS = 3600.0

# Seconds beyond the server's own limit before the connection counts as lost.
TIMEOUT_MARGIN_SECONDS = 5.0

# Milliseconds to wait for a lock: other sessions must not queue behind this statement.
LOCK_TIMEOUT_MS = 250


class SlowQueryDatabase:
    """Run each query in a transaction. The time limit doubles after each that took too long."""

    def __init__(self, database: TransactionalRunner) -> None:
        self._db = database
        self._timeout_seconds = MIN_TIMEOUT_SECONDS

    async def run(self, query: Query[T]) -> T:
        answer = await self._run_in_time(query)
        self._timeout_seconds = MIN_TIMEOUT_SECONDS
        return answer

    async def run_plan(self, plan: Plan[T], *, autocommit: Collection[str] = ()) -> T:
        """Run a plan of queries. Each commits separately.

        The statements in `autocommit` commit on the server, without a transaction of this client.
        """

        async def execute_step(step: Step) -> Any:
            if not isinstance(step, Query):
                raise TypeError(f"{type(step).__name__} cannot be done with a time limit")
            return await self._run_in_time(step, autocommit=step.statement in autocommit)

        result = await drive(plan, execute_step)
        # Not after each query: the fast ones would reset the limit before the slow one runs again.
        self._timeout_seconds = MIN_TIMEOUT_SECONDS
        return result

    async def _run_in_time(self, query: Query[T], *, autocommit: bool = False) -> T:
        try:
            async with asyncio.timeout(self._timeout_seconds + TIMEOUT_MARGIN_SECONDS):
                if autocommit:
                    return await self._db.run(query)
                return await self._run_in_transaction(query)
        except Exception as error:
            if isinstance(error, TimeoutError) or get_sqlstate(error) == QUERY_CANCELED:
                self._timeout_seconds = min(2 * self._timeout_seconds, MAX_TIMEOUT_SECONDS)
            raise

    async def _run_in_transaction(self, query: Query[T]) -> T:
        limits = set_query_limits(
            int(self._timeout_seconds * 1000), LOCK_TIMEOUT_MS, prefer_indexes=True
        )
        async with self._db.transaction() as connection:
            await connection.run(limits)
            return await connection.run(query)

"""SlowQueryDatabase: statements that may read a whole table, each with its own time limit."""

import asyncio
from typing import TypeVar

from graphile_worker._db.database import TransactionalRunner
from graphile_worker._sql.queries.search import set_query_limits
from graphile_worker._sql.query import Query
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
        try:
            async with (
                asyncio.timeout(self._timeout_seconds + TIMEOUT_MARGIN_SECONDS),
                self._db.transaction() as connection,
            ):
                limits = set_query_limits(
                    int(self._timeout_seconds * 1000), LOCK_TIMEOUT_MS, prefer_indexes=True
                )
                await connection.run(limits)
                answer = await connection.run(query)
        except Exception as error:
            if isinstance(error, TimeoutError) or get_sqlstate(error) == QUERY_CANCELED:
                self._timeout_seconds = min(2 * self._timeout_seconds, MAX_TIMEOUT_SECONDS)
            raise
        self._timeout_seconds = MIN_TIMEOUT_SECONDS
        return answer

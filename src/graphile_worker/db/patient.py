"""PatientDatabase: statements that may have to read a whole table, each with its own time limit."""

import asyncio
from typing import TypeVar

from graphile_worker.db.database import Transacting
from graphile_worker.sql.failures import CANCELLED, sqlstate_of
from graphile_worker.sql.finding import limit_time
from graphile_worker.sql.query import Query

T = TypeVar("T")

# Seconds that a statement may take at first, and at most.
SHORTEST_LIMIT_SECONDS = 60.0
LONGEST_LIMIT_SECONDS = 3600.0

# Seconds beyond the server's own limit before the connection counts as lost.
ANSWER_MARGIN_SECONDS = 5.0

# Milliseconds to wait for a lock: other sessions must not queue behind this statement.
LOCK_TIMEOUT_MS = 250


class PatientDatabase:
    """Runs each query in a transaction; the time limit doubles after each that took too long."""

    def __init__(self, database: Transacting) -> None:
        self._db = database
        self._limit = SHORTEST_LIMIT_SECONDS

    async def run(self, query: Query[T]) -> T:
        try:
            async with (
                asyncio.timeout(self._limit + ANSWER_MARGIN_SECONDS),
                self._db.transaction() as connection,
            ):
                limits = limit_time(int(self._limit * 1000), LOCK_TIMEOUT_MS, by_indexes=True)
                await connection.run(limits)
                answer = await connection.run(query)
        except Exception as error:
            if isinstance(error, TimeoutError) or sqlstate_of(error) == CANCELLED:
                self._limit = min(2 * self._limit, LONGEST_LIMIT_SECONDS)
            raise
        self._limit = SHORTEST_LIMIT_SECONDS
        return answer

"""SlowQueryDatabase: a statement that took too long is given more time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from graphile_worker._db.slow_queries import (
    MAX_TIMEOUT_SECONDS,
    MIN_TIMEOUT_SECONDS,
    SlowQueryDatabase,
)
from graphile_worker._sql.query import Query
from tests.support.fake_database import FakeDatabaseError

LOOK: Query[str] = Query("find_orphaned_claims", (), str)


class Server:
    """Notes the limits of its transactions; raises what a test wants, or answers."""

    def __init__(self) -> None:
        self.limits: list[float] = []
        self.errors: list[Exception] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Server"]:
        yield self

    async def run(self, query: Query[Any]) -> Any:
        if query.statement == "set_query_limits":
            milliseconds: Any = query.args[0]
            self.limits.append(milliseconds / 1000)
            return None
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


async def test_the_time_limit_doubles_after_each_timeout_and_is_as_before_after_an_answer():
    server: Any = Server()
    database = SlowQueryDatabase(server)
    server.errors = [FakeDatabaseError("57014"), TimeoutError(), FakeDatabaseError("55P03")]
    for error in list(server.errors):
        with pytest.raises(type(error)):
            await database.run(LOOK)

    assert await database.run(LOOK) == "answer"
    assert await database.run(LOOK) == "answer"

    first = MIN_TIMEOUT_SECONDS
    assert server.limits == [first, 2 * first, 4 * first, 4 * first, first]


async def test_the_time_limit_stays_below_an_hour():
    server: Any = Server()
    database = SlowQueryDatabase(server)
    server.errors = [TimeoutError() for _ in range(20)]
    for _ in range(20):
        with pytest.raises(TimeoutError):
            await database.run(LOOK)

    assert max(server.limits) == MAX_TIMEOUT_SECONDS

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
from graphile_worker._sql.query import Plan, Query
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


async def test_a_fast_query_of_a_plan_does_not_reset_the_time_limit_of_a_slow_one():
    def plan_both() -> Plan[str]:
        yield Query("get_history", (), str)
        answer: str = yield LOOK
        return answer

    class SlowServer(Server):
        async def run(self, query: Query[Any]) -> Any:
            return "ring" if query.statement == "get_history" else await super().run(query)

    server: Any = SlowServer()
    database = SlowQueryDatabase(server)
    server.errors = [FakeDatabaseError("57014"), FakeDatabaseError("57014")]
    for _ in range(2):
        with pytest.raises(FakeDatabaseError):
            await database.run_plan(plan_both())

    assert await database.run_plan(plan_both()) == "answer"
    await database.run(LOOK)

    first = MIN_TIMEOUT_SECONDS
    assert server.limits == [first, first, 2 * first, 2 * first, 4 * first, 4 * first, first]


async def test_an_autocommit_statement_of_a_plan_runs_without_a_transaction():
    def plan_one() -> Plan[str]:
        answer: str = yield LOOK
        return answer

    server: Any = Server()
    database = SlowQueryDatabase(server)

    assert await database.run_plan(plan_one(), autocommit={"find_orphaned_claims"}) == "answer"

    assert server.limits == []

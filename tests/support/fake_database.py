"""A database without a server: it records queries and gives the answers that a test chooses."""

import asyncio
from typing import Any, cast

from graphile_worker._sql.query import Query


class FakeDatabaseError(Exception):
    """An error of the database, with its SQLSTATE."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class FakeDatabase:
    """Gives its answers in order and raises those that are errors; subclasses compute them.

    Whether other sessions have locked rows is answered at once, and not recorded.
    """

    def __init__(self, *answers: Any) -> None:
        self.queries: list[Query[Any]] = []
        # A test clears it to delay the answers.
        self.answering = asyncio.Event()
        self.answering.set()
        self._answers = list(answers)
        # The jobs whose rows other sessions have locked.
        self.blocked: set[int] = set()

    async def run(self, query: Query[Any]) -> Any:
        if query.statement == "find_blocked_jobs":
            return self.blocked.intersection(cast("list[int]", query.args[0]))
        self.queries.append(query)
        await self.answering.wait()
        answer = self.answer(query)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def answer(self, query: Query[Any]) -> Any:
        return self._answers.pop(0)

    @property
    def statements(self) -> list[str]:
        return [str(each.statement) for each in self.queries]

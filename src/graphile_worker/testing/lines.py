"""The connection of a test, for async and for blocking code alike: one transaction for all."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from threading import RLock
from typing import Any, NamedTuple, TypeVar

import psycopg

from graphile_worker.db.borrowed import borrow, borrow_blocking, is_a
from graphile_worker.db.database import Answering, BlockingConnection, carry_out, carry_out_blocking
from graphile_worker.db.lent import BlockingLentDatabase, LentDatabase
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Atomic, Pause, Plan, Query, Step
from graphile_worker.sql.testing import probe
from graphile_worker.testing.facades import Awaited, Waited
from graphile_worker.testing.places import AsyncPlace, DjangoPlace, Place, PlainPlace
from graphile_worker.testing.savepoints import (
    async_driver_of,
    async_savepoint,
    driver_of,
    is_blocking,
    is_django,
    of_scope,
    savepoint,
)

T = TypeVar("T")

# Makes the queue ready, on the connection of a test; False if a rollback could undo that.
Preparing = Callable[[Schemas], Plan[bool]]


class Lent(NamedTuple):
    """What is lent to a task: the driver's own connection, and how to ask queries of ours on it."""

    raw: Any
    run: Callable[[Query[Any]], Any]


class BlockingTestDatabase(BlockingLentDatabase):
    """For blocking code."""

    def __init__(self, schemas: Schemas) -> None:
        super().__init__(nullcontext, self.savepoint, schemas)

    def savepoint(self, *, always: bool = False) -> Any:
        """What is done inside is undone if it raises. Where statements commit, only if always."""
        raise NotImplementedError

    def driver(self) -> Any:
        """The connection that a plain task is lent."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make the queue ready for another session in the same transaction, if that can be."""

    @contextmanager
    def connection(self) -> Iterator[Any]:
        yield Lent(self.driver(), self.run)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.savepoint(always=True):
            yield Lent(self.driver(), self.run)


class TestDatabase(LentDatabase):
    """For async code."""

    __test__ = False

    def __init__(self, schemas: Schemas) -> None:
        super().__init__(nullcontext, schemas)

    def savepoint(self, *, always: bool = False) -> Any:
        raise NotImplementedError

    async def driver(self) -> Any:
        """The connection that an async task is lent."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Make the queue ready for another session in the same transaction, if that can be."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield Lent(await self.driver(), self.run)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.savepoint(always=True):
            yield Lent(await self.driver(), self.run)


class OnBlocking(BlockingTestDatabase):
    """On a blocking connection itself."""

    def __init__(
        self,
        connect: Callable[[], Any],
        schemas: Schemas,
        preparing: Preparing,
        *,
        is_ours: bool = False,
    ) -> None:
        super().__init__(schemas)
        self._connect = connect
        self._is_ours = is_ours
        self._preparing: Preparing | None = preparing
        # A schema that was made in a savepoint of the tested code may be gone at any time.
        self._is_lasting = True
        # Whoever comes first opens the connection and makes the queue ready; others wait for that.
        self._turn = RLock()

    @cached_property
    def _raw(self) -> Any:
        """The connection, opened by the first who needs it."""
        return of_scope(self._connect())

    def run(self, query: Query[T]) -> T:
        with self._turn:
            self._prepare()
        return borrow_blocking(self._raw, self.schemas).run(query)

    @contextmanager
    def savepoint(self, *, always: bool = False) -> Iterator[None]:
        # Begins a transaction, where that is done by the first statement.
        self.run(probe())
        with savepoint(self._raw, always=always):
            yield

    def driver(self) -> Any:
        # Begins a transaction, too.
        self.run(probe())
        return driver_of(self._raw)

    def prepare(self) -> None:
        # What is done on one that is ours alone, others do not see, and might wait for.
        if not self._is_ours:
            with self._turn:
                self._prepare()

    def _prepare(self) -> None:
        if self._preparing is None:
            return
        is_session = is_a(self._raw, "sqlalchemy.orm", "Session")
        # A session cannot be asked without arguments.
        raw = self._raw.connection() if is_session else self._raw
        connection = borrow_blocking(raw, self.schemas)
        act = partial(_act_blocking, connection)
        self._is_lasting &= carry_out_blocking(self._preparing(self.schemas), act)
        if self._is_lasting:
            self._preparing = None


class AboveBlocking(TestDatabase):
    """The blocking connection of a test for async code, which waits as if it were async."""

    def __init__(self, database: BlockingTestDatabase, place: Place) -> None:
        super().__init__(database.schemas)
        self._database = database
        self._place = place

    async def run(self, query: Query[T]) -> T:
        return await self._place.ask(partial(self._database.run, query))

    async def prepare(self) -> None:
        await self._place.ask(self._database.prepare)

    @asynccontextmanager
    async def savepoint(self, *, always: bool = False) -> AsyncIterator[None]:
        async with Awaited(self._database.savepoint(always=always), self._place.ask):
            yield

    async def driver(self) -> Any:
        found = await self._place.ask(self._database.driver)
        is_psycopg = isinstance(found, psycopg.Connection)
        return Awaited(found, self._place.ask) if is_psycopg else found


class OnAsync(TestDatabase):
    """On an async connection itself."""

    def __init__(
        self, connection: Any, schemas: Schemas, preparing: Preparing, place: AsyncPlace
    ) -> None:
        super().__init__(schemas)
        borrow(connection, schemas)  # refuses what is none
        self._given = connection
        self._preparing: Preparing | None = preparing
        self._is_lasting = True
        self._place = place
        # Async drivers take one statement at a time.
        self._turn = asyncio.Lock()

    @cached_property
    def _raw(self) -> Any:
        return of_scope(self._given)

    async def run(self, query: Query[T]) -> T:
        async with self._turn:
            await self._prepare()
            return await borrow(self._raw, self.schemas).run(query)

    @asynccontextmanager
    async def savepoint(self, *, always: bool = False) -> AsyncIterator[None]:
        await self.run(probe())
        async with async_savepoint(self._raw, always=always):
            yield

    async def driver(self) -> Any:
        await self.run(probe())
        return await async_driver_of(self._raw)

    async def prepare(self) -> None:
        async with self._turn:
            await self._prepare()

    async def _prepare(self) -> None:
        self._place.enter()
        if self._preparing is None:
            return
        is_session = is_a(self._raw, "sqlalchemy.ext.asyncio", "AsyncSession")
        raw = await self._raw.connection() if is_session else self._raw
        act = partial(_act, borrow(raw, self.schemas))
        self._is_lasting &= await carry_out(self._preparing(self.schemas), act)
        if self._is_lasting:
            self._preparing = None


class AboveAsync(BlockingTestDatabase):
    """The async connection of a test for plain functions, which run in threads."""

    def __init__(self, database: TestDatabase, place: AsyncPlace) -> None:
        super().__init__(database.schemas)
        self._database = database
        self._place = place

    def run(self, query: Query[T]) -> T:
        return self._place.run(partial(self._database.run, query))

    @contextmanager
    def savepoint(self, *, always: bool = False) -> Iterator[None]:
        with Waited(self._database.savepoint(always=always), self._place.run):
            yield

    def driver(self) -> Any:
        found = self._place.run(self._database.driver)
        is_psycopg = isinstance(found, psycopg.AsyncConnection)
        return Waited(found, self._place.run) if is_psycopg else found


@dataclass(frozen=True)
class Line:
    """The connection of a test: `database` is for async code, `blocking` for other code."""

    place: Place
    database: TestDatabase
    blocking: BlockingTestDatabase

    @classmethod
    def of(cls, connection: object, schemas: Schemas, preparing: Preparing) -> "Line":
        """Of a connection of the caller's."""
        if is_django(connection):
            return cls._of(OnBlocking(lambda: connection, schemas, preparing), DjangoPlace())
        if is_blocking(connection):
            return cls._of(OnBlocking(lambda: connection, schemas, preparing), PlainPlace())
        place = AsyncPlace()
        database = OnAsync(connection, schemas, preparing, place)
        return cls(place, database, AboveAsync(database, place))

    @classmethod
    def opened_by(
        cls, connect: Callable[[], Any], schemas: Schemas, preparing: Preparing
    ) -> "Line":
        """Of a blocking connection that is made when it is needed."""
        return cls._of(OnBlocking(connect, schemas, preparing, is_ours=True), PlainPlace())

    @classmethod
    def _of(cls, blocking: BlockingTestDatabase, place: Place) -> "Line":
        return cls(place, AboveBlocking(blocking, place), blocking)


async def _act(connection: Answering, step: Step) -> Any:
    return [await connection.run(query) for query in _queries(step)][-1]


def _act_blocking(connection: BlockingConnection, step: Step) -> Any:
    return [connection.run(query) for query in _queries(step)][-1]


def _queries(step: Step) -> tuple[Query[Any], ...]:
    """What is done together anyway, in the transaction of a test."""
    if isinstance(step, Pause):
        raise RuntimeError("the schema is in the middle of a migration: finish that first")
    return step.queries if isinstance(step, Atomic) else (step,)

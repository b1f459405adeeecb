"""The connection of a test, for async and for blocking code alike: one transaction for all."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from threading import RLock
from typing import Any, NamedTuple, TypeVar

import psycopg

from graphile_worker._db.database import QueryRunner, SyncQueryRunner, drive, drive_sync
from graphile_worker._db.external_connections import (
    adapt_connection,
    adapt_sync_connection,
    is_instance_by_name,
)
from graphile_worker._db.external_pools import ExternalPoolDatabase, SyncExternalPoolDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.testing import probe
from graphile_worker._sql.query import Atomic, Pause, Plan, Query, Step
from graphile_worker.testing.executors import (
    AsyncExecutor,
    DjangoExecutor,
    Executor,
    ThreadExecutor,
)
from graphile_worker.testing.savepoints import (
    async_savepoint,
    get_async_driver_connection,
    get_driver_connection,
    is_django_connection,
    is_sync_connection,
    savepoint,
    unwrap_scoped_session,
)
from graphile_worker.testing.sync_bridge import AsyncFacade, SyncFacade

T = TypeVar("T")

# Makes the queue ready, on the connection of a test; False if a rollback could undo that.
PreparePlan = Callable[[Schemas], Plan[bool]]


class TaskConnection(NamedTuple):
    """What is lent to a task: the driver's own connection, and how to ask queries of ours on it."""

    raw: Any
    run: Callable[[Query[Any]], Any]


class SyncTestDatabase(SyncExternalPoolDatabase):
    """For blocking code."""

    def __init__(self, schemas: Schemas) -> None:
        super().__init__(nullcontext, self.savepoint, schemas)

    def savepoint(self, *, always: bool = False) -> Any:
        """What is done inside is undone if it raises. Where statements commit, only if always."""
        raise NotImplementedError

    def get_driver_connection(self) -> Any:
        """The connection that a plain task is lent."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make the queue ready for another session in the same transaction, if that can be."""

    @contextmanager
    def connection(self) -> Iterator[Any]:
        yield TaskConnection(self.get_driver_connection(), self.run)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.savepoint(always=True):
            yield TaskConnection(self.get_driver_connection(), self.run)


class TestDatabase(ExternalPoolDatabase):
    """For async code."""

    __test__ = False

    def __init__(self, schemas: Schemas) -> None:
        super().__init__(nullcontext, schemas)

    def savepoint(self, *, always: bool = False) -> Any:
        raise NotImplementedError

    async def get_driver_connection(self) -> Any:
        """The connection that an async task is lent."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Make the queue ready for another session in the same transaction, if that can be."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield TaskConnection(await self.get_driver_connection(), self.run)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.savepoint(always=True):
            yield TaskConnection(await self.get_driver_connection(), self.run)


class SyncConnectionDatabase(SyncTestDatabase):
    """On a blocking connection itself."""

    def __init__(
        self,
        connect: Callable[[], Any],
        schemas: Schemas,
        prepare_plan: PreparePlan,
        *,
        owns_connection: bool = False,
    ) -> None:
        super().__init__(schemas)
        self._connect = connect
        self._owns_connection = owns_connection
        self._prepare_plan: PreparePlan | None = prepare_plan
        # A schema that was made in a savepoint of the tested code may be gone at any time.
        self._is_schema_durable = True
        # Whoever comes first opens the connection and makes the queue ready; others wait for that.
        self._prepare_lock = RLock()

    @cached_property
    def _raw(self) -> Any:
        """The connection, opened by the first who needs it."""
        return unwrap_scoped_session(self._connect())

    def run(self, query: Query[T]) -> T:
        with self._prepare_lock:
            self._prepare()
        return adapt_sync_connection(self._raw, self.schemas).run(query)

    @contextmanager
    def savepoint(self, *, always: bool = False) -> Iterator[None]:
        # Begins a transaction, where that is done by the first statement.
        self.run(probe())
        with savepoint(self._raw, always=always):
            yield

    def get_driver_connection(self) -> Any:
        # Begins a transaction, too.
        self.run(probe())
        return get_driver_connection(self._raw)

    def prepare(self) -> None:
        # What is done on one that is ours alone, others do not see, and might wait for.
        if not self._owns_connection:
            with self._prepare_lock:
                self._prepare()

    def _prepare(self) -> None:
        if self._prepare_plan is None:
            return
        is_session = is_instance_by_name(self._raw, "sqlalchemy.orm", "Session")
        # A session cannot be asked without arguments.
        raw = self._raw.connection() if is_session else self._raw
        connection = adapt_sync_connection(raw, self.schemas)
        act = partial(_execute_step_sync, connection)
        self._is_schema_durable &= drive_sync(self._prepare_plan(self.schemas), act)
        if self._is_schema_durable:
            self._prepare_plan = None


class SyncAsAsync(TestDatabase):
    """The blocking connection of a test for async code, which waits as if it were async."""

    def __init__(self, database: SyncTestDatabase, executor: Executor) -> None:
        super().__init__(database.schemas)
        self._database = database
        self._executor = executor

    async def run(self, query: Query[T]) -> T:
        return await self._executor.call_sync(partial(self._database.run, query))

    async def prepare(self) -> None:
        await self._executor.call_sync(self._database.prepare)

    @asynccontextmanager
    async def savepoint(self, *, always: bool = False) -> AsyncIterator[None]:
        async with AsyncFacade(self._database.savepoint(always=always), self._executor.call_sync):
            yield

    async def get_driver_connection(self) -> Any:
        found = await self._executor.call_sync(self._database.get_driver_connection)
        is_psycopg = isinstance(found, psycopg.Connection)
        return AsyncFacade(found, self._executor.call_sync) if is_psycopg else found


class AsyncConnectionDatabase(TestDatabase):
    """On an async connection itself."""

    def __init__(
        self, connection: Any, schemas: Schemas, prepare_plan: PreparePlan, executor: AsyncExecutor
    ) -> None:
        super().__init__(schemas)
        adapt_connection(connection, schemas)  # refuses what is none
        self._user_connection = connection
        self._prepare_plan: PreparePlan | None = prepare_plan
        self._is_schema_durable = True
        self._executor = executor
        # Async drivers take one statement at a time.
        self._statement_lock = asyncio.Lock()

    @cached_property
    def _raw(self) -> Any:
        return unwrap_scoped_session(self._user_connection)

    async def run(self, query: Query[T]) -> T:
        async with self._statement_lock:
            await self._prepare()
            return await adapt_connection(self._raw, self.schemas).run(query)

    @asynccontextmanager
    async def savepoint(self, *, always: bool = False) -> AsyncIterator[None]:
        await self.run(probe())
        async with async_savepoint(self._raw, always=always):
            yield

    async def get_driver_connection(self) -> Any:
        await self.run(probe())
        return await get_async_driver_connection(self._raw)

    async def prepare(self) -> None:
        async with self._statement_lock:
            await self._prepare()

    async def _prepare(self) -> None:
        self._executor.bind_loop()
        if self._prepare_plan is None:
            return
        is_session = is_instance_by_name(self._raw, "sqlalchemy.ext.asyncio", "AsyncSession")
        raw = await self._raw.connection() if is_session else self._raw
        act = partial(_execute_step, adapt_connection(raw, self.schemas))
        self._is_schema_durable &= await drive(self._prepare_plan(self.schemas), act)
        if self._is_schema_durable:
            self._prepare_plan = None


class AsyncAsSync(SyncTestDatabase):
    """The async connection of a test for plain functions, which run in threads."""

    def __init__(self, database: TestDatabase, executor: AsyncExecutor) -> None:
        super().__init__(database.schemas)
        self._database = database
        self._executor = executor

    def run(self, query: Query[T]) -> T:
        return self._executor.run(partial(self._database.run, query))

    @contextmanager
    def savepoint(self, *, always: bool = False) -> Iterator[None]:
        with SyncFacade(self._database.savepoint(always=always), self._executor.run):
            yield

    def get_driver_connection(self) -> Any:
        found = self._executor.run(self._database.get_driver_connection)
        is_psycopg = isinstance(found, psycopg.AsyncConnection)
        return SyncFacade(found, self._executor.run) if is_psycopg else found


@dataclass(frozen=True)
class TestConnection:
    """The connection of a test: `database` is for async code, `blocking` for other code."""

    executor: Executor
    database: TestDatabase
    sync_database: SyncTestDatabase

    @classmethod
    def wrap(
        cls, connection: object, schemas: Schemas, prepare_plan: PreparePlan
    ) -> "TestConnection":
        """Of a connection of the caller's."""
        if is_django_connection(connection):
            return cls._from_sync(
                SyncConnectionDatabase(lambda: connection, schemas, prepare_plan), DjangoExecutor()
            )
        if is_sync_connection(connection):
            return cls._from_sync(
                SyncConnectionDatabase(lambda: connection, schemas, prepare_plan), ThreadExecutor()
            )
        place = AsyncExecutor()
        database = AsyncConnectionDatabase(connection, schemas, prepare_plan, place)
        return cls(place, database, AsyncAsSync(database, place))

    @classmethod
    def connect_lazily(
        cls, connect: Callable[[], Any], schemas: Schemas, prepare_plan: PreparePlan
    ) -> "TestConnection":
        """Of a blocking connection that is made when it is needed."""
        return cls._from_sync(
            SyncConnectionDatabase(connect, schemas, prepare_plan, owns_connection=True),
            ThreadExecutor(),
        )

    @classmethod
    def _from_sync(cls, sync_database: SyncTestDatabase, executor: Executor) -> "TestConnection":
        return cls(executor, SyncAsAsync(sync_database, executor), sync_database)


async def _execute_step(connection: QueryRunner, step: Step) -> Any:
    return [await connection.run(query) for query in _flatten_step(step)][-1]


def _execute_step_sync(connection: SyncQueryRunner, step: Step) -> Any:
    return [connection.run(query) for query in _flatten_step(step)][-1]


def _flatten_step(step: Step) -> tuple[Query[Any], ...]:
    """What is done together anyway, in the transaction of a test."""
    if isinstance(step, Pause):
        raise RuntimeError("the schema is in the middle of a migration: finish that first")
    return step.queries if isinstance(step, Atomic) else (step,)

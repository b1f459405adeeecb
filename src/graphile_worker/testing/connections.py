"""The connection of a test, for async and for blocking code: one transaction for both."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from threading import RLock
from typing import Any, NamedTuple, TypeVar

import psycopg

from graphile_worker._db.external_connections import (
    adapt_connection,
    adapt_sync_connection,
    is_instance_by_name,
    is_sync_connection,
)
from graphile_worker._db.external_pools import ExternalPoolDatabase, SyncExternalPoolDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.testing import probe
from graphile_worker._sql.query import Query
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
    savepoint,
    unwrap_scoped_session,
)
from graphile_worker.testing.setup import PreparePlan, SchemaPreparation
from graphile_worker.testing.sync_bridge import AsyncFacade, SyncFacade

T = TypeVar("T")


class TaskConnection(NamedTuple):
    """The connection that a task gets: the driver's own, and a function that runs queries on it."""

    raw: Any
    run: Callable[[Query[Any]], Any]


class SyncTestDatabase(SyncExternalPoolDatabase):
    """The connection of a test for blocking code."""

    # Whether a statement has succeeded.
    was_used = False

    def __init__(self, schemas: Schemas) -> None:
        super().__init__(nullcontext, self.savepoint, schemas)

    def savepoint(self, *, always: bool = False) -> Any:
        """Open a savepoint. Without `always`, do nothing where each statement commits."""
        raise NotImplementedError

    def get_driver_connection(self) -> Any:
        """Return the connection for a plain task."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the queue for another session in the same transaction."""

    @contextmanager
    def connection(self) -> Iterator[Any]:
        yield TaskConnection(self.get_driver_connection(), self.run)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.savepoint(always=True):
            yield TaskConnection(self.get_driver_connection(), self.run)


class TestDatabase(ExternalPoolDatabase):
    """The connection of a test for async code, with the methods of `SyncTestDatabase`."""

    __test__ = False

    def __init__(self, schemas: Schemas) -> None:
        super().__init__(nullcontext, schemas)

    def savepoint(self, *, always: bool = False) -> Any:
        raise NotImplementedError

    async def get_driver_connection(self) -> Any:
        raise NotImplementedError

    async def prepare(self) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield TaskConnection(await self.get_driver_connection(), self.run)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.savepoint(always=True):
            yield TaskConnection(await self.get_driver_connection(), self.run)


class SyncConnectionDatabase(SyncTestDatabase):
    """A blocking connection, used by blocking code."""

    def __init__(
        self,
        connect: Callable[[], Any],
        schemas: Schemas,
        prepare_plan: PreparePlan,
        *,
        owns_connection: bool = False,
    ) -> None:
        super().__init__(schemas)
        self._open = connect
        self._owns_connection = owns_connection
        self._preparation = SchemaPreparation(prepare_plan, schemas)
        # Several threads may send the first statement. One connects and prepares the queue.
        self._prepare_lock = RLock()

    @cached_property
    def _raw(self) -> Any:
        return unwrap_scoped_session(self._open())

    def run(self, query: Query[T]) -> T:
        with self._prepare_lock:
            self._prepare()
        result = adapt_sync_connection(self._raw, self.schemas).run(query)
        self.was_used = True
        return result

    @contextmanager
    def savepoint(self, *, always: bool = False) -> Iterator[None]:
        # The first statement begins the transaction.
        self.run(probe())
        with savepoint(self._raw, always=always):
            yield

    def get_driver_connection(self) -> Any:
        self.run(probe())
        return get_driver_connection(self._raw)

    def prepare(self) -> None:
        # Other sessions do not see what a connection of this package prepares, and might wait for
        # its locks.
        if not self._owns_connection:
            with self._prepare_lock:
                self._prepare()

    def _prepare(self) -> None:
        if not self._preparation.is_done:
            is_session = is_instance_by_name(self._raw, "sqlalchemy.orm", "Session")
            # A session cannot run statements without parameters.
            raw = self._raw.connection() if is_session else self._raw
            self._preparation.run_sync(adapt_sync_connection(raw, self.schemas))


class SyncAsAsync(TestDatabase):
    """A blocking connection, used by async code."""

    def __init__(self, database: SyncTestDatabase, executor: Executor) -> None:
        super().__init__(database.schemas)
        self._database = database
        self._executor = executor

    async def run(self, query: Query[T]) -> T:
        return await self._executor.call_sync(partial(self._database.run, query))

    async def prepare(self) -> None:
        await self._executor.call_sync(self._database.prepare)

    def savepoint(self, *, always: bool = False) -> Any:
        return AsyncFacade(self._database.savepoint(always=always), self._executor.call_sync)

    async def get_driver_connection(self) -> Any:
        driver = await self._executor.call_sync(self._database.get_driver_connection)
        is_psycopg = isinstance(driver, psycopg.Connection)
        return AsyncFacade(driver, self._executor.call_sync) if is_psycopg else driver


class AsyncConnectionDatabase(TestDatabase):
    """An async connection, used by async code."""

    def __init__(
        self, connection: Any, schemas: Schemas, prepare_plan: PreparePlan, executor: AsyncExecutor
    ) -> None:
        super().__init__(schemas)
        adapt_connection(connection, schemas)  # raises if it is not a connection
        self._user_connection = connection
        self._preparation = SchemaPreparation(prepare_plan, schemas)
        self._executor = executor
        # Async drivers run one statement at a time.
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
        if not self._preparation.is_done:
            is_session = is_instance_by_name(self._raw, "sqlalchemy.ext.asyncio", "AsyncSession")
            raw = await self._raw.connection() if is_session else self._raw
            await self._preparation.run(adapt_connection(raw, self.schemas))


class AsyncAsSync(SyncTestDatabase):
    """An async connection, used by plain functions, which run in threads."""

    def __init__(self, database: TestDatabase, executor: AsyncExecutor) -> None:
        super().__init__(database.schemas)
        self._database = database
        self._executor = executor

    def run(self, query: Query[T]) -> T:
        return self._executor.run_main(partial(self._database.run, query))

    def savepoint(self, *, always: bool = False) -> Any:
        return SyncFacade(self._database.savepoint(always=always), self._executor.run_main)

    def get_driver_connection(self) -> Any:
        driver = self._executor.run_main(self._database.get_driver_connection)
        is_psycopg = isinstance(driver, psycopg.AsyncConnection)
        return SyncFacade(driver, self._executor.run_main) if is_psycopg else driver


@dataclass(frozen=True)
class TestConnection:
    """The connection of a test, with a database object for each kind of code."""

    executor: Executor
    database: TestDatabase
    sync_database: SyncTestDatabase

    @classmethod
    def wrap(
        cls, connection: object, schemas: Schemas, prepare_plan: PreparePlan
    ) -> "TestConnection":
        """Use a connection of the caller."""
        if is_sync_connection(connection):
            executor = (
                DjangoExecutor(connection) if is_django_connection(connection) else ThreadExecutor()
            )
            database = SyncConnectionDatabase(lambda: connection, schemas, prepare_plan)
            return cls(executor, SyncAsAsync(database, executor), database)
        async_executor = AsyncExecutor()
        async_database = AsyncConnectionDatabase(connection, schemas, prepare_plan, async_executor)
        return cls(async_executor, async_database, AsyncAsSync(async_database, async_executor))

    @classmethod
    def connect_lazily(
        cls, connect: Callable[[], Any], schemas: Schemas, prepare_plan: PreparePlan
    ) -> "TestConnection":
        """Open a blocking connection before the first statement."""
        executor = ThreadExecutor()
        database = SyncConnectionDatabase(connect, schemas, prepare_plan, owns_connection=True)
        return cls(executor, SyncAsAsync(database, executor), database)

"""Database: what the package needs of connections, and how plans run on them."""

import asyncio
import select
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar, assert_never

from psycopg.pq.abc import PGresult

from graphile_worker._db.notifications import NotificationStream
from graphile_worker._db.retry import MAX_ATTEMPTS, get_retry_delay
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Atomic, Pause, Plan, Query, Step, Transaction
from graphile_worker._sql.sqlstate import add_hint
from graphile_worker._support.failpoints import failpoint

T = TypeVar("T")
S = TypeVar("S")


class ConnectionCounts(NamedTuple):
    """The connections of a pool, and the callers that wait for one."""

    used: int = 0
    idle: int = 0
    waiting: int = 0


class QueryRunner(Protocol):
    """An object that runs queries."""

    async def run(self, query: Query[T]) -> T: ...


class Connection(QueryRunner, Protocol):
    """One connection of this package or of the caller. `raw` is the driver's."""

    @property
    def raw(self) -> Any: ...


class TransactionalRunner(QueryRunner, Protocol):
    """A runner that commits each query separately, or several in one transaction."""

    schemas: Schemas

    def transaction(self) -> AbstractAsyncContextManager[Connection]: ...


class Database(TransactionalRunner, Protocol):
    """A database with connections for queries and for LISTEN."""

    def connection(self) -> AbstractAsyncContextManager[Connection]: ...

    def listen(self, *channels: str) -> AbstractAsyncContextManager[NotificationStream]: ...

    async def close(self) -> None: ...


class SyncQueryRunner(Protocol):
    """`QueryRunner` without await."""

    def run(self, query: Query[T]) -> T: ...


class SyncConnection(SyncQueryRunner, Protocol):
    """`Connection` without await."""

    @property
    def raw(self) -> Any: ...


class ConnectionProvider(Protocol):
    """A database that lends connections to plain functions."""

    def connection(self) -> AbstractContextManager[SyncConnection]: ...

    def transaction(self) -> AbstractContextManager[SyncConnection]: ...


class SyncDatabase(SyncQueryRunner, Protocol):
    """`Database` without await, as far as blocking code needs it."""

    schemas: Schemas

    def transaction(self) -> AbstractContextManager[SyncQueryRunner]: ...

    def close(self) -> None: ...


async def run_plan(database: TransactionalRunner, plan: Plan[T]) -> T:
    """Run a plan. Each step commits separately."""
    return await drive(plan, lambda step: _execute_step(database, step))


async def run_plan_on(connection: QueryRunner, plan: Plan[T]) -> T:
    """Run a plan in the caller's transaction."""

    async def execute_step(step: Step) -> Any:
        if isinstance(step, Transaction):
            return await run_plan_on(connection, step.build_plan())
        return await connection.run(_require_query(step))

    return await drive(plan, execute_step)


def run_plan_sync(database: SyncDatabase, plan: Plan[T]) -> T:
    """Run a plan without await. See `run_plan`."""
    return drive_sync(plan, lambda step: _execute_step_sync(database, step))


def run_plan_sync_on(connection: SyncQueryRunner, plan: Plan[T]) -> T:
    """Run a plan in the caller's transaction without await."""

    def execute_step(step: Step) -> Any:
        if isinstance(step, Transaction):
            return run_plan_sync_on(connection, step.build_plan())
        return connection.run(_require_query(step))

    return drive_sync(plan, execute_step)


async def _execute_step(database: TransactionalRunner, step: Step) -> Any:
    match step:
        case Query():
            return await database.run(step)
        case Atomic(queries):
            return await with_retries(lambda: _run_atomic(database, queries))
        case Transaction(build_plan):
            return await with_retries(lambda: _run_transaction(database, build_plan))
        case Pause(seconds):
            return await asyncio.sleep(seconds)
        case _:
            assert_never(step)


def _execute_step_sync(database: SyncDatabase, step: Step) -> Any:
    match step:
        case Query():
            return database.run(step)
        case Atomic(queries):
            return with_retries_sync(lambda: _run_atomic_sync(database, queries))
        case Transaction(build_plan):
            return with_retries_sync(lambda: _run_transaction_sync(database, build_plan))
        case Pause(seconds):
            return time.sleep(seconds)
        case _:
            assert_never(step)


async def _run_atomic(database: TransactionalRunner, queries: Iterable[Query[Any]]) -> list[Any]:
    async with database.transaction() as connection:
        results = [await connection.run(query) for query in queries]
        failpoint("migrating")
        return results


def _run_atomic_sync(database: SyncDatabase, queries: Iterable[Query[Any]]) -> list[Any]:
    with database.transaction() as connection:
        return [connection.run(query) for query in queries]


async def _run_transaction(
    database: TransactionalRunner, build_plan: Callable[[], Plan[Any]]
) -> Any:
    async with database.transaction() as connection:
        return await run_plan_on(connection, build_plan())


def _run_transaction_sync(database: SyncDatabase, build_plan: Callable[[], Plan[Any]]) -> Any:
    with database.transaction() as connection:
        return run_plan_sync_on(connection, build_plan())


def _require_query(step: Step) -> Query[Any]:
    # The caller decides about transactions and pauses on its connection.
    if not isinstance(step, Query):
        raise TypeError(f"{type(step).__name__} cannot be done inside the caller's transaction")
    return step


async def with_retries(run: Callable[[], Awaitable[T]], *, max_attempts: int = MAX_ATTEMPTS) -> T:
    """Call `run` until it succeeds, or fails with an error that a retry does not fix."""
    attempt = 0
    while True:
        try:
            return await run()
        except Exception as error:
            delay = get_retry_delay(error, attempt, max_attempts)
            if delay is None:
                add_hint(error)
                raise
        await asyncio.sleep(delay)
        attempt += 1


def with_retries_sync(run: Callable[[], T], *, max_attempts: int = MAX_ATTEMPTS) -> T:
    """Call `run` without await. See `with_retries`."""
    attempt = 0
    while True:
        try:
            return run()
        except Exception as error:
            delay = get_retry_delay(error, attempt, max_attempts)
            if delay is None:
                add_hint(error)
                raise
        time.sleep(delay)
        attempt += 1


def has_input(descriptor: int) -> bool:
    """Return whether an idle connection has input to read, without a round trip."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def has_rows(result: PGresult | None) -> bool:
    """Return whether a result of psycopg has columns. The cursor's description costs more."""
    return result is not None and result.nfields > 0


async def drive(plan: Generator[S, Any, T], execute_step: Callable[[S], Awaitable[Any]]) -> T:
    """Run a plan, with `execute_step` for each of its steps."""
    try:
        step = next(plan)
        while True:
            try:
                answer = await execute_step(step)
            except Exception as error:
                add_hint(error)
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def drive_sync(plan: Generator[S, Any, T], execute_step: Callable[[S], Any]) -> T:
    """Run a plan without await. See `drive`."""
    try:
        step = next(plan)
        while True:
            try:
                answer = execute_step(step)
            except Exception as error:
                add_hint(error)
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result

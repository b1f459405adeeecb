"""What the rest of the house needs from a database, and how plans are carried out on one."""

import asyncio
import select
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar, assert_never

from psycopg.pq.abc import PGresult

from graphile_worker._db.notifications import NotificationStream
from graphile_worker._db.retry import compute_backoff, plan_retry
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Atomic, Pause, Plan, Query, Step
from graphile_worker._sql.sqlstate import TRANSIENT, add_hint, get_sqlstate
from graphile_worker._support.failpoints import failpoint

T = TypeVar("T")


class QueryRunner(Protocol):
    """Whatever answers queries."""

    async def run(self, query: Query[T]) -> T: ...


class Connection(QueryRunner, Protocol):
    """One connection, ours or the caller's; `raw` is the driver's own."""

    @property
    def raw(self) -> Any: ...


class TransactionalRunner(QueryRunner, Protocol):
    """Where each query commits by itself, and several can be made to commit together."""

    schemas: Schemas

    def transaction(self) -> AbstractAsyncContextManager[Connection]: ...


class Database(TransactionalRunner, Protocol):
    """A database of our own to use."""

    def connection(self) -> AbstractAsyncContextManager[Connection]: ...

    def listen(self, *channels: str) -> AbstractAsyncContextManager[NotificationStream]: ...

    async def close(self) -> None: ...


class SyncQueryRunner(Protocol):
    """`QueryRunner` without await."""

    def run(self, query: Query[T]) -> T: ...


class SyncConnection(SyncQueryRunner, Protocol):
    """One blocking connection, ours or the caller's; `raw` is the driver's own."""

    @property
    def raw(self) -> Any: ...


class ConnectionProvider(Protocol):
    """Lends connections to plain functions."""

    def connection(self) -> AbstractContextManager[SyncConnection]: ...

    def transaction(self) -> AbstractContextManager[SyncConnection]: ...


class SyncDatabase(SyncQueryRunner, Protocol):
    """`Database` without await, as far as blocking code needs it."""

    schemas: Schemas

    def transaction(self) -> AbstractContextManager[SyncQueryRunner]: ...

    def close(self) -> None: ...


async def run_plan(database: TransactionalRunner, plan: Plan[T]) -> T:
    """Carry out a plan, each step on its own."""
    return await drive(plan, lambda step: _execute_step(database, step))


async def run_plan_on(connection: QueryRunner, plan: Plan[T]) -> T:
    """Carry out a plan inside the caller's transaction."""
    return await drive(plan, lambda step: connection.run(_require_query(step)))


def run_plan_sync(database: SyncDatabase, plan: Plan[T]) -> T:
    """Carry out a plan, each step on its own."""
    return drive_sync(plan, lambda step: _execute_step_sync(database, step))


def run_plan_sync_on(connection: SyncQueryRunner, plan: Plan[T]) -> T:
    """Carry out a plan inside the caller's transaction."""
    return drive_sync(plan, lambda step: connection.run(_require_query(step)))


async def _execute_step(database: TransactionalRunner, step: Step) -> Any:
    match step:
        case Query():
            return await database.run(step)
        case Atomic(queries):
            return await with_retries(step, lambda: _run_atomic(database, queries))
        case Pause(seconds):
            return await asyncio.sleep(seconds)
        case _:
            assert_never(step)


def _execute_step_sync(database: SyncDatabase, step: Step) -> Any:
    match step:
        case Query():
            return database.run(step)
        case Atomic(queries):
            return with_retries_sync(step, lambda: _run_atomic_sync(database, queries))
        case Pause(seconds):
            return time.sleep(seconds)
        case _:
            assert_never(step)


async def _run_atomic(database: TransactionalRunner, queries: Iterable[Query[Any]]) -> list[Any]:
    async with database.transaction() as connection:
        answers = [await connection.run(query) for query in queries]
        failpoint("migrating")
        return answers


def _run_atomic_sync(database: SyncDatabase, queries: Iterable[Query[Any]]) -> list[Any]:
    with database.transaction() as connection:
        return [connection.run(query) for query in queries]


def _require_query(step: Step) -> Query[Any]:
    # Transactions and pauses are not ours to make on somebody else's connection.
    if not isinstance(step, Query):
        raise TypeError(f"{type(step).__name__} cannot be done inside the caller's transaction")
    return step


async def with_retries(step: Query[Any] | Atomic, run: Callable[[], Awaitable[T]]) -> T:
    """What `run` answers on a connection of ours, again where sessions got in each other's way."""

    async def execute_step(step: Step) -> Any:
        return await asyncio.sleep(step.seconds) if isinstance(step, Pause) else await run()

    try:
        # Nearly always the end of it: no plan is needed for that.
        return await run()
    except Exception as error:
        if get_sqlstate(error) not in TRANSIENT:
            add_hint(error)
            raise
    await asyncio.sleep(compute_backoff(0))
    answer: T = await drive(plan_retry(step, 1), execute_step)
    return answer


def with_retries_sync(step: Query[Any] | Atomic, run: Callable[[], T]) -> T:
    """`with_retries` without await."""

    def execute_step(step: Step) -> Any:
        return time.sleep(step.seconds) if isinstance(step, Pause) else run()

    try:
        return run()
    except Exception as error:
        if get_sqlstate(error) not in TRANSIENT:
            add_hint(error)
            raise
    time.sleep(compute_backoff(0))
    answer: T = drive_sync(plan_retry(step, 1), execute_step)
    return answer


def has_input(descriptor: int) -> bool:
    """Is there something to be read from an idle connection? Costs no round trip."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def has_rows(result: PGresult | None) -> bool:
    """Does an answer of psycopg have columns? Its cursors describe each of them to say so."""
    return result is not None and result.nfields > 0


async def drive(plan: Plan[T], execute_step: Callable[[Step], Awaitable[Any]]) -> T:
    """Drive a plan: `act` does each step."""
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


def drive_sync(plan: Plan[T], execute_step: Callable[[Step], Any]) -> T:
    """Drive a plan: `act` does each step."""
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

"""What the rest of the house needs from a database, and how plans are carried out on one."""

import asyncio
import select
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar, assert_never

from psycopg.pq.abc import PGresult

from graphile_worker.db.listening import Listening
from graphile_worker.db.retry import delay_after, retrying
from graphile_worker.failpoints import failpoint
from graphile_worker.sql.failures import TRANSIENT, name_cure, sqlstate_of
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Atomic, Pause, Plan, Query, Step

T = TypeVar("T")


class Answering(Protocol):
    """Whatever answers queries."""

    async def run(self, query: Query[T]) -> T: ...


class Connection(Answering, Protocol):
    """One connection, ours or the caller's; `raw` is the driver's own."""

    @property
    def raw(self) -> Any: ...


class Transacting(Answering, Protocol):
    """Where each query commits by itself, and several can be made to commit together."""

    schemas: Schemas

    def transaction(self) -> AbstractAsyncContextManager[Connection]: ...


class Database(Transacting, Protocol):
    """A database of our own to use."""

    def connection(self) -> AbstractAsyncContextManager[Connection]: ...

    def listen(self, *channels: str) -> AbstractAsyncContextManager[Listening]: ...

    async def close(self) -> None: ...


class BlockingConnection(Protocol):
    """`Answering` without await."""

    def run(self, query: Query[T]) -> T: ...


class RawBlockingConnection(BlockingConnection, Protocol):
    """One blocking connection, ours or the caller's; `raw` is the driver's own."""

    @property
    def raw(self) -> Any: ...


class BlockingLender(Protocol):
    """Lends connections to plain functions."""

    def connection(self) -> AbstractContextManager[RawBlockingConnection]: ...

    def transaction(self) -> AbstractContextManager[RawBlockingConnection]: ...


class BlockingDatabase(BlockingConnection, Protocol):
    """`Database` without await, as far as blocking code needs it."""

    schemas: Schemas

    def transaction(self) -> AbstractContextManager[BlockingConnection]: ...

    def close(self) -> None: ...


async def perform(database: Transacting, plan: Plan[T]) -> T:
    """Carry out a plan, each step on its own."""
    return await carry_out(plan, lambda step: _act(database, step))


async def perform_on(connection: Answering, plan: Plan[T]) -> T:
    """Carry out a plan inside the caller's transaction."""
    return await carry_out(plan, lambda step: connection.run(_only_query(step)))


def perform_blocking(database: BlockingDatabase, plan: Plan[T]) -> T:
    """Carry out a plan, each step on its own."""
    return carry_out_blocking(plan, lambda step: _act_blocking(database, step))


def perform_blocking_on(connection: BlockingConnection, plan: Plan[T]) -> T:
    """Carry out a plan inside the caller's transaction."""
    return carry_out_blocking(plan, lambda step: connection.run(_only_query(step)))


async def _act(database: Transacting, step: Step) -> Any:
    match step:
        case Query():
            return await database.run(step)
        case Atomic(queries):
            return await with_retries(step, lambda: _together(database, queries))
        case Pause(seconds):
            return await asyncio.sleep(seconds)
        case _:
            assert_never(step)


def _act_blocking(database: BlockingDatabase, step: Step) -> Any:
    match step:
        case Query():
            return database.run(step)
        case Atomic(queries):
            return with_retries_blocking(step, lambda: _together_blocking(database, queries))
        case Pause(seconds):
            return time.sleep(seconds)
        case _:
            assert_never(step)


async def _together(database: Transacting, queries: Iterable[Query[Any]]) -> list[Any]:
    async with database.transaction() as connection:
        answers = [await connection.run(query) for query in queries]
        failpoint("migrating")
        return answers


def _together_blocking(database: BlockingDatabase, queries: Iterable[Query[Any]]) -> list[Any]:
    with database.transaction() as connection:
        return [connection.run(query) for query in queries]


def _only_query(step: Step) -> Query[Any]:
    # Transactions and pauses are not ours to make on somebody else's connection.
    if not isinstance(step, Query):
        raise TypeError(f"{type(step).__name__} cannot be done inside the caller's transaction")
    return step


async def with_retries(step: Query[Any] | Atomic, run: Callable[[], Awaitable[T]]) -> T:
    """What `run` answers on a connection of ours, again where sessions got in each other's way."""

    async def act(step: Step) -> Any:
        return await asyncio.sleep(step.seconds) if isinstance(step, Pause) else await run()

    try:
        # Nearly always the end of it: no plan is needed for that.
        return await run()
    except Exception as error:
        if sqlstate_of(error) not in TRANSIENT:
            name_cure(error)
            raise
    await asyncio.sleep(delay_after(0))
    answer: T = await carry_out(retrying(step, 1), act)
    return answer


def with_retries_blocking(step: Query[Any] | Atomic, run: Callable[[], T]) -> T:
    """`with_retries` without await."""

    def act(step: Step) -> Any:
        return time.sleep(step.seconds) if isinstance(step, Pause) else run()

    try:
        return run()
    except Exception as error:
        if sqlstate_of(error) not in TRANSIENT:
            name_cure(error)
            raise
    time.sleep(delay_after(0))
    answer: T = carry_out_blocking(retrying(step, 1), act)
    return answer


def has_input(descriptor: int) -> bool:
    """Is there something to be read from an idle connection? Costs no round trip."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def has_rows(result: PGresult | None) -> bool:
    """Does an answer of psycopg have columns? Its cursors describe each of them to say so."""
    return result is not None and result.nfields > 0


async def carry_out(plan: Plan[T], act: Callable[[Step], Awaitable[Any]]) -> T:
    """Drive a plan: `act` does each step."""
    try:
        step = next(plan)
        while True:
            try:
                answer = await act(step)
            except Exception as error:
                name_cure(error)
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def carry_out_blocking(plan: Plan[T], act: Callable[[Step], Any]) -> T:
    """Drive a plan: `act` does each step."""
    try:
        step = next(plan)
        while True:
            try:
                answer = act(step)
            except Exception as error:
                name_cure(error)
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result

"""A savepoint in whatever library's words: what is done inside is undone if that raises.

Where no transaction is open, nothing is done, or one is begun.
"""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from graphile_worker.db.borrowed import is_a
from graphile_worker.errors import ConfigurationError

NAME = "graphile_worker_test"


def is_django(connection: object) -> bool:
    """Is it Django's, which belongs to one thread?"""
    return is_a(connection, "django.utils.connection", "ConnectionProxy") or is_a(
        connection, "django.db.backends.base.base", "BaseDatabaseWrapper"
    )


def is_blocking(connection: object) -> bool:
    """Is it of a library for blocking code?"""
    return (
        isinstance(connection, psycopg.Connection)
        or is_django(connection)
        or is_a(connection, "psycopg2.extensions", "connection")
        or is_a(connection, "sqlalchemy.engine", "Connection")
        or is_a(connection, "sqlalchemy.orm", "Session", "scoped_session")
    )


def of_scope(connection: Any) -> Any:
    """The session of a scoped one: tasks in other threads would have others."""
    is_scoped = is_a(connection, "sqlalchemy.orm", "scoped_session") or is_a(
        connection, "sqlalchemy.ext.asyncio", "async_scoped_session"
    )
    return connection() if is_scoped else connection


@contextmanager
def savepoint(connection: Any, *, always: bool) -> Iterator[None]:
    """What is done inside is undone if it raises; always, or where a transaction is open."""
    if not always and not _in_transaction(driver_of(connection)):
        yield
        return
    with _nested(connection, of_job=not always):
        yield


@asynccontextmanager
async def async_savepoint(connection: Any, *, always: bool) -> AsyncIterator[None]:
    """`savepoint` on an async connection."""
    if not always and not _in_transaction(await async_driver_of(connection)):
        yield
        return
    async with _async_nested(connection):
        yield


def driver_of(connection: Any) -> Any:
    """The driver's own connection under a session, or under Django's."""
    if is_a(connection, "sqlalchemy.orm", "Session"):
        connection = connection.connection()
    if is_a(connection, "sqlalchemy.engine", "Connection"):
        return connection.connection.driver_connection
    if is_django(connection):
        connection.ensure_connection()
        return connection.connection
    return connection


async def async_driver_of(connection: Any) -> Any:
    """`driver_of` for async connections."""
    if is_a(connection, "sqlalchemy.ext.asyncio", "AsyncSession"):
        connection = await connection.connection()
    if is_a(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return (await connection.get_raw_connection()).driver_connection
    return connection


def _in_transaction(driver: Any) -> bool:
    if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        return driver.info.transaction_status != TransactionStatus.IDLE
    if hasattr(driver, "is_in_transaction"):
        found: bool = driver.is_in_transaction()
        return found
    return bool(driver.get_transaction_status() != TransactionStatus.IDLE)


def _nested(connection: Any, *, of_job: bool) -> AbstractContextManager[Any]:
    manager: AbstractContextManager[Any]
    if is_django(connection):
        atomic = sys.modules["django.db.transaction"].atomic(using=connection.alias)
        # Tasks may begin what they call durable, as they may in Django's own tests.
        atomic._from_testcase = of_job
        manager = atomic
    elif hasattr(connection, "begin_nested"):
        manager = _of_sqlalchemy(connection)
    elif isinstance(connection, psycopg.Connection):
        manager = connection.transaction()
    else:
        manager = _of_psycopg2(connection)
    return manager


def _async_nested(connection: Any) -> AbstractAsyncContextManager[Any]:
    if hasattr(connection, "begin_nested"):
        return _of_async_sqlalchemy(connection)
    manager: AbstractAsyncContextManager[Any] = connection.transaction()
    return manager


# Not SQLAlchemy's own `with`, in which a session that a task commits takes no more statements.


@contextmanager
def _of_sqlalchemy(connection: Any) -> Iterator[None]:
    nested = connection.begin_nested()
    try:
        yield
    except BaseException:
        (nested if nested.is_active else connection).rollback()
        raise
    if nested.is_active:
        nested.commit()


@asynccontextmanager
async def _of_async_sqlalchemy(connection: Any) -> AsyncIterator[None]:
    nested = await connection.begin_nested()
    try:
        yield
    except BaseException:
        await (nested if nested.is_active else connection).rollback()
        raise
    if nested.is_active:
        await nested.commit()


@contextmanager
def _of_psycopg2(connection: Any) -> Iterator[None]:
    if connection.autocommit:
        raise ConfigurationError("ctx.transaction() cannot begin one in psycopg2's autocommit mode")
    with connection.cursor() as cursor:
        cursor.execute(f"savepoint {NAME}")
        try:
            yield
        except BaseException:
            cursor.execute(f"rollback to savepoint {NAME}")
            raise
        finally:
            cursor.execute(f"release savepoint {NAME}")

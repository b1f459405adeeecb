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

from graphile_worker._db.external_connections import is_instance_by_name
from graphile_worker.errors import ConfigurationError

SAVEPOINT_NAME = "graphile_worker_test"


def is_django_connection(connection: object) -> bool:
    """Is it Django's, which belongs to one thread?"""
    return is_instance_by_name(
        connection, "django.utils.connection", "ConnectionProxy"
    ) or is_instance_by_name(connection, "django.db.backends.base.base", "BaseDatabaseWrapper")


def is_sync_connection(connection: object) -> bool:
    """Is it of a library for blocking code?"""
    return (
        isinstance(connection, psycopg.Connection)
        or is_django_connection(connection)
        or is_instance_by_name(connection, "psycopg2.extensions", "connection")
        or is_instance_by_name(connection, "sqlalchemy.engine", "Connection")
        or is_instance_by_name(connection, "sqlalchemy.orm", "Session", "scoped_session")
    )


def unwrap_scoped_session(connection: Any) -> Any:
    """The session of a scoped one: tasks in other threads would have others."""
    is_scoped = is_instance_by_name(
        connection, "sqlalchemy.orm", "scoped_session"
    ) or is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "async_scoped_session")
    return connection() if is_scoped else connection


@contextmanager
def savepoint(connection: Any, *, always: bool) -> Iterator[None]:
    """What is done inside is undone if it raises; always, or where a transaction is open."""
    if not always and not _is_in_transaction(get_driver_connection(connection)):
        yield
        return
    with _open_savepoint(connection, is_for_job=not always):
        yield


@asynccontextmanager
async def async_savepoint(connection: Any, *, always: bool) -> AsyncIterator[None]:
    """`savepoint` on an async connection."""
    if not always and not _is_in_transaction(await get_async_driver_connection(connection)):
        yield
        return
    async with _open_async_savepoint(connection):
        yield


def get_driver_connection(connection: Any) -> Any:
    """The driver's own connection under a session, or under Django's."""
    if is_instance_by_name(connection, "sqlalchemy.orm", "Session"):
        connection = connection.connection()
    if is_instance_by_name(connection, "sqlalchemy.engine", "Connection"):
        return connection.connection.driver_connection
    if is_django_connection(connection):
        connection.ensure_connection()
        return connection.connection
    return connection


async def get_async_driver_connection(connection: Any) -> Any:
    """`get_driver_connection` for async connections."""
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncSession"):
        connection = await connection.connection()
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return (await connection.get_raw_connection()).driver_connection
    return connection


def _is_in_transaction(driver: Any) -> bool:
    if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        return driver.info.transaction_status != TransactionStatus.IDLE
    if hasattr(driver, "is_in_transaction"):
        found: bool = driver.is_in_transaction()
        return found
    return bool(driver.get_transaction_status() != TransactionStatus.IDLE)


def _open_savepoint(connection: Any, *, is_for_job: bool) -> AbstractContextManager[Any]:
    manager: AbstractContextManager[Any]
    if is_django_connection(connection):
        atomic = sys.modules["django.db.transaction"].atomic(using=connection.alias)
        # Tasks may begin what they call durable, as they may in Django's own tests.
        atomic._from_testcase = is_for_job
        manager = atomic
    elif hasattr(connection, "begin_nested"):
        manager = _sqlalchemy_savepoint(connection)
    elif isinstance(connection, psycopg.Connection):
        manager = connection.transaction()
    else:
        manager = _psycopg2_savepoint(connection)
    return manager


def _open_async_savepoint(connection: Any) -> AbstractAsyncContextManager[Any]:
    if hasattr(connection, "begin_nested"):
        return _async_sqlalchemy_savepoint(connection)
    manager: AbstractAsyncContextManager[Any] = connection.transaction()
    return manager


# Not SQLAlchemy's own `with`, in which a session that a task commits takes no more statements.


@contextmanager
def _sqlalchemy_savepoint(connection: Any) -> Iterator[None]:
    nested = connection.begin_nested()
    try:
        yield
    except BaseException:
        (nested if nested.is_active else connection).rollback()
        raise
    if nested.is_active:
        nested.commit()


@asynccontextmanager
async def _async_sqlalchemy_savepoint(connection: Any) -> AsyncIterator[None]:
    nested = await connection.begin_nested()
    try:
        yield
    except BaseException:
        await (nested if nested.is_active else connection).rollback()
        raise
    if nested.is_active:
        await nested.commit()


@contextmanager
def _psycopg2_savepoint(connection: Any) -> Iterator[None]:
    if connection.autocommit:
        raise ConfigurationError("ctx.transaction() cannot begin one in psycopg2's autocommit mode")
    with connection.cursor() as cursor:
        cursor.execute(f"savepoint {SAVEPOINT_NAME}")
        try:
            yield
        except BaseException:
            cursor.execute(f"rollback to savepoint {SAVEPOINT_NAME}")
            raise
        finally:
            cursor.execute(f"release savepoint {SAVEPOINT_NAME}")

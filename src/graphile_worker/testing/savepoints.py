"""Savepoints on the connections of every supported library."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from graphile_worker._db.external_connections import is_instance_by_name
from graphile_worker.errors import ConfigurationError

SAVEPOINT_NAME = "graphile_worker_test"


def is_django_connection(connection: object) -> bool:
    """Return whether it is a connection of Django, which belongs to one thread."""
    return is_instance_by_name(
        connection, "django.utils.connection", "ConnectionProxy"
    ) or is_instance_by_name(connection, "django.db.backends.base.base", "BaseDatabaseWrapper")


def unwrap_scoped_session(connection: Any) -> Any:
    """Return the session of a scoped session, which would make another one in each thread."""
    is_scoped = is_instance_by_name(
        connection, "sqlalchemy.orm", "scoped_session"
    ) or is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "async_scoped_session")
    return connection() if is_scoped else connection


def savepoint(connection: Any, *, always: bool) -> Any:
    """Open a savepoint. Without `always`, do nothing where no transaction is open."""
    if not always and not _is_in_transaction(get_driver_connection(connection)):
        return nullcontext()
    if is_django_connection(connection):
        atomic = sys.modules["django.db.transaction"].atomic(using=connection.alias)
        # Tasks may open durable transactions, as in Django's own tests.
        atomic._from_testcase = not always
        return atomic
    if hasattr(connection, "begin_nested"):
        return _sqlalchemy_savepoint(connection)
    if isinstance(connection, psycopg.Connection):
        return connection.transaction()
    return _psycopg2_savepoint(connection)


@asynccontextmanager
async def async_savepoint(connection: Any, *, always: bool) -> AsyncIterator[None]:
    """Open a savepoint on an async connection. See `savepoint`."""
    if not always and not _is_in_transaction(await get_async_driver_connection(connection)):
        yield
    elif hasattr(connection, "begin_nested"):
        async with _async_sqlalchemy_savepoint(connection):
            yield
    else:
        async with connection.transaction():
            yield


def get_driver_connection(connection: Any) -> Any:
    """Return the driver's connection of a session, or of Django's connection."""
    if is_instance_by_name(connection, "sqlalchemy.orm", "Session"):
        connection = connection.connection()
    if is_instance_by_name(connection, "sqlalchemy.engine", "Connection"):
        return connection.connection.driver_connection
    if is_django_connection(connection):
        connection.ensure_connection()
        return connection.connection
    return connection


async def get_async_driver_connection(connection: Any) -> Any:
    """Return the driver's connection of an async session or connection."""
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncSession"):
        connection = await connection.connection()
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return (await connection.get_raw_connection()).driver_connection
    return connection


def _is_in_transaction(driver: Any) -> bool:
    if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        return driver.info.transaction_status != TransactionStatus.IDLE
    if hasattr(driver, "is_in_transaction"):
        return bool(driver.is_in_transaction())
    return bool(driver.get_transaction_status() != TransactionStatus.IDLE)


# Not SQLAlchemy's own `with`: after a task commits its session, that accepts no more statements.


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

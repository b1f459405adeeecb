"""Every kind of connection that a caller may lend us, each with codecs and rows of its owner's."""

import asyncio
import inspect
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from typing import Any

import asyncpg
import django
import django.db
import psycopg
import psycopg2
import pytest
import sqlalchemy
from django.conf import settings
from django.db import transaction
from psycopg.pq import Format
from psycopg.rows import dict_row
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg2.extras import (
    DictConnection,
    RealDictCursor,
    register_default_json,
    register_default_jsonb,
)
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from graphile_worker import Client, sync
from tests.conftest import TestDatabase

TEXT, JSON, JSONB = 25, 114, 3802  # numbers of types, the same everywhere


def owners_loads(text: Any) -> object:
    """What a caller's codec may do to JSON; nothing of ours may pass through it."""
    return {"mangled by the owner's codec": str(text)}


def owners_dumps(value: object) -> str:
    return json.dumps({"mangled by the owner's codec": str(value)})


async def done(value: Any) -> Any:
    """The value, awaited if it has to be: blocking and async kinds read alike."""
    return await value if inspect.isawaitable(value) else value


class Lent:
    """A connection in its owner's hands; `begin` and `commit` are done as the owner would."""

    client_class: type[Client] | type[sync.Client] = Client
    error: type[Exception]

    def __init__(self, conn: Any, database: TestDatabase) -> None:
        self.conn = conn
        self.client = self.client_class(database.dsn, schema=database.schema)

    async def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client on this connection."""
        return await done(getattr(self.client, method)(*args, conn=self.conn, **options))

    async def execute(self, statement: str) -> None:
        await done(self.conn.execute(statement))

    async def begin(self) -> None:
        # Most libraries begin a transaction with its first statement.
        await self.execute("select 1")

    async def commit(self) -> None:
        await done(self.conn.commit())

    async def rollback(self) -> None:
        await done(self.conn.rollback())

    async def savepoint(self) -> None:
        await self.execute("savepoint owners")

    async def rollback_to_savepoint(self) -> None:
        await self.execute("rollback to savepoint owners")

    async def use_autocommit(self) -> None:
        """Let each statement commit by itself: nothing to do where that is the default."""

    def facts(self) -> object:
        """All that we must leave as it was."""
        raise NotImplementedError


class LentAsyncPsycopg(Lent):
    error = psycopg.Error

    def facts(self) -> object:
        conn, adapters = self.conn, self.conn.adapters
        loaders = [adapters.get_loader(oid, form) for oid in (TEXT, JSON, JSONB) for form in Format]
        dumpers = [adapters.get_dumper(cls, psycopg.adapt.PyFormat.AUTO) for cls in (str, int)]
        factories = (conn.row_factory, conn.cursor_factory, conn.prepare_threshold)
        return (conn.autocommit, conn.info.transaction_status, factories, loaders, dumpers)

    async def use_autocommit(self) -> None:
        await done(self.conn.set_autocommit(True))


class LentPsycopg(LentAsyncPsycopg):
    client_class = sync.Client


class LentPsycopg2(Lent):
    client_class = sync.Client
    error = psycopg2.Error

    async def execute(self, statement: str) -> None:
        with self.conn.cursor() as cursor:
            cursor.execute(statement)

    def facts(self) -> object:
        conn = self.conn
        status = conn.info.transaction_status
        return (conn.autocommit, conn.status, status, conn.isolation_level, conn.cursor_factory)

    async def use_autocommit(self) -> None:
        self.conn.autocommit = True


class LentAsyncpg(Lent):
    error = asyncpg.PostgresError

    async def begin(self) -> None:
        self.transaction = self.conn.transaction()
        await self.transaction.start()

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()

    async def savepoint(self) -> None:
        self.nested = self.conn.transaction()
        await self.nested.start()

    async def rollback_to_savepoint(self) -> None:
        await self.nested.rollback()

    def facts(self) -> object:
        return self.conn.is_in_transaction()


class LentAsyncSqlalchemy(Lent):
    error = sqlalchemy.exc.DBAPIError

    async def execute(self, statement: str) -> None:
        await done(self.conn.execute(sqlalchemy.text(statement)))

    async def savepoint(self) -> None:
        self.nested = await done(self.conn.begin_nested())

    async def rollback_to_savepoint(self) -> None:
        await done(self.nested.rollback())

    def facts(self) -> object:
        proxy = self.conn
        owner = proxy() if isinstance(proxy, scoped_session | async_scoped_session) else proxy
        return (owner.in_transaction(), owner.in_nested_transaction())


class LentSqlalchemy(LentAsyncSqlalchemy):
    client_class = sync.Client


class LentDjango(Lent):
    client_class = sync.Client
    error = django.db.Error

    async def execute(self, statement: str) -> None:
        with self.conn.cursor() as cursor:
            cursor.execute(statement)

    async def begin(self) -> None:
        self.block = transaction.atomic()
        self.block.__enter__()

    async def commit(self) -> None:
        self.block.__exit__(None, None, None)

    async def rollback(self) -> None:
        transaction.set_rollback(True)
        await self.commit()

    async def savepoint(self) -> None:
        # Django 6.1 renamed it.
        create = getattr(transaction, "savepoint_create", None) or transaction.savepoint
        self.nested = create()

    async def rollback_to_savepoint(self) -> None:
        transaction.savepoint_rollback(self.nested)

    def facts(self) -> object:
        conn = self.conn
        return (conn.get_autocommit(), conn.in_atomic_block, list(conn.savepoint_ids))


Kind = Callable[[TestDatabase], AbstractAsyncContextManager[Lent]]


class OwnersCursor(psycopg.ClientCursor[Any]):
    """A cursor class that a caller might like better."""


class OwnersAsyncCursor(psycopg.AsyncClientCursor[Any]):
    """The same for async code."""


class OwnersRecord(asyncpg.Record):  # type: ignore[misc]  # asyncpg has no types
    """A row class that a caller might like better."""


@asynccontextmanager
async def psycopg_plain(database: TestDatabase) -> AsyncIterator[Lent]:
    with psycopg.connect(database.dsn) as conn:
        yield LentPsycopg(conn, database)


@asynccontextmanager
async def psycopg_customized(database: TestDatabase) -> AsyncIterator[Lent]:
    dsn = database.dsn
    with psycopg.connect(dsn, row_factory=dict_row, cursor_factory=OwnersCursor) as conn:
        customize_psycopg(conn)
        yield LentPsycopg(conn, database)


@asynccontextmanager
async def psycopg_async_plain(database: TestDatabase) -> AsyncIterator[Lent]:
    async with await psycopg.AsyncConnection.connect(database.dsn) as conn:
        yield LentAsyncPsycopg(conn, database)


@asynccontextmanager
async def psycopg_async_customized(database: TestDatabase) -> AsyncIterator[Lent]:
    async with await psycopg.AsyncConnection.connect(
        database.dsn, row_factory=dict_row, cursor_factory=OwnersAsyncCursor
    ) as conn:
        customize_psycopg(conn)
        yield LentAsyncPsycopg(conn, database)


def customize_psycopg(conn: Any) -> None:
    set_json_loads(owners_loads, conn)
    set_json_dumps(owners_dumps, conn)


def psycopg2_with(**how: Any) -> Kind:
    @asynccontextmanager
    async def lend(database: TestDatabase) -> AsyncIterator[Lent]:
        with closing(psycopg2.connect(database.dsn, **how)) as conn:
            customize_psycopg2(conn)
            yield LentPsycopg2(conn, database)

    return lend


def customize_psycopg2(conn: Any) -> None:
    register_default_json(conn, loads=owners_loads)
    register_default_jsonb(conn, loads=owners_loads)


@asynccontextmanager
async def asyncpg_plain(database: TestDatabase) -> AsyncIterator[Lent]:
    conn = await asyncpg.connect(database.url)
    try:
        yield LentAsyncpg(conn, database)
    finally:
        await conn.close()


@asynccontextmanager
async def asyncpg_customized(database: TestDatabase) -> AsyncIterator[Lent]:
    conn = await asyncpg.connect(database.url, record_class=OwnersRecord)
    await customize_asyncpg(conn)
    try:
        yield LentAsyncpg(conn, database)
    finally:
        await conn.close()


@asynccontextmanager
async def asyncpg_pool(database: TestDatabase) -> AsyncIterator[Lent]:
    async with (
        asyncpg.create_pool(database.url, min_size=1, init=customize_asyncpg) as pool,
        pool.acquire() as conn,
    ):
        yield LentAsyncpg(conn, database)


async def customize_asyncpg(conn: Any) -> None:
    for name in ("json", "jsonb"):
        await conn.set_type_codec(
            name, encoder=owners_dumps, decoder=owners_loads, schema="pg_catalog"
        )


def sqlalchemy_over(driver: str, use: Callable[[sqlalchemy.Engine], Any]) -> Kind:
    @asynccontextmanager
    async def lend(database: TestDatabase) -> AsyncIterator[Lent]:
        engine = sqlalchemy.create_engine(
            database.sqlalchemy_url(driver),
            json_serializer=owners_dumps,
            json_deserializer=owners_loads,
        )
        with use(engine) as conn:
            yield LentSqlalchemy(conn, database)
        engine.dispose()

    return lend


def connected(engine: Any) -> Any:
    return engine.connect()


@contextmanager
def scoped(engine: sqlalchemy.Engine) -> Any:
    session = scoped_session(sessionmaker(engine))
    yield session
    session.remove()


def async_sqlalchemy_over(driver: str, use: Callable[[Any], Any]) -> Kind:
    @asynccontextmanager
    async def lend(database: TestDatabase) -> AsyncIterator[Lent]:
        engine = create_async_engine(
            database.sqlalchemy_url(driver),
            json_serializer=owners_dumps,
            json_deserializer=owners_loads,
        )
        if driver == "asyncpg":
            sqlalchemy.event.listen(engine.sync_engine, "connect", _customize_under_sqlalchemy)
        async with use(engine) as conn:
            yield LentAsyncSqlalchemy(conn, database)
        await engine.dispose()

    return lend


def _customize_under_sqlalchemy(connection: Any, _record: object) -> None:
    connection.run_async(customize_asyncpg)


@asynccontextmanager
async def async_scoped(engine: Any) -> AsyncIterator[Any]:
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    yield session
    await session.remove()


def django_with(connection: Callable[[], Any], **options: Any) -> Kind:
    @asynccontextmanager
    async def lend(database: TestDatabase) -> AsyncIterator[Lent]:
        with django_on(database, **options):
            yield LentDjango(connection(), database)

    return lend


@contextmanager
def django_on(database: TestDatabase, **options: Any) -> Any:
    """Let Django's default database be this one."""
    if not settings.configured:
        settings.configure()
        django.setup()
    handler = django.db.connections
    # A harness without a connection asks for the default one, which Django keeps for this thread.
    for each in handler.all(initialized_only=True):
        del handler[each.alias]
    default = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": database.name,
        "USER": "postgres",
        "HOST": "127.0.0.1",
        "PORT": database.cluster.port,
        "OPTIONS": options,
    }
    with pytest.MonkeyPatch.context() as patch:
        # These tests call blocking code from a loop, which Django else refuses.
        patch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        patch.setattr(handler, "settings", handler.configure_settings({"default": default}))
        try:
            yield
        finally:
            handler.close_all()
            del handler["default"]


BLOCKING_KINDS: dict[str, Kind] = {
    "psycopg": psycopg_plain,
    "psycopg customized": psycopg_customized,
    "psycopg2": psycopg2_with(),
    "psycopg2 DictConnection": psycopg2_with(connection_factory=DictConnection),
    "psycopg2 RealDictCursor": psycopg2_with(cursor_factory=RealDictCursor),
    "SQLAlchemy Connection, psycopg": sqlalchemy_over("psycopg", connected),
    "SQLAlchemy Connection, psycopg2": sqlalchemy_over("psycopg2", connected),
    "SQLAlchemy Session, psycopg": sqlalchemy_over("psycopg", Session),
    "SQLAlchemy Session, psycopg2": sqlalchemy_over("psycopg2", Session),
    "SQLAlchemy scoped_session, psycopg": sqlalchemy_over("psycopg", scoped),
    "SQLAlchemy scoped_session, psycopg2": sqlalchemy_over("psycopg2", scoped),
    "Django proxy": django_with(lambda: django.db.connection),
    "Django wrapper": django_with(lambda: django.db.connections["default"]),
    "Django proxy, server-side binding": django_with(
        lambda: django.db.connection, server_side_binding=True
    ),
    "Django wrapper, server-side binding": django_with(
        lambda: django.db.connections["default"], server_side_binding=True
    ),
}

ASYNC_KINDS: dict[str, Kind] = {
    "psycopg async": psycopg_async_plain,
    "psycopg async customized": psycopg_async_customized,
    "asyncpg": asyncpg_plain,
    "asyncpg customized": asyncpg_customized,
    "asyncpg pool": asyncpg_pool,
    "SQLAlchemy AsyncConnection, psycopg": async_sqlalchemy_over("psycopg", connected),
    "SQLAlchemy AsyncConnection, asyncpg": async_sqlalchemy_over("asyncpg", connected),
    "SQLAlchemy AsyncSession, psycopg": async_sqlalchemy_over("psycopg", AsyncSession),
    "SQLAlchemy AsyncSession, asyncpg": async_sqlalchemy_over("asyncpg", AsyncSession),
    "SQLAlchemy async_scoped_session, psycopg": async_sqlalchemy_over("psycopg", async_scoped),
    "SQLAlchemy async_scoped_session, asyncpg": async_sqlalchemy_over("asyncpg", async_scoped),
}

KINDS = BLOCKING_KINDS | ASYNC_KINDS

# Those that have a mode in which each statement commits by itself.
AUTOCOMMIT_KINDS = [name for name in KINDS if name.startswith(("psycopg", "asyncpg", "Django"))]

"""PreparedStatements: a statement has the same effect, rows and errors as on a cursor."""

import asyncio
import gc
import math
import re
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

import psycopg
import pytest
from psycopg import AsyncRawCursor, capabilities
from psycopg.rows import tuple_row

from graphile_worker._db.cancellable_connection import NoWaitCancelConnection
from graphile_worker._db.conninfo import resolve_conninfo
from graphile_worker._db.prepared_statements import PreparedStatements
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.jobs import get_job
from graphile_worker._sql.queries.testing import probe
from graphile_worker._sql.render import render_bytes
from tests.conftest import TestDatabase
from tests.rules.test_statements import STATEMENTS, _sample_query
from tests.support.recorder import wait_until
from tests.support.rows import count_waiting_sessions
from tests.support.rust import LEVEL_20
from tests.support.sql import Sql
from tests.support.statements import JOBS

SESSIONS = "select count(*) from pg_stat_activity where pid = $1"
PREPARED = b"select count(*) from pg_prepared_statements where name like '\\_gw\\_%%'"


class Session:
    """A connection of a worker, on which statements run in two ways."""

    def __init__(self, connection: NoWaitCancelConnection[Any]) -> None:
        self.connection = connection
        self.pid = connection.info.backend_pid
        self.statements = PreparedStatements(connection)

    async def execute(self, text: str, *args: object) -> list[Any]:
        return list(await self.statements.execute(text.encode(), args))

    async def execute_on_cursor(self, text: str, *args: object) -> list[Any]:
        async with AsyncRawCursor(self.connection, row_factory=tuple_row) as cursor:
            await cursor.execute(text.encode(), args or None)
            return await cursor.fetchall() if cursor.description else []

    async def count_prepared(self) -> int:
        [[count]] = await self.execute_on_cursor(PREPARED.decode())
        return int(count)


async def connect(database: TestDatabase) -> NoWaitCancelConnection[Any]:
    # As PsycopgDatabase does for a worker.
    return await NoWaitCancelConnection.connect(
        resolve_conninfo(database.dsn), autocommit=True, prepare_threshold=None
    )


@pytest.fixture
async def session(database: TestDatabase) -> AsyncIterator[Session]:
    connection = await connect(database)
    yield Session(connection)
    await connection.close()


@pytest.fixture
async def worker_database(database: TestDatabase) -> AsyncIterator[PsycopgDatabase]:
    """The database of the statements that a worker runs on its own connections."""
    opened = PsycopgDatabase(
        database.dsn,
        Schemas.from_names(database.schema),
        max_size=1,
        prepare_after=0,
        generic_plans=True,
        query_timeout=timedelta(seconds=10),
    )
    yield opened
    await opened.close()


# Arguments


class Word(StrEnum):
    """Texts whose type is not str."""

    FIRST = "first"


class Number(IntEnum):
    """Numbers whose type is not int."""

    SEVEN = 7


TEXTS = [
    "",
    "a",
    " a\tb\r\n",
    "'",
    '"',
    "\\",
    "\\\\",
    '\\"',
    "\\x41",
    "{}",
    "{a,b}",
    ",",
    "null",
    "NULL",
    "Null",
    "%s %% $1 :x",
    "ünï-çødé",
    "名",
    "\U0001f600",
    "\ufeff\u2028\u200b",
    "\x01\x7f\x80",
    '{"a": "\\u00e9"}',
    "x" * 100_000,
    Word.FIRST,
]
VALUES: dict[str, list[object]] = {
    "text": [None, *TEXTS],
    "bigint": [None, 0, 1, -1, 2**31, -(2**63), 2**63 - 1, Number.SEVEN],
    "boolean": [None, True, False],
    "text[]": [None, [], [None], ["a", None, "null"], *([each] for each in TEXTS), TEXTS],
    "int[]": [None, [], [None], [1, None, -(2**31)], [Number.SEVEN]],
    "boolean[]": [[], [True, None, False]],
}


@pytest.mark.parametrize("kind", VALUES)
async def test_an_argument_has_the_same_value_as_on_a_cursor(session, kind):
    text = f"select $1::{kind}, $1::{kind}::text, $1::{kind} is null"
    for value in VALUES[kind]:
        rows = await session.execute(text, value)

        assert rows == await session.execute_on_cursor(text, value), value
        assert rows[0][0] == value


@pytest.mark.parametrize("value", ["a\0b", "\0", "\ud800", ["a", "\0"], ["\udfff"]])
async def test_a_text_that_cannot_be_sent_raises_the_same_error_as_on_a_cursor(session, value):
    errors = [
        await catch(execute, "select $1::text", value)
        for execute in (session.execute, session.execute_on_cursor)
    ]

    assert type(errors[0]) is type(errors[1])
    assert str(errors[0]) == str(errors[1])
    assert await session.execute("select 1") == [(1,)]


@pytest.mark.parametrize(
    "value", [1.5, math.nan, b"a", {"a": 1}, ("a",), datetime.now(UTC), [1.5], [["a"]], [b"a"]]
)
async def test_an_argument_of_another_type_is_rejected(session, value):
    # A rule of tests/rules/test_statements.py: no statement has such an argument.
    error = await catch(session.execute, "select $1::text", value)

    assert type(error) is TypeError
    assert await session.execute("select 1") == [(1,)]


async def test_an_argument_may_be_larger_than_what_the_socket_takes_at_once(session):
    size = 20_000_000

    assert await session.execute("select length($1::text)", "x" * size) == [(size,)]


async def catch(execute: Callable[..., Any], text: str, *args: object) -> Exception:
    try:
        await execute(text, *args)
    except Exception as error:
        return error
    raise AssertionError(f"no error: {text}")


# Rows


@pytest.mark.parametrize(
    "text",
    [
        "select 1, 2::bigint, 3::smallint, 1.50, 'NaN'::float8, true, null, 'a'",
        "select now(), date '2024-02-29', interval '1 day 2 hours', '{}'::json, '[1]'::jsonb",
        "select array[1, null], array['a,b', '\"']::text[], '\\x00ff'::bytea, 1::oid, 'x'::name",
        "select n, n::text from generate_series(1, 1000) as n",
        "select 1 where false",
        "select from generate_series(1, 3)",
        "set local lock_timeout = 0",
        "insert into numbers values (1)",
        "insert into numbers values (1) returning n, n + 1",
        "update numbers set n = 2 where false returning n",
        "do $$begin raise notice 'noted'; end$$",
    ],
)
async def test_rows_equal_those_of_a_cursor(session, text):
    await session.execute_on_cursor("create temporary table numbers (n int)")
    await session.execute_on_cursor("begin")

    # repr, because NaN equals nothing.
    expected = repr(await session.execute_on_cursor(text))
    for _ in range(3):
        assert repr(await session.execute(text)) == expected


async def test_a_result_is_not_kept(session):
    await session.execute("select repeat('x', 1000000)")

    assert session.statements._transformer.pgresult is None


async def test_each_statement_runs_with_the_arguments_of_its_query(session, database, sql):
    for statement in LEVEL_20[1:]:
        sql.run(statement)
    schemas = Schemas.from_names(database.schema)

    for name in STATEMENTS:
        args = JOBS.get(name) or _sample_query(name).args
        await session.execute_on_cursor("begin")
        await session.statements.execute(render_bytes(name, schemas), args)
        await session.execute_on_cursor("rollback")


# Errors


FAILURES: dict[str, tuple[str, tuple[object, ...]]] = {
    "a division by zero": ("select 1 / $1::int", (0,)),
    "an invalid value": ("select $1::int", ("x",)),
    "a number out of range": ("select $1::int", (2**40,)),
    "a number beyond all integers": ("select $1::bigint", (2**70,)),
    "a missing table": ("select from missing", ()),
    "a missing column": ("select missing", ()),
    "a syntax error": ("select select", ()),
    "a unique violation": ("insert into unique_numbers values ($1::int)", (1,)),
    "a state of this package": (
        "do $$begin raise exception using errcode = 'GWNOR', message = 'näh', hint = 'h'; end$$",
        (),
    ),
    "a timeout": ("select pg_sleep(60)", ()),
    "a read-only session": ("create table t ()", ()),
    "a command in a transaction": ("vacuum", ()),
    "a missing argument": ("select $1::int, $2::int", (1,)),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_an_error_is_the_same_as_on_a_cursor(session, name):
    text, args = FAILURES[name]
    for statement in (
        "create temporary table unique_numbers (n int constraint only_once primary key)",
        "insert into unique_numbers values (1)",
        "set statement_timeout = '300ms'",
    ):
        await session.execute_on_cursor(statement)
    if name == "a read-only session":
        await session.execute_on_cursor("set default_transaction_read_only = on")

    for _ in range(2):
        if name == "a command in a transaction":
            await session.execute_on_cursor("begin")
        error: Any = await catch(session.execute, text, *args)
        await session.execute_on_cursor("rollback")
        if name == "a command in a transaction":
            await session.execute_on_cursor("begin")
        expected: Any = await catch(session.execute_on_cursor, text, *args)
        await session.execute_on_cursor("rollback")

        assert type(error) is type(expected)
        assert error.sqlstate == expected.sqlstate
        assert error.sqlstate is not None
        assert error.diag.constraint_name == expected.diag.constraint_name
        assert error.diag.message_hint == expected.diag.message_hint
        # A value that the driver encodes with another type has another message.
        if error.sqlstate != "22003":
            # The name of the statement is part of some messages.
            message = re.sub('"_gw_[^"]*"', '""', error.diag.message_primary)
            assert message == expected.diag.message_primary
        assert await session.execute("select 1") == [(1,)]


async def test_a_statement_that_fails_often_is_prepared_once(session):
    for _ in range(20):
        await catch(session.execute, "select 1 / $1::int", 0)

    assert await session.execute("select 1 / $1::int", 1) == [(1,)]
    assert await session.count_prepared() == 1


async def test_a_statement_whose_result_has_another_type_is_prepared_again(session):
    await session.execute_on_cursor("create temporary table changing (a int)")
    await session.execute_on_cursor("insert into changing values (1)")
    assert await session.execute("select a from changing") == [(1,)]

    await session.execute_on_cursor("alter table changing alter column a type text")

    assert await session.execute("select a from changing") == [("1",)]
    assert await session.count_prepared() == 1


async def test_a_statement_that_the_session_has_forgotten_is_prepared_again(session):
    for reset in ("deallocate all", "discard all"):
        assert await session.execute("select 1") == [(1,)]
        await session.execute_on_cursor(reset)

        assert await session.execute("select 1") == [(1,)]
        assert await session.count_prepared() == 1


async def test_a_statement_that_is_never_supported_is_prepared_once(session):
    # It fails with the SQLSTATE of a changed result, although nothing changed.
    text = "do $$begin raise exception using errcode = '0A000'; end$$"
    for _ in range(5):
        error = await catch(session.execute, text)

        assert isinstance(error, psycopg.errors.FeatureNotSupported)
        assert await session.count_prepared() == 1


async def test_a_statement_of_an_aborted_transaction_is_not_repeated(session):
    assert await session.execute("select 1") == [(1,)]
    await session.execute_on_cursor("begin")
    await session.execute_on_cursor("deallocate all")

    error = await catch(session.execute, "select 1")

    assert isinstance(error, psycopg.errors.InvalidSqlStatementName)
    await session.execute_on_cursor("rollback")
    assert await session.execute("select 1") == [(1,)]


async def test_names_of_statements_differ_by_connection(database, session):
    # A pooler that shares sessions must not run the statement of another client.
    another = Session(await connect(database))
    for each in (session, another):
        await each.execute("select 1")
    names = [next(iter(each.statements._names.values())) for each in (session, another)]
    await another.connection.close()

    assert names[0] != names[1]


async def test_a_session_that_the_server_ends_raises_the_same_error_as_on_a_cursor(database, sql):
    errors: list[Any] = []
    for is_prepared in (True, False):
        session = Session(await connect(database))
        execute = session.execute if is_prepared else session.execute_on_cursor
        call = asyncio.create_task(catch(execute, "select pg_sleep(60)"))
        await wait_until(lambda: is_sleeping(sql, session.pid))  # noqa: B023
        sql.run("select pg_terminate_backend($1::int)", session.pid)
        errors.append(await call)
        assert session.connection.closed
        # Without a session.
        errors.append(await catch(execute, "select 1"))

    assert [type(each) for each in errors[:2]] == [type(each) for each in errors[2:]]
    assert [each.sqlstate for each in errors] == ["57P01", None] * 2


def is_sleeping(sql: Sql, pid: int) -> bool:
    return bool(sql.value(f"{SESSIONS} and wait_event = 'PgSleep'", pid))


# Cancellation


async def test_a_canceled_statement_ends_its_session_without_a_wait(session, sql):
    call = asyncio.create_task(session.execute("select pg_sleep(60)"))
    await wait_until(lambda: is_sleeping(sql, session.pid))

    call.cancel()
    await asyncio.wait([call])

    assert call.cancelled()
    assert session.connection.closed
    await wait_until_ended(sql, session.pid)


async def test_a_statement_that_is_canceled_while_it_is_prepared_ends_its_session(session, sql):
    text = sql.text("select from :schema._private_jobs").decode()
    with closing(sql.another()) as other:
        lock_jobs(other)
        call = asyncio.create_task(session.execute(text))
        await wait_until(lambda: count_waiting_sessions(sql) == 1)

        call.cancel()
        await asyncio.wait([call])

        assert call.cancelled()
        assert session.connection.closed
        await wait_until_ended(sql, session.pid)


async def wait_until_ended(sql: Sql, pid: int) -> None:
    # An older libpq cannot send the request without blocking: then the statement ends first.
    if capabilities.has_cancel_safe():
        await wait_until(lambda: not sql.value(SESSIONS, pid))


def lock_jobs(sql: Sql) -> None:
    sql.run("begin")
    sql.run("lock table :schema._private_jobs")


async def test_after_a_timeout_statements_run_on_another_connection(database, sql):
    opened = PsycopgDatabase(
        database.dsn,
        Schemas.from_names(database.schema),
        max_size=1,
        prepare_after=0,
        query_timeout=timedelta(seconds=1),
    )
    query = get_job(1)
    await opened.run(query)
    lock_jobs(sql)
    with pytest.raises(TimeoutError):
        await opened.run(query)
    sql.run("rollback")

    await opened.run(query)
    await opened.close()


# Connections


async def read_pid(database: PsycopgDatabase) -> int:
    async with database.connection() as connection:
        pid: int = connection.raw.info.backend_pid
        return pid


async def test_after_a_rollback_statements_are_still_prepared(worker_database):
    await worker_database.run(probe())
    pid = await read_pid(worker_database)

    async def roll_back() -> None:
        async with worker_database.transaction() as connection:
            await connection.run(probe())
            raise LookupError

    for _ in range(3):
        with pytest.raises(LookupError):
            await roll_back()
        await worker_database.run(probe())

    assert await read_pid(worker_database) == pid


async def test_statements_run_on_a_cursor_and_prepared_on_the_same_connection(worker_database):
    for _ in range(3):
        await worker_database.run(probe())
        async with worker_database.transaction() as connection:
            await connection.run(probe())
        async with worker_database.connection() as connection:
            await connection.run(probe())


async def test_closed_connections_are_not_kept(worker_database):
    seen = []
    for _ in range(3):
        await worker_database.run(probe())
        async with worker_database.connection() as connection:
            seen.append(weakref.ref(connection.raw))
            await connection.raw.close()
        del connection
    gc.collect()

    assert [reference() for reference in seen] == [None] * 3
    assert len(worker_database._prepared) == 0

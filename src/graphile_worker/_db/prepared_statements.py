"""PreparedStatements: runs the statements of a worker at a third of the cost of a cursor.

A cursor of psycopg looks up how to adapt each argument and each column, each time. The queries of
this package have arguments of a few types, all in statements that cast them, so text is enough.
"""

import secrets
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from psycopg import AsyncConnection, DataError, generators
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from graphile_worker._sql.query import Row

NUL = b"\0"

# A column of the result has another type since the statement was prepared.
CHANGED_RESULT_SQLSTATE = b"0A000"

# Or the statement does not exist any more, for example because a pooler reset the session.
UNUSABLE_STATEMENT_SQLSTATES = frozenset({CHANGED_RESULT_SQLSTATE, b"26000"})


class PreparedStatements:
    """The statements that are prepared on one connection, each from its first use on.

    It has only weak references to the connection, because it is a value of a dictionary by
    connections: with another reference the dictionary would keep closed connections.
    """

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = weakref.proxy(connection)
        self._encoding = connection.info.encoding
        self._transformer = Transformer(_WeakContext(connection.adapters, self._connection))
        self._names: dict[bytes, bytes] = {}
        self._count = 0
        # Unique: a pooler that shares sessions must not run the statement of another client.
        self._prefix = secrets.token_hex(6)

    async def execute(self, text: bytes, args: Sequence[object]) -> list[Row]:
        """Execute a statement, and return its rows."""
        values = [encode_argument(each, self._encoding) for each in args]
        connection = self._connection
        async with connection.lock:
            name = self._names.get(text)
            is_prepared = name is not None
            if name is None:
                name = await self._prepare(text)
            result = await connection.wait(_execute(connection.pgconn, name, values))
            if is_prepared and self._is_unusable(result):
                # It had no effect, as it is a whole transaction.
                await self._forget(text, result)
                name = await self._prepare(text)
                result = await connection.wait(_execute(connection.pgconn, name, values))
            self._check(result)
        if result.nfields == 0:
            return []
        self._transformer.set_pgresult(result)
        rows: list[Any] = self._transformer.load_rows(0, result.ntuples, tuple)
        # The result may be large, and the connection idle for long.
        self._transformer.set_pgresult(None)
        return rows

    async def _prepare(self, text: bytes) -> bytes:
        self._count += 1
        name = f"_gw_{self._prefix}_{self._count}".encode()
        connection = self._connection
        self._check(await connection.wait(_prepare(connection.pgconn, name, text)))
        self._names[text] = name
        return name

    def _is_unusable(self, result: PGresult) -> bool:
        """Return whether a statement has to be prepared again, and no transaction was aborted."""
        return (
            result.error_field(DiagnosticField.SQLSTATE) in UNUSABLE_STATEMENT_SQLSTATES
            and self._connection.pgconn.transaction_status == TransactionStatus.IDLE
        )

    async def _forget(self, text: bytes, result: PGresult) -> None:
        name = self._names.pop(text)
        if result.error_field(DiagnosticField.SQLSTATE) == CHANGED_RESULT_SQLSTATE:
            # Otherwise it would stay in the memory of the session.
            connection = self._connection
            await connection.wait(_deallocate(connection.pgconn, name))

    def _check(self, result: PGresult) -> None:
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            raise error_from_result(result, encoding=self._encoding)


class _WeakContext(NamedTuple):
    """What psycopg needs to know of a connection to read rows."""

    adapters: AdaptersMap
    connection: AsyncConnection[Any]


def _prepare(connection: PGconn, name: bytes, text: bytes) -> PQGen[PGresult]:
    connection.send_prepare(name, text)
    results: list[PGresult] = yield from generators.execute(connection)
    return results[-1]


def _execute(connection: PGconn, name: bytes, values: list[bytes | None]) -> PQGen[PGresult]:
    connection.send_query_prepared(name, values)
    results: list[PGresult] = yield from generators.execute(connection)
    return results[-1]


def _deallocate(connection: PGconn, name: bytes) -> PQGen[PGresult]:
    # The name needs no quotes.
    connection.send_query_params(b"deallocate " + name, None)
    results: list[PGresult] = yield from generators.execute(connection)
    return results[-1]


def encode_argument(value: object, encoding: str) -> bytes | None:
    """Encode an argument as text for PostgreSQL, like psycopg.

    Raises:
        DataError: A text contains a NUL character, which PostgreSQL cannot store.
        TypeError: The type is none that statements take.
    """
    # In the order of their frequency.
    if value is None:
        return None
    if isinstance(value, str):
        return _encode_text(value, encoding)
    if isinstance(value, list):
        return b"{%s}" % b",".join([_encode_item(each, encoding) for each in value])
    return _encode_number(value)


def _encode_item(value: object, encoding: str) -> bytes:
    if value is None:
        return b"null"
    if isinstance(value, str):
        text = _encode_text(value, encoding)
        return b'"%s"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return _encode_number(value)


def _encode_text(value: str, encoding: str) -> bytes:
    text = value.encode(encoding)
    if NUL in text:
        raise DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return text


def _encode_number(value: object) -> bytes:
    # True is an int too.
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"%d" % value
    raise TypeError(f"cannot encode an argument of the type {type(value).__name__}")

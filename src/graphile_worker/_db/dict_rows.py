"""`ctx.query()`: one statement of a task, with rows as dictionaries."""

from typing import Any

import psycopg
from psycopg.rows import dict_row

from graphile_worker.errors import ConfigurationError


async def fetch_rows(connection: Any, statement: str, args: Any) -> list[dict[str, Any]]:
    """Run a statement with psycopg's placeholders, %s for each argument, and return its rows."""
    if not isinstance(connection, psycopg.AsyncConnection):
        raise ConfigurationError(
            "query() needs a psycopg connection, and this worker uses a "
            f"{type(connection).__qualname__}. Use connection()."
        )
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement.encode(), args)
        return await cursor.fetchall() if cursor.description else []


def fetch_rows_sync(
    connection: psycopg.Connection[Any], statement: str, args: Any
) -> list[dict[str, Any]]:
    """Run a statement and return its rows without await. See `fetch_rows`."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(statement.encode(), args)
        return cursor.fetchall() if cursor.description else []

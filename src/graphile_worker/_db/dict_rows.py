"""One statement of a task's own, its rows as dictionaries: without ceremony."""

from typing import Any

import psycopg
from psycopg.rows import dict_row

from graphile_worker.errors import ConfigurationError


async def fetch_rows(connection: Any, statement: str, args: Any) -> list[dict[str, Any]]:
    """The rows of a statement in psycopg's own words, %s for each argument."""
    if not isinstance(connection, psycopg.AsyncConnection):
        raise ConfigurationError(
            f"query() speaks psycopg, and this worker was lent a {type(connection).__qualname__}: "
            "use connection()"
        )
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement.encode(), args)
        return await cursor.fetchall() if cursor.description else []


def fetch_rows_sync(
    connection: psycopg.Connection[Any], statement: str, args: Any
) -> list[dict[str, Any]]:
    """`fetch_rows` without await."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(statement.encode(), args)
        return cursor.fetchall() if cursor.description else []

"""SQL in tests: plain statements, with `:schema` for the schema of the run."""

import re
from typing import Any

import psycopg

from graphile_worker._sql.identifiers import derive_companion_schema, quote_identifier


class Sql:
    """One autocommit connection, past the library."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.dsn = dsn
        self.schema = schema
        self.connection = psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.RawCursor)

    def text(self, statement: str) -> bytes:
        """The statement with both schema names filled in."""
        names = {"schema": self.schema, "ext_schema": derive_companion_schema(self.schema)}
        filled = re.sub(
            r"(?<!:):(schema|ext_schema)\b",
            lambda match: quote_identifier(names[match[1]]),
            statement,
        )
        return filled.encode()

    def run(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        """Run one statement with $n parameters; its rows."""
        cursor = self.connection.execute(self.text(statement), args or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *args: Any) -> Any:
        """The first column of the first row."""
        return self.run(statement, *args)[0][0]

    def another(self) -> "Sql":
        """A second session on the same database."""
        return Sql(self.dsn, self.schema)

    def close(self) -> None:
        self.connection.close()

"""Empty both schemas in the database of DATABASE_URL and install them again: `just reset`."""

import os
import sys

import psycopg
from psycopg import sql

from graphile_worker import sync
from graphile_worker._sql.identifiers import derive_companion_schema
from graphile_worker.options import DEFAULT_SCHEMA


def main() -> None:
    if "DATABASE_URL" not in os.environ:
        sys.exit("DATABASE_URL is not set. Set it to the database to reset.")
    schema = os.environ.get("GRAPHILE_WORKER_SCHEMA", DEFAULT_SCHEMA)
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        for name in (schema, derive_companion_schema(schema)):
            drop = sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name))
            connection.execute(drop)
    with sync.Client(schema=schema) as client:
        print(f"schema {schema} is empty, at level {client.migrate()}")


if __name__ == "__main__":
    main()

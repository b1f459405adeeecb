"""The schema of a benchmark, which is dropped at its end."""

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.migrations import drop_schemas, inspect_database
from graphile_worker.sync import Client

SCHEMA_PREFIX = "graphile_worker_bench_"


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """The database and the schema of a benchmark."""

    connection: str | None
    schema: str
    server_version: str

    def client(self) -> Client:
        return Client(self.connection, schema=self.schema)


@contextmanager
def open_bench_target(connection: str | None) -> Iterator[BenchTarget]:
    """Install a schema, and drop it at the end."""
    schemas = Schemas.from_names(SCHEMA_PREFIX + secrets.token_hex(4))
    database = SyncPsycopgDatabase(connection, schemas)
    version = database.run(inspect_database(schemas)).server_version
    target = BenchTarget(connection, schemas.shared, f"{version // 10000}.{version % 10000}")
    try:
        with target.client() as client:
            client.migrate()
        yield target
    finally:
        with _ignore_signals():
            database.run(drop_schemas())
            database.close()


@contextmanager
def _ignore_signals() -> Iterator[None]:
    # The schema must be dropped even if the user presses Ctrl-C twice.
    handlers = {
        each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)

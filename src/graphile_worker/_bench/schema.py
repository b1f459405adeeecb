"""Where a benchmark takes place: a schema of its own that is gone afterwards, whatever happened."""

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
    """A database, and the schema in it that is the benchmark's own."""

    connection: str | None
    schema: str
    server_version: str

    def client(self) -> Client:
        return Client(self.connection, schema=self.schema)


@contextmanager
def open_bench_target(connection: str | None) -> Iterator[BenchTarget]:
    """A schema for as long as this lasts, installed as any other."""
    schemas = Schemas.from_names(SCHEMA_PREFIX + secrets.token_hex(4))
    database = SyncPsycopgDatabase(connection, schemas)
    version = _format_version(database.run(inspect_database(schemas)).server_version)
    place = BenchTarget(connection, schemas.shared, version)
    try:
        with place.client() as client:
            client.migrate()
        yield place
    finally:
        with _ignore_signals():
            database.run(drop_schemas())
            database.close()


@contextmanager
def _ignore_signals() -> Iterator[None]:
    # Somebody who presses Ctrl-C twice still wants nothing left behind.
    heard = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in heard.items():
            signal.signal(each, handler)


def _format_version(number: int) -> str:
    return f"{number // 10000}.{number % 10000}"

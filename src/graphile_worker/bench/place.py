"""Where a benchmark takes place: a schema of its own that is gone afterwards, whatever happened."""

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphile_worker.db.blocking import BlockingPsycopgDatabase
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.migrations import drop_schemas, inspect_database
from graphile_worker.sync import Client

PREFIX = "graphile_worker_bench_"


@dataclass(frozen=True, slots=True)
class Place:
    """A database, and the schema in it that is the benchmark's own."""

    connection: str | None
    schema: str
    server_version: str

    def client(self) -> Client:
        return Client(self.connection, schema=self.schema)


@contextmanager
def own_place(connection: str | None) -> Iterator[Place]:
    """A schema for as long as this lasts, installed as any other."""
    schemas = Schemas.named(PREFIX + secrets.token_hex(4))
    database = BlockingPsycopgDatabase(connection, schemas)
    version = _version(database.run(inspect_database(schemas)).server_version)
    place = Place(connection, schemas.shared, version)
    try:
        with place.client() as client:
            client.migrate()
        yield place
    finally:
        with _undisturbed():
            database.run(drop_schemas())
            database.close()


@contextmanager
def _undisturbed() -> Iterator[None]:
    # Somebody who presses Ctrl-C twice still wants nothing left behind.
    heard = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in heard.items():
            signal.signal(each, handler)


def _version(number: int) -> str:
    return f"{number // 10000}.{number % 10000}"

"""The schema of a benchmark or of the demo, which is dropped at its end."""

import re
import secrets
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.migrations import (
    drop_schemas,
    inspect_database,
    list_schemas,
    try_lock_schema,
)
from graphile_worker.sync import Client

SCHEMA_PREFIX = "graphile_worker_bench_"
NAME_PATTERN = re.compile(r"graphile_worker_[a-z]+_[0-9a-f]{8}")

# Windows has no SIGHUP.
EXIT_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """The database and the schema of a benchmark."""

    connection: str | None
    schema: str
    server_version: str

    def client(self) -> Client:
        return Client(self.connection, schema=self.schema)


@contextmanager
def open_bench_target(source: ConninfoSource, prefix: str = SCHEMA_PREFIX) -> Iterator[BenchTarget]:
    """Install a schema, and drop it at the end. First drop those that killed programs left."""
    # Other processes cannot call the function.
    connection = source() if callable(source) else source
    schemas = Schemas.from_names(prefix + secrets.token_hex(4))
    database = SyncPsycopgDatabase(connection, schemas)
    for name in database.run(list_schemas(prefix)):
        if NAME_PATTERN.fullmatch(name):
            _drop_if_unused(connection, name)
    # Held by the session until it ends, however the program ends.
    database.run(try_lock_schema(schemas.shared))
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


def _drop_if_unused(connection: str | None, name: str) -> None:
    with closing(SyncPsycopgDatabase(connection, Schemas.from_names(name))) as database:
        if database.run(try_lock_schema(name)):
            database.run(drop_schemas())


@contextmanager
def _ignore_signals() -> Iterator[None]:
    # The schema must be dropped even if the user presses Ctrl-C twice.
    handlers = {each: signal.signal(each, signal.SIG_IGN) for each in EXIT_SIGNALS}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)

"""A PostgreSQL cluster for one run, and in it a fresh database for each measurement."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.support.cluster import NO_FLUSH_SETTINGS, Cluster

# Nothing that comes and goes by itself. With no flush of the write-ahead log, the work of the
# queues is what counts, not the disk.
SETTINGS = ("autovacuum=off", "shared_buffers=512MB", "max_wal_size=2GB", "checkpoint_timeout=1h")

# As a server is that serves for long, and as `graphile-worker tune` has it.
LASTING = ("autovacuum_naptime=10s", "shared_buffers=512MB", "max_wal_size=4GB")

# With data on a disk, and every commit flushed to it.
FLUSHING = (*SETTINGS, "fsync=on", "synchronous_commit=on", "full_page_writes=on")


@dataclass(frozen=True, slots=True)
class Database:
    """A database that lives for one measurement."""

    url: str

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection]:
        """A connection in autocommit mode, for preparing and looking."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection


class Server:
    """A cluster; what a queue installs is installed once and then copied."""

    def __init__(
        self, major: int, settings: Sequence[str] = SETTINGS, folder: Path | None = None
    ) -> None:
        # The last value of a setting counts.
        chosen = dict(each.split("=", 1) for each in (*NO_FLUSH_SETTINGS, *settings))
        self.settings = [f"{name}={value}" for name, value in chosen.items()]
        """What it is set to beside PostgreSQL's defaults."""
        self._cluster = Cluster(major, settings, folder).start()
        self._templates: dict[str, str] = {}
        self._numbers = itertools.count(1)

    @property
    def version(self) -> str:
        with psycopg.connect(self._cluster.url()) as connection:
            return connection.info.parameter_status("server_version") or ""

    @contextmanager
    def database(self, kind: str, install: Callable[[Database], None]) -> Iterator[Database]:
        """A fresh database with what that kind of queue installs."""
        template = self._template(kind, install)
        name = f"bench_{next(self._numbers)}"
        self._cluster.create_database(name, template)
        try:
            yield Database(self._cluster.url(name))
        finally:
            self._cluster.drop_database(name)

    def stop(self) -> None:
        self._cluster.stop()

    def _template(self, kind: str, install: Callable[[Database], None]) -> str:
        if kind not in self._templates:
            name = f"template_{kind}"
            self._cluster.create_database(name)
            install(Database(self._cluster.url(name)))
            self._templates[kind] = name
        return self._templates[kind]


@contextmanager
def served(
    major: int, settings: Sequence[str] = SETTINGS, folder: Path | None = None
) -> Iterator[Server]:
    server = Server(major, settings, folder)
    try:
        yield server
    finally:
        server.stop()

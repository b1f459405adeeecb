"""The connections of a worker. Tasks never use those that claim and complete jobs.

So tasks that wait for a connection wait for each other, and never block the worker.
"""

from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from graphile_worker._db.cancellable_connection import CancelTimings
from graphile_worker._db.cancellable_pool import NoWaitCancelDatabase
from graphile_worker._db.conninfo import ConninfoSource, resolve_conninfo
from graphile_worker._db.database import Database
from graphile_worker._db.external_connections import ExternalConnectionDatabase
from graphile_worker._db.external_pools import (
    ExternalPoolDatabase,
    is_conninfo_source,
    is_psycopg_pool,
    open_database,
)
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.sync import SyncConnectionPool
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._support.lazy_dataclass import LazyDataclass, LazyKeywordDataclass
from graphile_worker.errors import ConfigurationError
from graphile_worker.options import WorkerOptions
from graphile_worker.tasks import Task

# Arguments of psycopg's connect() that are not settings of libpq.
PSYCOPG_ONLY_SETTINGS = {
    "autocommit",
    "prepare_threshold",
    "row_factory",
    "cursor_factory",
    "context",
}

# For jobs that tasks add. The statements are short, so a few connections are enough.
ENQUEUE_CONNECTIONS = 2
SYNC_ENQUEUE_CONNECTIONS = 1


class ConnectionTimings(LazyKeywordDataclass):
    """Time limits of the worker's own connections."""

    query_timeout: timedelta = timedelta(seconds=10)
    """A statement of a worker takes milliseconds; after this time its server counts as lost."""
    cancel: CancelTimings = CancelTimings()
    """For statements on the caller's pool."""


DEFAULT_TIMINGS = ConnectionTimings()


class WorkerConnections(LazyDataclass):
    """The databases of a worker, each with its own connections."""

    own: Database
    tasks: Database
    sync_tasks: SyncConnectionPool | None = None
    sync_own: SyncConnectionPool | None = None
    heartbeat: Database | None = None
    """Used and closed in a separate event loop."""
    adding: Database | None = None
    """For jobs that async tasks add: their statements may wait for the transaction of a task."""
    maintenance: Database | None = None
    """For statements that may read a whole table; connected on first use."""

    async def close(self) -> None:
        await self.own.close()
        await self.tasks.close()
        for database in (self.adding, self.maintenance):
            if database is not None:
                await database.close()
        for pool in (self.sync_tasks, self.sync_own):
            if pool is not None:
                pool.close()


def open_worker_connections(
    source: object,
    options: WorkerOptions,
    tasks: Collection[Task[..., Any]],
    timings: ConnectionTimings = DEFAULT_TIMINGS,
) -> WorkerConnections:
    """Open the connections of a worker: from a connection string, or on a pool or engine."""
    schemas = Schemas.from_names(options.schema, options.ext_schema)
    if source is None:
        # A missing setting ends a worker at its start.
        source = resolve_conninfo(None)
    if is_conninfo_source(source):
        return _open_own_connections(
            source, schemas, options, _split_task_connections(options, tasks), timings
        )
    database = open_database(source, schemas)
    assert isinstance(database, ExternalPoolDatabase)
    size = _get_pool_size(source, options)
    # One listens, one claims and completes jobs, and at least one is for tasks. Adds of tasks take
    # up to half of the rest.
    min_size = 3 if options.listen else 2
    if size < min_size:
        raise ConfigurationError(
            f"the pool has at most {size} connections, and a worker needs {min_size}"
        )
    task_connections = max(1, (size + 1 - min_size) // 2)
    rest = size - task_connections - (1 if options.listen else 0)
    adding_connections = max(1, rest // 2)
    open_database_in_time = partial(
        NoWaitCancelDatabase,
        query_timeout=timings.query_timeout,
        count_idle=partial(_count_idle, source),
        timings=timings.cancel,
    )
    return WorkerConnections(
        open_database_in_time(database),
        database.limit_connections(task_connections),
        heartbeat=_derive_heartbeat_database(source, schemas, timings),
        adding=open_database_in_time(
            database.limit_connections(adding_connections),
            transaction_timeout=timings.query_timeout,
        ),
    )


def wrap_connection(connection: object, options: WorkerOptions) -> WorkerConnections:
    """Use one connection of the caller for all of a worker."""
    database = ExternalConnectionDatabase(
        connection, Schemas.from_names(options.schema, options.ext_schema)
    )
    return WorkerConnections(database, database)


def _split_task_connections(
    options: WorkerOptions, tasks: Collection[Task[..., Any]]
) -> tuple[int, int]:
    """Return the number of connections for async tasks, and for plain functions."""
    count = options.task_connections
    if not all(task.is_async for task in tasks) and any(task.is_async for task in tasks):
        return (count + 1) // 2, max(1, count // 2)
    return count, count


def _open_own_connections(
    source: ConninfoSource,
    schemas: Schemas,
    options: WorkerOptions,
    task_connections: tuple[int, int],
    timings: ConnectionTimings,
) -> WorkerConnections:
    prepared = options.prepared_statements
    open_own = partial(
        PsycopgDatabase,
        source,
        schemas,
        prepared_statements=prepared,
        # The same few statements, many times.
        prepare_after=0,
        generic_plans=True,
        query_timeout=timings.query_timeout,
    )
    return WorkerConnections(
        open_own(max_size=options.own_connections),
        PsycopgDatabase(
            source, schemas, max_size=task_connections[0], prepared_statements=prepared
        ),
        SyncConnectionPool(
            source, schemas, max_size=task_connections[1], prepared_statements=prepared
        ),
        SyncConnectionPool(
            source, schemas, max_size=SYNC_ENQUEUE_CONNECTIONS, prepared_statements=prepared
        ),
        _open_heartbeat_database(source, schemas, timings),
        open_own(max_size=ENQUEUE_CONNECTIONS, transaction_timeout=timings.query_timeout),
        PsycopgDatabase(source, schemas, max_size=1, prepared_statements=False),
    )


def _open_heartbeat_database(
    source: ConninfoSource, schemas: Schemas, timings: ConnectionTimings
) -> Database:
    # Preparing a statement or discarding its plan costs a round trip: over a slow network the
    # heartbeat could be late.
    return PsycopgDatabase(
        source,
        schemas,
        max_size=1,
        prepared_statements=False,
        query_timeout=timings.query_timeout,
    )


def _derive_heartbeat_database(
    pool: object, schemas: Schemas, timings: ConnectionTimings
) -> Database | None:
    """Open a separate connection to the database of a pool, if its address is known.

    Otherwise heartbeats use the pool, in the event loop that tasks may block.
    """
    if not is_psycopg_pool(pool):
        return None
    if pool.connection_class is not psycopg.AsyncConnection:
        return None
    conninfo: Any = pool.conninfo
    settings: Any = pool.kwargs or {}
    if not isinstance(conninfo, str) or not isinstance(settings, dict):
        return None
    libpq_settings = {
        name: value for name, value in settings.items() if name not in PSYCOPG_ONLY_SETTINGS
    }
    target = make_conninfo(conninfo, **libpq_settings)
    return _open_heartbeat_database(target, schemas, timings) if target else None


def _get_pool_size(pool: object, options: WorkerOptions) -> int:
    """Return the maximum size of the caller's pool."""
    if is_psycopg_pool(pool):
        return pool.max_size
    if hasattr(pool, "get_max_size"):
        size: int = pool.get_max_size()
        return size
    queue: Any = getattr(pool, "pool", None)
    if hasattr(queue, "size"):
        # In SQLAlchemy, an overflow of -1 means no limit.
        size = queue.size() + queue._max_overflow
        return options.max_pool_size if queue._max_overflow < 0 else size
    return options.max_pool_size


def _count_idle(pool: object) -> int:
    """Return the number of idle connections of the caller's pool, or 0 if it is unknown."""
    if is_psycopg_pool(pool):
        return pool.get_stats()["pool_available"]
    # asyncpg, and the pool of a SQLAlchemy engine.
    count: Any = getattr(pool, "get_idle_size", None)
    count = count or getattr(getattr(pool, "pool", None), "checkedin", None)
    return 0 if count is None else int(count())

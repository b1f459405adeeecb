"""The connections of a worker. Those that take and settle jobs are never lent to tasks.

Fifty tasks that each hold a connection wait for one another, not the worker for them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import psycopg_pool
from psycopg.conninfo import make_conninfo

from graphile_worker._db.database import Database
from graphile_worker._db.external_connections import ExternalConnectionDatabase
from graphile_worker._db.external_pools import (
    ExternalPoolDatabase,
    NoWaitCancelDatabase,
    open_database,
)
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.sync import SyncConnectionPool
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.errors import ConfigurationError
from graphile_worker.options import WorkerOptions
from graphile_worker.tasks import Task

# A statement of the worker takes milliseconds: what takes longer has lost its server.
QUERY_TIMEOUT = timedelta(seconds=10)

# What psycopg's connect() takes beside the settings of libpq.
PSYCOPG_ONLY_SETTINGS = {
    "autocommit",
    "prepare_threshold",
    "row_factory",
    "cursor_factory",
    "context",
}

# For jobs that plain functions add: short statements, so one will do.
SYNC_ENQUEUE_CONNECTIONS = 1


@dataclass(frozen=True, slots=True)
class WorkerConnections:
    """One database in as many ways as a worker needs it."""

    own: Database
    tasks: Database
    sync_tasks: SyncConnectionPool | None = None
    sync_own: SyncConnectionPool | None = None
    heartbeat: Database | None = None
    """To be used, and closed, in an event loop of its own."""
    maintenance: Database | None = None
    """For statements that may have to read a whole table; opened when there is one."""

    async def close(self) -> None:
        await self.own.close()
        await self.tasks.close()
        if self.maintenance is not None:
            await self.maintenance.close()
        for blocking in (self.sync_tasks, self.sync_own):
            if blocking is not None:
                blocking.close()


def open_worker_connections(
    source: object, options: WorkerOptions, tasks: Collection[Task[..., Any]]
) -> WorkerConnections:
    """The connections for a worker on a database: a connection string, or a pool or engine."""
    schemas = Schemas.from_names(options.schema, options.ext_schema)
    if source is None or isinstance(source, str):
        return _open_own_connections(
            source, schemas, options, _split_task_connections(options, tasks)
        )
    lent = open_database(source, schemas)
    assert isinstance(lent, ExternalPoolDatabase)
    size = _get_pool_size(source, options)
    # One listens, one takes and settles jobs, and at least one is for tasks.
    least = 3 if options.listen else 2
    if size < least:
        raise ConfigurationError(
            f"the pool has {size} connections at most, and a worker needs {least}"
        )
    tasks_share = lent.limit_connections(max(1, (size + 1 - least) // 2))
    own = NoWaitCancelDatabase(lent, QUERY_TIMEOUT, partial(_count_idle, source))
    return WorkerConnections(
        own, tasks_share, heartbeat=_derive_heartbeat_database(source, schemas)
    )


def wrap_connection(connection: object, options: WorkerOptions) -> WorkerConnections:
    """One connection of the caller's for everything."""
    only = ExternalConnectionDatabase(
        connection, Schemas.from_names(options.schema, options.ext_schema)
    )
    return WorkerConnections(only, only)


def _split_task_connections(
    options: WorkerOptions, tasks: Collection[Task[..., Any]]
) -> tuple[int, int]:
    """How many of the connections for tasks are lent to async ones, how many to plain functions."""
    count = options.task_connections
    if not all(task.is_async for task in tasks) and any(task.is_async for task in tasks):
        return (count + 1) // 2, max(1, count // 2)
    return count, count


def _open_own_connections(
    source: str | None, schemas: Schemas, options: WorkerOptions, task_connections: tuple[int, int]
) -> WorkerConnections:
    prepared = options.prepared_statements
    return WorkerConnections(
        PsycopgDatabase(
            source,
            schemas,
            max_size=options.own_connections,
            prepared_statements=prepared,
            # The same few statements over and over.
            prepare_after=0,
            query_timeout=QUERY_TIMEOUT,
        ),
        PsycopgDatabase(
            source, schemas, max_size=task_connections[0], prepared_statements=prepared
        ),
        SyncConnectionPool(
            source, schemas, max_size=task_connections[1], prepared_statements=prepared
        ),
        SyncConnectionPool(
            source, schemas, max_size=SYNC_ENQUEUE_CONNECTIONS, prepared_statements=prepared
        ),
        _open_heartbeat_database(source, schemas),
        PsycopgDatabase(source, schemas, max_size=1, prepared_statements=False),
    )


def _open_heartbeat_database(source: str | None, schemas: Schemas) -> Database:
    # To prepare a statement, or to forget its plan, is a question of its own: over a slow network
    # the answer to the heartbeat itself might come too late.
    return PsycopgDatabase(
        source,
        schemas,
        max_size=1,
        prepared_statements=False,
        query_timeout=QUERY_TIMEOUT,
    )


def _derive_heartbeat_database(pool: object, schemas: Schemas) -> Database | None:
    """A connection of our own to where a pool connects, if that can be known.

    Otherwise heartbeats go through the pool, which lives in the loop that tasks may block.
    """
    if not isinstance(pool, psycopg_pool.AsyncConnectionPool):
        return None
    if pool.connection_class is not psycopg.AsyncConnection:
        return None
    conninfo: Any = pool.conninfo
    settings: Any = pool.kwargs or {}
    if not isinstance(conninfo, str) or not isinstance(settings, dict):
        return None
    of_libpq = {
        name: value for name, value in settings.items() if name not in PSYCOPG_ONLY_SETTINGS
    }
    target = make_conninfo(conninfo, **of_libpq)
    if not target:
        return None
    return _open_heartbeat_database(target, schemas)


def _get_pool_size(pool: object, options: WorkerOptions) -> int:
    """How many connections a lent pool has."""
    if isinstance(pool, psycopg_pool.AsyncConnectionPool):
        return pool.max_size
    if hasattr(pool, "get_max_size"):
        size: int = pool.get_max_size()
        return size
    queue: Any = getattr(pool, "pool", None)
    if hasattr(queue, "size"):
        # Of SQLAlchemy; -1 is as many as anybody wants.
        most: int = queue.size() + queue._max_overflow
        return options.max_pool_size if queue._max_overflow < 0 else most
    return options.max_pool_size


def _count_idle(pool: object) -> int:
    """How many connections of a lent pool are open and not in use, as far as it tells."""
    if isinstance(pool, psycopg_pool.AsyncConnectionPool):
        return pool.get_stats()["pool_available"]
    # Of asyncpg, and of the pool of a SQLAlchemy engine.
    count: Any = getattr(pool, "get_idle_size", None)
    count = count or getattr(getattr(pool, "pool", None), "checkedin", None)
    return 0 if count is None else int(count())

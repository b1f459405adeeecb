"""What handlers use: the database, the poller, the app and the settings."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from importlib.metadata import version
from typing import Any, TypeVar

import psycopg

from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._db.database import run_plan
from graphile_worker._db.psycopg import PsycopgConnection, PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.dashboard import (
    DatabaseFeatures,
    inspect_features,
    set_read_limits,
)
from graphile_worker._sql.query import Plan, Query
from graphile_worker._sql.sqlstate import (
    INSUFFICIENT_PRIVILEGE,
    LOCK_NOT_AVAILABLE,
    MISSING_OBJECT,
    QUERY_CANCELED,
    READ_ONLY_SQL_TRANSACTION,
    get_sqlstate,
)
from graphile_worker.app import App
from graphile_worker.contrib.dashboard._api import COMPANION_MISSING, Problem
from graphile_worker.contrib.dashboard._bulk_runs import get_bulk_runs
from graphile_worker.contrib.dashboard._encode import encode
from graphile_worker.contrib.dashboard._poller import (
    DEFAULT_TIMINGS,
    Poller,
    PollTimings,
    describe_outage,
)
from graphile_worker.contrib.dashboard._settings import DashboardSettings
from graphile_worker.contrib.dashboard._stream import Broadcaster
from graphile_worker.errors import (
    FilterError,
    GraphileWorkerError,
    JobSpecError,
    PayloadTooLarge,
    QueryTimeoutError,
    SchemaMissing,
)
from graphile_worker.ops.audit import AuditMissing
from graphile_worker.ops.pauses import DEFAULT_WAIT
from graphile_worker.ops.queue_metrics import RowsHiddenError
from graphile_worker.ops.search import QueryLimits
from graphile_worker.ops.snapshot import plan_counter_snapshot

T = TypeVar("T")

# The most jobs that one bulk change may change, and the entries of the audit that a search reads.
MAX_BULK_JOBS = 100_000
SEARCHED_AUDIT_ENTRIES = 100_000

READ_CONNECTIONS = 2
CHANGE_CONNECTIONS = 3
LOCK_TIMEOUT = timedelta(milliseconds=500)

# A handler runs a few statements. All of them together may take this many times the timeout.
STATEMENTS_PER_READ = 3

# What a role may do seldom changes.
FEATURES_SECONDS = 30.0
FEATURES_TIMEOUT_SECONDS = 2.0

# A snapshot of this age shows that the database can be read. A probe is repeated this often.
READY_SECONDS = 60.0
READY_CACHE_SECONDS = 5.0

UNREACHABLE = "database_unreachable"

# The status codes of the codes of outages.
OUTAGE_STATUSES = {
    "schema_missing": 409,
    "timeout": 504,
    "permission_denied": 403,
    UNREACHABLE: 503,
}


class Service:
    """A queue, for the handlers of the API.

    Attributes:
        conninfo: How to connect.
        schemas: The schemas of the queue.
        settings: The options of the dashboard.
        app: The app with the tasks, if one was given.
        poller: The last good look at the queue.
        events: Sends events to browsers.
        limits: The time limits of statements, for plans that take them.
        version: Version of this package.
    """

    def __init__(
        self,
        conninfo: ConninfoSource,
        schemas: Schemas,
        settings: DashboardSettings,
        *,
        app: App[Any] | None = None,
        prepared_statements: bool = True,
        timings: PollTimings = DEFAULT_TIMINGS,
    ) -> None:
        self.conninfo = conninfo
        self.schemas = schemas
        self.settings = settings
        self.app = app
        self.version = version("graphile-worker")
        self.timings = timings
        self.max_bulk_jobs = MAX_BULK_JOBS
        self.searched_audit_entries = SEARCHED_AUDIT_ENTRIES
        self.limits = QueryLimits(
            statement_timeout=settings.query_timeout, lock_timeout=LOCK_TIMEOUT
        )
        self.events = Broadcaster()

        def open_database(size: int) -> PsycopgDatabase:
            return PsycopgDatabase(
                conninfo,
                schemas,
                max_size=size,
                prepared_statements=prepared_statements,
                # With a limit, a canceled statement does not wait for a server without an answer.
                query_timeout=timedelta(seconds=self._read_seconds),
            )

        self._reads = ReadOnlyDatabase(open_database(READ_CONNECTIONS), self.limits)
        self._changes = open_database(CHANGE_CONNECTIONS)
        self.poller = Poller(
            open_database(1),
            timings=timings,
            external_tasks=frozenset() if app is None else frozenset(app.external_tasks()),
            may_change=lambda: not self.is_read_only,
            on_update=self._send_overview,
            on_stop=self._close_connections,
        )
        self._features: DatabaseFeatures | None = None
        self._features_until = 0.0
        self._features_lock = asyncio.Lock()
        self._is_ready = False
        self._ready_until = 0.0
        self._ready_lock = asyncio.Lock()

    @property
    def is_read_only(self) -> bool:
        """Whether the settings, or the privileges of the database role, allow no changes."""
        features = self._features
        return self.settings.read_only or (features is not None and not features.can_change)

    async def read(self, plan: Plan[T]) -> T:
        """Run a plan that changes nothing.

        Args:
            plan: Its queries run in read-only transactions, with the time limits of the settings.

        Raises:
            Problem: The database is unreachable, too slow, or rejects the queries.
        """
        try:
            async with asyncio.timeout(self._read_seconds):
                return await run_plan(self._reads, plan)
        except Exception as error:
            raise self._translate(error) from error

    async def change(self, plan: Plan[T], *, is_long: bool = False) -> T:
        """Run a plan that changes something, and look at the queue soon.

        Args:
            plan: Its entry in the audit has the name of the user. Limit its statements with
                `limit_plan`.
            is_long: Whether the plan may take any time. Only its statements have a limit then.

        Raises:
            Problem: The database is unreachable, too slow, or rejects the change.
        """
        # A pause waits for a job that runs.
        seconds = self._read_seconds + DEFAULT_WAIT.total_seconds()
        try:
            async with asyncio.timeout(None if is_long else seconds):
                return await run_plan(self._changes, plan)
        except Exception as error:
            raise self._translate(error) from error
        finally:
            self.poller.look_soon()

    async def get_features(self) -> DatabaseFeatures | None:
        """Return what the role may do, or None while that is not known."""
        async with self._features_lock:
            now = time.monotonic()
            if now >= self._features_until and self.poller.outage is None:
                # Requests that wait do not all repeat an attempt that fails.
                self._features_until = now + FEATURES_TIMEOUT_SECONDS * 2
                with suppress(psycopg.Error, OSError, GraphileWorkerError):
                    async with asyncio.timeout(FEATURES_TIMEOUT_SECONDS):
                        self._features = await self._reads.run(inspect_features(self.schemas))
                        self._features_until = now + FEATURES_SECONDS
        return self._features

    async def is_ready(self) -> bool:
        """Return whether there is recent data, or the database answers."""
        latest = self.poller.latest
        if latest is not None and latest.age < READY_SECONDS:
            return True
        # Probes come without a user, so they must not cost much.
        async with self._ready_lock:
            now = time.monotonic()
            if now >= self._ready_until:
                self._is_ready = await self._probe()
                self._ready_until = now + READY_CACHE_SECONDS
        return self._is_ready

    async def _probe(self) -> bool:
        try:
            async with asyncio.timeout(FEATURES_TIMEOUT_SECONDS):
                await run_plan(self._reads, plan_counter_snapshot(self.schemas))
        except (psycopg.Error, OSError, GraphileWorkerError):
            return False
        return True

    def publish(self, event: str, id: str, value: object) -> None:
        """Send an event to all browsers. It replaces an older one with this id that waits."""
        self.events.send(f"{event}:{id}", event, encode(value))

    async def close(self) -> None:
        """End the streams, stop the poller and close the connections."""
        self.events.stop()
        await get_bulk_runs(self).close()
        await self.poller.close()
        await self._close_connections()

    async def _close_connections(self) -> None:
        """Close the connections. The next request opens others."""
        await self._reads.close()
        await self._changes.close()

    @property
    def _read_seconds(self) -> float:
        return self.settings.query_timeout.total_seconds() * STATEMENTS_PER_READ + 2.0

    def _send_overview(self) -> None:
        if self.events.stream_count:
            # Imported here, because the resources import this module.
            from graphile_worker.contrib.dashboard._resources.overview import build_overview

            self.events.send("overview", "overview", encode(build_overview(self)))

    def _translate(self, error: Exception) -> Exception:
        if isinstance(error, TimeoutError) and self.poller.outage is None and self.poller.latest:
            # The poller gets answers, so the database is busy.
            return Problem(504, "timeout", "the database did not answer in time. Try again.")
        if not isinstance(error, GraphileWorkerError) and get_sqlstate(error) in MISSING_OBJECT:
            error = SchemaMissing(self.schemas.shared)
        return translate_error(error) or error


class ReadOnlyDatabase:
    """A database whose transactions are read-only and have time limits."""

    def __init__(self, database: PsycopgDatabase, limits: QueryLimits) -> None:
        self.schemas = database.schemas
        self._db = database
        timeouts = (limits.statement_timeout, limits.lock_timeout)
        self._milliseconds = [max(1, each // timedelta(milliseconds=1)) for each in timeouts]

    async def run(self, query: Query[T]) -> T:
        """Run a query in its own transaction."""
        async with self.transaction() as connection:
            return await connection.run(query)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PsycopgConnection]:
        """Yield a connection in a transaction."""
        async with self._db.transaction() as connection:
            await connection.run(set_read_limits(*self._milliseconds))
            yield connection

    async def close(self) -> None:
        """Close the connections."""
        await self._db.close()


def translate_error(error: Exception) -> Problem | None:
    """Return the answer to an error that a request can cause, or None for a bug."""
    match error:
        case Problem():
            return error
        case FilterError():
            length = max(1, len(error.got))
            return Problem(400, "bad_filter", str(error), position=error.column - 1, length=length)
        case SchemaMissing():
            return Problem(409, "schema_missing", str(error))
        case AuditMissing():
            return Problem(409, COMPANION_MISSING, str(error))
        case RowsHiddenError():
            return Problem(403, "rows_hidden", str(error))
        case QueryTimeoutError():
            return Problem(504, "timeout", str(error))
        case PayloadTooLarge():
            return Problem(413, "too_large", str(error))
        case JobSpecError():
            return Problem(422, "bad_request", str(error))
    state = get_sqlstate(error)
    if state in (QUERY_CANCELED, LOCK_NOT_AVAILABLE):
        return Problem(
            504, "timeout", "the database took too long. Narrow the search, or try again."
        )
    if state in (INSUFFICIENT_PRIVILEGE, READ_ONLY_SQL_TRANSACTION):
        return Problem(
            403,
            "permission_denied",
            "the database rejects this for the role of the dashboard. See "
            "docs/operations/permissions-and-security.md for the privileges.",
        )
    if isinstance(error, psycopg.OperationalError | OSError):
        code, message = describe_outage(error)
        return Problem(OUTAGE_STATUSES.get(code, 503), code, message)
    return None

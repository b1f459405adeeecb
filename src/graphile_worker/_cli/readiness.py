"""The text of `/readyz?verbose`: the verdict on the queue, and its findings."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._db.database import QueryRunner, run_plan_on
from graphile_worker._db.psycopg import ConnectError, PsycopgConnection, PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.snapshot import set_limits
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, MISSING_OBJECT, get_sqlstate
from graphile_worker._support.error_format import format_error_line, make_printable
from graphile_worker.errors import SchemaMissing
from graphile_worker.ops.diagnostics.connectivity import build_unreachable_finding
from graphile_worker.ops.diagnostics.findings import (
    FindingId,
    QueueHealth,
    Severity,
    assess_health,
)
from graphile_worker.ops.diagnostics.queue import diagnose_queue
from graphile_worker.ops.snapshot import MAX_PAUSE_SECONDS, PollPacer, Snapshot, plan_snapshot
from graphile_worker.ops.trends import SnapshotHistory

# Less than the time limit of a request.
TIMEOUT_SECONDS = 4.0

# Less than that, so that the server ends a slow statement before the client gives up on it.
STATEMENT_TIMEOUT = timedelta(seconds=3)

# Requests within this time get the same text, so that clients cannot load the database.
MIN_INTERVAL_SECONDS = 10.0

# The name of the session in pg_stat_activity, after "graphile-worker".
PROGRAM_NAME = "readyz"

logger = logging.getLogger("graphile_worker")


class QueueProbe:
    """Diagnoses a queue on request, on a connection that it opens and closes each time."""

    def __init__(
        self,
        conninfo: ConninfoSource,
        schemas: Schemas,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conninfo = conninfo
        self._schemas = schemas
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._pacer = PollPacer(MIN_INTERVAL_SECONDS)
        self._history: SnapshotHistory | None = None
        self._diagnosis: asyncio.Task[str] | None = None
        self._next_at = 0.0

    async def describe(self) -> str:
        """Format the verdict and the findings, one per line."""
        if self._diagnosis is None or (self._diagnosis.done() and self._clock() >= self._next_at):
            self._diagnosis = asyncio.create_task(self._diagnose())
        # The diagnosis continues if this client disconnects: later requests get its text.
        return await asyncio.shield(self._diagnosis)

    async def _diagnose(self) -> str:
        # After an error the database may be overloaded.
        pause = MAX_PAUSE_SECONDS
        is_connected = False
        try:
            async with asyncio.timeout(self._timeout_seconds), self._connect() as connection:
                is_connected = True
                snapshot = await self._take_snapshot(connection)
            text = self._format_findings(snapshot)
            pause = self._pacer.compute_pause(snapshot.duration)
        except Exception as error:
            text = self._format_error(error, is_connected=is_connected)
        self._next_at = self._clock() + pause
        return text

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[PsycopgConnection]:
        database = PsycopgDatabase(
            self._conninfo, self._schemas, max_size=1, prepared_statements=False
        )
        try:
            async with database.transaction() as connection:
                yield connection
        finally:
            await database.close()

    async def _take_snapshot(self, connection: QueryRunner) -> Snapshot:
        started_at = time.monotonic()
        await connection.run(set_limits(STATEMENT_TIMEOUT, PROGRAM_NAME))
        snapshot = await run_plan_on(connection, plan_snapshot(self._schemas))
        return replace(snapshot, duration=time.monotonic() - started_at)

    def _format_findings(self, snapshot: Snapshot) -> str:
        if self._history is None:
            self._history = SnapshotHistory(snapshot)
        else:
            self._history.add(snapshot)
        findings = diagnose_queue(self._history, self._schemas)
        lines = [f"{each.severity} {each.id}: {make_printable(each.title)}" for each in findings]
        return "\n".join([f"verdict: {assess_health(findings)}", *lines])

    def _format_error(self, error: Exception, *, is_connected: bool) -> str:
        # The message of an error may contain the host and the role, which are not for every client.
        severity, sqlstate = Severity.CRITICAL, get_sqlstate(error)
        if isinstance(error, SchemaMissing) or sqlstate in MISSING_OBJECT:
            id = FindingId.SCHEMA_MISSING
        elif sqlstate == INSUFFICIENT_PRIVILEGE:
            id = FindingId.PRIVILEGES_MISSING
        elif _is_unreachable(error, is_connected=is_connected):
            id = build_unreachable_finding(error, self._schemas).id
        else:
            severity, id = Severity.WARNING, FindingId.CHECK_UNFINISHED
            logger.warning(
                "diagnosis failed, next in %.0f s: %s", MAX_PAUSE_SECONDS, format_error_line(error)
            )
        return f"verdict: {QueueHealth.UNKNOWN}\n{severity} {id}"


def _is_unreachable(error: Exception, *, is_connected: bool) -> bool:
    if isinstance(error, TimeoutError):
        return not is_connected
    return isinstance(error, ConnectError | OSError) and get_sqlstate(error) is None

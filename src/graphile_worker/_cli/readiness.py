"""The text of `/readyz?verbose`: the verdict on the queue, and its findings."""

import asyncio
import time

from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, get_sqlstate
from graphile_worker._support.error_format import make_printable
from graphile_worker.errors import SchemaMissing
from graphile_worker.ops.diagnostics.connectivity import build_unreachable_finding
from graphile_worker.ops.diagnostics.findings import (
    FindingId,
    QueueHealth,
    Severity,
    assess_health,
)
from graphile_worker.ops.diagnostics.queue import diagnose_queue
from graphile_worker.ops.snapshot import PollPacer, take_snapshot
from graphile_worker.ops.trends import SnapshotHistory

# Less than the time limit of a request.
TIMEOUT_SECONDS = 4.0

# Requests within this time get the same text, so that clients cannot load the database.
MIN_INTERVAL_SECONDS = 10.0


class QueueProbe:
    """Diagnoses a queue on request, on a connection that it opens and closes each time."""

    def __init__(self, conninfo: str | None, schemas: Schemas) -> None:
        self._conninfo = conninfo
        self._schemas = schemas
        self._pacer = PollPacer(MIN_INTERVAL_SECONDS)
        self._history: SnapshotHistory | None = None
        self._text = ""
        self._next_at = 0.0
        self._lock = asyncio.Lock()

    async def describe(self) -> str:
        """Format the verdict and the findings, one per line."""
        async with self._lock:
            if time.monotonic() >= self._next_at:
                self._text = await self._diagnose()
            return self._text

    async def _diagnose(self) -> str:
        pause = MIN_INTERVAL_SECONDS
        database = PsycopgDatabase(
            self._conninfo, self._schemas, max_size=1, prepared_statements=False
        )
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                snapshot = await take_snapshot(database)
            pause = self._pacer.compute_pause(snapshot.duration)
        except Exception as error:
            return self._format_error(error)
        finally:
            self._next_at = time.monotonic() + pause
            await database.close()
        if self._history is None:
            self._history = SnapshotHistory(snapshot)
        else:
            self._history.add(snapshot)
        findings = diagnose_queue(self._history, self._schemas)
        lines = [f"{each.severity} {each.id}: {make_printable(each.title)}" for each in findings]
        return "\n".join([f"verdict: {assess_health(findings)}", *lines])

    def _format_error(self, error: Exception) -> str:
        # The message of an error may contain the host and the role, which are not for every client.
        if isinstance(error, SchemaMissing):
            id = FindingId.SCHEMA_MISSING
        elif get_sqlstate(error) == INSUFFICIENT_PRIVILEGE:
            id = FindingId.PRIVILEGES_MISSING
        elif get_sqlstate(error) is None:
            id = build_unreachable_finding(error, self._schemas).id
        else:
            id = FindingId.CHECK_UNFINISHED
        return f"verdict: {QueueHealth.UNKNOWN}\n{Severity.CRITICAL} {id}"

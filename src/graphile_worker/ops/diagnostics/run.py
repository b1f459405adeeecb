"""Run all checks, each in a short read-only transaction."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import TypeVar

from graphile_worker._db.conninfo import ConninfoSource, find_plaintext_risk
from graphile_worker._db.database import run_plan_on
from graphile_worker._db.psycopg import ConnectError, PsycopgDatabase, get_psycopg_implementation
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.diagnostics import ServerSession, inspect_session
from graphile_worker._sql.queries.snapshot import set_limits
from graphile_worker._sql.query import Plan
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, QUERY_CANCELED, get_sqlstate
from graphile_worker.ops.diagnostics import clocks, connectivity, installation, permissions, server
from graphile_worker.ops.diagnostics.context import DoctorContext, DoctorOptions, FindingsPlan
from graphile_worker.ops.diagnostics.findings import (
    QUEUE_FINDINGS,
    Finding,
    FindingId,
    QueueHealth,
    Report,
    Severity,
    assess_health,
    sort_findings,
)
from graphile_worker.ops.diagnostics.queue import diagnose_queue
from graphile_worker.ops.snapshot import plan_snapshot
from graphile_worker.ops.text import format_command
from graphile_worker.ops.trends import SnapshotHistory
from graphile_worker.options import default_schema

T = TypeVar("T")

# Two connections show whether a pooler is before the server.
CONNECTION_COUNT = 2

# The time beyond the statement timeout that the server has to answer.
TIMEOUT_GRACE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and its name for the report if it cannot be finished."""

    name: str
    build_plan: Callable[[DoctorContext], FindingsPlan]


# These checks work without the schema, and while another session has locked its tables.
SERVER_CHECKS = (
    Check("the local clock", clocks.plan_check_local_clock),
    Check("old snapshots", server.plan_check_vacuum_blockers),
    Check("dead rows", server.plan_check_dead_rows),
    Check("notifications", server.plan_check_notify_queue),
    Check("commits with notifications", server.plan_check_notify_lock),
    Check("connections", server.plan_check_connections),
    Check("settings of the server", server.plan_check_durability),
)
SCHEMA_CHECKS = (
    Check("the search path", permissions.plan_check_search_path),
    Check("ids", server.plan_check_sequences),
    Check("autovacuum", server.plan_check_autovacuum),
    Check("the rescue lock", server.plan_check_rescue_lock),
)


async def examine(
    conninfo: ConninfoSource = None,
    *,
    schema: str | None = None,
    ext_schema: str | None = None,
    options: DoctorOptions | None = None,
    queue_findings: Sequence[Finding] | None = None,
) -> Report:
    """Diagnose a database and its queue, without changes and without blocking other sessions.

    Args:
        conninfo: Connection string or a function that returns one (default: `DATABASE_URL`, then
            `PGDATABASE`).
        schema: The schema of the queue.
        ext_schema: The companion schema.
        options: Time limits, thresholds, and the options of your workers.
        queue_findings: What a recent snapshot shows of jobs, locks and workers (default: take a
            snapshot, which reads all jobs).

    Returns:
        The findings. An unreachable database is one of them.
    """
    schemas = Schemas.from_names(schema or default_schema(), ext_schema)
    # A pooler before the server may not support prepared statements.
    database = PsycopgDatabase(
        conninfo, schemas, max_size=CONNECTION_COUNT, prepared_statements=False
    )
    try:
        return await _DiagnosticRun(
            database, schemas, options or DoctorOptions(), queue_findings
        ).run()
    finally:
        await database.close()


class _DiagnosticRun:
    """Collects the facts and findings of one diagnosis."""

    def __init__(
        self,
        database: PsycopgDatabase,
        schemas: Schemas,
        options: DoctorOptions,
        queue_findings: Sequence[Finding] | None,
    ) -> None:
        self._db = database
        self._schemas = schemas
        self._options = options
        self._queue_findings = queue_findings
        self._facts = {"driver": f"psycopg {version('psycopg')}, {get_psycopg_implementation()}"}
        self._findings = connectivity.check_driver(get_psycopg_implementation())
        # Checks that this role may not run.
        self._unchecked: list[str] = []
        # Whether there is a snapshot, or a reason why workers cannot use the queue.
        self._can_judge = False

    async def run(self) -> Report:
        await self._run_all()
        verdict = assess_health(self._findings) if self._can_judge else QueueHealth.UNKNOWN
        return Report(self._facts, tuple(sort_findings(self._findings)), verdict)

    async def _run_all(self) -> None:
        try:
            session = await self._connect()
        except (ConnectError, TimeoutError) as error:
            self._findings.append(connectivity.build_unreachable_finding(error, self._schemas))
            return
        if (too_old := connectivity.check_server_version(session)) is not None:
            self._findings.append(too_old)
            return
        context = DoctorContext(
            schemas=self._schemas,
            thresholds=self._options.thresholds,
            options=self._options,
            session=session,
        )
        self._findings += connectivity.check_writable(context)
        await self._check_pooler(context)
        await self._run_checks(SERVER_CHECKS, context)
        await self._check_schema(context)

    async def _connect(self) -> ServerSession:
        async with asyncio.timeout(self._timeout_seconds), self._db.connection() as connection:
            session: ServerSession = await connection.run(inspect_session())
            self._findings += connectivity.check_encryption(
                find_plaintext_risk(connection.raw.info),
                is_encrypted=connection.raw.pgconn.ssl_in_use,
            )
        self._facts["server"] = f"PostgreSQL {session.version}"
        self._facts["database"] = session.database
        self._facts["role"] = session.role
        if not session.can_see_all_sessions:
            self._facts["unseen"] = "sessions of other roles: grant pg_read_all_stats to this role"
        return session

    async def _check_pooler(self, context: DoctorContext) -> None:
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._db.connection() as first,
                self._db.connection() as second,
            ):
                if not await connectivity.has_transaction_pooler(first, second):
                    return
        except Exception as error:
            self._findings.append(self._build_unfinished_finding("a pooler", error))
            return
        self._facts["pooler"] = "assigns sessions by transaction"
        self._findings += connectivity.check_transaction_pooling(context)

    async def _check_schema(self, context: DoctorContext) -> None:
        try:
            state = await self._run_limited(installation.plan_inspect_schema(self._schemas))
        except Exception as error:
            self._findings.append(self._build_unfinished_finding("the schema", error))
            return
        self._facts |= dict(installation.build_facts(state, self._schemas))
        if state.is_limited and not state.levels:
            self._unchecked.append("the level of the schema")
        elif blockers := self._find_blockers(state, context):
            self._findings += blockers
            self._can_judge = any(each.id in QUEUE_FINDINGS for each in blockers)
            if not state.is_limited:
                return
        else:
            self._findings += installation.check_schema(state, context)
        checks = (*SCHEMA_CHECKS, Check("jobs, locks and workers", self._plan_check_queue))
        await self._run_checks(checks, context, is_limited=state.is_limited)
        if state.is_limited:
            self._findings.append(
                permissions.build_limited_role_finding(
                    state.shared_access, self._unchecked, context
                )
            )

    def _find_blockers(
        self, state: installation.SchemaState, context: DoctorContext
    ) -> list[Finding]:
        """Find why this role cannot use the schema. A limited role needs no more privileges."""
        if not state.is_limited:
            findings = permissions.check_privileges(state.shared_access, context)
            if findings:
                return findings
        blocker = installation.find_schema_blocker(state, self._schemas)
        return [] if blocker is None else [blocker]

    def _plan_check_queue(self, context: DoctorContext) -> FindingsPlan:
        findings = self._queue_findings
        if findings is None:
            thresholds = context.thresholds
            snapshot = yield from plan_snapshot(self._schemas, thresholds.max_transaction_age)
            findings = diagnose_queue(
                SnapshotHistory(snapshot), self._schemas, thresholds, context.options.external_tasks
            )
        self._can_judge = True
        known = {each.id for each in self._findings}
        return [each for each in findings if each.id not in known]

    async def _run_checks(
        self, checks: tuple[Check, ...], context: DoctorContext, *, is_limited: bool = False
    ) -> None:
        for check in checks:
            try:
                self._findings += await self._run_limited(check.build_plan(context))
            except Exception as error:
                if is_limited and get_sqlstate(error) == INSUFFICIENT_PRIVILEGE:
                    self._unchecked.append(check.name)
                else:
                    self._findings.append(self._build_unfinished_finding(check.name, error))

    async def _run_limited(self, plan: Plan[T]) -> T:
        async with asyncio.timeout(self._timeout_seconds), self._db.transaction() as connection:
            await connection.run(set_limits(self._options.timeout, "doctor"))
            return await run_plan_on(connection, plan)

    @property
    def _timeout_seconds(self) -> float:
        return (self._options.timeout + TIMEOUT_GRACE).total_seconds()

    def _build_unfinished_finding(self, name: str, error: Exception) -> Finding:
        took_too_long = isinstance(error, TimeoutError) or get_sqlstate(error) == QUERY_CANCELED
        message = " ".join(str(error).split()) or type(error).__name__
        return Finding(
            id=FindingId.CHECK_UNFINISHED,
            severity=Severity.WARNING,
            title=f"a check could not be finished: {name}",
            evidence=(message,),
            advice="Allow more time, or wait until the database is less busy."
            if took_too_long
            else "Fix the reported problem, or run doctor as a role with sufficient privileges, "
            "then run it again.",
            shell=format_command(self._schemas, "doctor --timeout 1m") if took_too_long else None,
        )

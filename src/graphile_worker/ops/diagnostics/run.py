"""Examine: every check in its turn, each in a short transaction that only reads."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import TypeVar

from graphile_worker._db.conninfo import find_plaintext_risk
from graphile_worker._db.database import run_plan_on
from graphile_worker._db.psycopg import ConnectError, PsycopgDatabase, get_psycopg_implementation
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.diagnostics import (
    ServerSession,
    inspect_session,
    set_diagnostic_limits,
)
from graphile_worker._sql.query import Plan
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, QUERY_CANCELED, get_sqlstate
from graphile_worker.ops.diagnostics import clocks, connectivity, installation, jobs, server
from graphile_worker.ops.diagnostics.context import DiagnosticContext, DoctorOptions, FindingsPlan
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Report, Severity
from graphile_worker.ops.diagnostics.installation import REGISTRY_TABLES, SchemaState
from graphile_worker.ops.text import format_command
from graphile_worker.options import default_schema

T = TypeVar("T")

# Two connections tell whether a pooler is between us and the server.
CONNECTION_COUNT = 2

# What is given to a server beyond its own limit before it counts as hanging.
TIMEOUT_GRACE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Check:
    """A check by its name, for when it cannot be finished."""

    name: str
    build_plan: Callable[[DiagnosticContext], FindingsPlan]


SERVER_CHECKS = (
    Check("the clock of this machine", clocks.plan_check_local_clock),
    Check("held snapshots", server.plan_check_vacuum_blockers),
    Check("notifications", server.plan_check_notify_queue),
    Check("connections", server.plan_check_connections),
    Check("settings of the server", server.plan_check_settings),
)
SCHEMA_CHECKS = (
    Check("the search path", installation.plan_check_search_path),
    Check("ids", server.plan_check_sequences),
    Check("dead rows", server.plan_check_dead_rows),
    Check("the turn to recover jobs", jobs.plan_check_rescue_lock),
)
JOBS_CHECK = Check("jobs and locks", jobs.plan_check_jobs)
JOBS_AND_POOLS_CHECKS = (
    Check("jobs, locks and pools", jobs.plan_check_jobs_and_pools),
    Check("clocks of workers", clocks.plan_check_pool_clocks),
)


async def examine(
    conninfo: str | None = None,
    *,
    schema: str | None = None,
    ext_schema: str | None = None,
    options: DoctorOptions | None = None,
) -> Report:
    """Look at a database and the queue in it; changes nothing, and disturbs nobody."""
    schemas = Schemas.from_names(schema or default_schema(), ext_schema)
    # Whatever lies between us and the server, it takes statements that are not prepared.
    database = PsycopgDatabase(
        conninfo, schemas, max_size=CONNECTION_COUNT, prepared_statements=False
    )
    try:
        return await _DiagnosticRun(database, schemas, options or DoctorOptions()).run()
    finally:
        await database.close()


class _DiagnosticRun:
    """One run of the doctor: gathers facts and findings."""

    def __init__(self, database: PsycopgDatabase, schemas: Schemas, options: DoctorOptions) -> None:
        self._db = database
        self._schemas = schemas
        self._options = options
        self._facts = {"driver": f"psycopg {version('psycopg')}, {get_psycopg_implementation()}"}
        self._findings = connectivity.check_driver(get_psycopg_implementation())

    async def run(self) -> Report:
        try:
            session = await self._connect()
        except (ConnectError, TimeoutError) as error:
            self._findings.append(connectivity.build_unreachable_finding(error, self._schemas))
            return self._build_report()
        if (too_old := connectivity.check_server_version(session)) is not None:
            self._findings.append(too_old)
            return self._build_report()
        case = DiagnosticContext(self._schemas, self._options, session)
        self._findings += connectivity.check_writable(case)
        await self._check_pooler(case)
        await self._run_checks(*SERVER_CHECKS, context=case)
        await self._check_schema(case)
        return self._build_report()

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
            self._facts["unseen"] = (
                "what sessions of other roles do: grant this one pg_read_all_stats"
            )
        return session

    async def _check_pooler(self, context: DiagnosticContext) -> None:
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
        self._facts["pooler"] = "lends sessions by transaction"
        self._findings += connectivity.check_transaction_pooling(context)

    async def _check_schema(self, context: DiagnosticContext) -> None:
        try:
            state = await self._run_limited(installation.plan_inspect_schema(self._schemas))
        except Exception as error:
            self._findings.append(self._build_unfinished_finding("the schema", error))
            return
        self._facts |= dict(installation.build_facts(state, self._schemas))
        if state.is_limited:
            await self._check_as_limited_role(state, context)
            return
        hindrances = list(_find_blockers(state, context))
        self._findings += hindrances
        if hindrances:
            return
        self._findings += installation.check_schema(state, context)
        await self._run_checks(*SCHEMA_CHECKS, *_select_job_checks(state), context=context)

    async def _check_as_limited_role(self, state: SchemaState, context: DiagnosticContext) -> None:
        """As a role that may not work here: look at what it may see, and say what it may not."""
        unseen: list[str] = []
        if not state.levels:
            unseen.append("the level of the schema")
        elif (found := installation.find_schema_blocker(state, context.schemas)) is not None:
            self._findings.append(found)
        else:
            self._findings += installation.check_schema(state, context)
        checks = (*SCHEMA_CHECKS, *_select_job_checks(state))
        if state.has_hidden_rows:
            checks = SCHEMA_CHECKS
            unseen.append("jobs and locks, whose rows are hidden from this role")
        for check in checks:
            try:
                self._findings += await self._run_limited(check.build_plan(context))
            except Exception as error:
                if get_sqlstate(error) != INSUFFICIENT_PRIVILEGE:
                    self._findings.append(self._build_unfinished_finding(check.name, error))
                else:
                    unseen.append(check.name)
        self._findings.append(installation.build_limited_role_finding(state, unseen, context))

    async def _run_checks(self, *checks: Check, context: DiagnosticContext) -> None:
        for check in checks:
            try:
                self._findings += await self._run_limited(check.build_plan(context))
            except Exception as error:
                self._findings.append(self._build_unfinished_finding(check.name, error))

    async def _run_limited(self, plan: Plan[T]) -> T:
        async with asyncio.timeout(self._timeout_seconds), self._db.transaction() as connection:
            await connection.run(set_diagnostic_limits(self._options.timeout))
            return await run_plan_on(connection, plan)

    @property
    def _timeout_seconds(self) -> float:
        return (self._options.timeout + TIMEOUT_GRACE).total_seconds()

    def _build_unfinished_finding(self, name: str, error: Exception) -> Finding:
        took_too_long = isinstance(error, TimeoutError) or get_sqlstate(error) == QUERY_CANCELED
        said = " ".join(str(error).split()) or type(error).__name__
        return Finding(
            id=FindingId.CHECK_UNFINISHED,
            severity=Severity.WARNING,
            title=f"could not look at everything: {name}",
            evidence=(said,),
            advice="Allow it more time, when the database has some."
            if took_too_long
            else "Mend what it says, or let a role look that may; then look again.",
            shell=format_command(self._schemas, "doctor --timeout 1m") if took_too_long else None,
        )

    def _build_report(self) -> Report:
        worst_first = sorted(self._findings, key=lambda each: list(Severity).index(each.severity))
        return Report(self._facts, tuple(worst_first))


def _find_blockers(state: SchemaState, context: DiagnosticContext) -> Iterator[Finding]:
    """What keeps this role from using the schema, and so the doctor from looking further."""
    if rights := installation.check_privileges(state, context):
        yield from rights
        return
    if (found := installation.find_schema_blocker(state, context.schemas)) is not None:
        yield found


def _select_job_checks(state: SchemaState) -> tuple[Check, ...]:
    if state.is_readable(*REGISTRY_TABLES, companion=True):
        return JOBS_AND_POOLS_CHECKS
    return (JOBS_CHECK,)

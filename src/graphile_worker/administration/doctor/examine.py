"""Examine: every check in its turn, each in a short transaction that only reads."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import TypeVar

from graphile_worker.administration.doctor import clocks, installation, jobs, reach, server
from graphile_worker.administration.doctor.case import Case, DoctorOptions, Findings
from graphile_worker.administration.doctor.finding import Finding, FindingId, Report, Severity
from graphile_worker.administration.doctor.installation import REGISTRY, SchemaState
from graphile_worker.administration.wording import command
from graphile_worker.db.conninfo import plain_text_risk
from graphile_worker.db.database import perform_on
from graphile_worker.db.psycopg import CannotConnect, PsycopgDatabase, implementation
from graphile_worker.options import default_schema
from graphile_worker.sql.failures import CANCELLED, NOT_ALLOWED, sqlstate_of
from graphile_worker.sql.health import Session, inspect_session, limit_statements
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Plan

T = TypeVar("T")

# Two connections tell whether a pooler is between us and the server.
CONNECTIONS = 2

# What is given to a server beyond its own limit before it counts as hanging.
GRACE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Check:
    """A check by its name, for when it cannot be finished."""

    name: str
    look: Callable[[Case], Findings]


OF_SERVER = (
    Check("the clock of this machine", clocks.measuring),
    Check("held snapshots", server.finding_snapshots),
    Check("notifications", server.measuring_notifications),
    Check("connections", server.counting_connections),
    Check("settings of the server", server.reading_settings),
)
OF_SCHEMA = (
    Check("the search path", installation.examining_path),
    Check("ids", server.measuring_sequences),
    Check("dead rows", server.measuring_dead_rows),
    Check("the turn to recover jobs", jobs.finding_turn_holders),
)
OF_JOBS = Check("jobs and locks", jobs.surveying)
OF_JOBS_AND_POOLS = (
    Check("jobs, locks and pools", jobs.surveying_with_pools),
    Check("clocks of workers", clocks.comparing_pools),
)


async def examine(
    conninfo: str | None = None,
    *,
    schema: str | None = None,
    ext_schema: str | None = None,
    options: DoctorOptions | None = None,
) -> Report:
    """Look at a database and the queue in it; changes nothing, and disturbs nobody."""
    schemas = Schemas.named(schema or default_schema(), ext_schema)
    # Whatever lies between us and the server, it takes statements that are not prepared.
    database = PsycopgDatabase(conninfo, schemas, max_size=CONNECTIONS, prepared_statements=False)
    try:
        return await _Examination(database, schemas, options or DoctorOptions()).run()
    finally:
        await database.close()


class _Examination:
    """One run of the doctor: gathers facts and findings."""

    def __init__(self, database: PsycopgDatabase, schemas: Schemas, options: DoctorOptions) -> None:
        self._db = database
        self._schemas = schemas
        self._options = options
        self._facts = {"driver": f"psycopg {version('psycopg')}, {implementation()}"}
        self._found = reach.slow_driver(implementation())

    async def run(self) -> Report:
        try:
            session = await self._enter()
        except (CannotConnect, TimeoutError) as error:
            self._found.append(reach.unreachable(error, self._schemas))
            return self._report()
        if (too_old := reach.server_too_old(session)) is not None:
            self._found.append(too_old)
            return self._report()
        case = Case(self._schemas, self._options, session)
        self._found += reach.read_only(case)
        await self._look_for_pooler(case)
        await self._run_checks(*OF_SERVER, case=case)
        await self._examine_schema(case)
        return self._report()

    async def _enter(self) -> Session:
        async with asyncio.timeout(self._patience), self._db.connection() as connection:
            session: Session = await connection.run(inspect_session())
            self._found += reach.plain_text(
                plain_text_risk(connection.raw.info),
                is_encrypted=connection.raw.pgconn.ssl_in_use,
            )
        self._facts["server"] = f"PostgreSQL {session.version}"
        self._facts["database"] = session.database
        self._facts["role"] = session.role
        if not session.sees_all_sessions:
            self._facts["unseen"] = (
                "what sessions of other roles do: grant this one pg_read_all_stats"
            )
        return session

    async def _look_for_pooler(self, case: Case) -> None:
        try:
            async with (
                asyncio.timeout(self._patience),
                self._db.connection() as first,
                self._db.connection() as second,
            ):
                if not await reach.shares_sessions(first, second):
                    return
        except Exception as error:
            self._found.append(self._unfinished("a pooler", error))
            return
        self._facts["pooler"] = "lends sessions by transaction"
        self._found += reach.transaction_pooling(case)

    async def _examine_schema(self, case: Case) -> None:
        try:
            state = await self._ask(installation.looking(self._schemas))
        except Exception as error:
            self._found.append(self._unfinished("the schema", error))
            return
        self._facts |= dict(installation.facts(state, self._schemas))
        if state.is_limited:
            await self._examine_what_is_seen(state, case)
            return
        hindrances = list(_hindrances(state, case))
        self._found += hindrances
        if hindrances:
            return
        self._found += installation.imperfect(state, case)
        await self._run_checks(*OF_SCHEMA, *_of_jobs(state), case=case)

    async def _examine_what_is_seen(self, state: SchemaState, case: Case) -> None:
        """As a role that may not work here: look at what it may see, and say what it may not."""
        unseen: list[str] = []
        if not state.levels:
            unseen.append("the level of the schema")
        elif (found := installation.unusable(state, case.schemas)) is not None:
            self._found.append(found)
        else:
            self._found += installation.imperfect(state, case)
        checks = (*OF_SCHEMA, *_of_jobs(state))
        if state.hides_rows:
            checks = OF_SCHEMA
            unseen.append("jobs and locks, whose rows are hidden from this role")
        for check in checks:
            try:
                self._found += await self._ask(check.look(case))
            except Exception as error:
                if sqlstate_of(error) != NOT_ALLOWED:
                    self._found.append(self._unfinished(check.name, error))
                else:
                    unseen.append(check.name)
        self._found.append(installation.limited(state, unseen, case))

    async def _run_checks(self, *checks: Check, case: Case) -> None:
        for check in checks:
            try:
                self._found += await self._ask(check.look(case))
            except Exception as error:
                self._found.append(self._unfinished(check.name, error))

    async def _ask(self, plan: Plan[T]) -> T:
        async with asyncio.timeout(self._patience), self._db.transaction() as connection:
            await connection.run(limit_statements(self._options.timeout))
            return await perform_on(connection, plan)

    @property
    def _patience(self) -> float:
        return (self._options.timeout + GRACE).total_seconds()

    def _unfinished(self, name: str, error: Exception) -> Finding:
        took_too_long = isinstance(error, TimeoutError) or sqlstate_of(error) == CANCELLED
        said = " ".join(str(error).split()) or type(error).__name__
        return Finding(
            id=FindingId.CHECK_UNFINISHED,
            severity=Severity.WARNING,
            title=f"could not look at everything: {name}",
            evidence=(said,),
            advice="Allow it more time, when the database has some."
            if took_too_long
            else "Mend what it says, or let a role look that may; then look again.",
            shell=command(self._schemas, "doctor --timeout 1m") if took_too_long else None,
        )

    def _report(self) -> Report:
        worst_first = sorted(self._found, key=lambda each: list(Severity).index(each.severity))
        return Report(self._facts, tuple(worst_first))


def _hindrances(state: SchemaState, case: Case) -> Iterator[Finding]:
    """What keeps this role from using the schema, and so the doctor from looking further."""
    if rights := installation.without_rights(state, case):
        yield from rights
        return
    if (found := installation.unusable(state, case.schemas)) is not None:
        yield found


def _of_jobs(state: SchemaState) -> tuple[Check, ...]:
    if state.is_readable(*REGISTRY, companion=True):
        return OF_JOBS_AND_POOLS
    return (OF_JOBS,)

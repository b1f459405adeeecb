"""Reach: can the database be reached, by whom, through what, and by which driver?"""

import re
from dataclasses import dataclass

from graphile_worker._db.database import Connection
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import MIN_SERVER_VERSION
from graphile_worker._sql.queries.diagnostics import ServerSession, inspect_session
from graphile_worker._sql.remedies import format_remedy
from graphile_worker.ops.diagnostics.context import DiagnosticContext
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity
from graphile_worker.ops.text import format_command

# libpq gives no code for what a server says at the door, only its words.
NO_ROLE_PATTERN = re.compile(r'role "(.+?)" does not exist')
NO_DATABASE_PATTERN = re.compile(r'database "(.+?)" does not exist')

# How often two connections are asked which session they have.
POOLER_PROBES = 3


@dataclass(frozen=True, slots=True)
class _ErrorAdvice:
    error_text: str
    advice: str


# What else servers and systems say, and what helps.
ADVICE_BY_ERROR = (
    _ErrorAdvice(
        "password authentication failed", "Give the right password, in DATABASE_URL or -c."
    ),
    _ErrorAdvice(
        "no password supplied", "Give the password, in DATABASE_URL or -c, or in ~/.pgpass."
    ),
    _ErrorAdvice("pg_hba.conf", "Let the server's pg_hba.conf allow this role from this machine."),
    _ErrorAdvice("is not permitted to log in", "Let the role log in: alter role … login."),
    _ErrorAdvice("permission denied for database", "Grant the role connect on the database."),
    _ErrorAdvice("too many", "End sessions that nobody needs, or raise max_connections."),
    _ErrorAdvice("remaining connection slots", "End sessions that nobody needs: all are taken."),
    _ErrorAdvice("starting up", "Wait: the server starts."),
    _ErrorAdvice(
        "Connection refused", "Start the server, or correct host and port: nobody listens."
    ),
    _ErrorAdvice("translate host name", "Correct the host's name: nobody knows it."),
    _ErrorAdvice("timeout expired", "See whether a firewall or the network is in the way."),
    _ErrorAdvice("SSL", "Say sslmode as the server wants it."),
)
DEFAULT_ADVICE = "See whether the server runs and can be reached from this machine."


def build_unreachable_finding(error: BaseException, schemas: Schemas) -> Finding:
    """Why nobody could get in, in the words of server and system."""
    said = " ".join(str(error).split())
    if found := NO_ROLE_PATTERN.search(said):
        return _build_role_missing_finding(found[1], said, schemas)
    if found := NO_DATABASE_PATTERN.search(said):
        return _build_database_missing_finding(found[1], said, schemas)
    fitting = (each.advice for each in ADVICE_BY_ERROR if each.error_text in said)
    return Finding(
        id=FindingId.UNREACHABLE,
        severity=Severity.CRITICAL,
        title="the database cannot be reached",
        evidence=(said or type(error).__name__,),
        advice=f"{next(fitting, DEFAULT_ADVICE)} Which database is meant, and from where, says:",
        shell="graphile-worker config",
    )


def _build_role_missing_finding(role: str, message: str, schemas: Schemas) -> Finding:
    return Finding(
        id=FindingId.ROLE_MISSING,
        severity=Severity.CRITICAL,
        title=f"there is no role {role!r}",
        evidence=(message,),
        advice="Let it be created, as a member of the role that owns the queue, or name another "
        "role in DATABASE_URL or -c.",
        sql=format_remedy("create_role", schemas, role=role, owner="the-owner-of-the-queue"),
    )


def _build_database_missing_finding(database: str, message: str, schemas: Schemas) -> Finding:
    return Finding(
        id=FindingId.DATABASE_MISSING,
        severity=Severity.CRITICAL,
        title=f"there is no database {database!r}",
        evidence=(message,),
        advice="Name another one in DATABASE_URL or -c, or create it and install the schema.",
        shell=format_command(schemas, "migrate"),
        sql=format_remedy("create_database", schemas, database=database),
    )


def check_server_version(session: ServerSession) -> Finding | None:
    if session.version_number >= MIN_SERVER_VERSION:
        return None
    return Finding(
        id=FindingId.SERVER_TOO_OLD,
        severity=Severity.CRITICAL,
        title=f"PostgreSQL {session.version} is too old",
        advice="Upgrade the server: 14 or newer is needed.",
    )


def check_writable(context: DiagnosticContext) -> list[Finding]:
    """A standby, or a database that was closed for writing."""
    session = context.session
    if session.is_standby:
        found = "this server is a standby", "Connect to the primary: name all servers, as in"
        shell, sql = "host=one,two target_session_attrs=read-write", None
    elif session.is_read_only:
        found = "default_transaction_read_only is on", "Allow writing again, where it was set:"
        shell, sql = None, context.format_remedy("disable_read_only", database=session.database)
    else:
        return []
    return [
        Finding(
            id=FindingId.READ_ONLY,
            severity=Severity.CRITICAL,
            title="nothing can be written: jobs are neither added nor taken",
            evidence=(found[0],),
            advice=found[1],
            shell=shell,
            sql=sql,
        )
    ]


def check_driver(implementation: str) -> list[Finding]:
    if implementation != "python":
        return []
    return [
        Finding(
            id=FindingId.PURE_PYTHON_DRIVER,
            severity=Severity.WARNING,
            title="psycopg runs in pure Python here",
            evidence=("every job costs several times the processor time",),
            advice="Install its binary form, and see that PSYCOPG_IMPL is not set.",
            shell="pip install 'psycopg[binary]'",
        )
    ]


def check_encryption(risk: str | None, *, is_encrypted: bool) -> list[Finding]:
    """May what travels to another machine be read on the way?"""
    if risk is None:
        return []
    now = "encrypted" if is_encrypted else "plain text"
    return [
        Finding(
            id=FindingId.PLAIN_TEXT,
            severity=Severity.WARNING,
            title="the connection may fall back to plain text: passwords and payloads can be read "
            "on the way",
            evidence=(f"{risk}; this connection is {now}",),
            advice="Require TLS, and a server that proves its name: add sslmode=verify-full, and "
            "sslrootcert with the certificate of its authority, to the connection string.",
        )
    ]


async def has_transaction_pooler(first: Connection, second: Connection) -> bool:
    """Does a pooler lend the sessions of the server from transaction to transaction?

    A pooler gives its own number for a session. If one lends them by transaction, the session of
    one connection is the other's a moment later, or another one by then.
    """
    numbers = [await _get_backend_pid(each) for each in (first, second)]
    if numbers[0] == first.raw.info.backend_pid:
        return False
    for _ in range(POOLER_PROBES):
        again = [await _get_backend_pid(each) for each in (first, second)]
        if again != numbers or again[0] == again[1]:
            return True
    return False


async def _get_backend_pid(connection: Connection) -> int:
    session: ServerSession = await connection.run(inspect_session())
    return session.backend_pid


def check_transaction_pooling(context: DiagnosticContext) -> list[Finding]:
    """What does not work through it, unless workers are told not to try."""
    wrong = []
    if context.options.listen:
        wrong.append("LISTEN is not heard: jobs wait for the next poll, without a word in any log")
    if context.options.prepared_statements:
        wrong.append("prepared statements fail, unless it is PgBouncer 1.21 or newer")
    if not wrong:
        return []
    return [
        Finding(
            id=FindingId.TRANSACTION_POOLING,
            severity=Severity.WARNING,
            title="a pooler such as PgBouncer lends sessions by transaction",
            evidence=tuple(wrong),
            advice="Let workers connect past it, straight to PostgreSQL. Or let them poll only, "
            "more often:",
            shell=context.format_command(
                "--no-listen --no-prepared-statements --poll-interval 500ms"
            ),
        )
    ]

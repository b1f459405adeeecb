"""Checks of the connection: whether the server can be reached, poolers, encryption, the driver."""

import re

from graphile_worker._db.database import Connection
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import MIN_SERVER_VERSION
from graphile_worker._sql.queries.diagnostics import ServerSession, inspect_session
from graphile_worker._sql.remedies import format_remedy
from graphile_worker.ops.diagnostics.context import DoctorContext
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity
from graphile_worker.ops.text import format_command

# For a rejected connection, libpq reports a message without an error code.
NO_ROLE_PATTERN = re.compile(r'role "(.+?)" does not exist')
NO_DATABASE_PATTERN = re.compile(r'database "(.+?)" does not exist')

# How often the sessions of two connections are compared.
POOLER_PROBES = 3

# Advice by a part of the message of the server or the system.
ADVICE_BY_ERROR = {
    "password authentication failed": "Set the right password, in DATABASE_URL or -c.",
    "no password supplied": "Set the password, in DATABASE_URL or -c, or in ~/.pgpass.",
    "pg_hba.conf": "Make the server's pg_hba.conf allow this role from this machine.",
    "is not permitted to log in": "Allow the role to log in: alter role … login.",
    "permission denied for database": "Grant the role connect on the database.",
    "too many": "End sessions that are not needed, or raise max_connections.",
    "remaining connection slots": "End sessions that are not needed: all slots are in use.",
    "starting up": "Wait: the server is starting.",
    "Connection refused": "Start the server, or correct host and port.",  # voice: allow
    "translate host name": "Correct the host's name: it does not resolve.",
    "timeout expired": "Check whether a firewall or the network blocks the connection.",
    "SSL": "Set sslmode as the server requires it.",
}
DEFAULT_ADVICE = "Check whether the server is running and reachable from this machine."


def build_unreachable_finding(error: BaseException, schemas: Schemas) -> Finding:
    """Build the finding for a failed connection, with the message of the server or the system.

    Args:
        error: The error of the driver.
        schemas: The schemas of the queue.
    """
    message = " ".join(str(error).split())
    if match := NO_ROLE_PATTERN.search(message):
        return Finding(
            id=FindingId.ROLE_MISSING,
            severity=Severity.CRITICAL,
            title=f"role {match[1]!r} does not exist",
            evidence=(message,),
            advice="Add it as a member of the role that owns the queue, or name another role "
            "in DATABASE_URL or -c.",
            sql=format_remedy(
                "create_role", schemas, role=match[1], owner="the-owner-of-the-queue"
            ),
        )
    if match := NO_DATABASE_PATTERN.search(message):
        return Finding(
            id=FindingId.DATABASE_MISSING,
            severity=Severity.CRITICAL,
            title=f"database {match[1]!r} does not exist",
            evidence=(message,),
            advice="Name another one in DATABASE_URL or -c, or create it and install the schema.",
            shell=format_command(schemas, "migrate"),
            sql=format_remedy("create_database", schemas, database=match[1]),
        )
    matching = (advice for part, advice in ADVICE_BY_ERROR.items() if part in message)
    return Finding(
        id=FindingId.UNREACHABLE,
        severity=Severity.CRITICAL,
        title="the database is unreachable",
        evidence=(message or type(error).__name__,),
        advice=f"{next(matching, DEFAULT_ADVICE)} To see which database is configured, and where:",
        shell="graphile-worker config",
    )


def check_server_version(session: ServerSession) -> Finding | None:
    """Report a server that is too old for this release."""
    if session.version_number >= MIN_SERVER_VERSION:
        return None
    return Finding(
        id=FindingId.SERVER_TOO_OLD,
        severity=Severity.CRITICAL,
        title=f"PostgreSQL {session.version} is too old",
        advice="Upgrade the server to PostgreSQL 14 or newer.",
    )


def check_writable(context: DoctorContext) -> list[Finding]:
    """Report a standby, or a database that is set to read only."""
    session = context.session
    shell, sql = None, None
    if session.is_standby:
        evidence, advice = (
            "this server is a standby",
            "Connect to the primary. Name all servers, for example:",
        )
        shell = "host=one,two target_session_attrs=read-write"
    elif session.is_read_only:
        evidence, advice = "default_transaction_read_only is on", "Turn it off where it was set:"
        sql = context.format_remedy("disable_read_only", database=session.database)
    else:
        return []
    return [
        Finding(
            id=FindingId.READ_ONLY,
            severity=Severity.CRITICAL,
            title="the database is read only: jobs can be neither added nor claimed",
            evidence=(evidence,),
            advice=advice,
            shell=shell,
            sql=sql,
        )
    ]


def check_driver(implementation: str) -> list[Finding]:
    """Report that psycopg runs without its C extension."""
    if implementation != "python":
        return []
    return [
        Finding(
            id=FindingId.PURE_PYTHON_DRIVER,
            severity=Severity.WARNING,
            title="psycopg runs in pure Python",
            evidence=("every job takes several times the processor time",),
            advice="Install the binary package of psycopg, and unset PSYCOPG_IMPL.",
            shell="pip install 'psycopg[binary]'",
        )
    ]


def check_encryption(risk: str | None, *, is_encrypted: bool) -> list[Finding]:
    """Report a connection to another machine that can fall back to plain text.

    Args:
        risk: The host and sslmode of such a connection.
        is_encrypted: Whether the current connection is encrypted.
    """
    if risk is None:
        return []
    current = "encrypted" if is_encrypted else "plain text"
    return [
        Finding(
            id=FindingId.PLAIN_TEXT,
            severity=Severity.WARNING,
            title="the connection may fall back to plain text: passwords and payloads can be read "
            "on the network",
            evidence=(f"{risk}; this connection is {current}",),
            advice="Require TLS and verify the server's name: add sslmode=verify-full, and "
            "sslrootcert with the certificate of its authority, to the connection string.",
        )
    ]


async def has_transaction_pooler(first: Connection, second: Connection) -> bool:
    """Detect a pooler that assigns sessions of the server by transaction.

    A pooler reports its own process id for a session. If it assigns sessions by transaction, the
    process id that the server reports changes between statements.

    Args:
        first: A connection.
        second: Another connection to the same server.
    """
    pids = [await _get_backend_pid(each) for each in (first, second)]
    if pids[0] == first.raw.info.backend_pid:
        return False
    for _ in range(POOLER_PROBES):
        current = [await _get_backend_pid(each) for each in (first, second)]
        if current != pids or current[0] == current[1]:
            return True
    return False


async def _get_backend_pid(connection: Connection) -> int:
    session: ServerSession = await connection.run(inspect_session())
    return session.backend_pid


def check_transaction_pooling(context: DoctorContext) -> list[Finding]:
    """Report worker options that do not work through a transaction pooler."""
    evidence = []
    if context.options.listen:
        evidence.append("LISTEN has no effect: jobs wait for the next poll, and no log reports it")
    if context.options.prepared_statements:
        evidence.append("prepared statements fail, unless it is PgBouncer 1.21 or newer")
    if not evidence:
        return []
    return [
        Finding(
            id=FindingId.TRANSACTION_POOLING,
            severity=Severity.WARNING,
            title="a pooler such as PgBouncer assigns sessions by transaction",
            evidence=tuple(evidence),
            advice="Connect workers to PostgreSQL directly. Or make them poll more often, without "
            "LISTEN:",
            shell=context.format_command(
                "--no-listen --no-prepared-statements --poll-interval 500ms"
            ),
        )
    ]

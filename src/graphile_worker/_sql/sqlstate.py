"""SQLSTATE and constraint of database errors, the same for every library."""

from collections.abc import Iterator
from typing import Any

from graphile_worker._support.error_format import HINT_PREFIX, get_hints
from graphile_worker._support.lazy_dataclass import LazyDataclass

# Conflicts with other sessions. The same statement may be retried on a connection of this package.
TRANSIENT = frozenset({"40001", "40P01", "GWNOR"})

# Another session creates the same object at the same time.
CREATE_CONFLICTS = frozenset({"23505", "42P06", "42P07", "42710"})

# "tuple concurrently updated": another session has just replaced the same function.
CONCURRENT_REPLACE = "XX000"

# The schema, one of its tables or one of its functions does not exist.
MISSING_OBJECT = frozenset({"3F000", "42P01", "42883", "42704"})

INSUFFICIENT_PRIVILEGE = "42501"

# A pooler shared the session with another client between two statements.
PREPARED_STATEMENT_ERRORS = ("42P05", "26000")
LOCK_NOT_AVAILABLE = "55P03"
ACTIVE_SQL_TRANSACTION = "25001"
QUERY_CANCELED = "57014"

# The server shuts down, crashed, starts, or accepts no more sessions or writes.
UNREACHABLE = frozenset({"57P01", "57P02", "57P03", "53300", "25006"})

# The SQLSTATE class of connection errors.
CONNECTION_EXCEPTION = "08"

_PREPARED_STATEMENTS_HINT = (
    "a pooler shares sessions, so turn prepared statements off: --no-prepared-statements, in code "
    "prepared_statements=False, in your own pool its statement cache "
    "(docs/operations/pgbouncer.md)"
)
HINTS_BY_SQLSTATE = {
    INSUFFICIENT_PRIVILEGE: "`graphile-worker doctor` names the permissions that this role lacks; "
    "docs/operations/permissions-and-security.md shows the roles and their grants",
    **dict.fromkeys(PREPARED_STATEMENT_ERRORS, _PREPARED_STATEMENTS_HINT),
}

# A standby, or a server in read-only mode. The address may lead to the primary after a reconnect.
READ_ONLY_SQL_TRANSACTION = "25006"


class DatabaseErrorInfo(LazyDataclass):
    """The facts of a database error."""

    sqlstate: str
    constraint: str | None


def get_error_info(error: BaseException) -> DatabaseErrorInfo | None:
    """Return the facts of an error or of its causes, or None if it is not from the server."""
    for candidate in iter_causes(error):
        state = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if isinstance(state, str):
            return DatabaseErrorInfo(state, _get_constraint(error))
    return None


def get_sqlstate(error: BaseException) -> str | None:
    info = get_error_info(error)
    return None if info is None else info.sqlstate


def add_hint(error: BaseException) -> None:
    """Add a note to a database error with what to do about it, if that is known."""
    hint = HINTS_BY_SQLSTATE.get(get_sqlstate(error) or "")
    if hint is not None and not get_hints(error):
        error.add_note(HINT_PREFIX + hint)


def _get_constraint(error: BaseException) -> str | None:
    # With SQLAlchemy and asyncpg, the error with the name is two causes below that with the code.
    for candidate in iter_causes(error):
        name: Any = getattr(candidate, "constraint_name", None)
        name = name or getattr(getattr(candidate, "diag", None), "constraint_name", None)
        if isinstance(name, str):
            return name
    return None


def iter_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes: `orig` in SQLAlchemy, `__cause__` in Django and drivers."""
    waiting, seen = [error], set()
    while waiting:
        candidate = waiting.pop(0)
        if id(candidate) in seen:
            continue
        seen.add(id(candidate))
        yield candidate
        inner = (getattr(candidate, "orig", None), candidate.__cause__)
        waiting += [each for each in inner if isinstance(each, BaseException)]

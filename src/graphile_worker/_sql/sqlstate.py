"""What an error of the database says, whichever library raised it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graphile_worker._support.error_format import HINT_PREFIX, get_hints

# Nothing was decided: the same statement may be sent again on a connection of ours.
TRANSIENT = frozenset({"40001", "40P01", "GWNOR"})

# Somebody else is creating the same thing at this moment.
CREATE_CONFLICTS = frozenset({"23505", "42P06", "42P07", "42710"})

# "tuple concurrently updated": another session has just replaced the same function.
CONCURRENT_REPLACE = "XX000"

# The schema, one of its tables or one of its functions is not there.
MISSING_OBJECT = frozenset({"3F000", "42P01", "42883", "42704"})

INSUFFICIENT_PRIVILEGE = "42501"

# A pooler gave this session to another client in between, or another client's session to this one.
PREPARED_STATEMENT_ERRORS = ("42P05", "26000")
LOCK_NOT_AVAILABLE = "55P03"
ACTIVE_SQL_TRANSACTION = "25001"
QUERY_CANCELED = "57014"

# The server shuts down, crashed, starts or accepts no more sessions: no statement can succeed now.
UNREACHABLE = frozenset({"57P01", "57P02", "57P03", "53300", "25006"})

# The class of SQLSTATE of errors of a connection.
CONNECTION_EXCEPTION = "08"

# What a person can do about an error.
_PREPARED_STATEMENTS_HINT = (
    "a pooler shares sessions, so turn prepared statements off: --no-prepared-statements, in code "
    "prepared_statements=False, in a pool of your own its statement cache "
    "(docs/operations/pgbouncer.md)"
)
HINTS_BY_SQLSTATE = {
    INSUFFICIENT_PRIVILEGE: "`graphile-worker doctor` names the permissions that this role lacks; "
    "docs/operations/security.md shows the roles and their grants",
    **dict.fromkeys(PREPARED_STATEMENT_ERRORS, _PREPARED_STATEMENTS_HINT),
}

# A standby, or a server that was made read-only: the one to write to may stand elsewhere by now.
READ_ONLY_SQL_TRANSACTION = "25006"


@dataclass(frozen=True, slots=True)
class DatabaseErrorInfo:
    """The facts of a database error."""

    sqlstate: str
    constraint: str | None


def get_error_info(error: BaseException) -> DatabaseErrorInfo | None:
    """The facts in an error or in what it wraps; None where the database did not speak."""
    for candidate in iter_causes(error):
        state = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if isinstance(state, str):
            return DatabaseErrorInfo(state, _get_constraint(error))
    return None


def get_sqlstate(error: BaseException) -> str | None:
    failure = get_error_info(error)
    return None if failure is None else failure.sqlstate


def add_hint(error: BaseException) -> None:
    """Let an error of the database say what to do about it, in a note, where that is known."""
    cure = HINTS_BY_SQLSTATE.get(get_sqlstate(error) or "")
    if cure is not None and not get_hints(error):
        error.add_note(HINT_PREFIX + cure)


def _get_constraint(error: BaseException) -> str | None:
    # Under SQLAlchemy over asyncpg the name is two causes further down than the code.
    for candidate in iter_causes(error):
        name: Any = getattr(candidate, "constraint_name", None)
        name = name or getattr(getattr(candidate, "diag", None), "constraint_name", None)
        if isinstance(name, str):
            return name
    return None


def iter_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it wraps: SQLAlchemy says `orig`, Django and drivers `__cause__`."""
    waiting, seen = [error], set()
    while waiting:
        candidate = waiting.pop(0)
        if id(candidate) in seen:
            continue
        seen.add(id(candidate))
        yield candidate
        inner = (getattr(candidate, "orig", None), candidate.__cause__)
        waiting += [each for each in inner if isinstance(each, BaseException)]

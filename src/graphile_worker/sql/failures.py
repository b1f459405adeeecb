"""What an error of the database says, whichever library raised it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graphile_worker.error_text import HINT, hints_of

# Nothing was decided: the same statement may be sent again on a connection of ours.
TRANSIENT = frozenset({"40001", "40P01", "GWNOR"})

# Somebody else is creating the same thing at this moment.
CLASHES = frozenset({"23505", "42P06", "42P07", "42710"})

# "tuple concurrently updated": another session has just replaced the same function.
REPLACED_MEANWHILE = "XX000"

# The schema, one of its tables or one of its functions is not there.
MISSING = frozenset({"3F000", "42P01", "42883", "42704"})

NOT_ALLOWED = "42501"

# A pooler gave this session to another client in between, or another client's session to this one.
PREPARED_ELSEWHERE = ("42P05", "26000")
LOCK_NOT_AVAILABLE = "55P03"
IN_TRANSACTION = "25001"
CANCELLED = "57014"

# The server shuts down, crashed, starts or accepts no more sessions: no statement can succeed now.
UNREACHABLE = frozenset({"57P01", "57P02", "57P03", "53300", "25006"})

# The class of SQLSTATE of errors of a connection.
CONNECTION_EXCEPTION = "08"

# What a person can do about an error.
_NO_PREPARED_STATEMENTS = (
    "a pooler shares sessions, so turn prepared statements off: --no-prepared-statements, in code "
    "prepared_statements=False, in a pool of your own its statement cache "
    "(docs/operations/pgbouncer.md)"
)
CURES = {
    NOT_ALLOWED: "`graphile-worker doctor` names the permissions that this role lacks; "
    "docs/operations/security.md shows the roles and their grants",
    **dict.fromkeys(PREPARED_ELSEWHERE, _NO_PREPARED_STATEMENTS),
}

# A standby, or a server that was made read-only: the one to write to may stand elsewhere by now.
READ_ONLY = "25006"


@dataclass(frozen=True, slots=True)
class Failure:
    """The facts of a database error."""

    sqlstate: str
    constraint: str | None


def failure_of(error: BaseException) -> Failure | None:
    """The facts in an error or in what it wraps; None where the database did not speak."""
    for candidate in unwrapped(error):
        state = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if isinstance(state, str):
            return Failure(state, _constraint_of(error))
    return None


def sqlstate_of(error: BaseException) -> str | None:
    failure = failure_of(error)
    return None if failure is None else failure.sqlstate


def name_cure(error: BaseException) -> None:
    """Let an error of the database say what to do about it, in a note, where that is known."""
    cure = CURES.get(sqlstate_of(error) or "")
    if cure is not None and not hints_of(error):
        error.add_note(HINT + cure)


def _constraint_of(error: BaseException) -> str | None:
    # Under SQLAlchemy over asyncpg the name is two causes further down than the code.
    for candidate in unwrapped(error):
        name: Any = getattr(candidate, "constraint_name", None)
        name = name or getattr(getattr(candidate, "diag", None), "constraint_name", None)
        if isinstance(name, str):
            return name
    return None


def unwrapped(error: BaseException) -> Iterator[BaseException]:
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

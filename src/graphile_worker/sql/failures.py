"""What an error of the database says, whichever library raised it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Nothing was decided: the same statement may be sent again on a connection of ours.
TRANSIENT = frozenset({"40001", "40P01", "GWNOR"})

# Somebody else is creating the same thing at this moment.
CLASHES = frozenset({"23505", "42P06", "42P07", "42710"})

# The schema, one of its tables or one of its functions is not there.
MISSING = frozenset({"3F000", "42P01", "42883", "42704"})

NOT_ALLOWED = "42501"
LOCK_NOT_AVAILABLE = "55P03"
IN_TRANSACTION = "25001"
CANCELLED = "57014"

# A standby, or a server that was made read-only: the one to write to may stand elsewhere by now.
READ_ONLY = "25006"


@dataclass(frozen=True, slots=True)
class Failure:
    """The facts of a database error."""

    sqlstate: str
    constraint: str | None


def failure_of(error: BaseException) -> Failure | None:
    """The facts in an error or in what it wraps; None where the database did not speak."""
    for candidate in _unwrapped(error):
        state = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if isinstance(state, str):
            return Failure(state, _constraint_of(error))
    return None


def sqlstate_of(error: BaseException) -> str | None:
    failure = failure_of(error)
    return None if failure is None else failure.sqlstate


def _constraint_of(error: BaseException) -> str | None:
    # Under SQLAlchemy over asyncpg the name is two causes further down than the code.
    for candidate in _unwrapped(error):
        name: Any = getattr(candidate, "constraint_name", None)
        name = name or getattr(getattr(candidate, "diag", None), "constraint_name", None)
        if isinstance(name, str):
            return name
    return None


def _unwrapped(error: BaseException) -> Iterator[BaseException]:
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

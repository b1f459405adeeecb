"""Decide which database errors are retried, and after which delay."""

import random

import psycopg

from graphile_worker._sql.sqlstate import (
    CONNECTION_EXCEPTION,
    TRANSIENT,
    UNREACHABLE,
    get_sqlstate,
    iter_causes,
)

# SQLSTATE classes of connections, conflicting or read-only transactions, resources, objects in
# use, and an operator's intervention.
TEMPORARY_SQLSTATE_CLASSES = frozenset({"08", "25", "40", "53", "55", "57", "58"})

# The SQLSTATE class of invalid values.
DATA_EXCEPTION = "22"

# DB-API names of errors that do not come from the server, the same in every driver.
CLIENT_ERROR_NAMES = frozenset({"OperationalError", "InterfaceError"})

MAX_ATTEMPTS = 20
MIN_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 5.0


def get_retry_delay(
    error: Exception, attempt: int, max_attempts: int = MAX_ATTEMPTS
) -> float | None:
    """Return the seconds until the retry after a conflict with other sessions, or None.

    For statements that commit separately. On a caller's connection the whole transaction is lost,
    so there is nothing to retry.
    """
    if attempt + 1 >= max_attempts or get_sqlstate(error) not in TRANSIENT:
        return None
    return compute_backoff(attempt)


def is_temporary(error: BaseException) -> bool:
    """Return whether the same statement can succeed later, for example after a restart."""
    state = get_sqlstate(error)
    if state is None:
        return isinstance(error, psycopg.OperationalError | OSError | TimeoutError)
    return state in TRANSIENT or state[:2] in TEMPORARY_SQLSTATE_CLASSES


def is_outage(error: BaseException) -> bool:
    """Return whether the database is unreachable, or does not answer in time."""
    state = get_sqlstate(error)
    if state is not None:
        return state in UNREACHABLE or state[:2] == CONNECTION_EXCEPTION
    return any(_is_connection_error(each) for each in iter_causes(error))


def is_data_error(error: BaseException) -> bool:
    """Return whether the database, or the encoding of the connection, rejects a value."""
    return (
        isinstance(error, UnicodeEncodeError) or (get_sqlstate(error) or "")[:2] == DATA_EXCEPTION
    )


def _is_connection_error(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return True
    return not CLIENT_ERROR_NAMES.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def compute_backoff(attempt: int, max_delay: float = MAX_DELAY_SECONDS) -> float:
    """Return the seconds to wait after failure number `attempt`, from 0 on, with jitter."""
    delay: float = min(MIN_DELAY_SECONDS * 1.5 ** min(attempt, 50), max_delay)
    return delay * (0.5 + random.random())

"""Which failures of our own connections mean: ask again, and after how long."""

import random
from typing import Any

import psycopg

from graphile_worker._sql.query import Atomic, Pause, Plan, Query
from graphile_worker._sql.sqlstate import (
    CONNECTION_EXCEPTION,
    TRANSIENT,
    UNREACHABLE,
    get_sqlstate,
    iter_causes,
)

# Classes of SQLSTATE: connections, transactions that were in the way or on a standby, resources,
# objects in use, an operator at work.
TEMPORARY_SQLSTATE_CLASSES = frozenset({"08", "25", "40", "53", "55", "57", "58"})

# What drivers call errors that came from no server: names of the DB-API, whichever the driver.
CLIENT_ERROR_NAMES = frozenset({"OperationalError", "InterfaceError"})

MAX_ATTEMPTS = 20
MIN_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 5.0


def plan_retry(step: Query[Any] | Atomic, attempts_made: int = 0) -> Plan[Any]:
    """The step, again while the database only says that sessions got in each other's way.

    So many attempts were made before. Never on a caller's connection: there the whole transaction
    is lost already.
    """
    for attempt in range(attempts_made, MAX_ATTEMPTS):
        try:
            return (yield step)
        except Exception as error:
            if attempt + 1 == MAX_ATTEMPTS or get_sqlstate(error) not in TRANSIENT:
                raise
        yield Pause(compute_backoff(attempt))
    raise AssertionError("the last attempt either answers or raises")


def is_temporary(error: BaseException) -> bool:
    """Will it go away by itself: a lost connection, a restart, too many sessions, a time limit?"""
    state = get_sqlstate(error)
    if state is None:
        return isinstance(error, psycopg.OperationalError | OSError | TimeoutError)
    return state in TRANSIENT or state[:2] in TEMPORARY_SQLSTATE_CLASSES


def is_outage(error: BaseException) -> bool:
    """Is the database unreachable, or does it not answer in time?"""
    state = get_sqlstate(error)
    if state is not None:
        return state in UNREACHABLE or state[:2] == CONNECTION_EXCEPTION
    return any(_is_connection_error(each) for each in iter_causes(error))


def _is_connection_error(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return True
    return not CLIENT_ERROR_NAMES.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def compute_backoff(attempt: int, max_delay: float = MAX_DELAY_SECONDS) -> float:
    """Seconds to wait after the n-th failure, counted from zero: growing, with jitter."""
    grown: float = min(MIN_DELAY_SECONDS * 1.5 ** min(attempt, 50), max_delay)
    return grown * (0.5 + random.random())

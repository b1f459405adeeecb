"""Which failures of our own connections mean: ask again, and after how long."""

import random
from typing import Any

import psycopg

from graphile_worker.sql.failures import (
    CONNECTION_EXCEPTION,
    TRANSIENT,
    UNREACHABLE,
    sqlstate_of,
    unwrapped,
)
from graphile_worker.sql.query import Atomic, Pause, Plan, Query

# Classes of SQLSTATE: connections, transactions that were in the way or on a standby, resources,
# objects in use, an operator at work.
PASSING = frozenset({"08", "25", "40", "53", "55", "57", "58"})

# What drivers call errors that came from no server: names of the DB-API, whichever the driver.
WITHOUT_SERVER = frozenset({"OperationalError", "InterfaceError"})

ATTEMPTS = 20
SHORTEST = 0.05
LONGEST = 5.0


def retrying(step: Query[Any] | Atomic, done: int = 0) -> Plan[Any]:
    """The step, again while the database only says that sessions got in each other's way.

    So many attempts were made before. Never on a caller's connection: there the whole transaction
    is lost already.
    """
    for attempt in range(done, ATTEMPTS):
        try:
            return (yield step)
        except Exception as error:
            if attempt + 1 == ATTEMPTS or sqlstate_of(error) not in TRANSIENT:
                raise
        yield Pause(delay_after(attempt))
    raise AssertionError("the last attempt either answers or raises")


def is_passing(error: BaseException) -> bool:
    """Will it go away by itself: a lost connection, a restart, too many sessions, a time limit?"""
    state = sqlstate_of(error)
    if state is None:
        return isinstance(error, psycopg.OperationalError | OSError | TimeoutError)
    return state in TRANSIENT or state[:2] in PASSING


def is_outage(error: BaseException) -> bool:
    """Is the database unreachable, or does it not answer in time?"""
    state = sqlstate_of(error)
    if state is not None:
        return state in UNREACHABLE or state[:2] == CONNECTION_EXCEPTION
    return any(_is_lost(each) for each in unwrapped(error))


def _is_lost(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return True
    return not WITHOUT_SERVER.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def delay_after(attempt: int, longest: float = LONGEST) -> float:
    """Seconds to wait after the n-th failure, counted from zero: growing, with jitter."""
    grown: float = min(SHORTEST * 1.5 ** min(attempt, 50), longest)
    return grown * (0.5 + random.random())

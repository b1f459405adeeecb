"""Which failures of our own connections mean: ask again, and after how long."""

import random
from typing import TypeVar

from graphile_worker.sql.failures import TRANSIENT, sqlstate_of
from graphile_worker.sql.query import Pause, Plan, Query

ATTEMPTS = 20
SHORTEST = 0.05
LONGEST = 5.0


T = TypeVar("T")


def retrying(query: Query[T]) -> Plan[T]:
    """The query, again while the database only says that sessions got in each other's way.

    Never on a caller's connection: there the whole transaction is lost already.
    """
    for attempt in range(ATTEMPTS):
        try:
            answer: T = yield query
            return answer
        except Exception as error:
            if attempt + 1 == ATTEMPTS or sqlstate_of(error) not in TRANSIENT:
                raise
        yield Pause(delay_after(attempt))
    raise AssertionError("the last attempt either answers or raises")


def delay_after(attempt: int) -> float:
    """Seconds to wait after the n-th failure, counted from zero: growing, with jitter."""
    grown: float = min(SHORTEST * 1.5**attempt, LONGEST)
    return grown * (0.5 + random.random())

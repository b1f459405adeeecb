"""Which failures of our own connections mean: ask again, and after how long."""

import random
from typing import Any

from graphile_worker.sql.failures import TRANSIENT, sqlstate_of
from graphile_worker.sql.query import Atomic, Pause, Plan, Query

ATTEMPTS = 20
SHORTEST = 0.05
LONGEST = 5.0


def retrying(step: Query[Any] | Atomic) -> Plan[Any]:
    """The step, again while the database only says that sessions got in each other's way.

    Never on a caller's connection: there the whole transaction is lost already.
    """
    for attempt in range(ATTEMPTS):
        try:
            return (yield step)
        except Exception as error:
            if attempt + 1 == ATTEMPTS or sqlstate_of(error) not in TRANSIENT:
                raise
        yield Pause(delay_after(attempt))
    raise AssertionError("the last attempt either answers or raises")


def delay_after(attempt: int) -> float:
    """Seconds to wait after the n-th failure, counted from zero: growing, with jitter."""
    grown: float = min(SHORTEST * 1.5**attempt, LONGEST)
    return grown * (0.5 + random.random())

"""HistoryRotator: empties old slots of the history, so that outcomes are not kept for ever."""

import asyncio
import random
from datetime import timedelta

from graphile_worker._db.slow_queries import SlowQueryDatabase
from graphile_worker._sql.plans.history import compute_check_interval, plan_rotate_history
from graphile_worker._sql.queries.history import get_history
from graphile_worker._sql.sqlstate import LOCK_NOT_AVAILABLE, get_sqlstate
from graphile_worker._support.error_format import format_error_line
from graphile_worker._support.logs import Logger

# Interval after an error, for example a database outage.
RETRY_INTERVAL = timedelta(seconds=30)

# It locks out readers: a task that blocks the event loop must not delay its commit.
AUTOCOMMIT_STATEMENTS = {"rotate_history"}

# Rounds in a row that a reader of an old slot blocked, before that is logged.
REPORTED_BLOCKED_ROUNDS = 20


class HistoryRotator:
    """Checks at intervals whether the ring of slots is due. One process at a time rotates it."""

    def __init__(self, database: SlowQueryDatabase, logger: Logger) -> None:
        self._db = database
        self._logger = logger
        self._last_problem: str | None = None
        self._blocked_rounds = 0

    async def run(self) -> None:
        while True:
            interval = (await self.rotate_once()).total_seconds()
            # Random, so that pools do not check at the same time.
            await asyncio.sleep(interval * (0.5 + random.random()))

    async def rotate_once(self) -> timedelta:
        """Rotate the ring if that is due, and return how long to wait. Errors are logged once."""
        try:
            await self._db.run_plan(plan_rotate_history(), autocommit=AUTOCOMMIT_STATEMENTS)
            ring = await self._db.run(get_history())
        except Exception as error:
            self._report(error)
            return RETRY_INTERVAL
        self._last_problem = None
        self._blocked_rounds = 0
        return RETRY_INTERVAL if ring is None else compute_check_interval(ring.effective_keep)

    def _report(self, error: Exception) -> None:
        # Readers of an old slot block it for a while.
        self._blocked_rounds += 1
        is_blocked = get_sqlstate(error) == LOCK_NOT_AVAILABLE
        if is_blocked and self._blocked_rounds % REPORTED_BLOCKED_ROUNDS:
            return
        problem = format_error_line(error)
        if problem != self._last_problem:
            self._logger.warning("rotating the history failed, retrying: %s", problem)
        self._last_problem = problem

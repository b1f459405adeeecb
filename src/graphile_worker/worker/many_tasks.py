"""ManyTasks: which of thousands of tasks have jobs waiting, so that a fetch asks for those."""

import time
from collections.abc import Collection, Mapping

from graphile_worker.db.database import Answering
from graphile_worker.jobs import When
from graphile_worker.sql.holding import HeldJob, Place, find_waiting_tasks

# A fetch is given the ids of at most this many tasks, so that its cost has a bound. Those of the
# soonest jobs come beside them.
MOST_TASKS = 1000

# Seconds until the next tasks are looked at, if those that were looked at have no jobs to take.
NEXT_TASKS_AFTER = 0.1


class ManyTasks:
    """Goes through all tasks that have jobs waiting, `MOST_TASKS` at a time, round and round.

    Rarely do more than that have jobs, so that one look is enough and jobs go in their order. Tasks
    are known by name: the row of one may have been deleted and made again, under another id.
    """

    def __init__(self, database: Answering) -> None:
        self._db = database
        self._served: Collection[str] = ()
        self._tasks: Mapping[int, str] | None = None
        # The id behind which the next look begins, and whether this round brought no job so far.
        self._after = 0
        self._is_barren = True

    async def with_jobs(
        self, tasks: Mapping[int, str], limit: int, *, now: When | None, since: Place | None
    ) -> dict[int, str]:
        """Those of the tasks that a fetch of up to so many jobs has to know of."""
        if tasks is not self._tasks:
            self._tasks, self._served = tasks, frozenset(tasks.values())
        if self._after == 0:
            self._is_barren = True
        query = find_waiting_tasks(limit, now=now, since=since, after=self._after, most=MOST_TASKS)
        found, self._after = await self._db.run(query)
        return {task_id: name for task_id, name in found.items() if name in self._served}

    def again_at(self, taken: list[HeldJob]) -> float | None:
        """When to look at the next tasks; None: there is a job, or a whole round brought none."""
        if taken:
            self._is_barren = False
            return None
        if self._after == 0 and self._is_barren:
            return None
        return time.monotonic() + NEXT_TASKS_AFTER

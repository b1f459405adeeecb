"""TaskScanner: finds which of thousands of tasks have jobs, so that a fetch names only those."""

import time
from collections.abc import Collection, Mapping

from graphile_worker._db.database import QueryRunner
from graphile_worker._sql.queries.claim import ClaimedJob, JobPosition, find_waiting_tasks
from graphile_worker.jobs import RunAt

# A fetch names at most this many tasks, so that its cost is bounded, besides those of the soonest
# jobs.
MAX_TASKS_PER_FETCH = 1000

# Seconds until the next tasks are scanned, if the last ones had no ready jobs.
NEXT_SCAN_DELAY_SECONDS = 0.1


class TaskScanner:
    """Scans all tasks with waiting jobs in rounds of `MAX_TASKS_PER_FETCH` tasks.

    Usually fewer tasks have jobs: then one query is enough, and jobs run in their order. Tasks are
    known by name, because a row may be deleted and created again under another id.
    """

    def __init__(self, database: QueryRunner) -> None:
        self._db = database
        self._known_identifiers: Collection[str] = ()
        self._tasks: Mapping[int, str] | None = None
        # The id after which the next query begins, and whether this round found no job so far.
        self._after_id = 0
        self._is_round_empty = True

    async def find_tasks_with_jobs(
        self, tasks: Mapping[int, str], limit: int, *, now: RunAt | None, since: JobPosition | None
    ) -> dict[int, str]:
        """Return the tasks that a fetch of up to `limit` jobs has to name."""
        if tasks is not self._tasks:
            self._tasks, self._known_identifiers = tasks, frozenset(tasks.values())
        if self._after_id == 0:
            self._is_round_empty = True
        query = find_waiting_tasks(
            limit, now=now, since=since, after_id=self._after_id, max_tasks=MAX_TASKS_PER_FETCH
        )
        waiting, self._after_id = await self._db.run(query)
        return {
            task_id: name for task_id, name in waiting.items() if name in self._known_identifiers
        }

    def get_next_scan_at(self, claimed_jobs: list[ClaimedJob]) -> float | None:
        """Return when to scan the next tasks. None after a job, or after a round without any."""
        if claimed_jobs:
            self._is_round_empty = False
            return None
        if self._after_id == 0 and self._is_round_empty:
            return None
        return time.monotonic() + NEXT_SCAN_DELAY_SECONDS

"""LimitedClaimer: a claimer that leaves limited tasks out, and claims jobs of them apart."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.limits import find_ready_tasks
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.fetch_strategy import JobFetcher


class LimitedClaimer(Claimer):
    """Claims jobs without a limit as usual, and those of a group of limited tasks on request.

    Leaving tasks out of a fetch costs nothing, whereas skipping their jobs would take longer with
    each job that waits.
    """

    def __init__(self, *args: Any, limited_tasks: Collection[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._limited_tasks = frozenset(limited_tasks)
        # One fetch is under way at a time.
        self._turn = asyncio.Lock()
        self._chosen: tuple[JobFetcher, frozenset[str]] | None = None
        # Set by LimitedJobs: called when a job ended or was released, whether limited jobs may be
        # ready for a pool that runs once, and under which ids this pool rents slots.
        self.on_forgotten: Callable[[ClaimedJob], None] = lambda claimed: None
        self.may_start_limited: Callable[[], bool] = lambda: False
        self.get_slot_pool_ids: Callable[[], set[str]] = set

    def build_fetcher(self) -> JobFetcher:
        """Return a fetcher for one group of tasks."""
        return JobFetcher(
            self._db, self.claimed_jobs, slow_scan_seconds=self._timings.slow_scan_seconds
        )

    @property
    def next_fetch_at(self) -> float | None:
        fetch_at = super().next_fetch_at
        # A pool that runs once does not end before its limited jobs.
        return math.inf if fetch_at is None and self.may_start_limited() else fetch_at

    @property
    def pool_ids_in_use(self) -> set[str]:
        return super().pool_ids_in_use | self.get_slot_pool_ids()

    async def claim(self, limit: int) -> list[ClaimedJob]:
        # Outside the lock, so that the other claims are not delayed.
        await self._delay_after_empty(self._fetcher)
        async with self._turn:
            return await super().claim(limit)

    async def claim_limited(
        self, fetcher: JobFetcher, tasks: frozenset[str], limit: int
    ) -> list[ClaimedJob]:
        """Lock up to `limit` jobs of these tasks."""
        await self._delay_after_empty(fetcher)
        async with self._turn:
            with self._choose(fetcher, tasks):
                return await super().claim(limit)

    async def find_ready_tasks(self) -> set[str]:
        """Return the limited tasks that may have a ready job. The others have none."""
        async with self._turn:
            await self._refresh_task_ids()
        if not self._fetcher.has_indexes:
            return set(self._limited_tasks)
        names = {
            id: name
            for id, name in self._task_ids.items()
            if name in self._limited_tasks and name not in self.paused_tasks
        }
        if not names:
            return set()
        now = None if self._clock is None else self._clock.now()
        found = await self._db.run(find_ready_tasks(list(names), now))
        return {names[id] for id in found}

    def forget(self, claimed: ClaimedJob) -> None:
        super().forget(claimed)
        self.on_forgotten(claimed)

    @contextmanager
    def _choose(self, fetcher: JobFetcher, tasks: frozenset[str]) -> Iterator[None]:
        self._chosen = fetcher, tasks
        try:
            yield
        finally:
            self._chosen = None

    @property
    def _current_fetcher(self) -> JobFetcher:
        return self._fetcher if self._chosen is None else self._chosen[0]

    async def _fetch(self, pool_id: str, **options: Any) -> list[ClaimedJob]:
        self._current_fetcher.has_indexes = self._fetcher.has_indexes
        return await super()._fetch(pool_id, **options)

    @property
    def _are_all_paused(self) -> bool:
        return not any(self._is_active(name) for name in self._identifiers)

    def _get_active_task_ids(self) -> dict[int, str]:
        return {id: name for id, name in self._task_ids.items() if self._is_active(name)}

    def _is_active(self, name: str) -> bool:
        is_chosen = (
            name not in self._limited_tasks if self._chosen is None else name in self._chosen[1]
        )
        return is_chosen and name not in self.paused_tasks

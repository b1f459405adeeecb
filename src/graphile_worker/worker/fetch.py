"""Fetch: take jobs with the cheapest statement that finds them."""

import math
import time
from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Any

from graphile_worker.db.database import Answering
from graphile_worker.sql.holding import (
    HeldJob,
    Place,
    get_jobs,
    get_jobs_unindexed,
    get_plain_jobs,
    get_soonest_jobs,
)
from graphile_worker.sql.query import Query
from graphile_worker.worker.beginning import Beginning
from graphile_worker.worker.many_tasks import MOST_TASKS, ManyTasks

# A way that so often in a row found nothing where there was something is the usual one no more:
# once or twice may be because a job came just then. After these seconds the next cheaper way is
# tried again.
MISSES = 3
CHEAPER_AGAIN_AFTER = 1.0

# Seconds between two looks everywhere, where the soonest jobs are of a few queues: twice as many
# after each that found nothing else.
WIDER_AFTER = (0.02, 0.1)


class Way(IntEnum):
    """From the cheapest on; only of the last an empty answer says that there is nothing."""

    PLAIN = auto()
    SOONEST = auto()
    EVERYWHERE = auto()


class Fetch:
    """Tries the way that usually finds jobs, then the one that finds all.

    Where the soonest jobs are of named queues, and one of those is ours and busy, an empty answer
    is no reason to look everywhere each time. Nor is a short one: `again_at` says when it is.
    """

    def __init__(self, database: Answering, held: Mapping[int, HeldJob]) -> None:
        self.has_indexes = False
        self.again_at: float | None = None
        self._db = database
        self._held = held
        self._usual = Way.PLAIN
        self._misses = 0
        self._cheaper_at = 0.0
        self._beginning = Beginning()
        self._many_tasks = ManyTasks(database)
        # How many the soonest were when they were too few, and when to look behind them.
        self._few = 0
        self._wider_at = math.inf
        self._wider_after = WIDER_AFTER[0]
        self._looked_at = -math.inf

    def finds_ids_of(self, tasks: Mapping[int, str]) -> bool:
        """Are these so many tasks that a fetch finds out by itself which it has to ask for?"""
        return self.has_indexes and len(tasks) > MOST_TASKS

    async def take(
        self, pool_id: str, tasks: Mapping[int, str], *, limit: int, **given: Any
    ) -> list[HeldJob]:
        """Up to so many jobs; none, and no time to ask again, means that there are no more."""
        self.again_at = None
        if not self.finds_ids_of(tasks):
            return await self._take(pool_id, tasks, limit=limit, **given)
        place = self._beginning.place
        tasks = await self._many_tasks.with_jobs(tasks, limit, now=given.get("now"), since=place)
        taken = await self._take(pool_id, tasks, limit=limit, **given) if tasks else []
        if (again_at := self._many_tasks.again_at(taken)) is not None:
            self.again_at = min(again_at, self.again_at or again_at)
        return taken

    async def _take(
        self, pool_id: str, tasks: Mapping[int, str], *, limit: int, **given: Any
    ) -> list[HeldJob]:
        tried = self._chosen()
        if tried is Way.PLAIN and (place := self._beginning.place) is not None:
            return await self._take_since(place, pool_id, tasks, limit=limit, **given)
        # What ends while we ask may have ended too late for the answer.
        busy = busy_queues(self._held) if tried is Way.SOONEST else set()
        if tried < Way.EVERYWHERE:
            taken = await self._db.run(self._query(tried, pool_id, tasks, limit=limit, **given))
            if taken:
                self._found(tried, len(taken), limit)
                if tried is Way.PLAIN:
                    self._beginning.found(taken)
                return taken
            if busy and time.monotonic() < self._looked_at + self._wider_after:
                self.again_at = self._looked_at + self._wider_after
                return []
        everywhere = self._query(Way.EVERYWHERE, pool_id, tasks, limit=limit, **given)
        taken = await self._db.run(everywhere)
        self._looked_everywhere(tried, taken, busy)
        return taken

    async def _take_since(self, place: Place, *args: Any, **given: Any) -> list[HeldJob]:
        """From there on; all is looked at if that brings nothing, as there are workers to spare."""
        for way in (Way.PLAIN, Way.SOONEST):
            taken = await self._db.run(self._query(way, *args, since=place, **given))
            if taken:
                if way is Way.PLAIN:
                    self._beginning.move(taken)
                return taken
        if time.monotonic() < self._beginning.rests_until:
            self.again_at = self._beginning.rests_until
            return []
        taken = await self._db.run(self._query(Way.EVERYWHERE, *args, **given))
        self._beginning.rest()
        return taken

    def _chosen(self) -> Way:
        now = time.monotonic()
        if now >= self._wider_at:
            return Way.EVERYWHERE
        if self._usual > Way.PLAIN and now >= self._cheaper_at:
            self._cheaper_at = now + CHEAPER_AGAIN_AFTER
            return Way(self._usual - 1)
        return self._usual

    def _found(self, way: Way, count: int, limit: int) -> None:
        self._usual = way
        self._misses = 0
        if way is Way.SOONEST and count * 2 <= limit:
            # Behind those of a few queues there may be others.
            self._few = count
            self._wider_at = min(self._wider_at, time.monotonic() + self._wider_after)
            self.again_at = self._wider_at

    def _looked_everywhere(self, tried: Way, taken: list[HeldJob], busy: set[int]) -> None:
        is_wider, self._wider_at = self._wider_at < math.inf, math.inf
        self._looked_at = time.monotonic()
        if tried is Way.EVERYWHERE:
            found_more = is_wider and len(taken) > self._few
            if found_more:
                self._make_usual(Way.EVERYWHERE)
        else:
            found_more = any(held.queue_id not in busy for held in taken)
            if found_more and tried is self._usual:
                self._missed(tried)
        self._wider_after = (
            WIDER_AFTER[0] if found_more else min(self._wider_after * 2, WIDER_AFTER[1])
        )

    def _missed(self, way: Way) -> None:
        self._misses += 1
        if self._misses >= MISSES:
            self._make_usual(Way(way + 1))

    def _make_usual(self, way: Way) -> None:
        self._usual = way
        self._misses = 0
        self._cheaper_at = time.monotonic() + CHEAPER_AGAIN_AFTER

    def _query(self, way: Way, *args: Any, **given: Any) -> Query[list[HeldJob]]:
        match way:
            case Way.PLAIN:
                return get_plain_jobs(*args, **given)
            case Way.SOONEST:
                return get_soonest_jobs(*args, **given)
            case _ if self.has_indexes:
                return get_jobs(*args, **given)
            case _:
                return get_jobs_unindexed(*args, **given)


def busy_queues(held: Mapping[int, HeldJob]) -> set[int]:
    """The named queues of those jobs."""
    return {each.queue_id for each in held.values() if each.queue_id is not None}

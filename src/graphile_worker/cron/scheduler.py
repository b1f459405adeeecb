"""CronScheduler: each minute, add what is due."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from graphile_worker.cron.backfill import (
    MINUTE,
    ceil_minute,
    floor_minute,
    owed_minutes,
)
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.db.database import Answering
from graphile_worker.db.retry import delay_after
from graphile_worker.events import (
    BackfillJob,
    CronBackfillDue,
    CronDue,
    CronFailed,
    CronJob,
    CronScheduled,
    CronStarted,
    CronStarting,
    CronWokeEarly,
    CronWokeLate,
)
from graphile_worker.failpoints import failpoint
from graphile_worker.hooks import Hooks
from graphile_worker.sql.adding import LOST_KEY, TRIES
from graphile_worker.sql.cron import (
    KnownCrontab,
    get_known_crontabs,
    get_time,
    is_refusal,
    register_crontabs,
    schedule_jobs,
)
from graphile_worker.sql.failures import sqlstate_of

# About the longest pause after a failure, in seconds.
LONGEST_PAUSE = 60.0

# What a scheduler that lives missed, it makes up for without being asked to: this far back.
CATCH_UP = timedelta(minutes=10)


class CronScheduler:
    """Adds the jobs of items, minute by minute, beside any number of others that do the same.

    The database's clock says what minute it is. `items` is asked each time: it may change.
    """

    def __init__(
        self, database: Answering, items: Callable[[], Sequence[ParsedCronItem]], hooks: Hooks
    ) -> None:
        self._db = database
        self._items = items
        self._hooks = hooks
        self._next: datetime | None = None
        self._failures = 0
        # The database's time, and ours when it said so.
        self._read: tuple[datetime, float] | None = None

    async def run(self) -> None:
        """For ever; whatever fails is tried again after a pause."""
        while True:
            try:
                minute = await self.start()
                while True:
                    minute = await self._work_at(minute)
            except Exception as error:
                delay = timedelta(seconds=delay_after(self._failures, LONGEST_PAUSE))
                self._failures += 1
                self._hooks.emit(CronFailed(error=error, failures=self._failures, delay=delay))
                await asyncio.sleep(delay.total_seconds())

    async def start(self) -> datetime:
        """Make up for the past; the minute to go on with."""
        start = await self._now()
        self._hooks.emit(CronStarting(start=start))
        known = await self._db.run(get_known_crontabs())
        items = self._unique_items()
        unknown = [each.identifier for each in items if each.identifier not in known]
        if unknown:
            await self._db.run(register_crontabs(unknown, start))
        first = ceil_minute(start)
        if self._next is not None:
            first = max(self._next, first - CATCH_UP)
        self._next = first
        for minute, due in owed_minutes(items, known, start, until=first, on_error=self._leave_out):
            await self._backfill(minute, due, known)
        self._hooks.emit(CronStarted(start=start))
        return first

    async def tick(self, minute: datetime) -> dict[str, int]:
        """Add what is due at this minute and was not added yet; the jobs by item."""
        due = [item for item in self._unique_items() if self._is_due(item, minute)]
        if not due:
            return {}
        jobs = tuple(_cron_job(item, minute) for item in due)
        self._hooks.emit(CronDue(timestamp=minute, jobs=jobs))
        added = await self._add(minute, jobs)
        ours = tuple(job for job in jobs if job.identifier in added)
        self._hooks.emit(CronScheduled(timestamp=minute, jobs=ours))
        return added

    async def _work_at(self, minute: datetime) -> datetime:
        """Wait for a minute and do its work; the next one, or the same if it has not come."""
        self._next = minute
        await asyncio.sleep(self._seconds_until(minute))
        now = await self._now()
        if now < minute:
            self._hooks.emit(CronWokeEarly(current_timestamp=now, expected_timestamp=minute))
            if minute - now <= CATCH_UP:
                return minute
            # The clock was far ahead and has been put right.
            self._next = None
            return await self.start()
        if floor_minute(now) > minute:
            self._hooks.emit(CronWokeLate(current_timestamp=now, expected_timestamp=minute))
        if now - minute > CATCH_UP:
            # A machine that slept: what is older than this is owed only if an item says so.
            return await self.start()
        await self.tick(minute)
        self._failures = 0
        return minute + MINUTE

    async def _backfill(
        self, minute: datetime, items: Iterable[ParsedCronItem], known: dict[str, KnownCrontab]
    ) -> None:
        jobs = tuple(_backfill_job(item, minute, known[item.identifier]) for item in items)
        self._hooks.emit(CronBackfillDue(timestamp=minute, jobs=jobs))
        await self._add(minute, jobs)

    async def _add(self, minute: datetime, jobs: Sequence[CronJob]) -> dict[str, int]:
        try:
            return await self._send(minute, jobs)
        except Exception as error:
            if not is_refusal(error):
                raise
            if len(jobs) == 1:
                self._hooks.emit(CronFailed(error=error, identifier=jobs[0].identifier))
                return {}
        # One that is refused must not cost the others theirs.
        one_by_one = [await self._add(minute, [job]) for job in jobs]
        return {identifier: job_id for added in one_by_one for identifier, job_id in added.items()}

    async def _send(self, minute: datetime, jobs: Sequence[CronJob]) -> dict[str, int]:
        query = schedule_jobs([(job.identifier, job.spec) for job in jobs], minute)
        failpoint("cron_ticking")
        for _ in range(TRIES):
            try:
                return await self._db.run(query)
            except Exception as error:
                if sqlstate_of(error) != LOST_KEY:
                    raise
        return await self._db.run(query)

    def _unique_items(self) -> list[ParsedCronItem]:
        """One of each identifier, as nothing keeps a list that may change from having two."""
        return list({item.identifier: item for item in self._items()}.values())

    def _is_due(self, item: ParsedCronItem, minute: datetime) -> bool:
        try:
            return item.is_due(minute)
        except Exception as error:
            # A function of the user's: the jobs of others must not wait for it.
            self._leave_out(item, error)
            return False

    def _leave_out(self, item: ParsedCronItem, error: Exception) -> None:
        self._hooks.emit(CronFailed(error=error, identifier=item.identifier))

    async def _now(self) -> datetime:
        now = await self._db.run(get_time())
        self._read = now, time.monotonic()
        return now

    def _seconds_until(self, minute: datetime) -> float:
        """By the database's clock as it was read last; never long, as that may be changed."""
        assert self._read is not None
        now, at = self._read
        seconds = (minute - now).total_seconds() - (time.monotonic() - at)
        # A little more: to wake just before the minute would be in vain.
        return min(max(seconds, 0.0) + 0.001, MINUTE.total_seconds())


def _cron_job(item: ParsedCronItem, minute: datetime) -> CronJob:
    return CronJob(identifier=item.identifier, spec=item.spec_at(minute))


def _backfill_job(item: ParsedCronItem, minute: datetime, known: KnownCrontab) -> BackfillJob:
    return BackfillJob(
        identifier=item.identifier,
        spec=item.spec_at(minute, backfilled=True),
        known_since=known.known_since,
        last_execution=known.last_execution,
    )

"""CronScheduler: adds the jobs of cron items when they are due."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from graphile_worker._cron.backfill import (
    MINUTE,
    ceil_minute,
    floor_minute,
    iter_missed_minutes,
)
from graphile_worker._db.database import QueryRunner
from graphile_worker._db.retry import compute_backoff
from graphile_worker._metrics.definitions import CRON_CHECKED
from graphile_worker._sql.plans.add import LOST_KEY_SQLSTATE, MAX_ADD_ATTEMPTS
from graphile_worker._sql.queries.cron import (
    KnownCrontab,
    get_known_crontabs,
    get_server_time,
    is_rejection,
    register_crontabs,
    schedule_jobs,
)
from graphile_worker._sql.sqlstate import get_sqlstate
from graphile_worker._support.failpoints import failpoint
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.errors import SchemaError
from graphile_worker.events import (
    BackfillJob,
    CronBackfillDue,
    CronDue,
    CronFailed,
    CronJob,
    CronScheduled,
    CronStarted,
    CronStarting,
    CronTimerEarly,
    CronTimerLate,
)
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import JobSpec

# Longest backoff after a failure, in seconds, without jitter. Short, because a worker that starts
# right after an outage may add the jobs of a later minute first. Then the minutes between are lost.
MAX_RETRY_DELAY_SECONDS = 5.0

# How far back a running scheduler adds jobs of minutes that it missed, also without `backfill`.
MAX_CATCH_UP = timedelta(minutes=10)


class CronScheduler:
    """Adds the jobs of cron items. Several schedulers of one schema add each job once.

    It uses the clock of the database. It calls `items` each minute, because the list may change.
    """

    def __init__(
        self, database: QueryRunner, items: Callable[[], Sequence[ParsedCronItem]], hooks: Hooks
    ) -> None:
        self._db = database
        self._items = items
        self._hooks = hooks
        self._next_minute: datetime | None = None
        self._failures = 0
        # The time of the database, and the local monotonic time when it was read.
        self._clock_reading: tuple[datetime, float] | None = None

    async def run(self) -> None:
        """Add jobs until cancelled, and retry after an error."""
        while True:
            try:
                minute = await self.start()
                while True:
                    minute = await self._process_minute(minute)
            except Exception as error:
                delay = timedelta(seconds=compute_backoff(self._failures, MAX_RETRY_DELAY_SECONDS))
                self._failures += 1
                self._hooks.emit(CronFailed(error=error, failures=self._failures, delay=delay))
                await asyncio.sleep(delay.total_seconds())

    async def start(self) -> datetime:
        """Register new items, backfill, and return the next minute."""
        start = await self._read_time()
        self._hooks.emit(CronStarting(start=start))
        known = await self._db.run(get_known_crontabs())
        items = self._unique_items()
        unknown = [each.identifier for each in items if each.identifier not in known]
        if unknown:
            await self._db.run(register_crontabs(unknown, start))
        first = ceil_minute(start)
        if self._next_minute is not None:
            first = max(self._next_minute, first - MAX_CATCH_UP)
        self._next_minute = first
        for minute, due in iter_missed_minutes(
            items, known, start, until=first, on_error=self._skip_item
        ):
            await self._backfill(minute, due, known)
        self._record_checked(first - MINUTE)
        self._hooks.emit(CronStarted(start=start))
        return first

    async def tick(self, minute: datetime) -> dict[str, int]:
        """Add the jobs that are due at this minute, and return their ids by item."""
        due = [item for item in self._unique_items() if self._is_due(item, minute)]
        if not due:
            return {}
        jobs = tuple(_build_cron_job(item, minute) for item in due)
        self._hooks.emit(CronDue(timestamp=minute, jobs=jobs))
        added = await self._add_jobs(minute, jobs)
        scheduled = tuple(job for job in jobs if job.identifier in added)
        self._hooks.emit(CronScheduled(timestamp=minute, jobs=scheduled))
        return added

    async def _process_minute(self, minute: datetime) -> datetime:
        """Wait for a minute, add its jobs, and return the next minute."""
        self._next_minute = minute
        await asyncio.sleep(self._seconds_until(minute))
        now = await self._read_time()
        if now < minute:
            self._hooks.emit(CronTimerEarly(current_timestamp=now, expected_timestamp=minute))
            if minute - now <= MAX_CATCH_UP:
                return minute
            # The clock was far ahead, and was corrected.
            self._next_minute = None
            return await self.start()
        if floor_minute(now) > minute:
            self._hooks.emit(CronTimerLate(current_timestamp=now, expected_timestamp=minute))
        if now - minute > MAX_CATCH_UP:
            # The machine slept: older minutes are added only with `backfill`.
            return await self.start()
        await self.tick(minute)
        self._record_checked(minute)
        self._failures = 0
        return minute + MINUTE

    async def _backfill(
        self, minute: datetime, items: Iterable[ParsedCronItem], known: dict[str, KnownCrontab]
    ) -> None:
        jobs = tuple(_build_backfill_job(item, minute, known[item.identifier]) for item in items)
        self._hooks.emit(CronBackfillDue(timestamp=minute, jobs=jobs))
        await self._add_jobs(minute, jobs)

    async def _add_jobs(self, minute: datetime, jobs: Sequence[CronJob]) -> dict[str, int]:
        try:
            return await self._send_jobs(minute, jobs)
        except Exception as error:
            if not is_rejection(error):
                raise
            if len(jobs) == 1:
                failure = _explain_rejection(error, jobs[0].spec)
                self._hooks.emit(CronFailed(error=failure, identifier=jobs[0].identifier))
                return {}
        # A rejected job must not prevent the others.
        job_ids: dict[str, int] = {}
        for job in jobs:
            job_ids |= await self._add_jobs(minute, [job])
        return job_ids

    async def _send_jobs(self, minute: datetime, jobs: Sequence[CronJob]) -> dict[str, int]:
        query = schedule_jobs([(job.identifier, job.spec) for job in jobs], minute)
        failpoint("cron_ticking")
        for _ in range(MAX_ADD_ATTEMPTS):
            try:
                return await self._db.run(query)
            except Exception as error:
                if get_sqlstate(error) != LOST_KEY_SQLSTATE:
                    raise
        return await self._db.run(query)

    def _unique_items(self) -> list[ParsedCronItem]:
        """Return the last item of each identifier, because a list that changed may have two."""
        return list({item.identifier: item for item in self._items()}.values())

    def _is_due(self, item: ParsedCronItem, minute: datetime) -> bool:
        try:
            return item.is_due(minute)
        except Exception as error:
            # An error in the function of one item must not prevent the others.
            self._skip_item(item, error)
            return False

    def _skip_item(self, item: ParsedCronItem, error: Exception) -> None:
        self._hooks.emit(CronFailed(error=error, identifier=item.identifier))

    def _record_checked(self, minute: datetime) -> None:
        if self._hooks._recorder is not None and self._items():
            self._hooks._recorder.set(CRON_CHECKED, (), minute.timestamp())

    async def _read_time(self) -> datetime:
        now = await self._db.run(get_server_time())
        self._clock_reading = now, time.monotonic()
        return now

    def _seconds_until(self, minute: datetime) -> float:
        """Return the seconds until the minute by the database's clock.

        At most 60, because that clock may be changed meanwhile.
        """
        assert self._clock_reading is not None
        now, read_at = self._clock_reading
        seconds = (minute - now).total_seconds() - (time.monotonic() - read_at)
        # 1 ms more, to wake after the start of the minute.
        return min(max(seconds, 0.0) + 0.001, MINUTE.total_seconds())


def _build_cron_job(item: ParsedCronItem, minute: datetime) -> CronJob:
    return CronJob(identifier=item.identifier, spec=item.spec_at(minute))


def _explain_rejection(error: Exception, spec: JobSpec) -> Exception:
    """Return the error, or one that explains a job that was not stored in any attempt."""
    if get_sqlstate(error) != LOST_KEY_SQLSTATE:
        return error
    reason = "a trigger of table _private_jobs discards it or divides by zero"
    if spec.job_key is not None:
        reason = f"{reason}, or its key {spec.job_key!r} stayed locked by other sessions"
    explained = SchemaError(f"the job was not stored: {reason}")
    explained.__cause__ = error
    return explained


def _build_backfill_job(item: ParsedCronItem, minute: datetime, known: KnownCrontab) -> BackfillJob:
    return BackfillJob(
        identifier=item.identifier,
        spec=item.spec_at(minute, backfilled=True),
        known_since=known.known_since,
        last_execution=known.last_execution,
    )

"""One poller for all viewers: it looks at the queue within a budget, and keeps the last good data.

It runs while there are viewers, and 30 s longer. A full snapshot reads every job, so the pause
after it grows with the size of the table. Between snapshots it reads counters and a few entries of
indexes.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

import psycopg

from graphile_worker._db.database import run_plan, run_plan_on
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.plans.add import raise_schema_missing
from graphile_worker._sql.queries.dashboard import PROGRAM_NAME
from graphile_worker._sql.queries.metrics import (
    OldestReadyRow,
    get_oldest_ready,
    inspect_samples,
    set_probe_limits,
)
from graphile_worker._sql.queries.snapshot import set_limits
from graphile_worker._sql.query import Plan, Query
from graphile_worker._sql.sqlstate import (
    INSUFFICIENT_PRIVILEGE,
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    get_sqlstate,
)
from graphile_worker._support.error_format import format_error_line, make_printable
from graphile_worker.errors import GraphileWorkerError, QueryTimeoutError, SchemaMissing
from graphile_worker.ops.diagnostics.findings import Finding
from graphile_worker.ops.diagnostics.queue import diagnose_queue
from graphile_worker.ops.history import RecentHistory, plan_get_recent_history
from graphile_worker.ops.pauses import is_overdue, plan_resume_expired
from graphile_worker.ops.pools import PoolHealth, PoolInfo, plan_get_pools
from graphile_worker.ops.queue_metrics import MAX_LANES, MAX_QUEUED_JOBS
from graphile_worker.ops.search import QueryLimits, limit_plan
from graphile_worker.ops.snapshot import (
    STATEMENT_TIMEOUT,
    PollPacer,
    Snapshot,
    plan_counter_snapshot,
    plan_snapshot,
)
from graphile_worker.ops.states import JobState
from graphile_worker.ops.trends import Rates, SnapshotHistory

T = TypeVar("T")

# The budget is 2 % of one backend: 1.25 % for snapshots, and 0.25 % for each of three other reads.
SNAPSHOT_PAUSE_FACTOR = 80.0
LIGHT_PAUSE_FACTOR = 400.0

# The first snapshots of a connection fill the caches of its backend, so they are not typical. If
# they take less than this, the next one comes soon.
WARM_UP_COUNT = 3
WARM_UP_SECONDS = 0.3

# A change of a viewer brings the next snapshot forward, but not by all of the pause. The pause
# after that one is longer by the part that was left out.
SOON_PAUSE_FACTOR = 10.0

ENDED_JOBS = 10

# A busy server ends a statement at its time limit. The next attempt comes after this time, which
# doubles with each one, up to the pause of the budget.
PAUSE_AFTER_TIMEOUT_SECONDS = 60.0

# Rates of a history with a longer gap would be averages of the gap.
MAX_HISTORY_GAP_SECONDS = 60.0

INTERNAL_ERROR = "internal_error"

MAX_SERIES_POINTS = 120
FIRST_SERIES_STEP_SECONDS = 2.0
MAX_SERIES_STEP_SECONDS = 32.0

logger = logging.getLogger("graphile_worker.dashboard")


@dataclass(frozen=True, kw_only=True, slots=True)
class PollTimings:
    """Times in seconds."""

    interval: float = 1.0
    """The shortest time between two snapshots."""
    light_interval: float = 5.0
    """The shortest time between two looks at indexes."""
    snapshot_pause_factor: float = SNAPSHOT_PAUSE_FACTOR
    """How many times the duration of a snapshot to wait after it."""
    retry_interval: float = 2.0
    """The time between attempts in an outage."""
    linger: float = 30.0
    """How long to continue without viewers."""
    snapshot_timeout: float = STATEMENT_TIMEOUT.total_seconds()
    """Time limit of each statement of a snapshot."""
    light_timeout: float = 1.0
    """Time limit of other statements."""
    grace: float = 3.0
    """Time beyond the limit that the server has to answer."""
    first_wait: float = 5.0
    """How long a request waits for the first data."""
    first_full_wait: float = 0.3
    """How long a request waits for counts, once there is something else."""
    recheck: float = 60.0
    """How often a stream asks the function of the host whether its user is still signed in."""


DEFAULT_TIMINGS = PollTimings()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """Why the data is old."""

    since: float
    """By `time.monotonic()`."""
    code: str
    """`database_unreachable`, `timeout`, `schema_missing`, `permission_denied` or
    `internal_error`."""
    message: str


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """The queue at one time."""

    at: datetime
    ready: int
    running: int
    retrying: int
    failed: int
    oldest_ready: float | None
    added: float | None
    completed: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What the poller knows. Without a full snapshot, `snapshot` has only the server and pools."""

    snapshot: Snapshot
    taken_at: float
    """When the snapshot was taken, by `time.monotonic()`."""
    is_partial: bool = False
    history: SnapshotHistory | None = None
    findings: tuple[Finding, ...] = ()
    rates: Rates | None = None
    now: datetime
    """The database's time of the last look of any kind."""
    oldest_ready: float | None = None
    oldest_ready_task: str | None = None
    recent: RecentHistory | None = None
    series: tuple[SeriesPoint, ...] = ()
    interval: float = 1.0
    """Seconds between snapshots."""

    @property
    def age(self) -> float:
        """Seconds since the snapshot."""
        return time.monotonic() - self.taken_at


class Poller:
    """Looks at a queue while there are viewers.

    Attributes:
        latest: What is known, or None before the first look.
        outage: Why the data is old, or None.
        version: Changes with each of them.
    """

    def __init__(
        self,
        database: PsycopgDatabase,
        *,
        timings: PollTimings = DEFAULT_TIMINGS,
        external_tasks: frozenset[str] = frozenset(),
        may_change: Callable[[], bool] = lambda: False,
        on_update: Callable[[], object] = lambda: None,
        on_stop: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.latest: Sample | None = None
        self.outage: Outage | None = None
        self.version = 0
        self._db = database
        self._schemas = database.schemas
        self._timings = timings
        self._external_tasks = external_tasks
        self._may_change = may_change
        self._on_update = on_update
        self._on_stop = on_stop

        def build_pacer(interval: float, factor: float = LIGHT_PAUSE_FACTOR) -> PollPacer:
            # A longest pause would exceed the budget on a large table.
            return PollPacer(interval, factor=factor, max_pause=math.inf)

        self._snapshot_pacer = build_pacer(timings.interval, timings.snapshot_pause_factor)
        self._light_pacer = build_pacer(timings.light_interval)
        self._counter_pacer = build_pacer(timings.interval)
        self._recent_pacer = build_pacer(timings.interval)
        self._snapshot_count = 0
        self._warnings: dict[str, str] = {}
        self._series = Series()
        self._viewer_count = 0
        self._last_used_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._updated = asyncio.Condition()
        self._is_starting = True
        self._started_version = 0
        self._next_snapshot_at = 0.0
        self._next_light_at = 0.0
        self._next_counters_at = 0.0
        self._next_recent_at = 0.0
        self._soonest_snapshot_at = 0.0
        # From this time on, another snapshot is within the budget.
        self._budget_kept_at = 0.0
        self._timeout_count = 0
        self._look_started_at = 0.0

    @property
    def is_running(self) -> bool:
        """Whether it looks at the queue now and then."""
        return self._task is not None

    @contextmanager
    def view(self) -> Iterator[None]:
        """Keep the poller running."""
        self._viewer_count += 1
        self.touch()
        try:
            yield
        finally:
            self._viewer_count -= 1
            self._last_used_at = time.monotonic()

    def touch(self) -> None:
        """Start the poller, or keep it running for a while."""
        self._last_used_at = time.monotonic()
        if self._task is None:
            # What is known may be old. Requests wait for the first look.
            self._is_starting = True
            self._started_version = self.version
            self._task = asyncio.create_task(self._run(), name="dashboard poller")

    def look_soon(self) -> None:
        """Bring the next snapshot forward, after a change."""
        self._next_snapshot_at = min(self._next_snapshot_at, self._soonest_snapshot_at)
        self._wake.set()

    async def get(self) -> Sample | None:
        """Return what is known, after a short wait for the first data since the start.

        Returns:
            None if the database is unreachable. `outage` has the reason.
        """
        self.touch()
        await self._wait_until(
            lambda: (
                self.version > self._started_version
                and (self.latest is not None or self.outage is not None)
            ),
            self._timings.first_wait,
        )
        await self._wait_until(
            lambda: (
                self.outage is not None
                or not (self._is_starting or (self.latest and self.latest.is_partial))
            ),
            self._timings.first_full_wait,
        )
        return self.latest

    async def close(self) -> None:
        """Stop."""
        task = self._task
        if task is not None:
            task.cancel()
            # Canceling a statement may raise.
            with suppress(asyncio.CancelledError, psycopg.Error, OSError):
                await task
        await self._db.close()

    async def _wait_until(self, is_done: Callable[[], bool], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._updated:
                await self._updated.wait_for(is_done)

    async def _run(self) -> None:
        try:
            while self._is_wanted():
                await self._look()
                await self._sleep()
        finally:
            self._task = None
        # A viewer may have come during the last look. It found the task still running.
        if self._is_wanted():
            self.touch()
            return
        if self.outage is not None:
            # Nothing is known about the time until the next start.
            self.outage = None
            self.version += 1
        await self._db.close()
        if self._on_stop is not None:
            await self._on_stop()

    def _is_wanted(self) -> bool:
        is_recent = time.monotonic() - self._last_used_at < self._timings.linger
        return self._viewer_count > 0 or is_recent

    async def _sleep(self) -> None:
        due_at = min(self._next_snapshot_at, self._next_light_at, self._next_counters_at)
        seconds = min(max(0.01, due_at - time.monotonic()), self._timings.interval)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    async def _look(self) -> None:
        """Do what is due."""
        now = self._look_started_at = time.monotonic()
        try:
            if self._is_starting:
                # The first data. A snapshot of a large table takes seconds.
                await self._read_less(self._look_lightly)
                await self._publish()
            is_snapshot = now >= self._next_snapshot_at
            if is_snapshot:
                await self._take_snapshot()
            elif self.latest is not None and now >= self._next_light_at:
                await self._read_less(self._look_lightly)
            elif self.latest is not None and now >= self._next_counters_at:
                await self._read_less(self._read_counters)
            elif not self._is_starting:
                return
        except Exception as error:
            # An error that is not expected must not end the poller either.
            self._record_outage(error)
        else:
            self._end_outage(is_snapshot=is_snapshot)
        self._is_starting = False
        await self._publish()

    async def _read_less(self, read: Callable[[], Awaitable[None]]) -> None:
        """Read what is between snapshots. Without it, the data is only older."""
        try:
            await read()
        except psycopg.errors.QueryCanceled:
            later = time.monotonic() + PAUSE_AFTER_TIMEOUT_SECONDS
            self._next_light_at = self._next_counters_at = later

    def _end_outage(self, *, is_snapshot: bool) -> None:
        if self.outage is None:
            return
        # A snapshot that takes too long or fails is not made up for by smaller reads.
        if self.outage.code in ("timeout", INTERNAL_ERROR) and not is_snapshot:
            return
        seconds = time.monotonic() - self.outage.since
        logger.warning("look at the queue succeeded again after %.0f s", seconds)
        self.outage = None

    async def _publish(self) -> None:
        self.version += 1
        try:
            self._on_update()
        except Exception as error:
            self._warn_once("sending the overview", error)
        async with self._updated:
            self._updated.notify_all()

    def _warn_once(self, what: str, error: Exception) -> None:
        """Log an error unless it is the last one of this kind."""
        line = format_error_line(error)
        if self._warnings.get(what) != line:
            self._warnings[what] = line
            logger.warning("%s failed, retrying: %s", what, line)

    def _record_outage(self, error: Exception) -> None:
        now = time.monotonic()
        code, message = describe_outage(error)
        pause = self._timings.retry_interval
        if code == "timeout":
            first = max(pause, PAUSE_AFTER_TIMEOUT_SECONDS if self.latest is not None else 0.0)
            budget = max(
                first, self._timings.snapshot_timeout * self._timings.snapshot_pause_factor
            )
            pause = min(first * 2.0**self._timeout_count, budget)
            self._timeout_count += 1
        elif code == INTERNAL_ERROR:
            # The statements themselves may have taken long.
            pause = max(pause, (now - self._look_started_at) * self._timings.snapshot_pause_factor)
        self._next_snapshot_at = now + pause
        self._soonest_snapshot_at = self._next_snapshot_at
        self._next_light_at = self._next_counters_at = now + self._timings.retry_interval
        if self.outage is None or self.outage.code != code:
            # Only a bug needs the place in the code.
            bug = error if code == INTERNAL_ERROR else None
            logger.warning("look at the queue failed, retrying: %s", message, exc_info=bug)
        since = now if self.outage is None else self.outage.since
        self.outage = Outage(since=since, code=code, message=message)

    # What it reads

    async def _take_snapshot(self) -> None:
        started_at = time.monotonic()
        snapshot = await self._run_plan(
            plan_snapshot(self._schemas),
            set_limits(timedelta(seconds=self._timings.snapshot_timeout), PROGRAM_NAME),
            self._timings.snapshot_timeout,
        )
        duration = time.monotonic() - started_at
        snapshot = replace(snapshot, duration=duration)
        recent = await self._read_recent()
        await self._end_pauses(snapshot)
        history = self._add_to_history(snapshot)
        own_pause = self._compute_pause(duration)
        now = time.monotonic()
        self._timeout_count = 0
        debt = max(0.0, self._budget_kept_at - started_at)
        pause = own_pause + debt
        self._next_snapshot_at = now + pause
        self._soonest_snapshot_at = now + min(own_pause, duration * SOON_PAUSE_FACTOR) + debt
        self._budget_kept_at = (
            now + min(own_pause, duration * self._timings.snapshot_pause_factor) + debt
        )
        self._next_light_at = now + self._timings.light_interval
        self._next_counters_at = now + self._timings.interval
        findings = diagnose_queue(history, self._schemas, external_tasks=self._external_tasks)
        oldest = max(snapshot.tasks, key=lambda task: task.oldest_ready or -1.0, default=None)
        has_ready = oldest is not None and oldest.oldest_ready is not None
        rates = history.rates
        self._series.add(snapshot, rates)
        self.latest = Sample(
            snapshot=snapshot,
            taken_at=now,
            history=history,
            findings=tuple(findings),
            rates=rates,
            now=snapshot.now,
            oldest_ready=snapshot.oldest_ready,
            oldest_ready_task=oldest.identifier if oldest is not None and has_ready else None,
            recent=recent,
            series=self._series.points,
            interval=pause,
        )

    async def _end_pauses(self, snapshot: Snapshot) -> None:
        """End the pauses whose time is over. Only Python workers do that too."""
        if not self._may_change() or not any(
            is_overdue(each, snapshot.now) for each in snapshot.pauses
        ):
            return
        seconds = self._timings.light_timeout
        limits = QueryLimits(statement_timeout=timedelta(seconds=seconds))
        try:
            async with asyncio.timeout(seconds + self._timings.grace):
                plan = limit_plan(plan_resume_expired(self._schemas), self._schemas, limits)
                ended = await run_plan(self._db, plan)
        except Exception as error:
            # The snapshot is still good, and the next one leads to another attempt.
            self._warn_once("ending a pause", error)
            return
        for kind, name in ended:
            logger.info("pause of %s %s ended", kind, make_printable(repr(name)))
        if ended:
            self.look_soon()

    def _compute_pause(self, duration: float) -> float:
        self._snapshot_count += 1
        pause = self._snapshot_pacer.compute_pause(duration)
        is_warm = self._snapshot_count >= WARM_UP_COUNT
        return pause if is_warm or duration > WARM_UP_SECONDS else self._timings.interval

    def _add_to_history(self, snapshot: Snapshot) -> SnapshotHistory:
        last = self.latest
        history = None if last is None else last.history
        if history is None or last is None or last.age > self._find_longest_gap(last):
            started = SnapshotHistory(snapshot)
            if last is not None and last.is_partial:
                # Its counters make rates possible with the first snapshot.
                started.add_counters(last.snapshot)
            return started
        history.add(snapshot)
        return history

    def _find_longest_gap(self, last: Sample) -> float:
        return MAX_HISTORY_GAP_SECONDS + last.interval

    async def _look_lightly(self) -> None:
        """Read counters, pools and the oldest ready jobs by indexes."""
        started_at = time.monotonic()
        snapshot, rows = await self._run_light_plan(self._plan_light_look())
        now = time.monotonic()
        self._next_light_at = now + self._light_pacer.compute_pause(now - started_at)
        self._next_counters_at = now + self._timings.interval
        oldest = max(rows or (), key=lambda row: row.seconds or -1.0, default=None)
        last = self.latest
        if last is None or last.is_partial:
            base = Sample(snapshot=snapshot, taken_at=now, is_partial=True, now=snapshot.now)
        else:
            assert last.history is not None
            last.history.add_counters(snapshot)
            pools = _merge_pools(snapshot.pools, last.snapshot.pools)
            base = replace(
                last,
                rates=last.history.rates,
                now=snapshot.now,
                snapshot=replace(last.snapshot, pools=pools),
            )
        if rows is not None:
            seconds = None if oldest is None else oldest.seconds
            task = None if oldest is None or seconds is None else oldest.task
            base = replace(base, oldest_ready=seconds, oldest_ready_task=task)
        self.latest = base

    def _plan_light_look(self) -> Plan[tuple[Snapshot, Sequence[OldestReadyRow] | None]]:
        counters = yield from plan_counter_snapshot(self._schemas)
        pools = yield from plan_get_pools(self._schemas, _plan_query)
        access = yield inspect_samples(self._schemas)
        rows = None
        if access.has_indexes:
            rows = yield get_oldest_ready(MAX_LANES, MAX_QUEUED_JOBS)
        return replace(counters, pools=tuple(pools)), rows

    async def _read_counters(self) -> None:
        started_at = time.monotonic()
        counters = await self._run_light_plan(plan_counter_snapshot(self._schemas))
        now = time.monotonic()
        self._next_counters_at = now + self._counter_pacer.compute_pause(now - started_at)
        last = self.latest
        assert last is not None
        if last.history is None:
            return
        last.history.add_counters(counters)
        self.latest = replace(last, rates=last.history.rates, now=counters.now)

    async def _read_recent(self) -> RecentHistory | None:
        """Read the jobs that ended last, or return those of the last time if that is recent."""
        started_at = time.monotonic()
        known = None if self.latest is None else self.latest.recent
        if started_at < self._next_recent_at:
            return known
        seconds = self._timings.light_timeout
        limits = QueryLimits(statement_timeout=timedelta(seconds=seconds))
        try:
            plan = plan_get_recent_history(self._schemas, [], limit=ENDED_JOBS, limits=limits)
            async with asyncio.timeout(seconds + self._timings.grace):
                recent = await run_plan(self._db, plan)
        except Exception as error:
            # Without it, the snapshot is still good.
            self._warn_once("reading the jobs that ended", error)
            recent = known
        now = time.monotonic()
        self._next_recent_at = now + self._recent_pacer.compute_pause(now - started_at)
        return recent

    async def _run_light_plan(self, plan: Plan[T]) -> T:
        seconds = self._timings.light_timeout
        return await self._run_plan(plan, set_probe_limits(timedelta(seconds=seconds)), seconds)

    async def _run_plan(self, plan: Plan[T], limits: Query[None], seconds: float) -> T:
        try:
            async with (
                asyncio.timeout(seconds + self._timings.grace),
                self._db.transaction() as connection,
            ):
                await connection.run(limits)
                return await run_plan_on(connection, plan)
        except Exception as error:
            raise_schema_missing(error, self._schemas)


class Series:
    """Points of the last hour at most. The time between them grows with the time they cover."""

    def __init__(self) -> None:
        self._points: deque[SeriesPoint] = deque()
        self._step = FIRST_SERIES_STEP_SECONDS

    @property
    def points(self) -> tuple[SeriesPoint, ...]:
        """The points, the oldest first."""
        return tuple(self._points)

    def add(self, snapshot: Snapshot, rates: Rates | None) -> None:
        """Add a point. It replaces the last one if that is within a step of the one before it."""
        points = self._points
        if len(points) > 1 and _seconds_between(points[-2], points[-1].at) < self._step:
            points.pop()
        points.append(
            SeriesPoint(
                at=snapshot.now,
                ready=snapshot.count(JobState.READY),
                running=snapshot.running,
                retrying=snapshot.count(JobState.RETRYING),
                failed=snapshot.count(JobState.FAILED),
                oldest_ready=snapshot.oldest_ready,
                added=None if rates is None else rates.added,
                completed=None if rates is None else rates.completed,
            )
        )
        longest = MAX_SERIES_POINTS * MAX_SERIES_STEP_SECONDS
        while _seconds_between(points[0], snapshot.now) > longest:
            points.popleft()
        if len(points) <= MAX_SERIES_POINTS:
            return
        if self._step < MAX_SERIES_STEP_SECONDS:
            self._step *= 2
            self._points = deque([*list(points)[:-1][::2], points[-1]])
        else:
            points.popleft()


def describe_outage(error: BaseException) -> tuple[str, str]:
    """Return the code of an error of the database, and what is wrong."""
    state = get_sqlstate(error)
    if isinstance(error, SchemaMissing):
        return "schema_missing", str(error)
    if isinstance(error, QueryTimeoutError) or state in (QUERY_CANCELED, LOCK_NOT_AVAILABLE):
        return "timeout", "the database takes longer than the time limit to answer"
    if state == INSUFFICIENT_PRIVILEGE:
        return "permission_denied", format_error_line(error)
    if isinstance(error, TimeoutError):
        # It has no text.
        return "database_unreachable", "the database does not answer"
    if not isinstance(error, psycopg.Error | OSError | GraphileWorkerError):
        return INTERNAL_ERROR, f"the dashboard failed to read the queue: {format_error_line(error)}"
    return "database_unreachable", format_error_line(error)


def _merge_pools(newer: Iterable[PoolInfo], older: Iterable[PoolInfo]) -> tuple[PoolInfo, ...]:
    """Add what only a snapshot reads: the locks of pools, and pools that are not registered."""
    known = {pool.id: pool for pool in older}
    merged = {
        pool.id: replace(
            pool,
            jobs=known[pool.id].jobs,
            queues=known[pool.id].queues,
            oldest_lock=known[pool.id].oldest_lock,
        )
        if pool.id in known
        else pool
        for pool in newer
    }
    for pool in known.values():
        if pool.health is PoolHealth.UNKNOWN:
            merged.setdefault(pool.id, pool)
    return tuple(merged.values())


def _plan_query(query: Query[T]) -> Plan[T]:
    answer: T = yield query
    return answer


def _seconds_between(point: SeriesPoint, now: datetime) -> float:
    return (now - point.at).total_seconds()

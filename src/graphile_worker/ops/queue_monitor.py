"""Looks at a queue for clients that ask for its metrics, seldom and once for all of them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._db.database import QueryRunner, run_plan_on
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import QUEUE_METRICS
from graphile_worker._metrics.values import Families
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_schema_missing
from graphile_worker._sql.queries.metrics import (
    StoredSample,
    create_sample,
    delay_sample,
    get_sample,
    set_probe_limits,
    set_sample_limits,
    try_lock_sample,
    write_sample,
)
from graphile_worker._sql.sqlstate import QUERY_CANCELED, get_sqlstate
from graphile_worker._support.error_format import format_error_line
from graphile_worker.ops.queue_metrics import (
    MAX_RUNNABLE,
    MIN_PAUSE_SECONDS,
    Look,
    add_missing_states,
    build_look_families,
    compute_pause,
    decode_sample,
    encode_sample,
    plan_count_runnable,
    plan_look,
    plan_sample,
)
from graphile_worker.ops.snapshot import (
    MAX_PAUSE_SECONDS,
    SNAPSHOT_TIMEOUT_SECONDS,
    STATEMENT_TIMEOUT,
)

# Less than the time limit of a request, which is 5 s.
ANSWER_TIMEOUT_SECONDS = 4.0

# Less than that, so that a request gets the result of a look at an unreachable database.
LOOK_TIMEOUT_SECONDS = 3.5

# Less than that, so that the server ends a slow statement before the client gives up on it.
LOOK_STATEMENT_TIMEOUT = timedelta(seconds=3)

# An older sample is not reported.
MAX_SAMPLE_AGE_SECONDS = 300.0

# A role that may not write takes its own sample if the shared one is older.
MAX_SHARED_AGE_SECONDS = MAX_PAUSE_SECONDS

# Counts of runnable jobs that are kept, one for each set of tasks and limit.
MAX_COUNTS = 100

# Counts that run at once, each on its own connection: clients must not use up those of the server.
MAX_PARALLEL_COUNTS = 2

logger = logging.getLogger("graphile_worker")


class TooManyCountsError(Exception):
    """Clients ask for the runnable jobs of too many sets of tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MonitorTimings:
    """Times in seconds."""

    min_pause: float = MIN_PAUSE_SECONDS
    look_timeout: float = LOOK_TIMEOUT_SECONDS
    answer_timeout: float = ANSWER_TIMEOUT_SECONDS
    max_sample_age: float = MAX_SAMPLE_AGE_SECONDS


DEFAULT_TIMINGS = MonitorTimings()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sample:
    families: Families
    taken_at: float
    """By the monitor's clock."""
    duration: float
    is_shared: bool


class QueueMonitor:
    """Reads the metrics of a queue on request, at most once per pause for all clients.

    All processes with a monitor share one sample, which the database stores. A role that may not
    write it, and a database without the companion schema, have a sample for each process.
    """

    def __init__(
        self,
        conninfo: ConninfoSource,
        schemas: Schemas,
        *,
        timings: MonitorTimings = DEFAULT_TIMINGS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conninfo = conninfo
        self._schemas = schemas
        self._timings = timings
        self._clock = clock
        self._look: asyncio.Task[None] | None = None
        self._look_started_at = 0.0
        self._next_look_at = 0.0
        self._next_own_sample_at = 0.0
        self._retry_sample_at = 0.0
        self._last_look: Look | None = None
        self._last_look_at = 0.0
        self._sample: _Sample | None = None
        self._error_count = 0
        self._has_look_failed = False
        self._has_sample_failed = False

    async def collect(self) -> Families:
        """Return the metrics, after a new look if the pause is over.

        A look that takes too long continues: this call returns what is known, and later ones its
        result.
        """
        now = self._clock()
        if self._look is None or (self._look.done() and now >= self._next_look_at):
            self._look_started_at = now
            self._look = asyncio.create_task(self._run_look())
        deadline = self._look_started_at + self._timings.answer_timeout
        await asyncio.wait({self._look}, timeout=max(0.0, deadline - now))
        return self._build_families()

    def _build_families(self) -> Families:
        look, sample = self._last_look, self._sample
        if sample is not None and not self._is_recent(sample.taken_at):
            sample = None
        families = {} if sample is None else dict(sample.families)
        if look is not None and self._is_recent(self._last_look_at):
            families |= build_look_families(look, families)
        has_failed = self._has_look_failed or (sample is None and self._has_sample_failed)
        is_reachable = look is not None and not has_failed
        families |= {
            definitions.QUEUE_JOBS: add_missing_states(families.get(definitions.QUEUE_JOBS, {})),
            definitions.QUEUE_REACHABLE: {(): float(is_reachable)},
            definitions.SNAPSHOT_ERRORS: {(): float(self._error_count)},
            definitions.QUEUE_INFO: {(self._schemas.shared,): 1.0},
        }
        if sample is not None:
            families |= {
                definitions.SNAPSHOT_AGE: {(): max(0.0, self._clock() - sample.taken_at)},
                definitions.SNAPSHOT_DURATION: {(): sample.duration},
                definitions.SNAPSHOT_SHARED: {(): float(sample.is_shared)},
            }
        return {metric: families[metric] for metric in QUEUE_METRICS if metric in families}

    def _is_recent(self, time: float) -> bool:
        return self._clock() - time <= self._timings.max_sample_age

    async def _run_look(self) -> None:
        try:
            async with open_database(self._conninfo, self._schemas) as database:
                duration = await self._look_once(database)
                await self._sample_if_due(database)
            pause = compute_pause(duration, self._timings.min_pause)
        except Exception as error:
            pause = choose_pause_after(error, self._timings.min_pause)
            self._error_count += 1
            if not self._has_look_failed:
                logger.warning("look at the queue failed, retrying: %s", format_error_line(error))
            self._has_look_failed = True
        self._next_look_at = self._clock() + pause

    async def _look_once(self, database: PsycopgDatabase) -> float:
        """Look, and return the seconds that it took."""
        async with (
            asyncio.timeout(self._timings.look_timeout),
            database.transaction() as connection,
        ):
            started_at = time.monotonic()
            await connection.run(set_probe_limits(LOOK_STATEMENT_TIMEOUT))
            look = await run_plan_on(connection, plan_look(self._schemas))
            duration = time.monotonic() - started_at
        if self._has_look_failed:
            logger.warning("look at the queue succeeded again")
        self._has_look_failed = False
        self._last_look, self._last_look_at = look, self._clock()
        if look.shared_sample is not None:
            self._use_stored(look.shared_sample)
        return duration

    def _use_stored(self, stored: StoredSample) -> None:
        """Use the stored sample, unless this process has taken a newer one."""
        taken_at, own = self._clock() - stored.age_seconds, self._sample
        is_newer = own is None or own.is_shared or taken_at > own.taken_at
        # Empty if a crash emptied the table, or if another version wrote it.
        families = decode_sample(stored.body) if is_newer else {}
        if families:
            self._sample = _Sample(
                families=families, taken_at=taken_at, duration=stored.duration, is_shared=True
            )

    async def _sample_if_due(self, database: PsycopgDatabase) -> None:
        look = self._last_look
        assert look is not None
        try:
            async with asyncio.timeout(SNAPSHOT_TIMEOUT_SECONDS):
                if self._clock() < self._retry_sample_at:
                    return
                if look.access.can_write:
                    await self._take_shared_sample(database, look)
                elif self._is_own_sample_due(look):
                    await self._take_own_sample(database, look)
        except Exception as error:
            self._retry_sample_at = self._clock() + MAX_PAUSE_SECONDS
            self._error_count += 1
            if not self._has_sample_failed:
                logger.warning(
                    "sample of the queue failed, next in %.0f s: %s",
                    MAX_PAUSE_SECONDS,
                    format_error_line(error),
                )
            self._has_sample_failed = True
            if look.access.can_write:
                await self._delay_shared_sample(database)

    async def _take_shared_sample(self, database: PsycopgDatabase, look: Look) -> None:
        if look.shared_sample is None:
            await database.run(create_sample())
        elif not look.shared_sample.is_due:
            return
        async with database.transaction() as connection:
            await connection.run(set_sample_limits(STATEMENT_TIMEOUT, read_only=False))
            if await connection.run(try_lock_sample()) is None:
                # Another process takes it, or has just done so.
                stored = await connection.run(get_sample())
                if stored is not None:
                    self._use_stored(stored)
                return
            sample = await self._take_sample(connection, look)
            duration = timedelta(seconds=sample.duration)
            pause = timedelta(seconds=compute_pause(sample.duration, self._timings.min_pause))
            await connection.run(write_sample(encode_sample(sample.families), duration, pause))
        self._sample = replace(sample, is_shared=True)
        self._has_sample_failed = False

    async def _delay_shared_sample(self, database: PsycopgDatabase) -> None:
        # Otherwise each process would try it, and a database that is overloaded stays so.
        with suppress(Exception):
            async with asyncio.timeout(self._timings.look_timeout):
                await database.run(delay_sample(timedelta(seconds=MAX_PAUSE_SECONDS)))

    def _is_own_sample_due(self, look: Look) -> bool:
        shared = look.shared_sample
        if shared is not None and shared.age_seconds <= MAX_SHARED_AGE_SECONDS:
            return False
        return self._clock() >= self._next_own_sample_at

    async def _take_own_sample(self, database: PsycopgDatabase, look: Look) -> None:
        async with database.transaction() as connection:
            await connection.run(set_sample_limits(STATEMENT_TIMEOUT, read_only=True))
            self._sample = await self._take_sample(connection, look)
        pause = compute_pause(self._sample.duration, self._timings.min_pause)
        self._next_own_sample_at = self._clock() + pause
        self._has_sample_failed = False

    async def _take_sample(self, connection: QueryRunner, look: Look) -> _Sample:
        taken_at, started_at = self._clock(), time.monotonic()
        plan = plan_sample(self._schemas, has_indexes=look.access.has_indexes)
        try:
            families = await run_plan_on(connection, plan)
        except Exception as error:
            raise_schema_missing(error, self._schemas)
        return _Sample(
            families=families,
            taken_at=taken_at,
            duration=time.monotonic() - started_at,
            is_shared=False,
        )


# The tasks to count, those to leave out, and where to stop.
_CountKey = tuple[tuple[str, ...] | None, tuple[str, ...], int]


class RunnableCounter:
    """Counts the jobs that run or could run, once per pause for each set of tasks."""

    def __init__(
        self,
        conninfo: ConninfoSource,
        schemas: Schemas,
        *,
        timings: MonitorTimings = DEFAULT_TIMINGS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conninfo = conninfo
        self._schemas = schemas
        self._timings = timings
        self._clock = clock
        self._counts: dict[_CountKey, _Count] = {}
        self._slots = asyncio.Semaphore(MAX_PARALLEL_COUNTS)
        self._has_failed = False

    async def count(
        self,
        tasks: Sequence[str] | None,
        limit: int = MAX_RUNNABLE,
        *,
        excluded: Sequence[str] = (),
    ) -> int:
        """Count the jobs of these tasks, or of all tasks.

        Args:
            tasks: The names of the tasks or patterns, or None.
            limit: Stop each part of the count there.
            excluded: The tasks to leave out.

        Raises:
            TooManyCountsError: If clients ask for too many sets of tasks.
            psycopg.Error: If the database rejects the query, or is unreachable.
            TimeoutError: If the database does not answer in time.
        """
        chosen = None if tasks is None else tuple(sorted(set(tasks)))
        key = chosen, tuple(sorted(set(excluded))), limit
        count = self._counts.get(key)
        if count is None or not self._is_current(count):
            count = self._counts[key] = self._start(*key)
        # The query continues if this client disconnects: later requests get its result.
        result = await asyncio.shield(count.task)
        if isinstance(result, Exception):
            # Without the frames of earlier requests.
            raise result.with_traceback(None)
        return result

    def _is_current(self, count: "_Count") -> bool:
        return not count.task.done() or self._clock() < count.next_at

    def _start(self, tasks: Sequence[str] | None, excluded: Sequence[str], limit: int) -> "_Count":
        if len(self._counts) >= MAX_COUNTS:
            self._counts = {k: v for k, v in self._counts.items() if self._is_current(v)}
        if len(self._counts) >= MAX_COUNTS:
            raise TooManyCountsError
        count = _Count()
        count.task = asyncio.create_task(self._run(count, tasks, excluded, limit))
        return count

    async def _run(
        self,
        count: "_Count",
        tasks: Sequence[str] | None,
        excluded: Sequence[str],
        limit: int,
    ) -> int | Exception:
        pause = self._timings.min_pause
        try:
            async with (
                self._slots,
                asyncio.timeout(self._timings.look_timeout),
                open_database(self._conninfo, self._schemas) as database,
                database.transaction() as connection,
            ):
                started_at = time.monotonic()
                plan = plan_count_runnable(
                    self._schemas, tasks, limit, LOOK_STATEMENT_TIMEOUT, excluded=excluded
                )
                result: int | Exception = await run_plan_on(connection, plan)
                pause = compute_pause(time.monotonic() - started_at, pause)
            self._has_failed = False
        except Exception as error:
            pause = choose_pause_after(error, pause)
            if not self._has_failed:
                logger.warning(
                    "count of runnable jobs failed, retrying: %s", format_error_line(error)
                )
            self._has_failed = True
            result = error
        count.next_at = self._clock() + pause
        return result


class _Count:
    """A query that runs or has run, and when the next one may run."""

    task: asyncio.Task[int | Exception]
    next_at: float = 0.0


def choose_pause_after(error: Exception, shortest: float) -> float:
    """Choose the seconds to wait after an error."""
    # The server is overloaded if a statement on indexes takes seconds.
    return MAX_PAUSE_SECONDS if get_sqlstate(error) == QUERY_CANCELED else shortest


@asynccontextmanager
async def open_database(
    conninfo: ConninfoSource, schemas: Schemas
) -> AsyncIterator[PsycopgDatabase]:
    """Open a database with one connection, and close it.

    A connection per look, not one that stays open: with 100 pods, 100 idle sessions would use
    `max_connections` or the pool of PgBouncer. A new one costs the server milliseconds, once per
    pause. Prepared statements are off for PgBouncer in transaction mode.
    """
    database = PsycopgDatabase(
        conninfo,
        schemas,
        max_size=1,
        prepared_statements=False,
        # With a limit, a canceled statement does not wait for a server that does not answer.
        query_timeout=LOOK_STATEMENT_TIMEOUT,
    )
    try:
        yield database
    finally:
        await database.close()

"""LeaseService: sends the heartbeats of a pool, and handles a lease that expires or is lost.

Heartbeat and watchdog run outside of the worker's event loop, because a task may block that loop.
Lease monitor and rescuer run in it.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import FrameType, MappingProxyType, TracebackType
from typing import Any, Protocol, Self, TypeVar

from graphile_worker._db.worker_connections import WorkerConnections
from graphile_worker._lease.background_loop import (
    CANCEL_RETRY_SECONDS,
    BackgroundLoop,
    cancel_until_done,
)
from graphile_worker._lease.heartbeat import (
    Heartbeat,
    HeartbeatTimings,
    PoolCallbacks,
    ProgressFlusher,
)
from graphile_worker._lease.lease import Lease
from graphile_worker._lease.lease_monitor import LeaseMonitor
from graphile_worker._lease.rescuer import JobRescuer
from graphile_worker._lease.watchdog import Watchdog
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.workers import CRONTAB_KEY, LIMITS_KEY, MAX_TASK_NAMES
from graphile_worker._support.error_format import format_error_line
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._support.logs import Logger
from graphile_worker._support.versions import find_version
from graphile_worker.crontab.items import ParsedCronItem
from graphile_worker.crontab.summaries import summarize_items
from graphile_worker.events import HeartbeatFailed, HeartbeatRecovered, LeaseExpired, LeaseLost
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job
from graphile_worker.options import WorkerOptions

T = TypeVar("T")

# Finds the job of one of these pools whose task is called in a frame.
FindJob = Callable[[Collection[str], FrameType], Job | None]

CronItems = Callable[[], Iterable[ParsedCronItem]]


class LeaseTimings(LazyKeywordDataclass):
    """Intervals and time limits of a lease service."""

    heartbeat: HeartbeatTimings = HeartbeatTimings()
    unregister_timeout_seconds: float = 2.0
    """Time for a program that ends to delete its row in the registry."""
    cancel_retry_seconds: float = CANCEL_RETRY_SECONDS


DEFAULT_TIMINGS = LeaseTimings()


class LeasedPool(Protocol):
    """The pool that holds the lease."""

    @property
    def started_ids(self) -> list[int]: ...
    @property
    def has_claimed_jobs(self) -> bool: ...
    def wake(self, count: int | None = None) -> None: ...
    def discard_run(self, claimed: ClaimedJob) -> None: ...
    def revoke_jobs(self, predicate: Callable[[ClaimedJob], bool]) -> tuple[int, ...]: ...


class LeasedClaimer(Protocol):
    """The claimer of that pool."""

    claimed_jobs: dict[int, ClaimedJob]
    on_reclaimed: Callable[[ClaimedJob], None]
    on_released: Callable[[int], None]

    @property
    def pool_ids_in_use(self) -> set[str]: ...
    def mark_orphaned(self) -> None: ...


class LeaseService:
    """Enter it before the first claim; leave it after the last job is written."""

    def __init__(
        self,
        lease: Lease,
        databases: WorkerConnections,
        hooks: Hooks,
        logger: Logger,
        options: WorkerOptions,
        tasks: Mapping[str, object],
        find_job: FindJob,
        *,
        cron_items: CronItems | None = None,
        limits: Mapping[str, Sequence[str]] = MappingProxyType({}),
        progress: ProgressFlusher | None = None,
        timings: LeaseTimings = DEFAULT_TIMINGS,
    ) -> None:
        self._timings = timings
        self._lease = lease
        self._databases = databases
        self._hooks = hooks
        self._logger = logger
        self._options = options
        self._pool: LeasedPool | None = None
        self._claimer: LeasedClaimer | None = None
        self._loop = asyncio.get_running_loop()
        self._background_loop = BackgroundLoop()
        details = _build_details(options, tasks, cron_items, limits)
        self._heartbeat = self._make_heartbeat(details, progress)
        self._heartbeat_task: asyncio.Task[Any] | None = None
        self._watchdog: Watchdog | None = None
        if options.warn_blocked_after is not None:
            self._watchdog = Watchdog(
                logger, options.warn_blocked_after, partial(find_job, lease.pool_ids)
            )

    def attach(self, pool: LeasedPool, claimer: LeasedClaimer) -> None:
        """Connect the pool, which is built after the heartbeat started."""
        self._pool = pool
        self._claimer = claimer
        claimer.on_reclaimed = pool.discard_run
        claimer.on_released = pool.wake

    def build_lease_monitor(self) -> LeaseMonitor:
        return LeaseMonitor(self._lease, self._on_lease_expired)

    def build_rescuer(self) -> JobRescuer | None:
        """Build the rescuer of dead pools. None if recovery is off."""
        if self._options.recovery is None or self._pool is None:
            return None
        return JobRescuer(
            self._databases.own,
            self._lease,
            self._hooks,
            self._logger,
            self._options.recovery,
            on_recovered=self._pool.wake,
        )

    async def __aenter__(self) -> Self:
        self._background_loop.start()
        if self._watchdog is not None:
            self._watchdog.start()
        try:
            await self._call_on_heartbeat_loop(self._heartbeat.register())
        except BaseException:
            await self._close()
            raise
        self._log_missing_recovery()
        if self._databases.heartbeat is None:
            self._heartbeat_task = asyncio.create_task(self._heartbeat.run())
        else:
            self._background_loop.submit(self._run_heartbeat())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # First, because a heartbeat that finds its row deleted would report a lost lease.
            await self._call_on_heartbeat_loop(self._stop_heartbeat())
            if self._has_no_jobs:
                async with asyncio.timeout(self._timings.unregister_timeout_seconds):
                    await self._call_on_heartbeat_loop(self._heartbeat.unregister())
            async with asyncio.timeout(self._timings.unregister_timeout_seconds):
                await self._call_on_heartbeat_loop(self._heartbeat.flush_progress())
        except Exception as failure:
            # Other pools then delete the row, as that of a dead pool without jobs.
            self._logger.debug("unregistering failed: %s", format_error_line(failure))
        finally:
            await self._close()

    @property
    def _has_no_jobs(self) -> bool:
        return self._pool is None or not self._pool.has_claimed_jobs

    async def _run_heartbeat(self) -> None:
        self._heartbeat_task = asyncio.current_task()
        await self._heartbeat.run()

    async def _stop_heartbeat(self) -> None:
        """Cancel the heartbeat and wait for its end, in its own loop."""
        if self._heartbeat_task is not None and not self._heartbeat_task.done():
            await cancel_until_done(
                [self._heartbeat_task], retry_seconds=self._timings.cancel_retry_seconds
            )

    async def _close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        try:
            if self._databases.heartbeat is not None:
                with suppress(Exception):
                    async with asyncio.timeout(self._timings.unregister_timeout_seconds):
                        await self._background_loop.call(self._databases.heartbeat.close())
        finally:
            await self._background_loop.stop()

    async def _call_on_heartbeat_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the loop of the heartbeat's connection: for a caller's pool the worker's loop."""
        return await (
            work if self._databases.heartbeat is None else self._background_loop.call(work)
        )

    def _log_missing_recovery(self) -> None:
        if self._options.recovery is None:
            return
        if not self._heartbeat.has_registry:
            self._logger.warning(
                "companion schema not usable: if this worker dies, its jobs stay locked for 4 hours"
            )
        elif self._databases.heartbeat is None:
            self._logger.info(
                "heartbeats use the connection pool of the caller: a task that blocks the event "
                "loop for %s makes other workers recover its jobs",
                self._options.recovery.lease_duration,
            )

    def _make_heartbeat(
        self, details: Mapping[str, Any], progress: ProgressFlusher | None
    ) -> Heartbeat:
        recovery = self._options.recovery
        return Heartbeat(
            self._databases.heartbeat or self._databases.own,
            self._databases.own.schemas,
            self._lease,
            PoolCallbacks(
                started_ids=lambda: [] if self._pool is None else self._pool.started_ids,
                claimed=lambda: (
                    [] if self._claimer is None else list(self._claimer.claimed_jobs.values())
                ),
                ids_in_use=lambda: (
                    set() if self._claimer is None else self._claimer.pool_ids_in_use
                ),
                on_lease_lost=self._call_on_worker_loop(self._on_lease_lost),
                on_jobs_lost=self._call_on_worker_loop(self._on_jobs_lost),
                on_error=self._call_on_worker_loop(self._on_heartbeat_failed),
                on_reconnected=self._call_on_worker_loop(self._on_reconnected),
                on_recovered=self._call_on_worker_loop(self._on_heartbeat_recovered),
            ),
            details=details,
            lease_duration=None if recovery is None else recovery.lease_duration,
            interval=None if recovery is None else recovery.effective_heartbeat_interval,
            progress=progress,
            timings=self._timings.heartbeat,
        )

    def _call_on_worker_loop(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Return a function that calls the callback on the worker's loop from any thread."""

        def call_on_loop(*args: Any) -> None:
            # The loop may be closed at the end of a program.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback, *args)

        return call_on_loop

    # Callbacks of the heartbeat, on the worker's loop

    def _on_lease_lost(self, pool_id: str, new_id: str) -> None:
        job_ids: tuple[int, ...] = ()
        if self._pool is not None:
            job_ids = self._pool.revoke_jobs(lambda claimed: claimed.pool_id == pool_id)
        # `log_events` logs only events of these ids.
        self._lease.pool_ids.add(new_id)
        self._hooks.emit(LeaseLost(pool_id=new_id, old_pool_id=pool_id, job_ids=job_ids))

    def _on_jobs_lost(self, job_ids: set[int]) -> None:
        # A new id is needed only if one of the jobs still runs.
        if self._pool is not None and self._pool.revoke_jobs(
            lambda claimed: claimed.job.id in job_ids
        ):
            self._heartbeat.request_new_id()

    def _on_heartbeat_failed(self, error: Exception, failures: int) -> None:
        self._hooks.emit(
            HeartbeatFailed(pool_id=self._lease.pool_id, error=error, failures=failures)
        )

    def _on_reconnected(self) -> None:
        if self._claimer is not None:
            self._claimer.mark_orphaned()

    def _on_heartbeat_recovered(self) -> None:
        self._hooks.emit(HeartbeatRecovered(pool_id=self._lease.pool_id))

    def _on_lease_expired(self) -> None:
        job_ids = () if self._pool is None else self._pool.revoke_jobs(lambda _: True)
        elapsed = timedelta(seconds=self._lease.seconds_since_heartbeat)
        self._hooks.emit(
            LeaseExpired(pool_id=self._lease.pool_id, time_since_heartbeat=elapsed, job_ids=job_ids)
        )


def _build_details(
    options: WorkerOptions,
    tasks: Mapping[str, object],
    cron_items: CronItems | None,
    limits: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    details: dict[str, Any] = {
        "runtime": "python",
        "version": find_version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "concurrency": options.concurrency,
        "tasks": sorted(tasks)[:MAX_TASK_NAMES],
    }
    if limits:
        # All of them: `find_newest_limits` compares the pools that list a limit.
        details[LIMITS_KEY] = {task: limits[task] for task in sorted(limits)}
    # The list may raise, which the scheduler reports.
    with suppress(Exception):
        if cron_items is not None and (summaries := summarize_items(cron_items())):
            details[CRONTAB_KEY] = summaries
    return details

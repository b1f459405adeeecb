"""Build the parts of a worker and close them in order: the only module that knows all of them."""

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any

from graphile_worker import sync
from graphile_worker._cron.scheduler import CronScheduler
from graphile_worker._db.database import ConnectionCounts, QueryRunner
from graphile_worker._db.external_connections import ExternalConnectionDatabase
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.retry import is_outage
from graphile_worker._db.slow_queries import SlowQueryDatabase
from graphile_worker._db.sync import SyncConnectionPool
from graphile_worker._db.worker_connections import WorkerConnections
from graphile_worker._lease.background_loop import cancel_until_done
from graphile_worker._lease.expired_keys import ExpiredKeys
from graphile_worker._lease.lease import Lease
from graphile_worker._lease.rescuer import JobRescuer
from graphile_worker._lease.service import LeaseService
from graphile_worker._lease.stale_locks import StaleLocks
from graphile_worker._metrics.recorder import Recorder
from graphile_worker._sql.queries.limits import describe_task_limits
from graphile_worker._sql.queries.migrations import LATEST_LEVEL, get_ledger
from graphile_worker._support.call_in_thread import call_in_thread
from graphile_worker._support.error_format import format_error_line
from graphile_worker._support.versions import find_version
from graphile_worker._worker.cancellation import Cancellation
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.completion_batcher import CompletionBatchers
from graphile_worker._worker.context import PoolResources
from graphile_worker._worker.history_rotator import HistoryRotator
from graphile_worker._worker.limited_claimer import LimitedClaimer
from graphile_worker._worker.limited_jobs import LimitedJobs
from graphile_worker._worker.limited_seat import LimitedSeat
from graphile_worker._worker.listener import NotificationListener
from graphile_worker._worker.overruns import RunawayTracker
from graphile_worker._worker.pauses import PauseCause, PausedTaskNames, PauseMonitor
from graphile_worker._worker.payload_budget import PayloadBudget
from graphile_worker._worker.pool import WorkerPool
from graphile_worker._worker.process_pool import ProcessPool
from graphile_worker._worker.progress import ProgressBuffer
from graphile_worker._worker.reporting import log_events
from graphile_worker._worker.run_job import Executors, find_job_in_frame
from graphile_worker._worker.shared_concurrency import SlotGate, WorkerSeat
from graphile_worker._worker.sources.base import FetchOptions, JobSource
from graphile_worker._worker.sources.direct import DirectSource
from graphile_worker._worker.sources.local_queue import LocalQueue
from graphile_worker._worker.sources.prefetch import PrefetchSource
from graphile_worker._worker.start_guard import StartGuard
from graphile_worker._worker.threads import ThreadPool
from graphile_worker._worker.worker import Seat, Worker
from graphile_worker._worker.worker_metrics import WorkerMetrics
from graphile_worker._worker_config import (
    WorkerConfig,
    check_config,
    check_history,
    check_limits,
    prepare_schema,
    warn_if_unencrypted,
)
from graphile_worker.client import Client
from graphile_worker.errors import JobsLeftLocked, SchemaTooNew
from graphile_worker.events import RunnerStopped
from graphile_worker.options import LocalQueueOptions, RecoveryOptions


class WorkerComponents:
    """The parts of a worker. `claimer`, `pauses` and `pool` are set last."""

    claimer: Claimer
    pauses: PauseMonitor
    limited: LimitedJobs | None = None
    pool: WorkerPool

    def __init__(
        self, config: WorkerConfig, databases: WorkerConnections, *, once: bool = False
    ) -> None:
        self._listens = config.options.listen and not once
        # On a caller's connection, all jobs of the worker run in the caller's transaction.
        self.is_external = isinstance(databases.own, ExternalConnectionDatabase)
        common = {**config.client_options, "clock": config.timings.clock}
        if self.is_external:
            # An announcer would use the caller's connection at the same time.
            common["notify"] = "on_commit"
        self.databases = databases
        self.slow_query_database: QueryRunner = databases.own
        self.slow_query_database_at_shutdown: QueryRunner = databases.own
        recovery = config.options.recovery
        self.lease = Lease(None if recovery is None else recovery.lease_duration)
        self.logger = config.logger.scope(pid=os.getpid(), pool_id=self.lease.pool_id)
        self.recorder = config.hooks._recorder
        self.metrics = None if self.recorder is None else self._build_metrics(config, self.recorder)
        self.lease_service: LeaseService | None = None
        self.progress: ProgressBuffer | None = None
        # The entrance of this shard's pool to the concurrency that all shards share.
        self.gate: SlotGate | None = None
        if not self.is_external:
            self.slow_query_database = SlowQueryDatabase(databases.maintenance or databases.own)
            self.slow_query_database_at_shutdown = SlowQueryDatabase(databases.own)
            self.progress = ProgressBuffer(self.logger)
            self.lease_service = LeaseService(
                self.lease,
                databases,
                config.hooks,
                self.logger,
                config.options,
                config.tasks,
                find_job_in_frame,
                cron_items=config.cron_items,
                limits=describe_task_limits(config.limits),
                progress=self.progress,
                timings=config.timings.lease,
            )
        self.executors = config.shard.executors if config.shard else build_executors(config)
        self.own_client = Client(databases.own, **common)
        # Only adds of tasks have a time limit. A program may pause a queue or change many jobs, and
        # that may take longer.
        self.adding_client = (
            self.own_client
            if databases.adding is None
            else self.own_client._with_database(databases.adding)
        )
        self.own_sync_client = (
            None if databases.sync_own is None else sync.Client(databases.sync_own, **common)
        )
        # Tasks of one shard add jobs on all of them.
        shard = config.shard
        self.client = self.own_client if shard is None else shard.shards
        self.task_client = (
            self.adding_client if shard is None else shard.shards._localize(shard.name)
        )
        self.sync_task_client = (
            self.own_sync_client if shard is None else shard.sync_shards._localize(shard.name)
        )

    @property
    def has_pool(self) -> bool:
        return hasattr(self, "pool")

    def _build_metrics(self, config: WorkerConfig, recorder: Recorder) -> WorkerMetrics:
        recorder.register_tasks(config.tasks)
        return WorkerMetrics(
            recorder,
            config.hooks,
            self.lease,
            info=(
                find_version(),
                platform.python_version(),
                find_version("psycopg"),
                type(asyncio.get_running_loop()).__module__.partition(".")[0],
                config.options.schema,
            ),
            count_connections=self._count_task_connections,
            listens=self._listens,
        )

    def _count_task_connections(self) -> ConnectionCounts | None:
        pools = [
            each
            for each in (self.databases.tasks, self.databases.sync_tasks)
            if isinstance(each, PsycopgDatabase | SyncConnectionPool)
        ]
        if not pools:
            # The caller's pool has its own metrics.
            return None
        counts = [each.count_connections() for each in pools]
        return ConnectionCounts(*map(sum, zip(*counts, strict=True)))

    async def close_announcers(self) -> None:
        """Announce the last jobs that tasks added."""
        await self.own_client._close_announcer()
        if (client := self.own_sync_client) is not None and client._announcer is not None:
            await call_in_thread(client._announcer.close)

    def close_gate(self) -> None:
        """Close the gate of a pool that may never have run."""
        if self.gate is not None:
            self.gate.close()

    def build_rescuer(self) -> JobRescuer | None:
        return None if self.lease_service is None else self.lease_service.build_rescuer()


def build_executors(config: WorkerConfig) -> Executors:
    return Executors(
        ThreadPool(), ProcessPool(config.options.task_processes, config.task_process_module)
    )


@asynccontextmanager
async def build_worker(
    config: WorkerConfig, databases: WorkerConnections, *, once: bool
) -> AsyncIterator[WorkerComponents]:
    """Build a worker that is ready to run, and close its parts in order after the block."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(databases.close)
        components = WorkerComponents(config, databases, once=once)
        stack.push_async_callback(components.close_announcers)
        if (shard := config.shard) is not None:
            stack.enter_context(
                shard.shards._attach_worker(
                    shard.name, components.own_client, components.adding_client
                )
            )
            if (client := components.own_sync_client) is not None:
                stack.enter_context(shard.sync_shards._attach_worker(shard.name, client, client))
        stack.enter_context(
            log_events(
                config.hooks, components.logger, components.lease.pool_ids, is_outage=is_outage
            )
        )
        if components.metrics is not None:
            stack.enter_context(components.metrics.attach())
        check_config(config)
        await prepare_schema(config, databases)
        await check_history(config, databases)
        await check_limits(config, databases)
        await warn_if_unencrypted(config, databases)
        if components.lease_service is not None:
            await stack.enter_async_context(components.lease_service)
        if config.shard is None:
            stack.push_async_callback(components.executors.processes.close)
            stack.callback(components.executors.threads.close)
        stack.callback(components.close_gate)
        stack.push_async_exit(partial(_shut_down, config, components))
        deps = await stack.enter_async_context(_run_lifespan(config, components))
        components.pool = _build_pool(config, components, deps, once=once)
        # Before the first fetch: what was paused before a restart does not start.
        await components.pauses.read_once()
        if components.limited is not None:
            await components.limited.register()
        if components.lease_service is not None:
            components.lease_service.attach(components.pool, components.claimer)
        if components.metrics is not None:
            components.metrics.pool = components.pool
        yield components


@asynccontextmanager
async def background_tasks(
    config: WorkerConfig, components: WorkerComponents, *, once: bool = False
) -> AsyncIterator[None]:
    """Run the background tasks of a worker inside the block."""
    running = [
        asyncio.create_task(each) for each in _iter_background_tasks(config, components, once=once)
    ]
    for task in running:
        task.add_done_callback(components.pool.stop_on_task_error)
    try:
        yield
    finally:
        await cancel_until_done(running)


def _iter_background_tasks(
    config: WorkerConfig, components: WorkerComponents, *, once: bool
) -> Iterator[Coroutine[Any, Any, None]]:
    if components.lease_service is not None:
        yield components.lease_service.build_lease_monitor().run()
        yield components.claimer.run()
        yield components.pauses.run()
    if components.limited is not None:
        yield components.limited.run()
    if components.metrics is not None:
        yield components.metrics.measure_lag()
    if once:
        return
    if (rescuer := components.build_rescuer()) is not None:
        yield rescuer.run()
    if config.retentions and not components.is_external:
        # Separate, because other statements would reset its time limit.
        rotating = SlowQueryDatabase(components.databases.maintenance or components.databases.own)
        yield HistoryRotator(rotating, components.logger).run()
    yield build_stale_locks(config, components).run()
    if config.options.listen:
        yield NotificationListener(
            components.databases.own,
            components.lease,
            config.hooks,
            on_jobs=components.pool.wake,
            on_migration=partial(_check_schema_level, config, components),
            on_pauses=partial(_read_changes, components),
            timings=config.timings.listen,
        ).run()
    if config.cron_items is not None:
        yield CronScheduler(components.databases.own, config.cron_items, config.hooks).run()


def _read_changes(components: WorkerComponents) -> None:
    """Read pauses and limits, because a person has changed one of them."""
    components.pauses.wake()
    if components.limited is not None:
        components.limited.watch()


async def rescue_once(components: WorkerComponents) -> None:
    """Release the jobs of dead pools, if recovery is on."""
    if (rescuer := components.build_rescuer()) is not None:
        await rescuer.rescue_at_start()


def build_stale_locks(config: WorkerConfig, components: WorkerComponents) -> StaleLocks:
    schemas = components.databases.own.schemas
    expired_keys = ExpiredKeys(components.slow_query_database, schemas, components.logger)
    return StaleLocks(
        components.slow_query_database,
        components.lease,
        config.hooks,
        min_interval=config.options.min_reset_locked_interval,
        max_interval=config.options.max_reset_locked_interval,
        clock=config.clock,
        claimed=components.claimer.claimed_jobs,
        clean_up=None if components.is_external else expired_keys.delete_once,
    )


def _build_pool(
    config: WorkerConfig, components: WorkerComponents, deps: Any, *, once: bool
) -> WorkerPool:
    options, hooks, lease = config.options, config.hooks, components.lease
    timings = config.timings
    databases, is_external = components.databases, components.is_external
    payload_budget = PayloadBudget(
        # Not on the worker's own connections, whose queries have a short timeout.
        databases.tasks,
        max_bytes=(options.local_queue or LocalQueueOptions()).max_bytes,
        max_payload_bytes=options.max_payload_bytes,
        is_stopping=lambda: components.pool.is_stopping,
    )
    limits = config.limits
    claimer = components.claimer = (
        partial(LimitedClaimer, limited_tasks=limits) if limits else Claimer
    )(
        databases.own,
        lease,
        config.tasks,
        forbidden_flags=config.forbidden_flags,
        clock=config.clock,
        slow_database=components.slow_query_database,
        slow_database_at_shutdown=components.slow_query_database_at_shutdown,
        # A lock timeout would abort a caller's transaction.
        waits_for_register_lock=is_external,
        payload_budget=payload_budget,
        timings=timings.claim,
        recorder=components.recorder,
        shard=None if config.shard is None else config.shard.name,
    )
    completer = Completer(
        databases.own,
        lease,
        hooks,
        claimed_jobs=claimer.claimed_jobs,
        fetch_lock=claimer.fetch_lock,
        interrupted_delay=options.interrupted_job_retry_delay,
        # In a caller's transaction nothing can be retried.
        can_retry=not is_external,
        timings=timings.completion,
        recorder=components.recorder,
    )
    # A caller's connection runs one query at a time, so nothing is written in the background.
    batchers = CompletionBatchers(
        completer,
        complete_delay=None if is_external else options.complete_batch_delay,
        fail_delay=None if is_external else options.fail_batch_delay,
        max_pending=timings.max_pending_completions,
    )
    runaways = RunawayTracker(hooks, options.max_runaway_threads)
    paused = PausedTaskNames()
    runaways.on_changed = lambda: paused.set(PauseCause.RUNAWAYS, runaways.paused_tasks)
    claimer.paused_tasks = paused.names
    start_guard = StartGuard(
        databases.own,
        lease,
        hooks,
        max_crashes=(options.recovery or RecoveryOptions()).max_crashes,
        paused_tasks=paused.names,
        payload_budget=payload_budget,
    )
    source = _build_source(config, components, completer, once=once)
    if config.shard is not None:
        components.gate = config.shard.limit.open_gate()
        source.on_stop = components.gate.close
    if isinstance(claimer, LimitedClaimer):
        components.limited = _build_limited_jobs(config, components, claimer, source, once=once)
    cancellation = Cancellation()
    resources = PoolResources(
        deps=deps,
        logger=components.logger,
        cancellation=cancellation,
        database=databases.tasks,
        client=components.task_client,
        sync_database=databases.sync_tasks,
        sync_client=components.sync_task_client,
        claimed_jobs=claimer.claimed_jobs,
        runaways=runaways,
        progress=components.progress,
    )
    workers = [
        Worker(
            source=source,
            start_guard=start_guard,
            completer=completer,
            batchers=batchers,
            tasks=config.tasks,
            resources=resources,
            executors=components.executors,
            hooks=hooks,
            recorder=components.recorder,
            release_timeout_seconds=timings.shutdown.release_timeout_seconds,
            retentions=config.retentions,
            seat=_build_seat(components, source),
        )
        for _ in range(options.concurrency)
    ]
    pool = WorkerPool(
        lease,
        source,
        workers,
        batchers,
        cancellation,
        hooks,
        tasks=config.tasks,
        cancel_after=options.cancel_after,
        shutdown_timeout=options.shutdown_timeout,
        limited=components.limited,
        timings=timings.shutdown,
    )
    runaways.on_resumed = pool.wake
    components.pauses = PauseMonitor(
        databases.own,
        databases.own.schemas,
        lease,
        hooks,
        components.logger,
        tasks=config.tasks,
        paused=paused,
        on_paused=source.release_tasks,
        on_resumed=pool.wake,
        timings=timings.pauses,
    )
    return pool


def _build_limited_jobs(
    config: WorkerConfig,
    components: WorkerComponents,
    claimer: LimitedClaimer,
    source: JobSource,
    *,
    once: bool,
) -> LimitedJobs:
    limited = LimitedJobs(
        claimer,
        source,
        components.databases.own,
        components.lease,
        components.logger,
        config.limits,
        poll_interval=config.options.poll_interval,
        once=once,
        timings=config.timings.limits,
    )
    on_stop = source.on_stop

    def stop() -> None:
        on_stop()
        limited.stop()

    source.on_stop = stop
    return limited


def _build_seat(components: WorkerComponents, source: JobSource) -> Seat | None:
    if components.limited is not None:
        return LimitedSeat(components.limited, source, components.gate)
    return None if components.gate is None else WorkerSeat(components.gate, source)


def _build_source(
    config: WorkerConfig, components: WorkerComponents, completer: Completer, *, once: bool
) -> JobSource:
    queue = config.options.local_queue
    parts = components.claimer, completer, config.hooks
    options = FetchOptions(poll_interval=config.options.poll_interval, once=once)
    if queue is None or components.is_external:
        return DirectSource(*parts, options)
    if queue.size is None:
        return PrefetchSource(
            *parts, options, max_bytes=queue.max_bytes, timings=config.timings.prefetch
        )
    return LocalQueue(*parts, options, queue, size=queue.size)


async def _check_schema_level(config: WorkerConfig, components: WorkerComponents) -> None:
    """Stop the pool if the schema is too new, by the ledger: any role can send notifications."""
    try:
        ledger = await components.databases.own.run(get_ledger())
    except Exception as error:
        components.logger.debug(
            "schema level check failed, continuing: %s", format_error_line(error)
        )
        return
    if ledger.breaking_level > LATEST_LEVEL:
        components.pool.stop_on_error(SchemaTooNew(config.options.schema, ledger.breaking_level))


async def _shut_down(
    config: WorkerConfig,
    components: WorkerComponents,
    _kind: type[BaseException] | None,
    original_error: BaseException | None,
    _trace: TracebackType | None,
) -> None:
    """Write the last outcomes, then let listeners finish."""
    try:
        if components.has_pool:
            await components.pool.release_remaining()
            await _return_slots(config, components)
    except JobsLeftLocked as error:
        if original_error is None:
            raise
        # The caller gets the first error.
        original_error.add_note(str(error))
        job_ids = ", ".join(map(str, error.job_ids))
        components.logger.error("writing outcomes failed, jobs stay locked: %s", job_ids)
    finally:
        if components.has_pool:
            await _release_orphaned_claims(config, components)
            config.hooks.emit(RunnerStopped(pool_id=components.pool.id))
        await config.hooks.drain(config.timings.listener_drain_timeout)


async def _return_slots(config: WorkerConfig, components: WorkerComponents) -> None:
    """Return the slots of limits, after the last job was written or released."""
    if components.limited is None:
        return
    try:
        async with asyncio.timeout(config.timings.shutdown.write_timeout_seconds):
            await components.limited.close()
    except Exception as error:
        # Other pools then free them, as those of a dead pool.
        components.logger.warning("returning slots failed: %s", format_error_line(error))


async def _release_orphaned_claims(config: WorkerConfig, components: WorkerComponents) -> None:
    """Release the jobs that a last fetch without an answer may have locked."""
    try:
        async with asyncio.timeout(config.timings.shutdown.write_timeout_seconds):
            components.claimer.forget_all_but(components.pool.claimed_ids)
            if components.lease_service is not None:
                components.claimer.mark_orphaned()
            await components.claimer.release_orphaned_claims(at_once=True)
    except Exception as error:
        components.logger.warning(
            "releasing the last fetched jobs failed, they may stay locked: %s",
            format_error_line(error),
        )


@asynccontextmanager
async def _run_lifespan(config: WorkerConfig, components: WorkerComponents) -> AsyncIterator[Any]:
    """Run the lifespan. Its exit delays neither the release of jobs nor a forceful shutdown."""
    limit = asyncio.timeout(None)
    exit_limiter: asyncio.Task[None] | None = None
    try:
        async with limit, config.lifespan() as deps:
            try:
                yield deps
            finally:
                exit_limiter = asyncio.create_task(
                    _limit_lifespan_exit(limit, components, config.timings.lifespan_exit_seconds)
                )
    except TimeoutError:
        if not limit.expired():
            raise
        components.logger.warning("lifespan exit took too long, cancelled")
    finally:
        if exit_limiter is not None:
            exit_limiter.cancel()


async def _limit_lifespan_exit(
    limit: asyncio.Timeout, components: WorkerComponents, seconds: float
) -> None:
    if components.has_pool and not components.pool.has_claimed_jobs:
        await components.pool.forced.wait()
    limit.reschedule(asyncio.get_running_loop().time() + seconds)

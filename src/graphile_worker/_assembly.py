"""Build the parts of a worker and take them apart again: the only place that knows them all."""

import asyncio
import os
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any

from graphile_worker import sync
from graphile_worker._cron.scheduler import CronScheduler
from graphile_worker._db.conninfo import find_plaintext_risk
from graphile_worker._db.database import QueryRunner, run_plan
from graphile_worker._db.external_connections import ExternalConnectionDatabase
from graphile_worker._db.psycopg import PsycopgDatabase, get_psycopg_implementation
from graphile_worker._db.retry import is_outage
from graphile_worker._db.slow_queries import SlowQueryDatabase
from graphile_worker._db.worker_connections import WorkerConnections
from graphile_worker._lease.lease import Lease
from graphile_worker._lease.service import LeaseService
from graphile_worker._lease.stale_locks import StaleLocks
from graphile_worker._sql.plans.migration import plan_check_schema, plan_migrate
from graphile_worker._sql.queries.migrations import LATEST_LEVEL, get_ledger
from graphile_worker._support.clock import Clock, SystemClock
from graphile_worker._support.error_format import format_error_line
from graphile_worker._support.logs import Logger
from graphile_worker._worker.claimer import Claimer, ForbiddenFlags
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.completion_batcher import CompletionBatchers
from graphile_worker._worker.context import Cancellation, PoolResources
from graphile_worker._worker.listener import NotificationListener
from graphile_worker._worker.overruns import RunawayTracker
from graphile_worker._worker.payload_budget import PayloadBudget
from graphile_worker._worker.pool import WRITE_TIMEOUT_SECONDS, WorkerPool
from graphile_worker._worker.process_main import reject_in_task_process
from graphile_worker._worker.process_pool import ProcessPool
from graphile_worker._worker.reporting import log_events
from graphile_worker._worker.run_job import Executors, find_job_in_frame
from graphile_worker._worker.sources.direct import DirectSource, JobSource
from graphile_worker._worker.sources.local_queue import LocalQueue
from graphile_worker._worker.sources.prefetch import PrefetchSource
from graphile_worker._worker.start_guard import StartGuard
from graphile_worker._worker.threads import ThreadPool
from graphile_worker._worker.worker import Worker
from graphile_worker.client import Client
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.errors import ConfigurationError, JobsLeftLocked, SchemaTooNew
from graphile_worker.events import Migrating, RunnerStopped
from graphile_worker.hooks import NOT_MIGRATED_MESSAGE, Hooks
from graphile_worker.options import LocalQueueOptions, RecoveryOptions, WorkerOptions
from graphile_worker.tasks import Task, TaskRouter
from graphile_worker.tasks.importing import locate_task

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]

# Listeners that take longer are cancelled and named.
LISTENER_DRAIN_TIMEOUT = timedelta(seconds=3)

# A lifespan may take so long to end while there are jobs that wait to be handed back.
LIFESPAN_EXIT_SECONDS = 1.0

# Seconds before background tasks that have not ended are cancelled again.
CANCEL_RETRY_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """All that a worker is made from, but for its database."""

    options: WorkerOptions
    tasks: Mapping[str, Task[..., Any]]
    definitions: TaskRouter[Any] | None = None
    """The app, whose definitions apply to jobs that are added by name."""
    cron_items: Callable[[], Sequence[ParsedCronItem]] | None
    hooks: Hooks
    logger: Logger
    lifespan: Lifespan
    forbidden_flags: ForbiddenFlags
    migrate: bool

    @property
    def clock(self) -> Clock | None:
        """The clock that decides what is due, if it is not the database's."""
        return SystemClock() if self.options.use_local_time else None


class WorkerComponents:
    """What was built; the pool last."""

    claimer: Claimer
    pool: WorkerPool

    def __init__(self, config: WorkerConfig, databases: WorkerConnections) -> None:
        common: dict[str, Any] = {
            "schema": config.options.schema,
            "ext_schema": config.options.ext_schema,
            "use_local_time": config.options.use_local_time,
            "hooks": config.hooks,
            "tasks": config.definitions,
        }
        self.databases = databases
        self.slow_query_database: QueryRunner = databases.own
        self.slow_query_database_at_shutdown: QueryRunner = databases.own
        if not isinstance(databases.own, ExternalConnectionDatabase):
            self.slow_query_database = SlowQueryDatabase(databases.maintenance or databases.own)
            self.slow_query_database_at_shutdown = SlowQueryDatabase(databases.own)
        recovery = config.options.recovery
        self.lease = Lease(None if recovery is None else recovery.lease_duration)
        self.logger = config.logger.scope(pid=os.getpid(), pool_id=self.lease.pool_id)
        self.lease_service: LeaseService | None = None
        if not isinstance(databases.own, ExternalConnectionDatabase):
            # What is locked in a caller's transaction is unlocked with it.
            self.lease_service = LeaseService(
                self.lease,
                databases,
                config.hooks,
                self.logger,
                config.options,
                config.tasks,
                find_job_in_frame,
            )
        self.executors = Executors(ThreadPool(), ProcessPool(config.options.task_processes))
        self.client = Client(databases.own, **common)
        adding = databases.sync_own
        self.sync_client = None if adding is None else sync.Client(adding, **common)

    @property
    def has_pool(self) -> bool:
        return hasattr(self, "pool")

    @property
    def has_claimed_jobs(self) -> bool:
        return self.has_pool and self.pool.has_claimed_jobs


@asynccontextmanager
async def build_worker(
    config: WorkerConfig, databases: WorkerConnections, *, once: bool
) -> AsyncIterator[WorkerComponents]:
    """A worker, ready to run; afterwards all that it held is let go, in the right order."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(databases.close)
        parts = WorkerComponents(config, databases)
        stack.enter_context(
            log_events(config.hooks, parts.logger, parts.lease.pool_ids, is_outage=is_outage)
        )
        _check_config(config)
        await _prepare_schema(config, databases)
        await _warn_if_unencrypted(config, databases)
        if parts.lease_service is not None:
            await stack.enter_async_context(parts.lease_service)
        stack.push_async_callback(parts.executors.processes.close)
        stack.callback(parts.executors.threads.close)
        stack.push_async_exit(partial(_shut_down, config, parts))
        deps = await stack.enter_async_context(_run_lifespan(config, parts))
        parts.pool = _build_pool(config, parts, deps, once=once)
        if parts.lease_service is not None:
            parts.lease_service.attach(parts.pool, parts.claimer)
        yield parts


@asynccontextmanager
async def background_tasks(
    config: WorkerConfig, components: WorkerComponents, *, once: bool = False
) -> AsyncIterator[None]:
    """What runs beside the pool, for as long as this lasts."""
    running = [
        asyncio.create_task(each) for each in _iter_background_tasks(config, components, once=once)
    ]
    for task in running:
        task.add_done_callback(partial(_stop_pool_on_error, components.pool))
    try:
        yield
    finally:
        await _cancel_all(running)


async def _cancel_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks until all have ended.

    Before Python 3.12, asyncio.wait_for can lose a cancellation.
    """
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=CANCEL_RETRY_SECONDS)


def _iter_background_tasks(
    config: WorkerConfig, components: WorkerComponents, *, once: bool
) -> Iterator[Coroutine[Any, Any, None]]:
    if components.lease_service is not None:
        yield components.lease_service.build_lease_monitor().run()
        yield components.claimer.run()
    if once:
        return
    if (
        components.lease_service is not None
        and (sweeper := components.lease_service.build_rescuer()) is not None
    ):
        yield sweeper.run()
    yield build_stale_locks(config, components).run()
    if config.options.listen:
        yield _build_listener(config, components).run()
    if config.cron_items is not None:
        yield CronScheduler(components.databases.own, config.cron_items, config.hooks).run()


async def rescue_once(components: WorkerComponents) -> None:
    """Take the jobs of dead pools, if this worker shall."""
    if (
        components.lease_service is not None
        and (sweeper := components.lease_service.build_rescuer()) is not None
    ):
        await sweeper.rescue_at_start()


def build_stale_locks(config: WorkerConfig, components: WorkerComponents) -> StaleLocks:
    return StaleLocks(
        components.slow_query_database,
        components.lease,
        config.hooks,
        min_interval=config.options.min_reset_locked_interval,
        max_interval=config.options.max_reset_locked_interval,
        clock=config.clock,
        claimed=components.claimer.claimed_jobs,
    )


def _check_config(config: WorkerConfig) -> None:
    reject_in_task_process()
    if not config.tasks:
        raise ConfigurationError("there are no tasks: what shall this worker run?")
    for task in config.tasks.values():
        if task.runs_in_process:
            locate_task(task)
            if sys.platform == "win32":
                raise ConfigurationError(f"task {task.identifier!r}: no processes on Windows")
    for item in config.cron_items() if config.cron_items is not None else ():
        if item.task not in config.tasks:
            config.logger.warning(
                "cron item %r is of task %r, which this worker does not have",
                item.identifier,
                item.task,
            )
    if config.options.max_pool_size < config.options.concurrency:
        config.logger.warning(
            "max_pool_size is %s for %s jobs at once: tasks may wait for a connection",
            config.options.max_pool_size,
            config.options.concurrency,
        )
    size = None if config.options.local_queue is None else config.options.local_queue.size
    if size is not None and size < config.options.concurrency:
        config.logger.warning(
            "local_queue.size is %s for %s jobs at once", size, config.options.concurrency
        )
    if get_psycopg_implementation() == "python":
        config.logger.warning("psycopg runs in pure Python, several times slower: install [binary]")


async def _prepare_schema(config: WorkerConfig, databases: WorkerConnections) -> None:
    schemas = databases.tasks.schemas
    if isinstance(databases.own, ExternalConnectionDatabase):
        # Whoever lends a connection in a transaction knows what is there.
        return
    if not config.migrate:
        await run_plan(databases.tasks, plan_check_schema(schemas))
        return
    async with config.hooks.around_async(Migrating(schema=schemas.shared)):
        # Not on the worker's own connections, whose statements must be quick.
        await run_plan(databases.tasks, plan_migrate(schemas))
        return
    raise ConfigurationError(NOT_MIGRATED_MESSAGE)


async def _warn_if_unencrypted(config: WorkerConfig, databases: WorkerConnections) -> None:
    # A pool or a connection of the caller is set up by the caller.
    if not isinstance(databases.tasks, PsycopgDatabase):
        return
    # The connection that the schema was looked at with.
    async with databases.tasks.connection() as connection:
        risk = find_plaintext_risk(connection.raw.info)
    if risk is not None:
        config.logger.warning(
            "connection may fall back to plain text (%s): require TLS with sslmode=verify-full",
            risk,
        )


def _build_pool(
    config: WorkerConfig, components: WorkerComponents, deps: Any, *, once: bool
) -> WorkerPool:
    options = config.options
    own = components.databases.own
    payloads = _build_payloads(config, components)
    components.claimer = Claimer(
        own,
        components.lease,
        config.tasks,
        forbidden_flags=config.forbidden_flags,
        clock=config.clock,
        slow_database=components.slow_query_database,
        slow_database_at_shutdown=components.slow_query_database_at_shutdown,
        # A lock timeout would end a caller's transaction.
        waits_for_register_lock=isinstance(own, ExternalConnectionDatabase),
        payload_budget=payloads,
    )
    settler = Completer(
        own,
        components.lease,
        config.hooks,
        claimed_jobs=components.claimer.claimed_jobs,
        fetch_lock=components.claimer.fetch_lock,
        interrupted_delay=options.interrupted_job_retry_delay,
        # In a caller's transaction nothing can be tried again.
        can_retry=not isinstance(own, ExternalConnectionDatabase),
    )
    batches = _build_batchers(config, components, settler)
    recovery = options.recovery or RecoveryOptions()
    runaways = RunawayTracker(config.hooks, options.max_runaway_threads)
    components.claimer.paused_tasks = runaways.paused_tasks
    starts = StartGuard(
        own,
        components.lease,
        config.hooks,
        max_crashes=recovery.max_crashes,
        paused_tasks=runaways.paused_tasks,
        payload_budget=payloads,
    )
    source = _build_source(config, components, settler, once=once)
    cancellation = Cancellation()
    surroundings = PoolResources(
        deps=deps,
        logger=components.logger,
        cancellation=cancellation,
        database=components.databases.tasks,
        client=components.client,
        sync_database=components.databases.sync_tasks,
        sync_client=components.sync_client,
        claimed_jobs=components.claimer.claimed_jobs,
        runaways=runaways,
    )
    workers = [
        Worker(
            source=source,
            start_guard=starts,
            completer=settler,
            batchers=batches,
            tasks=config.tasks,
            resources=surroundings,
            executors=components.executors,
            hooks=config.hooks,
        )
        for _ in range(options.concurrency)
    ]
    pool = WorkerPool(
        components.lease,
        source,
        workers,
        batches,
        cancellation,
        config.hooks,
        tasks=config.tasks,
        cancel_after=options.cancel_after,
        shutdown_timeout=options.shutdown_timeout,
    )
    runaways.on_resumed = pool.wake
    return pool


def _build_payloads(config: WorkerConfig, components: WorkerComponents) -> PayloadBudget:
    queue = config.options.local_queue or LocalQueueOptions()
    # Not on the worker's own connections, whose statements must be quick.
    return PayloadBudget(
        components.databases.tasks,
        max_bytes=queue.max_bytes,
        max_payload_bytes=config.options.max_payload_bytes,
        is_stopping=lambda: components.pool.is_stopping,
    )


def _build_batchers(
    config: WorkerConfig, components: WorkerComponents, completer: Completer
) -> CompletionBatchers:
    if isinstance(components.databases.own, ExternalConnectionDatabase):
        # On a caller's one connection nothing happens beside anything else.
        return CompletionBatchers(completer)
    return CompletionBatchers(
        completer,
        complete_delay=config.options.complete_batch_delay,
        fail_delay=config.options.fail_batch_delay,
    )


def _build_source(
    config: WorkerConfig, components: WorkerComponents, completer: Completer, *, once: bool
) -> JobSource:
    queue = config.options.local_queue
    common: dict[str, Any] = {"poll_interval": config.options.poll_interval, "once": once}
    if queue is None or isinstance(components.databases.own, ExternalConnectionDatabase):
        return DirectSource(components.claimer, completer, config.hooks, **common)
    if queue.size is None:
        return PrefetchSource(
            components.claimer, completer, config.hooks, max_bytes=queue.max_bytes, **common
        )
    return LocalQueue(components.claimer, completer, config.hooks, queue, size=queue.size, **common)


def _build_listener(config: WorkerConfig, components: WorkerComponents) -> NotificationListener:
    return NotificationListener(
        components.databases.own,
        components.lease,
        config.hooks,
        on_jobs=components.pool.wake,
        on_migration=partial(_check_schema_level, config, components),
    )


async def _check_schema_level(config: WorkerConfig, components: WorkerComponents) -> None:
    """A notification is no proof, as anybody can send one; the ledger is."""
    try:
        ledger = await components.databases.own.run(get_ledger())
    except Exception as error:
        components.logger.debug("the ledger could not be read: %s", format_error_line(error))
        return
    if ledger.breaking_level > LATEST_LEVEL:
        components.pool.stop_on_error(SchemaTooNew(config.options.schema, ledger.breaking_level))


def _stop_pool_on_error(pool: WorkerPool, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        pool.stop_on_error(error)


async def _shut_down(
    config: WorkerConfig,
    components: WorkerComponents,
    _kind: type[BaseException] | None,
    original_error: BaseException | None,
    _trace: TracebackType | None,
) -> None:
    """The last writes, immediately before the end."""
    try:
        if components.has_pool:
            await components.pool.release_remaining()
    except JobsLeftLocked as error:
        if original_error is None:
            raise
        # What came first is what the caller must hear of.
        original_error.add_note(str(error))
        job_ids = ", ".join(map(str, error.job_ids))
        components.logger.error(
            "how jobs ended could not be written, they stay locked: %s", job_ids
        )
    finally:
        if components.has_pool:
            await _release_orphaned_claims(config, components)
            config.hooks.emit(RunnerStopped(pool_id=components.pool.id))
        await config.hooks.drain(LISTENER_DRAIN_TIMEOUT)


async def _release_orphaned_claims(config: WorkerConfig, components: WorkerComponents) -> None:
    """Hand back what a last fetch may have locked whose answer never came."""
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            components.claimer.forget_all_but(components.pool.claimed_ids)
            if components.lease_service is not None:
                components.claimer.mark_orphaned()
            await components.claimer.release_orphaned_claims(at_once=True)
    except Exception as error:
        components.logger.warning(
            "jobs of the last fetch may stay locked: %s", format_error_line(error)
        )


@asynccontextmanager
async def _run_lifespan(config: WorkerConfig, components: WorkerComponents) -> AsyncIterator[Any]:
    """The lifespan, whose end holds up neither jobs nor who wants to leave at once."""
    limit = asyncio.timeout(None)
    hurry: asyncio.Task[None] | None = None
    try:
        async with limit, config.lifespan() as deps:
            try:
                yield deps
            finally:
                hurry = asyncio.create_task(_limit_lifespan_exit(limit, components))
    except TimeoutError:
        if not limit.expired():
            raise
        components.logger.warning("the lifespan took too long to end and was cancelled")
    finally:
        if hurry is not None:
            hurry.cancel()


async def _limit_lifespan_exit(limit: asyncio.Timeout, components: WorkerComponents) -> None:
    if components.has_pool and not components.has_claimed_jobs:
        await components.pool.forced.wait()
    limit.reschedule(asyncio.get_running_loop().time() + LIFESPAN_EXIT_SECONDS)

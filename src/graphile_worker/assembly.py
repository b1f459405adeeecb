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
from graphile_worker.client import Client
from graphile_worker.clock import Clock, SystemClock
from graphile_worker.cron.scheduler import CronScheduler
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.db.borrowed import BorrowedDatabase
from graphile_worker.db.conninfo import plain_text_risk
from graphile_worker.db.database import Answering, perform
from graphile_worker.db.migrate import checking, migrating
from graphile_worker.db.patient import PatientDatabase
from graphile_worker.db.psycopg import PsycopgDatabase, implementation
from graphile_worker.db.reserved import WorkerDatabases
from graphile_worker.db.retry import is_outage
from graphile_worker.error_text import error_line
from graphile_worker.errors import ConfigurationError, JobsLeftLocked, SchemaTooNew
from graphile_worker.events import Migrating, RunnerStopped
from graphile_worker.hooks import NOTHING_MIGRATED, Hooks
from graphile_worker.lease import Lease
from graphile_worker.lifeline import Lifeline
from graphile_worker.logs import Logger
from graphile_worker.maintenance.unlock import StaleLocks
from graphile_worker.options import LocalQueueOptions, RecoveryOptions, WorkerOptions
from graphile_worker.reporting import log_events
from graphile_worker.sql.migrations import LEVEL, get_ledger
from graphile_worker.tasks import Task, Tasks
from graphile_worker.tasks.importing import locate
from graphile_worker.worker.batches import Batches
from graphile_worker.worker.child import refuse_in_child
from graphile_worker.worker.children import Children
from graphile_worker.worker.claims import Claims, ForbiddenFlags
from graphile_worker.worker.context import Cancellation, Surroundings
from graphile_worker.worker.listener import Listener
from graphile_worker.worker.local_queue import LocalQueue
from graphile_worker.worker.payloads import Payloads
from graphile_worker.worker.pool import WRITE_WITHIN, WorkerPool
from graphile_worker.worker.prefetch import Prefetch
from graphile_worker.worker.run_job import Places
from graphile_worker.worker.runaways import Runaways
from graphile_worker.worker.settle import Settler
from graphile_worker.worker.source import DirectSource, JobSource
from graphile_worker.worker.starts import Starts
from graphile_worker.worker.threads import Threads
from graphile_worker.worker.worker import Worker

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]

# Listeners that take longer are cancelled and named.
DRAIN_WITHIN = timedelta(seconds=3)

# A lifespan may take so long to end while there are jobs that wait to be handed back.
LIFESPAN_WITHIN = 1.0

# Seconds before background tasks that have not ended are cancelled again.
CANCEL_AGAIN_AFTER = 2.0


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """All that a worker is made from, but for its database."""

    options: WorkerOptions
    tasks: Mapping[str, Task[..., Any]]
    definitions: Tasks[Any] | None = None
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


class Parts:
    """What was built; the pool last."""

    claims: Claims
    pool: WorkerPool

    def __init__(self, plan: Blueprint, databases: WorkerDatabases) -> None:
        common: dict[str, Any] = {
            "schema": plan.options.schema,
            "ext_schema": plan.options.ext_schema,
            "use_local_time": plan.options.use_local_time,
            "hooks": plan.hooks,
            "tasks": plan.definitions,
        }
        self.databases = databases
        self.patient_database: Answering = databases.own
        self.patient_at_end: Answering = databases.own
        if not isinstance(databases.own, BorrowedDatabase):
            self.patient_database = PatientDatabase(databases.maintenance or databases.own)
            self.patient_at_end = PatientDatabase(databases.own)
        recovery = plan.options.recovery
        self.lease = Lease(None if recovery is None else recovery.threshold)
        self.logger = plan.logger.scope(pid=os.getpid(), pool_id=self.lease.pool_id)
        self.lifeline: Lifeline | None = None
        if not isinstance(databases.own, BorrowedDatabase):
            # What is locked in a caller's transaction is unlocked with it.
            self.lifeline = Lifeline(
                self.lease, databases, plan.hooks, self.logger, plan.options, plan.tasks
            )
        self.places = Places(Threads(), Children(plan.options.task_processes))
        self.client = Client(databases.own, **common)
        adding = databases.blocking_own
        self.blocking_client = None if adding is None else sync.Client(adding, **common)

    @property
    def has_pool(self) -> bool:
        return hasattr(self, "pool")

    @property
    def holds_jobs(self) -> bool:
        return self.has_pool and self.pool.holds_jobs


@asynccontextmanager
async def assembled(
    plan: Blueprint, databases: WorkerDatabases, *, once: bool
) -> AsyncIterator[Parts]:
    """A worker, ready to run; afterwards all that it held is let go, in the right order."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(databases.close)
        parts = Parts(plan, databases)
        stack.enter_context(
            log_events(plan.hooks, parts.logger, parts.lease.ids, is_outage=is_outage)
        )
        _check(plan)
        await _prepare_schema(plan, databases)
        await _warn_of_plain_text(plan, databases)
        if parts.lifeline is not None:
            await stack.enter_async_context(parts.lifeline)
        stack.push_async_callback(parts.places.children.close)
        stack.callback(parts.places.threads.close)
        stack.push_async_exit(partial(_finish, plan, parts))
        deps = await stack.enter_async_context(_limited(plan, parts))
        parts.pool = _pool(plan, parts, deps, once=once)
        if parts.lifeline is not None:
            parts.lifeline.watch(parts.pool, parts.claims)
        yield parts


@asynccontextmanager
async def beside(plan: Blueprint, parts: Parts, *, once: bool = False) -> AsyncIterator[None]:
    """What runs beside the pool, for as long as this lasts."""
    running = [asyncio.create_task(each) for each in _beside(plan, parts, once=once)]
    for task in running:
        task.add_done_callback(partial(_must_not_end, parts.pool))
    try:
        yield
    finally:
        await _end_all(running)


async def _end_all(running: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks until all have ended.

    Before Python 3.12, asyncio.wait_for can lose a cancellation.
    """
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_AFTER)


def _beside(plan: Blueprint, parts: Parts, *, once: bool) -> Iterator[Coroutine[Any, Any, None]]:
    if parts.lifeline is not None:
        yield parts.lifeline.fence().run()
        yield parts.claims.run()
    if once:
        return
    if parts.lifeline is not None and (sweeper := parts.lifeline.sweeper()) is not None:
        yield sweeper.run()
    yield stale_locks(plan, parts).run()
    if plan.options.listen:
        yield _listener(plan, parts).run()
    if plan.cron_items is not None:
        yield CronScheduler(parts.databases.own, plan.cron_items, plan.hooks).run()


async def recover_once(parts: Parts) -> None:
    """Take the jobs of dead pools, if this worker shall."""
    if parts.lifeline is not None and (sweeper := parts.lifeline.sweeper()) is not None:
        await sweeper.sweep_at_start()


def stale_locks(plan: Blueprint, parts: Parts) -> StaleLocks:
    return StaleLocks(
        parts.patient_database,
        parts.lease,
        plan.hooks,
        least=plan.options.min_reset_locked_interval,
        most=plan.options.max_reset_locked_interval,
        clock=plan.clock,
        held=parts.claims.held,
    )


def _check(plan: Blueprint) -> None:
    refuse_in_child()
    if not plan.tasks:
        raise ConfigurationError("there are no tasks: what shall this worker run?")
    for task in plan.tasks.values():
        if task.runs_in_process:
            locate(task)
            if sys.platform == "win32":
                raise ConfigurationError(f"task {task.identifier!r}: no processes on Windows")
    for item in plan.cron_items() if plan.cron_items is not None else ():
        if item.task not in plan.tasks:
            plan.logger.warning(
                "cron item %r is of task %r, which this worker does not have",
                item.identifier,
                item.task,
            )
    if plan.options.max_pool_size < plan.options.concurrency:
        plan.logger.warning(
            "max_pool_size is %s for %s jobs at once: tasks may wait for a connection",
            plan.options.max_pool_size,
            plan.options.concurrency,
        )
    size = None if plan.options.local_queue is None else plan.options.local_queue.size
    if size is not None and size < plan.options.concurrency:
        plan.logger.warning(
            "local_queue.size is %s for %s jobs at once", size, plan.options.concurrency
        )
    if implementation() == "python":
        plan.logger.warning("psycopg runs in pure Python, several times slower: install [binary]")


async def _prepare_schema(plan: Blueprint, databases: WorkerDatabases) -> None:
    schemas = databases.tasks.schemas
    if isinstance(databases.own, BorrowedDatabase):
        # Whoever lends a connection in a transaction knows what is there.
        return
    if not plan.migrate:
        await perform(databases.tasks, checking(schemas))
        return
    async with plan.hooks.around_async(Migrating(schema=schemas.shared)):
        # Not on the worker's own connections, whose statements must be quick.
        await perform(databases.tasks, migrating(schemas))
        return
    raise ConfigurationError(NOTHING_MIGRATED)


async def _warn_of_plain_text(plan: Blueprint, databases: WorkerDatabases) -> None:
    # A pool or a connection of the caller is set up by the caller.
    if not isinstance(databases.tasks, PsycopgDatabase):
        return
    # The connection that the schema was looked at with.
    async with databases.tasks.connection() as connection:
        risk = plain_text_risk(connection.raw.info)
    if risk is not None:
        plan.logger.warning(
            "connection may fall back to plain text (%s): require TLS with sslmode=verify-full",
            risk,
        )


def _pool(plan: Blueprint, parts: Parts, deps: Any, *, once: bool) -> WorkerPool:
    options = plan.options
    own = parts.databases.own
    payloads = _payloads(plan, parts)
    parts.claims = Claims(
        own,
        parts.lease,
        plan.tasks,
        forbidden_flags=plan.forbidden_flags,
        clock=plan.clock,
        patient_database=parts.patient_database,
        patient_at_end=parts.patient_at_end,
        # A lock timeout would end a caller's transaction.
        waits_for_names=isinstance(own, BorrowedDatabase),
        payloads=payloads,
    )
    settler = Settler(
        own,
        parts.lease,
        plan.hooks,
        held=parts.claims.held,
        fetching=parts.claims.fetching,
        interrupted_delay=options.interrupted_job_retry_delay,
        # In a caller's transaction nothing can be tried again.
        again=not isinstance(own, BorrowedDatabase),
    )
    batches = _batches(plan, parts, settler)
    recovery = options.recovery or RecoveryOptions()
    runaways = Runaways(plan.hooks, options.max_runaway_threads)
    parts.claims.paused = runaways.paused
    starts = Starts(
        own,
        parts.lease,
        plan.hooks,
        max_recoveries=recovery.max_recoveries,
        paused=runaways.paused,
        payloads=payloads,
    )
    source = _source(plan, parts, settler, once=once)
    cancellation = Cancellation()
    surroundings = Surroundings(
        deps=deps,
        logger=parts.logger,
        cancellation=cancellation,
        database=parts.databases.tasks,
        client=parts.client,
        blocking_database=parts.databases.blocking_tasks,
        blocking_client=parts.blocking_client,
        held=parts.claims.held,
        runaways=runaways,
    )
    workers = [
        Worker(
            source=source,
            starts=starts,
            settler=settler,
            batches=batches,
            tasks=plan.tasks,
            surroundings=surroundings,
            places=parts.places,
            hooks=plan.hooks,
        )
        for _ in range(options.concurrency)
    ]
    pool = WorkerPool(
        parts.lease,
        source,
        workers,
        batches,
        cancellation,
        plan.hooks,
        tasks=plan.tasks,
        abort_after=options.abort_after,
        stop_after=options.stop_after,
    )
    runaways.on_resumed = pool.nudge
    return pool


def _payloads(plan: Blueprint, parts: Parts) -> Payloads:
    queue = plan.options.local_queue or LocalQueueOptions()
    # Not on the worker's own connections, whose statements must be quick.
    return Payloads(
        parts.databases.tasks,
        max_bytes=queue.max_bytes,
        max_payload_bytes=plan.options.max_payload_bytes,
        is_stopping=lambda: parts.pool.is_stopping,
    )


def _batches(plan: Blueprint, parts: Parts, settler: Settler) -> Batches:
    if isinstance(parts.databases.own, BorrowedDatabase):
        # On a caller's one connection nothing happens beside anything else.
        return Batches(settler)
    return Batches(
        settler,
        complete_delay=plan.options.complete_batch_delay,
        fail_delay=plan.options.fail_batch_delay,
    )


def _source(plan: Blueprint, parts: Parts, settler: Settler, *, once: bool) -> JobSource:
    queue = plan.options.local_queue
    common: dict[str, Any] = {"poll_interval": plan.options.poll_interval, "once": once}
    if queue is None or isinstance(parts.databases.own, BorrowedDatabase):
        return DirectSource(parts.claims, settler, plan.hooks, **common)
    if queue.size is None:
        return Prefetch(parts.claims, settler, plan.hooks, max_bytes=queue.max_bytes, **common)
    return LocalQueue(parts.claims, settler, plan.hooks, queue, size=queue.size, **common)


def _listener(plan: Blueprint, parts: Parts) -> Listener:
    return Listener(
        parts.databases.own,
        parts.lease,
        plan.hooks,
        on_jobs=parts.pool.nudge,
        on_migration=partial(_look_at_ledger, plan, parts),
    )


async def _look_at_ledger(plan: Blueprint, parts: Parts) -> None:
    """A notification is no proof, as anybody can send one; the ledger is."""
    try:
        ledger = await parts.databases.own.run(get_ledger())
    except Exception as error:
        parts.logger.debug("the ledger could not be read: %s", error_line(error))
        return
    if ledger.breaking_level > LEVEL:
        parts.pool.stop_because_of(SchemaTooNew(plan.options.schema, ledger.breaking_level))


def _must_not_end(pool: WorkerPool, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        pool.stop_because_of(error)


async def _finish(
    plan: Blueprint,
    parts: Parts,
    _kind: type[BaseException] | None,
    before: BaseException | None,
    _trace: TracebackType | None,
) -> None:
    """The last writes, immediately before the end."""
    try:
        if parts.has_pool:
            await parts.pool.hand_back_the_rest()
    except JobsLeftLocked as error:
        if before is None:
            raise
        # What came first is what the caller must hear of.
        before.add_note(str(error))
        job_ids = ", ".join(map(str, error.job_ids))
        parts.logger.error("how jobs ended could not be written, they stay locked: %s", job_ids)
    finally:
        if parts.has_pool:
            await _settle_doubts(plan, parts)
            plan.hooks.emit(RunnerStopped(pool_id=parts.pool.id))
        await plan.hooks.drain(DRAIN_WITHIN)


async def _settle_doubts(plan: Blueprint, parts: Parts) -> None:
    """Hand back what a last fetch may have locked whose answer never came."""
    try:
        async with asyncio.timeout(WRITE_WITHIN):
            parts.claims.forget_all_but(parts.pool.held_ids)
            if parts.lifeline is not None:
                parts.claims.suspect()
            await parts.claims.settle_doubts(at_once=True)
    except Exception as error:
        parts.logger.warning("jobs of the last fetch may stay locked: %s", error_line(error))


@asynccontextmanager
async def _limited(plan: Blueprint, parts: Parts) -> AsyncIterator[Any]:
    """The lifespan, whose end holds up neither jobs nor who wants to leave at once."""
    limit = asyncio.timeout(None)
    hurry: asyncio.Task[None] | None = None
    try:
        async with limit, plan.lifespan() as deps:
            try:
                yield deps
            finally:
                hurry = asyncio.create_task(_hurry(limit, parts))
    except TimeoutError:
        if not limit.expired():
            raise
        parts.logger.warning("the lifespan took too long to end and was cancelled")
    finally:
        if hurry is not None:
            hurry.cancel()


async def _hurry(limit: asyncio.Timeout, parts: Parts) -> None:
    if parts.has_pool and not parts.holds_jobs:
        await parts.pool.forced.wait()
    limit.reschedule(asyncio.get_running_loop().time() + LIFESPAN_WITHIN)

"""What a task receives besides its payload."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from graphile_worker import sync
from graphile_worker._db.database import ConnectionProvider, Database
from graphile_worker._db.dict_rows import fetch_rows, fetch_rows_sync
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    complete_claimed_jobs,
    find_releasable_queues,
)
from graphile_worker._sql.query import Query
from graphile_worker._support.logs import Logger
from graphile_worker._worker.outcomes import Outcome
from graphile_worker._worker.overruns import RunawayTracker
from graphile_worker._worker.reporting import build_job_logger
from graphile_worker._worker.retry_decision import NextAttempt
from graphile_worker.client import Client
from graphile_worker.errors import ConfigurationError, JobLockLostError
from graphile_worker.events import JobOverran
from graphile_worker.jobs import Job, JobKeyMode, JobKeyModeName, JobSpec, RunAt
from graphile_worker.tasks import CronRun, read_cron_run


class Cancellation:
    """The request to tasks to give up, all of them or one; for a loop and for threads."""

    def __init__(self) -> None:
        self.is_requested = False
        self._changed = asyncio.Event()
        self._thread_condition = threading.Condition()

    def request(self) -> None:
        """Ask all."""
        self.is_requested = True
        self.recheck()

    def recheck(self) -> None:
        """Let all who wait see whether they are asked."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        with self._thread_condition:
            self._thread_condition.notify_all()

    async def wait(self, is_cancelled: Callable[[], bool], within: timedelta | None) -> bool:
        try:
            async with asyncio.timeout(_to_seconds(within)):
                while not is_cancelled():
                    await self._changed.wait()
        except TimeoutError:
            return is_cancelled()
        return True

    def wait_in_thread(self, is_cancelled: Callable[[], bool], within: timedelta | None) -> bool:
        seconds = _to_seconds(within)
        with self._thread_condition:
            return self._thread_condition.wait_for(is_cancelled, seconds)


class PoolResources(NamedTuple):
    """What all jobs of a pool share."""

    deps: Any
    logger: Logger
    cancellation: Cancellation
    database: Database
    """Connections for tasks, not those of the worker."""
    client: Client
    sync_database: ConnectionProvider | None
    sync_client: sync.Client | None
    claimed_jobs: Mapping[int, ClaimedJob] = MappingProxyType({})
    """All that the pool has locked."""
    runaways: RunawayTracker | None = None
    """Where functions that run past their timeout are counted."""


class Context:
    """For async tasks."""

    # Of the class until they change, as one is made for every job.
    is_committing = False
    """Is its end being written by the task's own transaction?"""
    is_committed = False
    """Was it?"""
    is_interrupted = False
    """Did the worker itself cancel the task?"""
    is_released = False
    """Was the job handed back while it still ran? Then its end does not matter any more."""
    is_revoked = False
    """Does somebody else have the job, perhaps? A request to give up."""
    has_items = False
    """Is it a batch? Then what fails of it has to stay, and its task cannot end the job."""
    next_attempt: NextAttempt | None = None
    """When it is tried again, if another process has said so."""
    is_discarded = False
    """Did this pool take the job again? Then what comes of this run must not be written."""
    timeout_handle: asyncio.Timeout | None = None
    """What ends the task at its timeout, if it has one."""
    overrun_event: JobOverran | None = None
    """Does its function run past its timeout in a thread, where it cannot be stopped?"""
    worker_task: asyncio.Task[Any] | None = None
    """The asyncio task of its worker, which waits for that of the job."""
    job_task: asyncio.Task[None] | None = None
    """The asyncio task of the job."""
    outcome: Outcome | None = None
    """How the job ended, once its task did."""

    def __init__(self, claimed: ClaimedJob, worker_id: str, resources: PoolResources) -> None:
        self.claimed = claimed
        self.worker_id = worker_id
        self._resources = resources

    @property
    def job(self) -> Job:
        return self.claimed.job

    @property
    def sync_context(self) -> "SyncContext":
        """The same for a plain function."""
        return SyncContext(self, self._resources)

    @property
    def deps(self) -> Any:
        return self._resources.deps

    @property
    def pool_id(self) -> str:
        return self.claimed.pool_id

    @property
    def queue_name(self) -> str | None:
        return self.claimed.job.queue_name

    @property
    def schema(self) -> str:
        return self._resources.database.schemas.shared

    @property
    def cron(self) -> CronRun | None:
        return read_cron_run(self.claimed.job)

    @property
    def cancelled(self) -> bool:
        has_reason = self.is_revoked or self.overrun_event is not None
        return has_reason or self._resources.cancellation.is_requested

    @property
    def is_worker_cancelled(self) -> bool:
        """Is its worker being cancelled, because the program ends?"""
        return self.worker_task is not None and self.worker_task.cancelling() > 0

    @property
    def logger(self) -> Logger:
        """A logger whose lines carry the ids of this job."""
        around = self._resources
        return build_job_logger(around.logger, self.pool_id, self.job, worker_id=self.worker_id)

    def mark_overrun(self, timeout: timedelta) -> None:
        """Its timeout is over. It is asked to give up, as that is all that can be done."""
        self.overrun_event = JobOverran(
            pool_id=self.pool_id, worker_id=self.worker_id, job=self.job, timeout=timeout
        )
        if self._resources.runaways is not None:
            self._resources.runaways.add(self.overrun_event)
        self._resources.cancellation.recheck()

    def clear_overrun(self) -> None:
        """Its function has returned after all."""
        if self.overrun_event is not None and self._resources.runaways is not None:
            self._resources.runaways.remove(self.overrun_event)

    async def wait_cancelled(self, within: timedelta | None = None) -> bool:
        return await self._resources.cancellation.wait(lambda: self.cancelled, within)

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        queue_name: str | None = None,
        run_at: RunAt | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: JobKeyMode | JobKeyModeName | None = None,
        flags: Collection[str] | None = None,
        conn: object = None,
    ) -> Job:
        return await self._resources.client.add_job(
            identifier,
            payload,
            queue_name=queue_name,
            run_at=run_at,
            max_attempts=max_attempts,
            priority=priority,
            job_key=job_key,
            job_key_mode=job_key_mode,
            flags=flags,
            conn=conn,
        )

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        return await self._resources.client.add_jobs(specs, conn=conn)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with self._resources.database.connection() as connection:
            yield connection.raw

    async def query(self, statement: str, args: Any = None) -> list[dict[str, Any]]:
        async with self.connection() as connection:
            return await fetch_rows(connection, statement, args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction that also ends the job: its effects happen exactly once, or not at all."""
        _reject_batch(self)
        async with self._resources.database.transaction() as connection:
            yield connection.raw
            self.is_committing = True
            _check_still_owned(await connection.run(self._build_completion_query()), self.claimed)
        self.is_committed = True

    def _build_completion_query(self) -> Query[set[int]]:
        queues = find_releasable_queues([self.claimed], self._resources.claimed_jobs)
        return complete_claimed_jobs(self.pool_id, [self.job.id], queues)


class SyncContext:
    """For plain functions, which run in a thread: the same without await."""

    def __init__(self, context: Context, resources: PoolResources) -> None:
        self._context = context
        self._resources = resources

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def wait_cancelled(self, within: timedelta | None = None) -> bool:
        return self._resources.cancellation.wait_in_thread(lambda: self._context.cancelled, within)

    def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        queue_name: str | None = None,
        run_at: RunAt | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: JobKeyMode | JobKeyModeName | None = None,
        flags: Collection[str] | None = None,
        conn: object = None,
    ) -> Job:
        return self._get_client().add_job(
            identifier,
            payload,
            queue_name=queue_name,
            run_at=run_at,
            max_attempts=max_attempts,
            priority=priority,
            job_key=job_key,
            job_key_mode=job_key_mode,
            flags=flags,
            conn=conn,
        )

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        return self._get_client().add_jobs(specs, conn=conn)

    @contextmanager
    def connection(self) -> Iterator[Any]:
        with self._get_database().connection() as connection:
            yield connection.raw

    def query(self, statement: str, args: Any = None) -> list[dict[str, Any]]:
        with self.connection() as connection:
            return fetch_rows_sync(connection, statement, args)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A transaction that also ends the job: its effects happen exactly once, or not at all."""
        _reject_batch(self._context)
        with self._get_database().transaction() as connection:
            yield connection.raw
            self._context.is_committing = True
            _check_still_owned(
                connection.run(self._context._build_completion_query()), self._context.claimed
            )
        self._context.is_committed = True

    def _get_client(self) -> sync.Client:
        if self._resources.sync_client is None:
            raise _build_no_sync_error()
        return self._resources.sync_client

    def _get_database(self) -> ConnectionProvider:
        if self._resources.sync_database is None:
            raise _build_no_sync_error()
        return self._resources.sync_database


def _reject_batch(context: Context) -> None:
    if context.has_items:
        raise TypeError(
            "ctx.transaction() would end the job with all its items, also those that fail: use "
            "ctx.connection() in a batch task"
        )


def _to_seconds(duration: timedelta | None) -> float | None:
    if duration is not None and not isinstance(duration, timedelta):
        raise TypeError(f"expected a timedelta, got {duration!r}")
    return None if duration is None else duration.total_seconds()


def _build_no_sync_error() -> ConfigurationError:
    return ConfigurationError(
        "this worker was lent an async connection or pool, which a plain function cannot use: "
        "write the task as async def, or give the worker a connection string"
    )


def _check_still_owned(still_owned_ids: set[int], claimed: ClaimedJob) -> None:
    # Raised inside the transaction, so that what the task did in it is rolled back.
    if claimed.job.id not in still_owned_ids:
        raise JobLockLostError(f"job {claimed.job.id} is no longer held by this pool")

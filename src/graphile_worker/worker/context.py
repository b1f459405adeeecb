"""What a task receives besides its payload."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from graphile_worker import sync
from graphile_worker.client import Client
from graphile_worker.db.database import BlockingLender, Database
from graphile_worker.db.querying import fetch_rows, fetch_rows_blocking
from graphile_worker.errors import ConfigurationError, JobNotHeld
from graphile_worker.events import JobOverran
from graphile_worker.jobs import Job, JobKeyMode, JobKeyModeName, JobSpec, When
from graphile_worker.logs import Logger
from graphile_worker.reporting import job_logger
from graphile_worker.sql.holding import HeldJob, finish_jobs, queues_to_free
from graphile_worker.sql.query import Query
from graphile_worker.tasks import CronRun, cron_run_of
from graphile_worker.worker.outcomes import Outcome
from graphile_worker.worker.retrying import NextAttempt
from graphile_worker.worker.runaways import Runaways


class Cancellation:
    """The request to tasks to give up, all of them or one; for a loop and for threads."""

    def __init__(self) -> None:
        self.requested = False
        self._changed = asyncio.Event()
        self._in_threads = threading.Condition()

    def request(self) -> None:
        """Ask all."""
        self.requested = True
        self.look_again()

    def look_again(self) -> None:
        """Let all who wait see whether they are asked."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        with self._in_threads:
            self._in_threads.notify_all()

    async def wait(self, asked: Callable[[], bool], within: timedelta | None) -> bool:
        try:
            async with asyncio.timeout(_seconds(within)):
                while not asked():
                    await self._changed.wait()
        except TimeoutError:
            return asked()
        return True

    def wait_in_thread(self, asked: Callable[[], bool], within: timedelta | None) -> bool:
        seconds = _seconds(within)
        with self._in_threads:
            return self._in_threads.wait_for(asked, seconds)


class Surroundings(NamedTuple):
    """What all jobs of a pool share."""

    deps: Any
    logger: Logger
    cancellation: Cancellation
    database: Database
    """Connections for tasks, not those of the worker."""
    client: Client
    blocking_database: BlockingLender | None
    blocking_client: sync.Client | None
    held: Mapping[int, HeldJob] = MappingProxyType({})
    """All that the pool has locked."""
    runaways: Runaways | None = None
    """Where functions that run past their timeout are counted."""


class Context:
    """For async tasks."""

    # Of the class until they change, as one is made for every job.
    ending = False
    """Is its end being written by the task's own transaction?"""
    written = False
    """Was it?"""
    interrupted = False
    """Did the worker itself cancel the task?"""
    abandoned = False
    """Was the job handed back while it still ran? Then its end does not matter any more."""
    lost = False
    """Does somebody else have the job, perhaps? A request to give up."""
    has_items = False
    """Is it a batch? Then what fails of it has to stay, and its task cannot end the job."""
    following: NextAttempt | None = None
    """When it is tried again, if another process has said so."""
    dropped = False
    """Did this pool take the job again? Then what comes of this run must not be written."""
    limit: asyncio.Timeout | None = None
    """What ends the task at its timeout, if it has one."""
    overran: JobOverran | None = None
    """Does its function run past its timeout in a thread, where it cannot be stopped?"""
    slot: asyncio.Task[Any] | None = None
    """The asyncio task of its worker, which waits for that of the job."""
    running: asyncio.Task[None] | None = None
    """The asyncio task of the job."""
    outcome: Outcome | None = None
    """How the job ended, once its task did."""

    def __init__(self, held: HeldJob, worker_id: str, around: Surroundings) -> None:
        self.held = held
        self.worker_id = worker_id
        self._around = around

    @property
    def job(self) -> Job:
        return self.held.job

    @property
    def blocking(self) -> "BlockingContext":
        """The same for a plain function."""
        return BlockingContext(self, self._around)

    @property
    def deps(self) -> Any:
        return self._around.deps

    @property
    def pool_id(self) -> str:
        return self.held.pool_id

    @property
    def queue_name(self) -> str | None:
        return self.held.job.queue_name

    @property
    def schema(self) -> str:
        return self._around.database.schemas.shared

    @property
    def cron(self) -> CronRun | None:
        return cron_run_of(self.held.job)

    @property
    def cancelled(self) -> bool:
        has_reason = self.lost or self.overran is not None
        return has_reason or self._around.cancellation.requested

    @property
    def is_leaving(self) -> bool:
        """Is its worker being cancelled, because the program ends?"""
        return self.slot is not None and self.slot.cancelling() > 0

    @property
    def logger(self) -> Logger:
        """A logger whose lines carry the ids of this job."""
        around = self._around
        return job_logger(around.logger, self.pool_id, self.job, worker_id=self.worker_id)

    def overrun(self, timeout: timedelta) -> None:
        """Its timeout is over. It is asked to give up, as that is all that can be done."""
        self.overran = JobOverran(
            pool_id=self.pool_id, worker_id=self.worker_id, job=self.job, timeout=timeout
        )
        if self._around.runaways is not None:
            self._around.runaways.add(self.overran)
        self._around.cancellation.look_again()

    def end_overrun(self) -> None:
        """Its function has returned after all."""
        if self.overran is not None and self._around.runaways is not None:
            self._around.runaways.remove(self.overran)

    async def wait_cancelled(self, within: timedelta | None = None) -> bool:
        return await self._around.cancellation.wait(lambda: self.cancelled, within)

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        queue_name: str | None = None,
        run_at: When | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: JobKeyMode | JobKeyModeName | None = None,
        flags: Collection[str] | None = None,
        conn: object = None,
    ) -> Job:
        return await self._around.client.add_job(
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
        return await self._around.client.add_jobs(specs, conn=conn)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with self._around.database.connection() as connection:
            yield connection.raw

    async def query(self, statement: str, args: Any = None) -> list[dict[str, Any]]:
        async with self.connection() as connection:
            return await fetch_rows(connection, statement, args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction that also ends the job: its effects happen exactly once, or not at all."""
        _refuse_items(self)
        async with self._around.database.transaction() as connection:
            yield connection.raw
            self.ending = True
            _check_held(await connection.run(self._finish()), self.held)
        self.written = True

    def _finish(self) -> Query[set[int]]:
        queues = queues_to_free([self.held], self._around.held)
        return finish_jobs(self.pool_id, [self.job.id], queues)


class BlockingContext:
    """For plain functions, which run in a thread: the same without await."""

    def __init__(self, context: Context, around: Surroundings) -> None:
        self._context = context
        self._around = around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def wait_cancelled(self, within: timedelta | None = None) -> bool:
        return self._around.cancellation.wait_in_thread(lambda: self._context.cancelled, within)

    def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        queue_name: str | None = None,
        run_at: When | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: JobKeyMode | JobKeyModeName | None = None,
        flags: Collection[str] | None = None,
        conn: object = None,
    ) -> Job:
        return self._client().add_job(
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
        return self._client().add_jobs(specs, conn=conn)

    @contextmanager
    def connection(self) -> Iterator[Any]:
        with self._database().connection() as connection:
            yield connection.raw

    def query(self, statement: str, args: Any = None) -> list[dict[str, Any]]:
        with self.connection() as connection:
            return fetch_rows_blocking(connection, statement, args)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A transaction that also ends the job: its effects happen exactly once, or not at all."""
        _refuse_items(self._context)
        with self._database().transaction() as connection:
            yield connection.raw
            self._context.ending = True
            _check_held(connection.run(self._context._finish()), self._context.held)
        self._context.written = True

    def _client(self) -> sync.Client:
        if self._around.blocking_client is None:
            raise _nothing_blocking()
        return self._around.blocking_client

    def _database(self) -> BlockingLender:
        if self._around.blocking_database is None:
            raise _nothing_blocking()
        return self._around.blocking_database


def _refuse_items(context: Context) -> None:
    if context.has_items:
        raise TypeError(
            "ctx.transaction() would end the job with all its items, also those that fail: use "
            "ctx.connection() in a batch task"
        )


def _seconds(duration: timedelta | None) -> float | None:
    if duration is not None and not isinstance(duration, timedelta):
        raise TypeError(f"expected a timedelta, got {duration!r}")
    return None if duration is None else duration.total_seconds()


def _nothing_blocking() -> ConfigurationError:
    return ConfigurationError(
        "this worker was lent an async connection or pool, which a plain function cannot use: "
        "write the task as async def, or give the worker a connection string"
    )


def _check_held(finished: set[int], held: HeldJob) -> None:
    # Raised inside the transaction, so that what the task did in it is rolled back.
    if held.job.id not in finished:
        raise JobNotHeld(f"job {held.job.id} is no longer held by this pool")

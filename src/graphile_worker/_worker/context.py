"""The context that a task receives besides its payload."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

from graphile_worker import sync
from graphile_worker._db.database import ConnectionProvider, Database
from graphile_worker._db.dict_rows import fetch_rows, fetch_rows_sync
from graphile_worker._db.retry import is_data_error
from graphile_worker._metrics.recorder import TaskCell
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    complete_and_keep_jobs,
    complete_claimed_jobs,
    find_releasable_queues,
)
from graphile_worker._sql.queries.history import KeptRun
from graphile_worker._sql.query import Query
from graphile_worker._support.error_format import format_error_line
from graphile_worker._support.logs import Logger
from graphile_worker._worker.call_results import build_result_error, encode_result
from graphile_worker._worker.cancellation import Cancellation
from graphile_worker._worker.outcomes import Outcome
from graphile_worker._worker.overruns import RunawayTracker
from graphile_worker._worker.progress import ProgressBuffer, check_progress
from graphile_worker._worker.reporting import build_job_logger
from graphile_worker._worker.retry_decision import NextAttempt
from graphile_worker._worker.run_state import JobRun, RunStep
from graphile_worker.client import Client
from graphile_worker.errors import ConfigurationError, JobLockLostError
from graphile_worker.events import JobOverran
from graphile_worker.jobs import Job, JobOptions, JobSpec
from graphile_worker.results import Retention
from graphile_worker.shards import Shards
from graphile_worker.tasks import CronRun, read_cron_run


class PoolResources(NamedTuple):
    """Resources that all jobs of a pool share."""

    deps: Any
    logger: Logger
    cancellation: Cancellation
    database: Database
    """Connections for tasks, not those of the worker."""
    client: Client | Shards
    sync_database: ConnectionProvider | None
    sync_client: sync.Client | sync.Shards | None
    claimed_jobs: Mapping[int, ClaimedJob] = MappingProxyType({})
    """All jobs that the pool holds."""
    runaways: RunawayTracker | None = None
    """Counts functions that run past their timeout."""
    progress: ProgressBuffer | None = None
    """Receives what tasks report. None without heartbeats, which write it."""


class Context(JobRun):
    """The run of a job, and the context of an async task."""

    # Defaults are on the class, because a context is created for every job.
    is_batch = False
    """Whether the job is a batch, which keeps failed items: its task cannot complete the job."""
    next_attempt: NextAttempt | None = None
    """When to retry, if the task process decided that."""
    timeout_handle: asyncio.Timeout | None = None
    """Ends the task at its timeout, if it has one."""
    overrun_event: JobOverran | None = None
    """Set while the function runs past its timeout in a thread, where it cannot be stopped."""
    worker_task: asyncio.Task[Any] | None = None
    """The asyncio task of the worker, which waits for `job_task`."""
    job_task: asyncio.Task[None] | None = None
    """The asyncio task of the job."""
    outcome: Outcome | None = None
    """How the job ended. Set when its task ends."""
    retention: Retention | None = None
    """What the task keeps of the job, if anything."""
    started_at = 0.0
    """When the run started, by `time.monotonic`. Set if the task keeps something."""
    result: object = None
    """What the task returned."""
    result_text: str | None = None
    """The result as JSON, if the task keeps it."""
    metrics_cell: TaskCell | None = None
    """Where to count the end of the job. None without metrics, or if the job did not start."""

    def __init__(self, claimed: ClaimedJob, worker_id: str, resources: PoolResources) -> None:
        self.claimed = claimed
        self.worker_id = worker_id
        self._resources = resources

    @property
    def job(self) -> Job:
        return self.claimed.job

    @property
    def sync_context(self) -> "SyncContext":
        """Return the context for a plain function."""
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
        return (
            self.should_stop
            or self.overrun_event is not None
            or self._resources.cancellation.is_requested
        )

    @property
    def is_worker_cancelled(self) -> bool:
        """Return whether the worker is cancelled, because the program ends."""
        return self.worker_task is not None and self.worker_task.cancelling() > 0

    @property
    def logger(self) -> Logger:
        """Return a logger whose lines carry the ids of this job."""
        return build_job_logger(
            self._resources.logger, self.pool_id, self.job, worker_id=self.worker_id
        )

    def mark_overrun(self, timeout: timedelta) -> None:
        """Ask a function that reached its timeout to stop, because a thread cannot be stopped."""
        self.overrun_event = JobOverran(
            pool_id=self.pool_id, worker_id=self.worker_id, job=self.job, timeout=timeout
        )
        if self._resources.runaways is not None:
            self._resources.runaways.add(self.overrun_event)
        self._resources.cancellation.recheck()

    def clear_overrun(self) -> None:
        """Record that a function returned after its timeout."""
        if self.overrun_event is not None and self._resources.runaways is not None:
            self._resources.runaways.remove(self.overrun_event)

    async def wait_cancelled(self, within: timedelta | None = None) -> bool:
        return await self._resources.cancellation.wait(lambda: self.cancelled, within)

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        return await self._resources.client.add_job(identifier, payload, conn=conn, **options)

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
        """Open a transaction that also completes the job, so that its effects happen once."""
        _reject_batch(self)
        async with self._resources.database.transaction() as connection:
            yield connection.raw
            self.advance(RunStep.BEGIN_COMMIT)
            with self._translate_errors():
                owned_ids = await connection.run(self._build_completion_query())
            _check_still_owned(owned_ids, self.claimed)
        self.advance(RunStep.CONFIRM_COMMIT)

    def set_result(self, result: object) -> None:
        """Set the result, for a task that completes its job with `transaction`."""
        text = encode_result(result)
        self.result, self.result_text = result, text

    def progress(self, fraction: float | None, message: str | None = None) -> None:
        """Report how far the task is. The next heartbeat writes the last report."""
        report = check_progress(fraction, message)
        if self._resources.progress is not None:
            self._resources.progress.add(self.claimed, *report)

    def build_kept_run(self, *, is_completed: bool) -> KeptRun | None:
        """Build what to keep of this run, which ends now. Only a completed one has a result."""
        if self.retention is None:
            return None
        return KeptRun(
            self.job.id,
            self.job.task_identifier,
            self.job.attempts,
            self.retention,
            self.started_at,
            time.monotonic(),
            self.result_text if self.retention.results and is_completed else None,
        )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise ResultError for a result that the database cannot store. A retry cannot help."""
        try:
            yield
        except Exception as error:
            if self.result_text is None or not is_data_error(error):
                raise
            raise build_result_error(format_error_line(error)) from error

    def _build_completion_query(self) -> Query[set[int]]:
        queues = find_releasable_queues([self.claimed], self._resources.claimed_jobs)
        kept = self.build_kept_run(is_completed=True)
        if kept is None:
            return complete_claimed_jobs(self.pool_id, [self.job.id], queues)
        return complete_and_keep_jobs(self.pool_id, [self.job.id], queues, [kept])


class SyncContext:
    """The context of a plain function, which runs in a thread: the same without await."""

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
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        return self._get_client().add_job(identifier, payload, conn=conn, **options)

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
        """Open a transaction that also completes the job, so that its effects happen once."""
        _reject_batch(self._context)
        with self._get_database().transaction() as connection:
            yield connection.raw
            self._context.advance(RunStep.BEGIN_COMMIT)
            with self._context._translate_errors():
                owned_ids = connection.run(self._context._build_completion_query())
            _check_still_owned(owned_ids, self._context.claimed)
        self._context.advance(RunStep.CONFIRM_COMMIT)

    def _get_client(self) -> sync.Client | sync.Shards:
        if self._resources.sync_client is None:
            raise _build_no_sync_error()
        return self._resources.sync_client

    def _get_database(self) -> ConnectionProvider:
        if self._resources.sync_database is None:
            raise _build_no_sync_error()
        return self._resources.sync_database


def _reject_batch(context: Context) -> None:
    if context.is_batch:
        raise TypeError(
            "ctx.transaction() would complete the job with all its items, also failed ones. Use "
            "ctx.connection() in a batch task."
        )


def _build_no_sync_error() -> ConfigurationError:
    return ConfigurationError(
        "a plain function cannot use the async connection or pool of this worker. Declare the task "
        "with async def, or pass a connection string."
    )


def _check_still_owned(still_owned_ids: set[int], claimed: ClaimedJob) -> None:
    # Raised inside the transaction, which rolls back the changes of the task.
    if claimed.job.id not in still_owned_ids:
        raise JobLockLostError(f"job {claimed.job.id} is no longer held by this pool")

"""Protocols of the job context, which a task receives besides its payload, and of the enqueuer."""

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Protocol, Unpack

from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker._support.logs import Logger
from graphile_worker.jobs import Job, JobOptions, JobSpec

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

C = TypeVar("C", default=Any, covariant=True)
D = TypeVar("D", default=None)  # the type that the lifespan of an app yields


class CronRun(LazyDataclass):
    """The scheduled minute of a job that the crontab added, and whether it is a backfill."""

    scheduled_at: datetime
    backfilled: bool

    @property
    def ts(self) -> datetime:
        """Return `scheduled_at`, by its name in the payload."""
        return self.scheduled_at


def read_cron_run(job: Job) -> CronRun | None:
    """Read the key `_cron` of the payload, or return None if the crontab did not add the job."""
    mark = job.payload.get("_cron") if isinstance(job.payload, dict) else None
    if not isinstance(mark, dict):
        return None
    try:
        return CronRun(datetime.fromisoformat(mark["ts"]), bool(mark.get("backfilled")))
    except (KeyError, TypeError, ValueError):
        return None


class BaseJobContext(Protocol[C]):
    """The members that `JobContext` and `SyncJobContext` share: those that are not awaited.

    Annotate a helper function with it when both async and plain tasks call that function.
    """

    @property
    def job(self) -> Job:
        """Return the job that runs."""
        ...

    @property
    def deps(self) -> C:
        """Return the value that the lifespan of the app yielded."""
        ...

    @property
    def cancelled(self) -> bool:
        """Return whether the task should stop. Check this in long loops.

        It is True when the worker shuts down, when the worker lost the job, and when a plain
        function runs past its timeout.
        """
        ...

    @property
    def logger(self) -> Logger:
        """Return a logger that adds the ids of this job to each line."""
        ...

    @property
    def cron(self) -> CronRun | None:
        """Return the scheduled minute if the crontab added this job, else None."""
        ...

    @property
    def queue_name(self) -> str | None:
        """Return the named queue of the job, or None."""
        ...

    def set_result(self, result: object) -> None:
        """Set the result of the job before the task returns.

        A task that ends its job with `transaction` calls this inside the block. Other tasks
        return their result.

        Args:
            result: Any value that JSON can represent.

        Raises:
            ResultError: JSON cannot represent the value, or it is too large.
        """
        ...

    def progress(self, fraction: float | None, message: str | None = None) -> None:
        """Report how far the task is, as often as you like.

        The worker keeps the last report in memory and writes it with its next heartbeat. Any
        thread may call this. A worker on your connection sends no heartbeats and drops reports.

        Args:
            fraction: A number from 0 to 1, or None if it is unknown.
            message: A text for people. Only its first 4,096 bytes are stored.

        Raises:
            TypeError: `fraction` is not a number, or `message` is not a string.
            ValueError: `fraction` is not from 0 to 1.
        """
        ...

    @property
    def pool_id(self) -> str:
        """Return the id of the worker pool that claimed the job."""
        ...

    @property
    def worker_id(self) -> str:
        """Return the id of the worker that runs the job."""
        ...

    @property
    def schema(self) -> str:
        """Return the name of the Graphile Worker schema."""
        ...


class JobContext(BaseJobContext[C], Protocol[C]):
    """The context of an async task: `async def task(ctx: JobContext, …)`.

    Plain functions receive a `SyncJobContext`.
    """

    async def wait_cancelled(self, within: timedelta | None = None) -> bool:
        """Wait until the task should stop.

        Args:
            within: Longest wait (default: no limit).

        Returns:
            False if the time ran out, else True.
        """
        ...

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job to the queue of this job. See `App.add_job`."""
        ...

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs to the queue of this job in one round trip. See `Client.add_jobs`."""
        ...

    async def query(self, statement: str, args: Any = None) -> list[dict[str, Any]]:
        """Run one SQL statement.

        Args:
            statement: SQL with `%s` for each argument.
            args: The arguments.

        Returns:
            The rows as dictionaries.
        """
        ...

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Open a connection in autocommit mode, or check one out of your pool.

        Returns:
            A context manager that yields the connection.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction that also completes the job, so its effects happen exactly once.

        Returns:
            A context manager that yields the connection.

        Raises:
            JobLockLostError: Another worker owns the job. The transaction is rolled back.
        """
        ...


class SyncJobContext(BaseJobContext[C], Protocol[C]):
    """The context of a plain function: `def task(ctx: SyncJobContext, …)`.

    It has the methods of `JobContext`, which block instead of being awaited.
    """

    def wait_cancelled(self, within: timedelta | None = None) -> bool:
        """Block until the task should stop. See `JobContext.wait_cancelled`."""
        ...

    def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job to the queue of this job. See `App.add_job`."""
        ...

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs to the queue of this job in one round trip. See `Client.add_jobs`."""
        ...

    def query(self, statement: str, args: Any = None) -> list[dict[str, Any]]:
        """Run one SQL statement. See `JobContext.query`."""
        ...

    def connection(self) -> AbstractContextManager[Any]:
        """Open a connection in autocommit mode, or check one out of your pool.

        Returns:
            A context manager that yields the connection.
        """
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction that also completes the job, so its effects happen exactly once.

        Returns:
            A context manager that yields the connection.

        Raises:
            JobLockLostError: Another worker owns the job. The transaction is rolled back.
        """
        ...


# Reads the result of a job from its JSON text.
ReadResult = Callable[[str], Any]


class Enqueuer(Protocol):
    """An object that adds the jobs of tasks, for example an app."""

    def enqueue(
        self, spec: JobSpec, conn: object = None, read_result: ReadResult | None = None
    ) -> Job:
        """Add the job of a spec. With `read_result`, the job can wait for its result."""
        ...

    async def aenqueue(
        self, spec: JobSpec, conn: object = None, read_result: ReadResult | None = None
    ) -> Job:
        """Add the job of a spec from async code."""
        ...

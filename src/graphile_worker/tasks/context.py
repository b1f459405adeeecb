"""What a task receives besides its payload, and who adds its jobs: protocols of other layers."""

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from graphile_worker._support.logs import Logger
from graphile_worker.jobs import Job, JobKeyMode, JobKeyModeName, JobSpec, RunAt

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

C = TypeVar("C", default=Any, covariant=True)


@dataclass(frozen=True, slots=True)
class CronRun:
    """The minute for which the crontab added a job, and whether it did so late, to catch up."""

    scheduled_at: datetime
    backfilled: bool

    @property
    def ts(self) -> datetime:
        """`scheduled_at`, by the name that it has in payloads."""
        return self.scheduled_at


def read_cron_run(job: Job) -> CronRun | None:
    """What a job of the crontab carries under the key `_cron`; None for any other."""
    mark = job.payload.get("_cron") if isinstance(job.payload, dict) else None
    if not isinstance(mark, dict):
        return None
    try:
        return CronRun(datetime.fromisoformat(mark["ts"]), bool(mark.get("backfilled")))
    except (KeyError, TypeError, ValueError):
        return None


class JobTransaction(Protocol):
    """Gives a psycopg connection: by `async with` in an async task, by `with` in a plain one."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: object) -> bool | None: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *error: object) -> bool | None: ...


class JobContext(Protocol[C]):
    """What a task receives besides its payload.

    An async task awaits what waits: `await ctx.add_job(…)`, `async with ctx.connection()`. A plain
    function gets the same without await, and blocking psycopg connections.
    """

    @property
    def job(self) -> Job: ...

    @property
    def deps(self) -> C:
        """What the app's lifespan yielded."""
        ...

    @property
    def cancelled(self) -> bool:
        """Has the worker asked this task to give up? Long loops look here now and then.

        It does so when it stops, when it has lost the job, and at the timeout of a plain function.
        """
        ...

    @property
    def logger(self) -> Logger:
        """A logger whose lines carry the ids of this job."""
        ...

    @property
    def cron(self) -> CronRun | None:
        """For which minute the crontab added this job, if it did."""
        ...

    @property
    def queue_name(self) -> str | None: ...

    @property
    def pool_id(self) -> str: ...

    @property
    def worker_id(self) -> str: ...

    @property
    def schema(self) -> str: ...

    def wait_cancelled(self, within: timedelta | None = None) -> Any:
        """Sleep until the worker asks this task to give up; False if that takes longer."""
        ...

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
    ) -> Any:
        """Add one job to the queue that this one came from.

        If the worker's app has that task, its options apply where none is given.
        """
        ...

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> Any:
        """Add any number of jobs in one round trip."""
        ...

    def connection(self) -> JobTransaction:
        """A connection in autocommit mode, or a pool's own, for as long as the `with` lasts."""
        ...

    def query(self, statement: str, args: Any = None) -> Any:
        """The rows of one statement as dictionaries; %s stands for each argument."""
        ...

    def transaction(self) -> JobTransaction:
        """A transaction that also ends the job: its effects happen exactly once, or not at all."""
        ...


class Enqueuer(Protocol):
    """Whoever can add the jobs of tasks: an app, a framework's integration, a test."""

    def enqueue(self, spec: JobSpec, conn: object = None) -> Job: ...

    async def aenqueue(self, spec: JobSpec, conn: object = None) -> Job: ...

"""What a task receives besides its payload."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from graphile_worker.db.blocking import BlockingPsycopgDatabase
from graphile_worker.db.psycopg import PsycopgDatabase
from graphile_worker.errors import JobNotHeld
from graphile_worker.jobs import Job
from graphile_worker.sql.holding import HeldJob, finish_jobs
from graphile_worker.sql.query import Query


class Context:
    """For async tasks."""

    def __init__(
        self, held: HeldJob, *, deps: Any, pool_id: str, worker_id: str, database: PsycopgDatabase
    ) -> None:
        self.held = held
        self.deps = deps
        self.pool_id = pool_id
        self.worker_id = worker_id
        self.cancelled = False
        self.written = False
        self._db = database

    @property
    def job(self) -> Job:
        return self.held.job

    @property
    def queue_name(self) -> str | None:
        return self.held.job.queue_name

    @property
    def schema(self) -> str:
        return self._db.schemas.shared

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the ids of this job."""
        ids = {"job_id": self.job.id, "task_identifier": self.job.task_identifier}
        return logging.LoggerAdapter(logging.getLogger("graphile_worker.task"), ids)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction that also ends the job: its effects happen exactly once, or not at all."""
        async with self._db.transaction() as connection:
            yield connection.raw
            _check_held(await connection.run(self._finish()), self.held)
        self.written = True

    def _finish(self) -> Query[set[int]]:
        queue = [] if self.held.queue_id is None else [self.held.queue_id]
        return finish_jobs(self.pool_id, [self.job.id], queue)


class BlockingContext:
    """For plain functions, which run in a thread: the same without await."""

    def __init__(self, context: Context, database: BlockingPsycopgDatabase) -> None:
        self._context = context
        self._db = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A transaction that also ends the job: its effects happen exactly once, or not at all."""
        with self._db.transaction() as connection:
            yield connection.raw
            _check_held(connection.run(self._context._finish()), self._context.held)
        self._context.written = True


def _check_held(finished: set[int], held: HeldJob) -> None:
    # Raised inside the transaction, so that what the task did in it is rolled back.
    if held.job.id not in finished:
        raise JobNotHeld(f"job {held.job.id} is no longer held by this pool")

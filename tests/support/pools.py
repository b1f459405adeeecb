"""Pools without a worker around them: they take jobs and let go of them, one query at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from psycopg.conninfo import make_conninfo

from graphile_worker._db.database import SyncQueryRunner
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    FailedAttempt,
    ReleasedJob,
    claim_first_job,
    claim_jobs,
    claim_jobs_unindexed,
    claim_plain_jobs,
    claim_soonest_jobs,
    complete_claimed_jobs,
    fail_claimed_jobs,
    get_task_ids,
    has_fetch_indexes,
    register_tasks,
    release_claimed_jobs,
)
from graphile_worker._sql.query import Query
from graphile_worker.jobs import Job
from tests.support.sql import Sql


@dataclass
class Pool:
    """A pool's id, its tasks, and where its queries go."""

    connection: SyncQueryRunner
    tasks: dict[int, str] = field(default_factory=dict)
    id: str = "pool"
    has_indexes: bool = True

    def register_tasks(self, *identifiers: str) -> "Pool":
        self.connection.run(register_tasks(list(identifiers)))
        self.tasks = self.connection.run(get_task_ids(list(identifiers)))
        self.has_indexes = self.connection.run(has_fetch_indexes())
        return self

    def with_id(self, id: str, connection: SyncQueryRunner | None = None) -> "Pool":
        """Return another pool of the same tasks, optionally with its own session."""
        return Pool(connection or self.connection, self.tasks, id, self.has_indexes)

    def claim(self, limit: int = 1, **more: Any) -> list[ClaimedJob]:
        """As a worker does that expects one job: the first one alone, then the cheapest way."""
        first = self.claim_by(claim_first_job, limit, **more)
        if first and (limit == 1 or first[0].is_all_ready):
            return first
        ways = (claim_plain_jobs, claim_soonest_jobs, self._fallback_query)
        answers = (self.claim_by(way, limit - len(first), **more) for way in ways)
        others = next((taken for taken in answers if taken), [])
        return sorted(
            first + others, key=lambda each: (each.job.priority, each.job.run_at, each.job.id)
        )

    @property
    def _fallback_query(self) -> Callable[..., Query[list[ClaimedJob]]]:
        return claim_jobs if self.has_indexes else claim_jobs_unindexed

    def claim_by(
        self, way: Callable[..., Query[list[ClaimedJob]]], limit: int = 1, **more: Any
    ) -> list[ClaimedJob]:
        """With one statement alone."""
        return self.connection.run(way(self.id, self.tasks, limit=limit, **more))

    def claim_all_by(
        self, way: Callable[..., Query[list[ClaimedJob]]], limit: int = 1, **more: Any
    ) -> list[ClaimedJob]:
        """With one statement alone, until it finds nothing."""
        taken: list[ClaimedJob] = []
        while found := self.claim_by(way, limit, **more):
            taken += found
        return taken

    def claim_one(self) -> ClaimedJob:
        (held,) = self.claim()
        return held

    def finish(self, *held: ClaimedJob, again: bool = False) -> set[int]:
        job_ids = [each.job.id for each in held]
        return self.connection.run(
            complete_claimed_jobs(self.id, job_ids, queue_ids(held), is_retry=again)
        )

    def fail(
        self, *held: ClaimedJob, message: str = "boom", again: bool = False, **more: Any
    ) -> set[int]:
        failures = [FailedAttempt(each.job, message, **more) for each in held]
        return self.connection.run(
            fail_claimed_jobs(self.id, failures, queue_ids(held), is_retry=again)
        )

    def release(self, *held: ClaimedJob, again: bool = False, **more: Any) -> set[int]:
        returns = [ReleasedJob(each.job, **more) for each in held]
        return self.connection.run(
            release_claimed_jobs(self.id, returns, queue_ids(held), is_retry=again)
        )


@contextmanager
def open_session(database: Any, **settings: str) -> Iterator[SyncPsycopgDatabase]:
    """Where queries go, with PostgreSQL's settings for it."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    dsn = make_conninfo(database.dsn, options=options)
    opened = SyncPsycopgDatabase(dsn, Schemas.from_names(database.schema))
    yield opened
    opened.close()


@contextmanager
def open_pool(database: Any, **settings: str) -> Iterator[Pool]:
    """A pool that knows the task "task"."""
    with open_session(database, **settings) as connection:
        yield Pool(connection).register_tasks("task")


@contextmanager
def in_one_transaction(pool: Pool) -> Iterator[Pool]:
    """The pool in one transaction: for the database, no time passes while it lasts."""
    assert isinstance(pool.connection, SyncPsycopgDatabase)
    with pool.connection.transaction() as connection:
        yield pool.with_id(pool.id, connection)


def queue_ids(held: tuple[ClaimedJob, ...]) -> list[int]:
    return [each.queue_id for each in held if each.queue_id is not None]


def payloads(held: list[ClaimedJob]) -> list[Any]:
    return [each.job.payload for each in held]


def read_job_row(sql: Sql, job: Job) -> dict[str, Any]:
    """Return the row of a job; empty once it is deleted."""
    cursor = sql.connection.execute(
        sql.text("select * from :schema._private_jobs where id = $1"), (job.id,)
    )
    names = [column.name for column in cursor.description or ()]
    return next((dict(zip(names, values, strict=True)) for values in cursor), {})


def queue_lock(sql: Sql, name: str) -> tuple[Any, bool]:
    """Who holds a named queue, and whether it can be taken."""
    found = sql.run(
        "select locked_by, is_available from :schema._private_job_queues where queue_name = $1",
        name,
    )
    holder, available = found[0]
    return holder, available


def update_job(sql: Sql, job: Job, assignments: str) -> None:
    sql.run(f"update :schema._private_jobs set {assignments} where id = $1", job.id)

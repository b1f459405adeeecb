"""Pools without a worker around them: they take jobs and let go of them, one query at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from psycopg.conninfo import make_conninfo

from graphile_worker.db.blocking import BlockingPsycopgDatabase
from graphile_worker.db.database import BlockingConnection
from graphile_worker.jobs import Job
from graphile_worker.sql.holding import (
    Failure,
    HeldJob,
    Return,
    fail_jobs,
    find_indexes,
    finish_jobs,
    get_jobs,
    get_jobs_unindexed,
    get_plain_jobs,
    get_soonest_jobs,
    get_task_ids,
    register_tasks,
    return_jobs,
)
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query
from tests.support.sql import Sql


@dataclass
class Pool:
    """A pool's id, its tasks, and where its queries go."""

    connection: BlockingConnection
    tasks: dict[int, str] = field(default_factory=dict)
    id: str = "pool"
    has_indexes: bool = True

    def knows(self, *identifiers: str) -> "Pool":
        self.connection.run(register_tasks(list(identifiers)))
        self.tasks = self.connection.run(get_task_ids(list(identifiers)))
        self.has_indexes = self.connection.run(find_indexes())
        return self

    def named(self, id: str, connection: BlockingConnection | None = None) -> "Pool":
        """Another pool of the same tasks, perhaps with a session of its own."""
        return Pool(connection or self.connection, self.tasks, id, self.has_indexes)

    def take(self, limit: int = 1, **more: Any) -> list[HeldJob]:
        """As a worker does: the cheapest way first."""
        ways = (get_plain_jobs, get_soonest_jobs, self._last_way)
        answers = (self.take_by(way, limit, **more) for way in ways)
        return next((taken for taken in answers if taken), [])

    @property
    def _last_way(self) -> Callable[..., Query[list[HeldJob]]]:
        return get_jobs if self.has_indexes else get_jobs_unindexed

    def take_by(
        self, way: Callable[..., Query[list[HeldJob]]], limit: int = 1, **more: Any
    ) -> list[HeldJob]:
        """With one statement alone."""
        return self.connection.run(way(self.id, self.tasks, limit=limit, **more))

    def take_one(self) -> HeldJob:
        (held,) = self.take()
        return held

    def finish(self, *held: HeldJob, again: bool = False) -> set[int]:
        job_ids = [each.job.id for each in held]
        return self.connection.run(finish_jobs(self.id, job_ids, queue_ids(held), again=again))

    def fail(
        self, *held: HeldJob, message: str = "boom", again: bool = False, **more: Any
    ) -> set[int]:
        failures = [Failure(each.job, message, **more) for each in held]
        return self.connection.run(fail_jobs(self.id, failures, queue_ids(held), again=again))

    def give_back(self, *held: HeldJob, again: bool = False, **more: Any) -> set[int]:
        returns = [Return(each.job, **more) for each in held]
        return self.connection.run(return_jobs(self.id, returns, queue_ids(held), again=again))


@contextmanager
def session(database: Any, **settings: str) -> Iterator[BlockingPsycopgDatabase]:
    """Where queries go, with PostgreSQL's settings for it."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    dsn = make_conninfo(database.dsn, options=options)
    opened = BlockingPsycopgDatabase(dsn, Schemas.named(database.schema))
    yield opened
    opened.close()


@contextmanager
def pool_on(database: Any, **settings: str) -> Iterator[Pool]:
    """A pool that knows the task "task"."""
    with session(database, **settings) as connection:
        yield Pool(connection).knows("task")


@contextmanager
def standing_still(pool: Pool) -> Iterator[Pool]:
    """The pool in one transaction: for the database, no time passes while it lasts."""
    assert isinstance(pool.connection, BlockingPsycopgDatabase)
    with pool.connection.transaction() as connection:
        yield pool.named(pool.id, connection)


def queue_ids(held: tuple[HeldJob, ...]) -> list[int]:
    return [each.queue_id for each in held if each.queue_id is not None]


def payloads(held: list[HeldJob]) -> list[Any]:
    return [each.job.payload for each in held]


def row(sql: Sql, job: Job) -> dict[str, Any]:
    """What the table says of a job; empty once it is gone."""
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


def change(sql: Sql, job: Job, assignments: str) -> None:
    sql.run(f"update :schema._private_jobs set {assignments} where id = $1", job.id)

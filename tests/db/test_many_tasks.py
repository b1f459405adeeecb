"""A worker of many tasks: its fetches cost no more for them, nor for the tasks of others."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import NO_BYTE_LIMIT
from graphile_worker._sql.query import Query
from graphile_worker._worker.claimer import Claimer, ClaimTimings
from graphile_worker._worker.many_tasks import MAX_TASKS_PER_FETCH
from tests.support.pools import Pool
from tests.support.rows import count_pages as pages_of
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

MANY = 3 * MAX_TASKS_PER_FETCH


def names(prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(MANY)]


def add_tasks(sql: Sql, prefix: str) -> None:
    sql.run(
        "insert into :schema._private_tasks (identifier) "
        "select $1 || number from generate_series(0, $2::int - 1) as number",
        *(prefix, MANY),
    )


def add_jobs_of_each(sql: Sql, prefix: str, *, due: str = "-1 hour", priority: int = 0) -> None:
    """Add one job of each task whose name begins so; its payload is the name."""
    sql.run(
        "insert into :schema._private_jobs (task_id, payload, priority, run_at) "
        "select id, to_json(identifier), $2::int, now() + $3::text::interval "
        "from :schema._private_tasks where starts_with(identifier, $1) order by id",
        *(prefix, priority, due),
    )
    sql.run("vacuum analyze :schema._private_jobs")


class Asked:
    """A database that notes what it is asked."""

    def __init__(self, database: PsycopgDatabase) -> None:
        self._database = database
        self.queries: list[Query[Any]] = []

    async def run(self, query: Query[Any]) -> Any:
        self.queries.append(query)
        return await self._database.run(query)

    @property
    def ids_at_once(self) -> int:
        """The most tasks that a fetch was given."""
        taking = [each for each in self.queries if str(each.statement).startswith("claim_")]
        given: list[Any] = [each.args[1] for each in taking if len(each.args) > 1]
        return max((len(each) for each in given), default=0)


@pytest.fixture
async def asked(database) -> AsyncIterator[Asked]:
    opened = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema), max_size=1)
    yield Asked(opened)
    await opened.close()


@pytest.fixture
def claims(asked) -> Claimer:
    """A worker that has `MANY` tasks, whose rows it makes with its first fetch."""
    return Claimer(asked, Lease(), names("mine "))


async def taken_by(claims: Claimer, limit: int = 10) -> list[Any]:
    """The payloads that a worker gets which asks again when it is told to."""
    for _ in range(2 * MANY // MAX_TASKS_PER_FETCH):
        taken = await claims.claim(limit)
        if taken or claims.next_fetch_at is None:
            return [held.job.payload for held in taken]
    raise AssertionError("there is no end to it")


async def test_a_worker_of_many_tasks_gives_a_fetch_a_bounded_number_of_them(claims, asked, sql):
    add_tasks(sql, "mine ")
    add_jobs_of_each(sql, "mine ")

    taken = await taken_by(claims)

    # In the order in which they were added, as all are due at the same time.
    assert taken == names("mine ")[:10]
    assert 0 < asked.ids_at_once <= MAX_TASKS_PER_FETCH + 100


@pytest.mark.parametrize(
    ("interval", "statements"),
    [
        (3600.0, ["find_waiting_tasks"]),
        (0.0, ["has_fetch_indexes", "find_waiting_tasks"]),
    ],
    ids=["before a check is due", "when a check is due"],
)
async def test_an_idle_worker_of_many_tasks_does_not_ask_for_them_again(
    asked, interval, statements
):
    timings = ClaimTimings(task_check_interval_seconds=interval)
    claims = Claimer(asked, Lease(), names("mine "), timings=timings)
    assert await taken_by(claims) == []
    asked.queries.clear()

    assert await taken_by(claims) == []

    assert [each.statement for each in asked.queries] == statements


@pytest.mark.parametrize("queue", [None, "queue"])
async def test_a_worker_of_many_tasks_finds_a_job_behind_many_tasks_of_others(claims, sql, queue):
    add_tasks(sql, "theirs ")
    add_jobs_of_each(sql, "theirs ", priority=-1)
    sql.run("select :schema.add_job('mine 2999', queue_name := $1)", queue)

    assert await taken_by(claims) == [{}]
    assert await taken_by(claims) == []


async def test_a_worker_of_many_tasks_takes_what_is_due_among_jobs_of_the_future(claims, sql):
    add_tasks(sql, "mine ")
    add_jobs_of_each(sql, "mine ", due="1 day")
    sql.run("select :schema.add_job('mine 2999', '[]', priority := 1)")
    sql.run("select :schema.add_job('mine 5', '{}')")

    assert await taken_by(claims, 1) == [{}]
    assert await taken_by(claims, 1) == [[]]
    assert await taken_by(claims, 1) == []


async def test_a_worker_of_many_tasks_finds_one_whose_row_was_made_again(claims, sql):
    assert await taken_by(claims) == []
    sql.run("delete from :schema._private_tasks where identifier = 'mine 7'")
    sql.run("select :schema.add_job('mine 7')")

    assert await taken_by(claims) == [{}]


def test_to_find_waiting_tasks_reads_a_bounded_number_of_pages(pool, sql):
    add_tasks(sql, "theirs ")
    add_jobs_of_each(sql, "theirs ")

    read = {
        most: pages_of(sql, "find_waiting_tasks", 1, None, None, None, 0, most)
        for most in (10, 1000)
    }

    # From one task to the next by two indexes, a few pages each.
    assert read[10] < 200
    assert read[1000] < 20 * 1000


def test_a_fetch_reads_no_more_pages_for_tasks_of_others(pool: Pool, sql):
    sql.run("select :schema.add_job('task') from generate_series(1, 30)")
    given = (pool.id, list(pool.tasks), None, 1, None, None, None, NO_BYTE_LIMIT)
    clean = pages_of(sql, "claim_jobs", *given)

    add_tasks(sql, "theirs ")
    add_jobs_of_each(sql, "theirs ", priority=-1)

    # The tables have thousands.
    assert pages_of(sql, "claim_jobs", *given) < clean + 200

"""Rows that somebody changes by hand: fine while nobody holds them; and what else comes of it."""

import asyncio
from typing import Any

import pytest

from graphile_worker import JobLockLost, JobStarted, JobSucceeded
from tests.support.recorder import wait_until
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version


class Endless:
    """A task that runs until it is told to end."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.payloads: list[Any] = []
        self.at_once = 0
        self.most_at_once = 0

    async def __call__(self, payload: Any) -> None:
        self.payloads.append(payload)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.end.wait()
        self.at_once -= 1


@pytest.fixture
def endless() -> Endless:
    return Endless()


async def by_hand(sql: Sql, statement: str) -> int:
    """How many rows it changed, beside workers of this process."""
    changed = await asyncio.to_thread(sql.run, f"{statement} returning id")
    return len(changed)


@pytest.mark.feature("F233")
def test_the_view_has_no_payload_and_cannot_be_changed(sql):
    columns = sql.run(
        "select column_name from information_schema.columns "
        "where table_schema = $1 and table_name = 'jobs'",
        sql.schema,
    )
    kind = sql.value(
        "select relkind::text from pg_class "
        "where relname = 'jobs' and relnamespace = $1::regnamespace",
        sql.text(":schema").decode(),
    )

    assert kind == "v"
    assert ("task_identifier",) in columns
    assert ("payload",) not in columns


@pytest.mark.feature("F233")
async def test_an_unlocked_job_may_be_changed_or_deleted(sql, start, recorder, endless):
    sql.run("select :schema.add_job('work', '{\"n\": 1}', run_at => now() + interval '1 hour')")
    sql.run("select :schema.add_job('work', '{\"n\": 2}', run_at => now() + interval '1 hour')")

    await by_hand(sql, "delete from :schema._private_jobs where id = 1 and locked_at is null")
    await by_hand(
        sql,
        "update :schema._private_jobs set payload = '{\"n\": 3}', run_at = now() "
        "where id = 2 and locked_at is null",
    )
    endless.end.set()
    await start({"work": endless})

    await recorder.wait_for(JobSucceeded)
    assert endless.payloads == [{"n": 3}]


@pytest.mark.feature("F233")
async def test_the_condition_leaves_jobs_alone_that_run(sql, start, recorder, endless):
    sql.run("select :schema.add_job('work', queue_name => 'q')")
    await start({"work": endless}, concurrency=2)
    await recorder.wait_for(JobStarted)

    for statement in (
        "delete from :schema._private_jobs where locked_at is null",
        "update :schema._private_jobs set attempts = 0 where locked_at is null",
    ):
        assert await by_hand(sql, statement) == 0
    endless.end.set()
    await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F233")
async def test_a_job_that_is_unlocked_while_it_runs_runs_twice_at_once(
    sql, start, recorder, endless
):
    sql.run("select :schema.add_job('work')")
    await start({"work": endless})
    await recorder.wait_for(JobStarted)

    await by_hand(sql, "update :schema._private_jobs set locked_at = null, locked_by = null")
    await start({"work": endless})
    await recorder.wait_for(JobStarted, count=2)

    await wait_until(lambda: endless.most_at_once == 2)
    endless.end.set()
    # One of them finds that it does not hold the job any more.
    await recorder.wait_for(JobLockLost)
    await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F233")
async def test_a_job_that_is_deleted_while_it_runs_goes_on_and_its_end_is_not_written(
    sql, start, recorder, endless
):
    sql.run("select :schema.add_job('work', queue_name => 'q')")
    await start({"work": endless})
    await recorder.wait_for(JobStarted)

    await by_hand(sql, "delete from :schema._private_jobs")
    endless.end.set()

    await recorder.wait_for(JobLockLost)
    assert recorder.events_of(JobSucceeded) == []

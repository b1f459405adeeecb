"""What a cleanup deletes, and that programs which add jobs meanwhile come to no harm."""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from graphile_worker import CleanupTask, ConfigurationError, JobSpec, sync
from graphile_worker._db.database import run_plan
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.cleanup import plan_cleanup
from graphile_worker.errors import CleanupBlocked, SchemaMissing
from tests.support.clients import open_client, record_statements, unwrap
from tests.support.fetch_locks import wait_for_lock
from tests.support.rows import read_names as names
from tests.support.sql import Sql
from tests.support.tiers import size

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

DELETE_PERMAFAILED_JOBS, GC_TASK_IDENTIFIERS, GC_JOB_QUEUES = CleanupTask


async def use_once(client: Any, name: str) -> None:
    """Leave the name of a task and of a queue that no job uses any more."""
    job = await client.add_job(name, queue_name=name)
    await client.complete_jobs([job.id])


# What is deleted


async def test_jobs_without_attempts_left_are_deleted_unless_held(client, sql):
    states = {
        "waiting": "attempts = 0",
        "failed": "attempts = 24, last_error = 'boom'",
        "spent": "attempts = 25, last_error = 'boom'",
        "more than spent": "attempts = 30",
        "running for the last time": "attempts = 25, locked_at = now(), locked_by = 'pool'",
    }
    for key, change in states.items():
        await client.add_job("task", job_key=key)
        sql.run(f"update :schema._private_jobs set {change} where key = $1", key)

    await client.cleanup([DELETE_PERMAFAILED_JOBS])

    left = {key for (key,) in sql.run("select key from :schema._private_jobs")}
    assert left == {"waiting", "failed", "running for the last time"}


async def test_tasks_that_no_job_uses_are_deleted_unless_kept(client, sql):
    await client.add_job("used")
    for name in ("unused", "kept", "kept too"):
        await use_once(client, name)

    await client.cleanup([GC_TASK_IDENTIFIERS], task_identifiers_to_keep=["kept", "kept too", "x"])

    assert names(sql, "tasks") == {"used", "kept", "kept too"}
    assert names(sql, "job_queues") == {"unused", "kept", "kept too"}


async def test_queues_that_no_job_uses_are_deleted_unless_held(client, sql):
    await client.add_job("task", queue_name="used")
    for name in ("unused", "", "held"):
        await use_once(client, name or "empty")
    sql.run("update :schema._private_job_queues set locked_at = now() where queue_name = 'held'")

    await client.cleanup([GC_JOB_QUEUES])

    assert names(sql, "job_queues") == {"used", "held"}
    assert names(sql, "tasks") == {"task", "unused", "empty", "held"}


async def test_the_names_of_running_and_spent_jobs_are_in_use(client, sql):
    await client.add_job("spent", queue_name="spent")
    await client.add_job("held", queue_name="held")
    sql.run("update :schema._private_jobs set attempts = max_attempts")
    sql.run("update :schema._private_jobs set locked_at = now() where id = 2")

    await client.cleanup([GC_TASK_IDENTIFIERS, GC_JOB_QUEUES])

    assert names(sql, "tasks") == names(sql, "job_queues") == {"spent", "held"}


async def test_a_cleanup_deletes_only_queues_by_default(client, sql):
    await use_once(client, "unused")
    await client.add_job("spent")
    sql.run("update :schema._private_jobs set attempts = max_attempts")

    await client.cleanup()

    assert names(sql, "job_queues") == set()
    assert names(sql, "tasks") == {"unused", "spent"}
    assert sql.value("select count(*) from :schema._private_jobs") == 1


@pytest.mark.parametrize("order", list(itertools.permutations(CleanupTask)))
async def test_jobs_go_first_so_that_their_names_go_too(client, sql, order):
    await client.add_job("spent", queue_name="spent")
    sql.run("update :schema._private_jobs set attempts = max_attempts")

    await client.cleanup(order)

    assert names(sql, "tasks") == names(sql, "job_queues") == set()


async def test_a_task_may_be_given_by_its_name(client, sql):
    await use_once(client, "unused")

    await client.cleanup(["GC_TASK_IDENTIFIERS", "GC_JOB_QUEUES"])

    assert names(sql, "tasks") == names(sql, "job_queues") == set()


@pytest.mark.parametrize("unknown", ["gc_job_queues", "", "VACUUM", None])
async def test_an_unknown_cleanup_task_is_rejected_before_anything_is_deleted(
    client, monkeypatch, unknown
):
    statements = record_statements(monkeypatch)

    with pytest.raises(ConfigurationError, match="cleanup task"):
        await client.cleanup([DELETE_PERMAFAILED_JOBS, unknown])

    assert statements == []


async def test_no_tasks_do_nothing(client, monkeypatch):
    statements = record_statements(monkeypatch)

    await client.cleanup([])

    assert statements == []


async def test_a_cleanup_with_nothing_to_delete_takes_no_lock(client, monkeypatch):
    await client.add_job("task", queue_name="queue")
    statements = record_statements(monkeypatch)

    await client.cleanup(CleanupTask)

    assert not {name for name in statements if name.startswith("lock_")}


async def test_a_name_that_was_deleted_comes_back_with_its_next_job(client):
    await use_once(client, "name")
    await client.cleanup(CleanupTask)

    job = await client.add_job("name", queue_name="name")

    assert (job.task_identifier, job.queue_name) == ("name", "name")
    assert await client.get_job(job.id) == job


# Beside others


# Seconds: an add that waited for the cleanup would never end.
SLOWEST_ADD = size(gate=20.0, nightly=2.0)


async def test_an_open_transaction_is_given_up_on_and_others_add_on(client, conn, kind, database):
    await use_once(client, "unused")
    # Names that are new in an open transaction would make others wait for it in any case.
    await client.add_job("task", queue_name="other")
    await client.add_job("task", queue_name="unused", conn=unwrap(conn))

    schemas = Schemas.from_names(database.schema)
    connections = PsycopgDatabase(database.dsn, schemas)
    plan = plan_cleanup([GC_JOB_QUEUES], (), schemas, max_attempts=4)

    async with open_client(kind, database) as producer:
        blocked = asyncio.create_task(run_plan(connections, plan))
        slowest = await slowest_add_until(blocked, producer)
    await connections.close()

    with pytest.raises(CleanupBlocked):
        await blocked
    assert slowest < SLOWEST_ADD


async def slowest_add_until(blocked: "asyncio.Task[Any]", producer: Any) -> float:
    """Add jobs until the task is over; the seconds that the slowest took."""
    slowest = 0.0
    while not blocked.done():
        began = time.monotonic()
        await producer.add_job("task", queue_name="other")
        slowest = max(slowest, time.monotonic() - began)
    return slowest


async def test_a_job_of_an_open_transaction_keeps_the_name_that_it_relies_on(client, conn, sql):
    await use_once(client, "name")
    await client.add_job("name", queue_name="name", conn=unwrap(conn))

    cleaning_up = asyncio.create_task(client.cleanup(CleanupTask))
    await wait_for_lock(sql)
    await conn.commit()
    await cleaning_up

    assert names(sql, "tasks") == names(sql, "job_queues") == {"name"}
    assert dangling(sql) == 0


def dangling(sql: Sql) -> int:
    """Jobs whose task or queue is gone."""
    count: int = sql.value("""
      select count(*) from :schema._private_jobs as jobs
      where not exists (select from :schema._private_tasks as tasks where tasks.id = jobs.task_id)
        or (jobs.job_queue_id is not null and not exists (
          select from :schema._private_job_queues as queues where queues.id = jobs.job_queue_id
        ))
    """)
    return count


PRODUCERS = 4
ADDS = size(gate=3_000, nightly=10_000)
NAMES = 200
BATCH = 10

DRAIN = """
with gone as (
  delete from :schema._private_jobs
  where id in (select id from :schema._private_jobs limit 200 for update skip locked)
  returning task_id, job_queue_id, payload
)
select payload ->> 'n', payload ->> 'name', tasks.identifier, job_queues.queue_name
from gone
left join :schema._private_tasks as tasks on tasks.id = gone.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = gone.job_queue_id
"""


@pytest.mark.single_version
@pytest.mark.timeout(180)
def test_cleanups_in_a_loop_never_take_a_name_from_a_job(database, sql):
    count_deletions(sql)
    over = threading.Event()

    with (
        sync.Client(database.dsn, schema=database.schema) as client,
        ThreadPoolExecutor(PRODUCERS + 2) as threads,
    ):
        drain = threads.submit(keep_draining, sql, over)
        cleanup = threads.submit(keep_cleaning, client, over)
        with setting(over):
            producers = [threads.submit(produce, client, part) for part in range(PRODUCERS)]
            added = [number for producer in producers for number in producer.result()]
        done = drain.result()
        assert cleanup.result() > 0

    assert dangling(sql) == 0
    assert sorted(number for number, *_ in done) == sorted(added) == list(range(ADDS))
    assert [row for row in done if not row[1] == row[2] == row[3]] == []
    assert deletions(sql).keys() == {"_private_tasks", "_private_job_queues"}


@contextmanager
def setting(event: threading.Event) -> Iterator[None]:
    """Tell the other threads that this is over, however it ends."""
    try:
        yield
    finally:
        event.set()


def produce(client: sync.Client, part: int) -> list[int]:
    """Add this part of the jobs, one by one or in batches; the numbers that were confirmed."""
    pick = random.Random(part)
    numbers = iter(range(part, ADDS, PRODUCERS))
    added: list[int] = []
    while batch := list(itertools.islice(numbers, pick.choice([1, 1, 1, BATCH]))):
        specs = [JobSpec(name_of(n), {"n": n, "name": name_of(n)}, name_of(n)) for n in batch]
        if len(specs) == 1:
            [spec] = specs
            jobs = [client.add_job(spec.identifier, spec.payload, queue_name=spec.queue_name)]
        else:
            jobs = client.add_jobs(specs)
        assert [(job.task_identifier, job.queue_name) for job in jobs] == [
            (spec.identifier, spec.queue_name) for spec in specs
        ]
        added += [job.payload["n"] for job in jobs]
    return added


def name_of(number: int) -> str:
    return f"name-{number % NAMES}"


def keep_draining(sql: Sql, over: threading.Event) -> list[tuple[int, str, str, str]]:
    """Delete jobs as fast as they come, until none can come; number and names of each."""
    session = sql.another()
    done: list[tuple[int, str, str, str]] = []
    while True:
        last_round = over.is_set()
        rows = session.run(DRAIN)
        done += [(int(number), *names) for number, *names in rows]
        if last_round and not rows:
            session.close()
            return done


def keep_cleaning(client: sync.Client, over: threading.Event) -> int:
    rounds = 0
    while not over.is_set():
        client.cleanup(CleanupTask)
        rounds += 1
    return rounds


def count_deletions(sql: Sql) -> None:
    """Let the tables of names write down what is deleted from them."""
    sql.run("create table public.deletions (kind text, count bigint)")
    sql.run("""
      create function public.write_down() returns trigger language plpgsql as $body$
      begin
        insert into public.deletions select tg_table_name, count(*) from gone;
        return null;
      end
      $body$
    """)
    for table in ("_private_tasks", "_private_job_queues"):
        sql.run(f"""
          create trigger write_down after delete on :schema.{table}
          referencing old table as gone for each statement execute function public.write_down()
        """)


def deletions(sql: Sql) -> dict[str, int]:
    rows = sql.run("select kind, sum(count) from public.deletions where count > 0 group by kind")
    return dict(rows)


async def test_a_cleanup_returns_how_many_rows_each_task_deleted(client, sql):
    await use_once(client, "name")

    assert await client.cleanup([GC_JOB_QUEUES, GC_TASK_IDENTIFIERS]) == {
        GC_TASK_IDENTIFIERS: 1,
        GC_JOB_QUEUES: 1,
    }
    assert await client.cleanup([GC_JOB_QUEUES]) == {GC_JOB_QUEUES: 0}


async def test_a_cleanup_without_a_schema_raises_schema_missing(kind, empty_database):
    async with open_client(kind, empty_database) as client:
        with pytest.raises(SchemaMissing):
            await client.cleanup()

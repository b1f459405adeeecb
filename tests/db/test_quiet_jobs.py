"""Jobs that are added without a notification, to the same effect as by the functions."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from graphile_worker import JobSpec, sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.insert import DirectInserts
from graphile_worker.jobs import Job
from tests.conftest import TestDatabase
from tests.db.test_insert_jobs import (
    KNOWN_NAMES,
    OTHER_SCHEMA,
    SEED,
    Way,
    assert_same_jobs,
    draw_payload,
    draw_run_at,
    draw_text,
    install_other,
)
from tests.support import tiers
from tests.support.recorder import wait_until
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

CASES = tiers.size(gate=40, nightly=500)
MODES = ("replace", "preserve_run_at", "unsafe_dedupe", None)
KEYS = ("a", "b", 'k"e\\y', "{}", "null", " ", "ß")

# What workers and people do to the jobs with a key.
CHANGES = (
    "set locked_at = now(), locked_by = 'worker', attempts = least(attempts + 1, max_attempts)",
    "set locked_at = null, locked_by = null, last_error = 'failed'",
    "set attempts = max_attempts",
    "set attempts = 1, max_attempts = 25, run_at = '2030-01-01Z'",
    "set attempts = 0, max_attempts = 25, run_at = '2031-01-01Z', payload = '[1, {\"a\": 2}]'",
)


def draw_spec(rng: random.Random, key: str | None, mode: Any) -> JobSpec:
    def maybe(value: Any, share: float = 0.5) -> Any:
        return value if rng.random() < share else None

    is_new = rng.random() < 0.1
    return JobSpec(
        f"new {rng.random()}" if is_new else rng.choice(KNOWN_NAMES),
        [draw_text(rng)] if rng.random() < 0.3 else draw_payload(rng),
        queue_name=maybe(rng.choice((*KNOWN_NAMES, "", f"new {rng.random()}")), 0.4),
        run_at=maybe(draw_run_at(rng)),
        max_attempts=maybe(rng.choice([1, 25, 32767])),
        priority=maybe(rng.randint(-9, 9)),
        job_key=key,
        job_key_mode=mode,
        flags=maybe([draw_text(rng) for _ in range(rng.randint(0, 3))], 0.3),
    )


def draw_specs(rng: random.Random) -> list[JobSpec]:
    if rng.random() < 0.5:
        return [draw_spec(rng, rng.choice((*KEYS, None)), rng.choice(MODES))]
    keys: list[str | None] = [*rng.sample(KEYS, rng.randint(0, len(KEYS)))]
    keys += [None] * rng.randint(1, 5)
    rng.shuffle(keys)
    return [draw_spec(rng, key, rng.choice(("replace", "preserve_run_at", None))) for key in keys]


def read_queue(way: Way) -> list[tuple[Any, ...]]:
    """All columns of all jobs, with names instead of ids, and all names."""
    return way.run(
        """
        select tasks.identifier, job_queues.queue_name, jobs.payload::text, jobs.priority,
          jobs.run_at, jobs.attempts, jobs.max_attempts, jobs.last_error, jobs.created_at,
          jobs.updated_at, jobs.key, jobs.locked_at, jobs.locked_by, jobs.revision, jobs.flags::text
        from :schema._private_jobs as jobs
        full join :schema._private_tasks as tasks on tasks.id = jobs.task_id
        full join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
        order by 1, 2, 3, 11, 14, 5, 4, 6, 7
        """
    )


@pytest.mark.feature("F46")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("installer", ["python", "node"])
def test_quiet_adds_and_the_functions_differ_only_in_the_notification(request, installer):
    database: TestDatabase = request.getfixturevalue(
        "database" if installer == "python" else "node_database"
    )
    install_other(database, installer)
    rng = random.Random(SEED)
    notes: list[psycopg.Notify] = []
    quiet_statements = 0

    with psycopg.connect(database.dsn) as connection:
        connection.add_notify_handler(notes.append)
        connection.execute('listen "jobs:insert"')
        connection.commit()
        by_function = Way(Schemas.from_names(database.schema), connection, None)
        inserts = DirectInserts(is_callers=True, notify=False)
        quiet = Way(Schemas.from_names(OTHER_SCHEMA), connection, inserts)
        for number in range(CASES):
            specs = draw_specs(rng)
            as_batch = len(specs) > 1 or (
                specs[0].job_key_mode != "unsafe_dedupe" and rng.random() < 0.5
            )
            with connection.transaction():
                results: list[list[Job]] = []
                for way in (by_function, quiet):
                    found = way.add(specs, as_batch)
                    assert isinstance(found, list), (number, found, specs)
                    results.append(found)
                assert_same_jobs(*results)
                assert read_queue(by_function) == read_queue(quiet), (number, specs)
            quiet_statements += not {"add_job", "add_jobs"} & set(quiet.statements)
            # In one transaction, because now() is then the same for both schemas.
            with connection.transaction():
                change, key = rng.choice(CHANGES), rng.choice(KEYS)
                for way in (by_function, quiet):
                    way.run("delete from :schema._private_jobs where key is null returning id")
                    way.run(
                        f"update :schema._private_jobs {change} where key = $1 returning id", key
                    )

        assert quiet_statements == CASES
        # The functions notify once for each call that adds a job.
        assert CASES / 2 < len(notes) <= CASES * 2
        del notes[:]
        quiet.add([JobSpec("task"), JobSpec("new", job_key="x")], as_batch=True)
        connection.commit()
        connection.execute("select 1")
        assert notes == []


# Locks

WAIT = """
create function public.wait() returns trigger language plpgsql as $$ begin
  -- At the row of the transaction whose number is the argument of the trigger.
  perform set_config('test.rows', concat(current_setting('test.rows', true), '*'), true);
  if length(current_setting('test.rows')) = tg_argv[0]::int then
    perform pg_advisory_xact_lock_shared(1);
  end if;
  return new;
end $$
"""
WAITING = """
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'
"""


async def add_both(
    database: TestDatabase,
    sql: Sql,
    first: list[JobSpec],
    second: list[JobSpec],
    *,
    second_notify: Any = "never",
) -> None:
    """Add two batches at once. A trigger waits in the first one until the second one waits too."""

    def add(specs: list[JobSpec], notify: Any) -> None:
        # On a connection of the caller, on which a deadlock is not retried.
        with (
            sync.Client(database.dsn, schema=database.schema, notify=notify) as client,
            psycopg.connect(database.dsn) as conn,
        ):
            # The order of the rows is then that of the arguments, as with many jobs in the table.
            conn.execute("set enable_hashjoin = off")
            conn.execute("set enable_mergejoin = off")
            client.add_jobs(specs, conn=conn)

    with ThreadPoolExecutor(2) as threads:
        sql.run("select pg_advisory_lock(1)")
        futures = [threads.submit(add, first, "never")]
        try:
            await wait_until(lambda: sql.value(WAITING) == 1)
            futures.append(threads.submit(add, second, second_notify))
            await wait_until(lambda: sql.value(WAITING) == 2)
        finally:
            sql.run("select pg_advisory_unlock(1)")
        for future in futures:
            future.result()


async def test_two_quiet_batches_that_release_the_same_keys_do_not_deadlock(database, sql):
    sql.run("select :schema.add_job('task', job_key => key) from unnest('{a,b}'::text[]) as key")
    sql.run("update :schema._private_jobs set attempts = max_attempts")
    sql.run(WAIT)
    sql.run(
        "create trigger wait before update on :schema._private_jobs"
        " for each row execute function public.wait('1')"
    )
    a, b = (JobSpec("task", job_key=key) for key in "ab")

    await add_both(database, sql, [a, b], [b, a])

    rows = sql.run("select key, revision from :schema._private_jobs order by key, id")
    # The first batch released both keys, and the second one replaced its jobs.
    assert rows == [("a", 1), ("b", 1), (None, 0), (None, 0)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("delete from :table", [("k", 0, 0)]),
        # To be retried: the batch changes the waiting job.
        ("update :table set locked_at = null, attempts = 1", [("k", 1, 0)]),
        ("update :table set locked_at = null, attempts = 25", [(None, 0, 25), ("k", 0, 0)]),
        ("update :table set key = 'other'", [("k", 0, 0), ("other", 0, 1)]),
    ],
    ids=["completed", "retried", "failed", "renamed"],
)
async def test_a_quiet_batch_sees_what_became_of_a_job_that_it_waited_for(
    database, sql, change, expected
):
    job_id = sql.value("select id from :schema.add_job('task', job_key => 'k')")
    sql.run("update :schema._private_jobs set attempts = 1, locked_at = now(), locked_by = 'x'")
    statement = change.replace(":table", ":schema._private_jobs")

    def add() -> None:
        with sync.Client(database.dsn, schema=database.schema, notify="never") as client:
            client.add_jobs([JobSpec("task", job_key="k"), JobSpec("task")])

    with ThreadPoolExecutor(1) as threads, sql.connection.transaction():
        sql.run(f"{statement} where id = $1", job_id)
        added = threads.submit(add)
        with closing(sql.another()) as observer:
            await wait_until(lambda: observer.value(WAITING) == 1)
    added.result()

    rows = sql.run(
        "select key, revision, attempts from :schema._private_jobs"
        " where key is not null or id = $1 order by id",
        job_id,
    )
    assert sorted(rows, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("build_specs", "second_notify"),
    [
        (lambda: [JobSpec("task", queue_name=name) for name in "ab"], "never"),
        (lambda: [JobSpec(name) for name in "ab"], "never"),
        # The functions create tasks before queues.
        (lambda: [JobSpec("new", queue_name="new")], "on_commit"),
    ],
    ids=["queues", "tasks", "function"],
)
async def test_two_quiet_batches_with_the_same_new_names_do_not_deadlock(
    database, sql, build_specs: Callable[[], list[JobSpec]], second_notify
):
    sql.run("select :schema.add_job('task')")
    sql.run(WAIT)
    for table in ("tasks", "job_queues"):
        sql.run(
            f"create trigger wait before insert on :schema._private_{table}"
            " for each row execute function public.wait('2')"
        )
    specs = build_specs()

    await add_both(database, sql, specs, specs[::-1], second_notify=second_notify)

    assert sql.value("select count(*) from :schema._private_jobs") == 1 + 2 * len(specs)

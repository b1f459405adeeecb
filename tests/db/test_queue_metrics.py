"""Metrics of a queue, as the database has it: their values, their one sample, and their cost."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from psycopg.conninfo import make_conninfo

from graphile_worker import ConcurrencyLimit, RateLimit
from graphile_worker._cli.http_server import Request
from graphile_worker._cli.metrics_routes import build_queue_routes
from graphile_worker._db.database import run_plan_on, run_plan_sync
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import QUEUE_METRICS, Metric
from graphile_worker._metrics.exposition import write_metrics
from graphile_worker._metrics.values import Families
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.limits import (
    create_limit_rows,
    register_limits,
    rent_slots,
    want_slot,
)
from graphile_worker._sql.queries.metrics import (
    OldestReadyRow,
    count_runnable,
    count_runnable_indexed,
    get_oldest_ready,
    set_probe_limits,
    set_sample_limits,
)
from graphile_worker._sql.queries.workers import register_pool
from graphile_worker._sql.query import Query
from graphile_worker.limits import Limit
from graphile_worker.ops.queue_metrics import (
    LOOK_BUDGET_SECONDS,
    MAX_LANES,
    MAX_QUEUED_JOBS,
    MAX_QUEUES,
    MAX_RUNNABLE,
    MAX_TASKS,
    SAMPLE_BUDGET_SECONDS,
    RowsHiddenError,
    plan_look,
    plan_sample,
)
from graphile_worker.ops.queue_monitor import MonitorTimings, QueueMonitor, RunnableCounter
from graphile_worker.ops.snapshot import plan_snapshot
from tests.conftest import TestDatabase
from tests.support.clients import record_statements
from tests.support.job_table import NODE, JobTable
from tests.support.pgbouncer import PgBouncer
from tests.support.pools import open_session
from tests.support.proxy import Mode
from tests.support.roles import temporary_role
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

TASKS = ("a", "b", "c")
TASK_SETS = (None, ["a"], ["b", "c"], ["no such task"])
# Parameters of `/scale`, and the tasks that they choose.
PATTERNS: tuple[tuple[dict[str, list[str]], list[str]], ...] = (
    ({"tasks": ["[bc]*"]}, ["b", "c"]),
    ({"except": ["a,no such task"]}, ["b", "c"]),
    ({"tasks": ["?"], "except": ["b", "c*"]}, ["a"]),
    ({"except": ["*"]}, []),
)
LIMIT_TIME = timedelta(seconds=60)

# Records each sample that a process writes.
RECORD_SAMPLES = """
create table written (at timestamptz);
create function record_sample() returns trigger language plpgsql as $$
begin
  insert into written values (new.taken_at);
  return new;
end;
$$;
create trigger record_sample before update of body on :ext_schema.samples
for each row execute function record_sample();
"""


@pytest.fixture
async def db(database: TestDatabase) -> AsyncIterator[PsycopgDatabase]:
    opened = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema), max_size=1)
    yield opened
    await opened.close()


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def open_monitor(
    database: TestDatabase, clock: Clock, *, dsn: str | None = None, **timings: float
) -> QueueMonitor:
    return QueueMonitor(
        dsn or database.dsn,
        Schemas.from_names(database.schema),
        # A busy machine may need longer than the default.
        timings=MonitorTimings(**{"look_timeout": 30.0, "answer_timeout": 60.0, **timings}),
        clock=clock,
    )


def value(families: Families, metric: Metric, *labels: str) -> float:
    found = families[metric][labels]
    assert isinstance(found, float | int)
    return found


def jobs_by_state(families: Families, task: str = "task") -> dict[str, float]:
    samples = families[definitions.QUEUE_JOBS]
    return {
        labels[1]: count
        for labels in samples
        if labels[0] == task and (count := value(families, definitions.QUEUE_JOBS, *labels))
    }


# The number of runnable jobs


def prepare_queue(table: JobTable, sql: Sql, seed: int) -> None:
    """Fill an empty database with a queue of any kind."""
    chance = random.Random(seed)
    sql.run("truncate :schema._private_jobs, :schema._private_job_queues restart identity")
    queues: list[str | None] = [None, None, "999"]
    for n in range(6):
        # The last two are locked, as by a worker and by `jobs pause`.
        lock = {"locked_at": "now()", "locked_by": "'paused:ana'"} if n >= 4 else {}
        queues.append(table.add_queue(f"q{n}", **lock))
    for _ in range(chance.choice([0, 1, 5, 40])):
        columns = {
            "priority": str(chance.randrange(-1, 2)),
            "run_at": f"now() + {chance.choice([-3600, -1, 20, 600])} * interval '1 s'",
            "attempts": chance.choice(["0", "0", "1", "25"]),
        }
        if (queue := chance.choice(queues)) is not None:
            columns["job_queue_id"] = queue
        if chance.random() < 0.2:
            columns |= {"locked_at": "now()", "locked_by": f"'{NODE}'"}
        table.add_job(chance.choice(TASKS), **columns)


def pause_tasks(sql: Sql, seed: int) -> list[str]:
    """Pause one task in every second queue. Return its name, or no names."""
    paused = [random.Random(seed).choice(TASKS)] if seed % 2 else []
    sql.run("delete from :ext_schema.pauses")
    sql.run(
        "insert into :ext_schema.pauses (kind, name, paused_by) "
        "select 'task', unnest($1::text[]), 'ana'",
        paused,
    )
    return paused


def count_by_definition(sql: Sql, tasks: Sequence[str] | None, paused: Sequence[str]) -> int:
    """Count the runnable jobs one by one, in the words of count_runnable.sql."""
    free_queues = {
        id for id, is_free in sql.run("select id, is_available from :schema._private_job_queues")
        if is_free
    }  # fmt: skip
    jobs = sql.run("""
      select tasks.identifier, job_queue_id, locked_at is not null,
        locked_at is null and attempts < max_attempts and run_at <= now() + interval '30 s'
      from :schema._private_jobs as jobs
      join :schema._private_tasks as tasks on tasks.id = jobs.task_id
    """)
    count, queues = 0, set()
    for task, queue_id, is_locked, is_due in jobs:
        if (tasks is not None and task not in tasks) or (task in paused and not is_locked):
            continue
        if queue_id is None:
            count += is_locked or is_due
        elif is_locked or (is_due and queue_id in free_queues):
            queues.add(queue_id)
    return count + len(queues)


async def test_runnable_jobs_are_counted_the_same_by_scale_and_by_both_statements(
    database, db, sql, table
):
    scale = build_queue_routes(database.dsn, db.schemas)["/scale"]
    numbers = set()

    for seed in range(20):
        prepare_queue(table, sql, seed)
        paused = pause_tasks(sql, seed)
        for tasks in TASK_SETS:
            expected = count_by_definition(sql, tasks, paused)
            numbers.add(expected)
            plain = await db.run(count_runnable(tasks, 1000, paused))
            indexed = await db.run(count_runnable_indexed(tasks, 1000, 1000, paused))
            # With another limit it is another query, without the pause after the first.
            query = {"jobs": ["1"], "max": [str(1000 + seed)]}
            if tasks is not None:
                query["tasks"] = [",".join(tasks)]
            answer = await scale(Request("GET", "/scale", query))

            assert (plain, indexed) == (expected, expected), (seed, tasks)
            assert json.loads(answer.body) == {"runnable": expected, "pods": expected}
        for chosen, tasks in PATTERNS if seed < 5 else ():
            query = {"jobs": ["1"], "max": [str(1000 + seed)], **chosen}
            answer = await scale(Request("GET", "/scale", query))
            expected = count_by_definition(sql, tasks, paused)
            assert json.loads(answer.body)["runnable"] == expected, (seed, chosen)

    assert len(numbers) > 5


async def test_counting_runnable_jobs_stops_at_the_limit(db, sql, table):
    for n in range(5):
        table.add_job()
        table.add_job(job_queue_id=table.add_queue(f"q{n}"))
        table.add_job(locked_at="now()", locked_by="'x'")

    for query in (count_runnable(None, 2, []), count_runnable_indexed(None, 2, 1000, [])):
        assert await db.run(query) == 6
    assert await db.run(count_runnable_indexed(None, 1000, 1000, [])) == 15


# The oldest ready job


async def test_the_oldest_ready_job_found_by_indexes_is_that_of_the_snapshot(db, sql, table):
    ages: set[int] = set()

    for seed in range(20):
        prepare_queue(table, sql, seed)
        # In one transaction, so that both read the same time.
        async with db.transaction() as connection:
            await connection.run(set_probe_limits(LIMIT_TIME))
            rows = await connection.run(get_oldest_ready(MAX_LANES, MAX_QUEUED_JOBS))
            snapshot = await run_plan_on(connection, plan_snapshot(db.schemas))

        assert all(row.is_certain and row.is_complete for row in rows)
        found = {row.task: row.seconds for row in rows if row.seconds is not None}
        expected = {
            task.identifier: task.oldest_ready
            for task in snapshot.tasks
            if task.oldest_ready is not None
        }
        assert found == pytest.approx(expected), seed
        # In minutes, as a busy machine may need seconds between the add and the look.
        ages.update(round(each / 60) for each in found.values())

    assert ages == {0, 60}


async def test_a_look_reads_a_limited_number_of_jobs_behind_locked_queues(db, sql, table):
    held = table.add_queue("held", locked_at="now()", locked_by="'x'")
    for n in range(3):
        table.add_job(job_queue_id=held, run_at=f"now() - {9 - n} * interval '1 hour'")
    table.add_job(job_queue_id=table.add_queue("free"), run_at="now() - interval '5 hours'")
    table.add_job("other", run_at="'-infinity'")
    table.add_job("third", run_at="now() + interval '1 hour'")

    async def find(max_lanes: int, max_jobs: int) -> dict[str, OldestReadyRow]:
        return {row.task: row for row in await db.run(get_oldest_ready(max_lanes, max_jobs))}

    exact, limited, few = await find(10, 4), await find(10, 3), await find(1, 4)
    assert exact["task"].seconds == pytest.approx(5 * 3600, abs=600)
    assert (exact["task"].is_certain, limited["task"].is_certain) == (True, False)
    assert limited["task"].seconds is None
    assert exact["other"].seconds == float("inf")
    assert exact["third"].seconds is None
    assert all(row.is_complete for row in exact.values())
    assert not any(row.is_complete for row in few.values())


# One sample


@pytest.mark.feature("F20")
async def test_metrics_of_a_queue(database, sql, table, clock):
    for state in ("ready", "ready", "running", "stale", "failed", "waiting", "retrying"):
        table.add_job_in_state(state)
    sql.run(
        "insert into :ext_schema.pools (id, seen_at, lease, details) "
        "values ('pypool-000000000000000001', now(), interval '1 hour', '{}')"
    )

    families = await open_monitor(database, clock).collect()

    # Without limits there are no slots.
    expected = [each for each in QUEUE_METRICS if each is not definitions.LIMIT_SLOTS]
    assert list(families) == expected
    one_each = dict.fromkeys(("running", "stale", "failed", "waiting", "retrying"), 1)
    assert jobs_by_state(families) == {"ready": 2, **one_each}
    assert value(families, definitions.QUEUE_OLDEST_READY, "task") == pytest.approx(60, abs=30)
    # Two ready jobs without a queue and two locked ones.
    assert value(families, definitions.QUEUE_RUNNABLE) == 4
    assert value(families, definitions.QUEUES_LOCKED) == 1
    assert value(families, definitions.STALE_LOCKS) == 1
    assert value(families, definitions.WORKERS, "python", "alive") == 1
    assert value(families, definitions.WORKERS, "node", "unknown") == 1
    assert value(families, definitions.TABLE_BYTES) > 0
    assert 0 < value(families, definitions.SEQUENCE_USAGE) < 1
    assert value(families, definitions.QUEUE_REACHABLE) == 1
    assert value(families, definitions.SNAPSHOT_SHARED) == 1
    assert value(families, definitions.SNAPSHOT_ERRORS) == 0
    assert 0 <= value(families, definitions.SNAPSHOT_AGE) < 60


async def test_of_all_processes_exactly_one_samples_per_interval(database, sql, table, clock):
    sql.connection.execute(sql.text(RECORD_SAMPLES), prepare=False)
    monitors = [open_monitor(database, clock, min_pause=60.0) for _ in range(5)]

    for round in range(4):
        table.add_job()
        first = await asyncio.gather(*(each.collect() for each in monitors))
        clock.now += 100
        second = await asyncio.gather(*(each.collect() for each in monitors))

        # Some looked before the sample was written. All of them show it at their next look.
        assert sql.value("select count(*) from written") == round + 1
        assert all(value(each, definitions.SNAPSHOT_ERRORS) == 0 for each in first)
        assert [jobs_by_state(each) for each in second] == [{"ready": round + 1}] * 5
        assert all(value(each, definitions.SNAPSHOT_SHARED) == 1 for each in second)
        # The interval ends.
        sql.run("update :ext_schema.samples set next_at = now()")
        clock.now += 100


async def test_many_clients_share_one_look_per_pause(database, table, clock, monkeypatch):
    statements = record_statements(monkeypatch)
    monitor = open_monitor(database, clock)
    table.add_job()

    for looks in (1, 2):
        first = await asyncio.gather(*(monitor.collect() for _ in range(50)))
        # Within the pause, the answer is that of the last look.
        clock.now += 4.9
        table.add_job()
        later = await asyncio.gather(*(monitor.collect() for _ in range(50)))

        assert statements.count("set_probe_limits") == looks
        assert {value(each, definitions.QUEUE_RUNNABLE) for each in (*first, *later)} == {looks}
        clock.now += 60


async def test_the_oldest_ready_job_is_fresh_although_the_sample_is_not(
    database, sql, table, clock
):
    monitor = open_monitor(database, clock)
    table.add_job("a", run_at="now() - interval '1 hour'")
    await monitor.collect()

    sql.run("delete from :schema._private_jobs")
    table.add_job("b", run_at="now() - interval '2 hours'")
    sql.run("update :ext_schema.samples set next_at = now() + interval '1 minute'")
    clock.now += 61
    families = await monitor.collect()

    assert jobs_by_state(families, "a") == {"ready": 1}
    assert value(families, definitions.QUEUE_OLDEST_READY, "a") == 0
    oldest = value(families, definitions.QUEUE_OLDEST_READY, "b")
    assert oldest == pytest.approx(7200, abs=600)
    assert value(families, definitions.QUEUE_RUNNABLE) == 1


async def test_a_crash_of_the_server_loses_only_the_sample(database, sql, table, clock):
    monitor = open_monitor(database, clock)
    table.add_job()
    await monitor.collect()

    sql.run("truncate :ext_schema.samples")
    table.add_job()
    clock.now += 61
    families = await monitor.collect()

    assert jobs_by_state(families) == {"ready": 2}
    assert value(families, definitions.SNAPSHOT_SHARED) == 1


async def test_a_clock_of_the_server_that_was_set_back_does_not_stop_the_samples(
    database, sql, table, clock
):
    monitor = open_monitor(database, clock)
    await monitor.collect()
    sql.run(
        "update :ext_schema.samples set taken_at = now() + interval '1 day', "
        "next_at = now() + interval '1 day'"
    )

    table.add_job()
    clock.now += 61
    families = await monitor.collect()

    assert jobs_by_state(families) == {"ready": 1}
    assert 0 <= value(families, definitions.SNAPSHOT_AGE) < 60


async def test_a_database_of_node_alone_has_a_sample_for_each_process(node_database, clock):
    sql = Sql(node_database.dsn, node_database.schema)
    sql.run("select :schema.add_job('a', run_at => now() - interval '1 hour')")
    sql.run("select :schema.add_job('a', queue_name => 'q') from generate_series(1, 3)")
    monitor = open_monitor(node_database, clock)

    families = await monitor.collect()
    sql.run("delete from :schema._private_jobs")
    clock.now += 61
    later = await monitor.collect()
    sql.close()

    assert jobs_by_state(families, "a") == {"ready": 4}
    oldest = value(families, definitions.QUEUE_OLDEST_READY, "a")
    assert oldest == pytest.approx(3600, abs=600)
    assert value(families, definitions.QUEUE_RUNNABLE) == 2
    assert value(families, definitions.SNAPSHOT_SHARED) == 0
    assert jobs_by_state(later, "a") == {}
    assert value(later, definitions.QUEUE_RUNNABLE) == 0


async def test_a_companion_of_another_role_is_not_used(database, sql, table, role, clock):
    sql.run(f"alter table :ext_schema.samples owner to {role}")
    table.add_job()

    families = await open_monitor(database, clock).collect()

    assert jobs_by_state(families) == {"ready": 1}
    assert value(families, definitions.SNAPSHOT_SHARED) == 0
    assert sql.value("select count(*) from :ext_schema.samples") == 0


@pytest.mark.single_version
async def test_a_look_through_pgbouncer_leaves_no_settings_in_the_session(
    database, cluster, table, clock
):
    table.add_job()
    # PgBouncer itself sets the name of the program.
    settings = """
      select name, setting from pg_settings
      where source = 'session' and name <> 'application_name' order by name
    """
    with PgBouncer(cluster, size=1) as pooler:
        dsn = make_conninfo(database.dsn, port=pooler.port)
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
            before = connection.execute(settings).fetchall()
            families = await open_monitor(database, clock, dsn=dsn).collect()
            after = connection.execute(settings).fetchall()

    assert jobs_by_state(families) == {"ready": 1}
    assert value(families, definitions.SNAPSHOT_SHARED) == 1
    assert after == before


# Errors


async def test_a_database_that_does_not_answer_is_reported_with_the_last_sample(
    database, table, clock, proxy, caplog
):
    dsn = make_conninfo(database.dsn, port=proxy.port)
    monitor = open_monitor(database, clock, dsn=dsn)
    table.add_job()
    before = await monitor.collect()
    proxy.mode = Mode.BLACKHOLE
    monitor._timings = MonitorTimings(look_timeout=0.5)

    clock.now += 61
    answers = await asyncio.gather(*(monitor.collect() for _ in range(50)))
    clock.now += 4
    again = await monitor.collect()
    clock.now += 300
    expired = await monitor.collect()
    proxy.heal()
    monitor._timings = MonitorTimings(look_timeout=30.0, answer_timeout=60.0)
    clock.now += 61
    after = await monitor.collect()

    assert value(before, definitions.QUEUE_REACHABLE) == 1
    for each in (*answers, again):
        assert value(each, definitions.QUEUE_REACHABLE) == 0
        # All of them share one look.
        assert value(each, definitions.SNAPSHOT_ERRORS) == 1
        assert jobs_by_state(each) == {"ready": 1}
        assert value(each, definitions.SNAPSHOT_AGE) > 60
    # A sample of more than 5 minutes is not shown.
    shown = {metric.name for metric, samples in expired.items() if samples}
    assert {name.removeprefix("graphile_worker_") for name in shown} <= {
        *("queue_reachable", "snapshot_errors_total", "queue_info")
    }
    assert value(expired, definitions.SNAPSHOT_ERRORS) == 2
    assert value(after, definitions.QUEUE_REACHABLE) == 1
    assert jobs_by_state(after) == {"ready": 1}
    # Once for the whole outage, however long it is.
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "look at the queue failed, retrying",
        "look at the queue succeeded again",
    ]


async def test_a_look_at_a_database_that_does_not_answer_ends_within_4_s(database, clock, proxy):
    proxy.mode = Mode.BLACKHOLE
    dsn = make_conninfo(database.dsn, port=proxy.port)
    monitor = QueueMonitor(dsn, Schemas.from_names(database.schema))

    started_at = time.monotonic()
    families = await monitor.collect()

    # Not less, on a busy machine.
    assert time.monotonic() - started_at < 10
    assert value(families, definitions.QUEUE_REACHABLE) == 0
    assert (MonitorTimings().look_timeout, MonitorTimings().answer_timeout) == (3.5, 4.0)


@asynccontextmanager
async def locked_table(sql: Sql, table: str) -> AsyncIterator[None]:
    other = sql.another()
    other.run("begin")
    other.run(f"lock table :schema.{table} in access exclusive mode")
    yield
    other.run("rollback")
    other.close()


async def test_a_sample_that_fails_is_not_retried_by_any_process_for_60_s(
    database, sql, table, clock, caplog
):
    monitors = [open_monitor(database, clock) for _ in range(3)]
    table.add_job()
    for monitor in monitors:
        await monitor.collect()
    sql.run("update :ext_schema.samples set next_at = now()")
    clock.now += 61

    # A look does not read this table.
    async with locked_table(sql, "migrations"):
        answers = [await monitor.collect() for monitor in monitors]

    assert [value(each, definitions.SNAPSHOT_ERRORS) for each in answers] == [1, 0, 0]
    assert [value(each, definitions.QUEUE_REACHABLE) for each in answers] == [1, 1, 1]
    assert [jobs_by_state(each) for each in answers] == [{"ready": 1}] * 3
    assert "sample of the queue failed, next in 60 s: LockNotAvailable" in caplog.text
    assert sql.value("select next_at - now() between '30 s' and '60 s' from :ext_schema.samples")


async def test_hidden_jobs_and_a_missing_schema_are_errors(
    database, sql, table, empty_database, clock, caplog
):
    table.add_job()
    with temporary_role(sql, f"blind_{database.name}") as role:
        sql.run(f"grant usage on schema :schema to {role}")
        sql.run(f"grant select on all tables in schema :schema to {role}")
        dsn = make_conninfo(database.dsn, user=role)
        hidden = await open_monitor(database, clock, dsn=dsn).collect()
        counter = RunnableCounter(dsn, Schemas.from_names(database.schema))
        with pytest.raises(RowsHiddenError):
            await counter.count(None)
    missing = await open_monitor(empty_database, clock).collect()

    for families in (hidden, missing):
        assert value(families, definitions.QUEUE_REACHABLE) == 0
        assert value(families, definitions.SNAPSHOT_ERRORS) == 1
        assert families[definitions.QUEUE_JOBS] == {}
    assert "row level security hides all jobs" in caplog.text
    assert "SchemaMissing" in caplog.text


# Names and numbers of tasks


async def test_1000_hostile_names_of_tasks_are_parsed_and_have_201_labels(database, sql, clock):
    alphabet = "\"\\\n\r\t'{}=,# é名\u2028x"
    chance = random.Random(7)
    names = {"".join(chance.choices(alphabet, k=128)) for _ in range(1000)}
    sql.run(
        "insert into :schema._private_tasks (identifier) select unnest($1::text[])", list(names)
    )
    sql.run("""
      insert into :schema._private_jobs (task_id, attempts, run_at)
      select id, case when id % 2 = 0 then 25 else 0 end, now() - id * interval '1 s'
      from :schema._private_tasks
    """)

    families = await open_monitor(database, clock).collect()

    for parse, openmetrics in ((parse_text, False), (parse_openmetrics, True)):
        labels: dict[str, set[str]] = {"queue_jobs": set(), "queue_oldest_ready_seconds": set()}
        total = 0.0
        for family in parse(write_metrics(families, openmetrics=openmetrics)):
            for sample in family.samples:
                if (name := sample.name.removeprefix("graphile_worker_")) in labels:
                    labels[name].add(sample.labels["task"])
                    total += sample.value if name == "queue_jobs" else 0.0
        assert total == len(names)
        for each in labels.values():
            assert len(each) <= MAX_TASKS + 1
            assert each <= {*names, "_other"}


# Cost


@pytest.mark.nightly
@pytest.mark.single_version
@pytest.mark.timeout(600)
async def test_a_million_jobs_in_5000_named_queues_cost_less_than_the_budget(
    database, db, sql, figure
):
    fill_table(sql, jobs=1_000_000, queues=5_000)

    look = await measure(db, set_probe_limits(LIMIT_TIME), lambda: plan_look(db.schemas))
    sample = await measure(
        db,
        set_sample_limits(LIMIT_TIME, read_only=True),
        lambda: plan_sample(db.schemas, has_indexes=True),
    )
    probe = await measure(
        db,
        set_probe_limits(LIMIT_TIME),
        lambda: run_one(get_oldest_ready(MAX_LANES, MAX_QUEUED_JOBS)),
    )
    count = await measure(
        db,
        set_probe_limits(LIMIT_TIME),
        lambda: run_one(count_runnable_indexed(None, MAX_RUNNABLE, MAX_QUEUES, [])),
    )

    figure(
        f"1,000,000 jobs in 5,000 named queues: sample {sample:.3f} s, look {look:.3f} s "
        f"(oldest ready jobs {probe:.3f}, runnable jobs {count:.3f})"
    )
    assert sample < SAMPLE_BUDGET_SECONDS
    assert look < LOOK_BUDGET_SECONDS


def fill_table(sql: Sql, *, jobs: int, queues: int) -> None:
    """Fill the table with jobs of 50 tasks in 3 priorities.

    Of these, 40 % are in queues, 30 % are scheduled, and 300 are locked.
    """
    sql.run(
        "insert into :schema._private_tasks (identifier) "
        "select 't' || n from generate_series(1, 50) n"
    )
    sql.run(
        "insert into :schema._private_job_queues (queue_name, locked_at) "
        "select 'q' || n, case when n <= 100 then now() end from generate_series(1, $1) n",
        queues,
    )
    sql.run(
        """
        insert into :schema._private_jobs
          (task_id, priority, run_at, job_queue_id, locked_at, locked_by)
        select
          1 + n % 50,
          n % 3,
          now() + case when n % 10 in (1, 2, 3) then interval '1 day' else n * interval '-1 ms' end,
          case when n % 10 >= 6 then 1 + n / 10 % $2::int end,
          case when n <= 300 then now() end,
          case when n <= 300 then 'pypool-000000000000000001' end
        from generate_series(1, $1::int) n
        """,
        jobs,
        queues,
    )
    sql.run("vacuum analyze :schema._private_jobs")


def run_one(query: Query[Any]) -> Any:
    """A plan of one query."""
    yield query


async def measure(db: PsycopgDatabase, limits: Query[None], plan: Callable[[], Any]) -> float:
    """Return the least processor time of five runs that the session of the server used."""
    times = []
    for _ in range(5):
        async with db.transaction() as connection:
            await connection.run(limits)
            pid = connection.raw.info.backend_pid
            before = get_processor_time(pid)
            await run_plan_on(connection, plan())
            times.append(get_processor_time(pid) - before)
    return min(times)


def get_processor_time(pid: int) -> float:
    # Not the elapsed time, which on a busy machine is mostly waiting.
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def test_a_sample_has_the_slots_of_concurrency_limits(database):
    limits: list[Limit] = [
        ConcurrencyLimit(3, name="api"),
        RateLimit(1, per=timedelta(minutes=1), name="stripe"),
    ]
    with open_session(database) as session:
        session.run(register_limits(limits))
        session.run(create_limit_rows(["api", "stripe"]))
        session.run(register_pool("pool", timedelta(hours=1), {}))
        session.run(rent_slots("api", "pool", 2))
        session.run(want_slot("api", "other"))
        plan = plan_sample(session.schemas, has_indexes=True)
        families = run_plan_sync(session, plan)

    assert families[definitions.LIMIT_SLOTS] == {
        ("api", "size"): 3.0,
        ("api", "used"): 2.0,
        ("api", "wanted"): 1.0,
    }

"""Which jobs a pool takes, in what order, and what that leaves in the tables."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from graphile_worker import Job, JobSpec, sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import (
    NO_BYTE_LIMIT,
    ClaimedJob,
    claim_first_job,
    claim_jobs,
    claim_jobs_around,
    claim_jobs_unindexed,
    claim_plain_jobs,
    claim_soonest_jobs,
    get_task_ids,
    register_tasks,
)
from graphile_worker._sql.render import render_bytes
from tests.support.fetch_locks import wait_for_lock
from tests.support.pools import (
    Pool,
    open_pool,
    open_session,
    payloads,
    queue_lock,
    read_job_row,
    update_job,
)
from tests.support.sql import Sql

LONG_AGO = datetime(2001, 2, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)


# Every rule holds on our install and on the reference's.


@pytest.fixture
def pool_database(either_database):
    return either_database


@pytest.fixture
def impatient_pool(either_database):
    """It fails rather than wait for anybody else's lock."""
    with open_pool(either_database, lock_timeout="1ms") as pool:
        yield pool


@pytest.fixture
def client(blocking_client):
    return blocking_client


def add_many(client: sync.Client, count: int, **more: Any) -> list[Job]:
    """Jobs of one transaction; their payloads count from 0."""
    return client.add_jobs([JobSpec("task", n, **more) for n in range(count)])


def add_in_queues(client: sync.Client, *names: str | None) -> list[Job]:
    """One after the other: the reference numbers the jobs of a batch as it pleases."""
    return [client.add_job("task", n, queue_name=name) for n, name in enumerate(names)]


def add_at_once(client: sync.Client, names: list[str | None]) -> list[Job]:
    return client.add_jobs([JobSpec("task", n, queue_name=name) for n, name in enumerate(names)])


def insert_ready(sql: Sql, pool: Pool, count: int, run_at: str) -> None:
    (task_id,) = pool.tasks
    sql.run(
        "insert into :schema._private_jobs (task_id, run_at) "
        f"select $1::int, {run_at} from generate_series(1, $2::int) as n",
        task_id,
        count,
    )


# What is ready


@pytest.mark.feature("F87", "F94")
def test_only_jobs_of_the_pools_tasks_are_taken(pool, client):
    client.add_job("task", "known")
    client.add_job("other", "unknown")

    assert payloads(pool.claim(10)) == ["known"]
    assert payloads(pool.with_id("second").register_tasks("other").claim(10)) == ["unknown"]


@pytest.mark.feature("F94")
def test_a_pool_without_tasks_takes_nothing(pool, client):
    client.add_job("task")

    pool.tasks = {}

    assert pool.claim(10) == []


@pytest.mark.feature("F88")
def test_a_job_is_not_taken_before_its_time(pool, client):
    client.add_job("task", "later", run_at=HOUR)

    assert pool.claim() == []


@pytest.mark.feature("F88", "F104")
def test_the_callers_clock_decides_where_it_is_given(pool, client):
    client.add_job("task", "early", run_at=LONG_AGO)
    client.add_job("task", "today")
    client.add_job("task", "later", run_at=HOUR)

    assert payloads(pool.claim(10, now=LONG_AGO)) == ["early"]
    assert payloads(pool.claim(10, now=datetime.now(UTC) + 2 * HOUR)) == ["today", "later"]


@pytest.mark.feature("F87", "F210")
@pytest.mark.parametrize(
    "assignments",
    [
        pytest.param("locked_at = now(), locked_by = 'other'", id="locked"),
        pytest.param("locked_at = '-infinity', locked_by = 'other'", id="locked long ago"),
        pytest.param("attempts = max_attempts", id="at its limit"),
        pytest.param("attempts = max_attempts + 1", id="beyond its limit"),
    ],
)
def test_a_locked_or_permanently_failed_job_is_not_taken(pool, client, sql, assignments):
    update_job(sql, client.add_job("task"), assignments)

    assert pool.claim(10) == []


def test_a_job_of_a_queue_that_is_gone_is_never_taken(pool, client, sql):
    client.add_job("task", queue_name="gone")
    sql.run("delete from :schema._private_job_queues")

    assert pool.claim(10) == []


@pytest.mark.feature("F234")
@pytest.mark.parametrize(
    ("skipped", "taken"),
    [
        (None, {"none", "a", "b", "a and b"}),
        ([], {"none", "a", "b", "a and b"}),
        (["c"], {"none", "a", "b", "a and b"}),
        (["a"], {"none", "b"}),
        (["c", "b"], {"none", "a"}),
        (["a", "b"], {"none"}),
    ],
)
def test_a_job_with_any_of_the_flags_is_skipped(pool, client, skipped, taken):
    for payload, flags in {"none": [], "a": ["a"], "b": ["b"], "a and b": ["a", "b"]}.items():
        client.add_job("task", payload, flags=flags)

    assert set(payloads(pool.claim(10, skip_flags=skipped))) == taken


# Order and number


@pytest.mark.feature("F89", "F90")
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_the_order_is_priority_then_run_at_queued_or_not(pool, client, limit):
    client.add_job("task", 5, priority=1, run_at=LONG_AGO)
    client.add_job("task", 3, priority=0, run_at=LONG_AGO + HOUR, queue_name="a")
    client.add_job("task", 1, priority=-1)
    client.add_job("task", 4, priority=0)
    client.add_job("task", 2, priority=0, run_at=LONG_AGO)
    client.add_job("task", 0, priority=-32768, queue_name="b")
    client.add_job("task", 6, priority=32767, run_at=LONG_AGO, queue_name="c")

    assert payloads(take_all(pool, limit)) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.feature("F89")
@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("queues", ["none", "each"])
def test_jobs_of_one_transaction_go_in_the_order_of_their_ids(pool, client, sql, limit, queues):
    specs = [
        JobSpec("task", priority=n % 2, queue_name=f"q{n}" if queues == "each" else None)
        for n in range(60)
    ]
    jobs = client.add_jobs(specs)
    # A row that is written again moves behind the others.
    sql.run("update :schema._private_jobs set last_error = 'moved' where id % 3 = 0")

    taken = [held.job.id for held in take_all(pool, limit)]

    assert taken == [job.id for job in sorted(jobs, key=lambda job: (job.priority, job.id))]


def take_all(pool: Pool, limit: int) -> list[ClaimedJob]:
    taken: list[ClaimedJob] = []
    while batch := pool.claim(limit):
        taken += batch
    return taken


@pytest.mark.parametrize("limit", [1, 10, 100, 150])
def test_no_more_than_the_limit_are_taken(pool, client, limit):
    add_many(client, 250)

    assert payloads(pool.claim(limit)) == list(range(limit))


@pytest.mark.feature("F95")
@pytest.mark.parametrize("limit", [1, 100])
def test_jobs_behind_hundreds_of_a_busy_queue_are_found(pool, client, limit):
    add_many(client, 300, queue_name="busy", priority=-1)
    client.add_job("task", "behind")
    pool.claim_one()

    assert payloads(pool.claim(limit)) == ["behind"]


# What taking leaves in the tables


@pytest.mark.feature("F96", "F208")
def test_taking_counts_the_attempt_and_notes_who_and_when(pool, client, sql):
    added = client.add_job("task", queue_name="queue")

    held = pool.claim_one()

    job = read_job_row(sql, added)
    assert (job["attempts"], job["locked_by"], job["is_available"]) == (1, "pool", False)
    assert abs(datetime.now(UTC) - job["locked_at"]) < timedelta(minutes=1)
    assert (held.job.attempts, held.job.locked_by) == (1, "pool")
    assert held.job.locked_at == job["locked_at"]
    assert queue_lock(sql, "queue") == ("pool", False)
    assert sql.run("select locked_at from :schema._private_job_queues") == [(job["locked_at"],)]


@pytest.mark.feature("F104")
def test_a_job_taken_by_the_callers_clock_is_locked_by_it(pool, client, sql):
    client.add_job("task", queue_name="queue", run_at=LONG_AGO)

    (held,) = pool.claim(now=LONG_AGO + HOUR)

    assert held.job.locked_at == LONG_AGO + HOUR
    assert sql.run("select locked_at from :schema._private_job_queues") == [(LONG_AGO + HOUR,)]


@pytest.mark.feature("F123")
def test_a_taken_job_knows_all_of_its_row(pool, client, sql):
    added = client.add_job(
        "task",
        {"a": [1]},
        queue_name="queue",
        run_at=LONG_AGO,
        max_attempts=3,
        priority=7,
        job_key="key",
        flags=["x", "y"],
    )
    update_job(sql, added, "last_error = 'before', attempts = 1")

    held = pool.claim_one()

    assert held.job == client.get_job(added.id)
    assert (held.job.task_identifier, held.job.queue_name) == ("task", "queue")
    assert held.queue_id == read_job_row(sql, added)["job_queue_id"]


def test_taking_leaves_updated_at_and_other_queues_alone(pool, client, sql):
    taken, *_ = add_in_queues(client, "a", "b", None)

    pool.claim_one()

    assert read_job_row(sql, taken)["updated_at"] == taken.updated_at
    assert queue_lock(sql, "b") == (None, True)
    assert sql.value("select count(*) from :schema._private_jobs where locked_at is null") == 2


# Payloads and poison


@pytest.mark.parametrize(
    "text",
    ['{"b" : 1,\t"a":[1.0,  1e5],"b":2}', '"\\u00e9é"', "  null ", "12345678901234567890.10"],
)
def test_the_payload_arrives_byte_for_byte(pool, client, sql, text):
    added = client.add_job("task")
    sql.run("update :schema._private_jobs set payload = $2::json where id = $1", added.id, text)

    assert pool.claim_one().job.payload_text == text


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


# From 3.12 on, Python reads nesting far deeper than that.
UNREADABLE = {"5,000 digits": "1" * 5000}
if sys.version_info < (3, 12):
    UNREADABLE["5,000 deep"] = nested(5000)


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_payload_that_python_cannot_read_fails_alone(pool, client, sql, text):
    poison, healthy = add_many(client, 2)
    sql.run("update :schema._private_jobs set payload = $2::json where id = $1", poison.id, text)

    first, second = pool.claim(10)

    assert (first.job.id, first.job.payload_text) == (poison.id, text)
    with pytest.raises(ValueError):  # noqa: PT011 - whichever decoder is at work
        _ = first.job.payload
    assert second.job.payload == healthy.payload


@pytest.mark.parametrize(
    "assignments",
    [
        "payload = 'null'",
        "run_at = '-infinity'",
        "run_at = '4000-01-01 BC'",
        "created_at = 'infinity', updated_at = '-infinity'",
        "flags = '[1, \"y\"]'",
        "flags = '\"y\"'",
        "flags = 'null'",
        "flags = '5'",
    ],
)
def test_an_odd_row_is_taken_with_the_others(pool, client, sql, assignments):
    odd, healthy = add_many(client, 2)
    update_job(sql, odd, assignments)

    taken = {held.job.id: held.job for held in pool.claim(10, skip_flags=["x"])}

    assert taken.keys() == {odd.id, healthy.id}
    job = taken[odd.id]
    assert job.payload in (0, None)
    assert job.run_at.tzinfo is UTC
    assert job.flags == frozenset()


# Named queues


@pytest.mark.feature("F91", "F92")
@pytest.mark.parametrize("limit", [1, 10, 100])
def test_one_job_of_a_named_queue_at_a_time(pool, client, limit):
    add_many(client, 20, queue_name="queue")

    assert payloads(pool.claim(limit)) == [0]
    assert pool.claim(limit) == []
    assert pool.with_id("second").claim(limit) == []


@pytest.mark.feature("F91", "F92")
def test_a_batch_holds_the_first_of_each_queue_and_all_without(pool, client):
    add_in_queues(client, "a", "a", "b", None, "b", None)

    assert payloads(pool.claim(100)) == [0, 2, 3, 5]


@pytest.mark.feature("F92", "F211")
@pytest.mark.parametrize("way", ["finish", "fail", "release"])
def test_the_next_job_of_a_queue_is_found_once_it_is_free(pool, client, way):
    add_many(client, 2, queue_name="queue")
    held = pool.claim_one()
    second = pool.with_id("second")
    assert second.claim(10) == []

    getattr(pool, way)(held)

    assert payloads(second.claim(10)) == [0 if way == "release" else 1]


@pytest.mark.feature("F92")
def test_a_queue_that_another_pool_holds_is_passed_over(pool, client, sql):
    add_in_queues(client, "busy", "free")
    sql.run(
        "update :schema._private_job_queues set locked_at = now(), locked_by = 'other' "
        "where queue_name = 'busy'"
    )

    assert payloads(pool.claim(10)) == [1]


# Several sessions


@pytest.mark.feature("F92", "F95")
def test_a_queue_row_of_an_open_transaction_is_not_waited_for(impatient_pool, client, sql):
    add_in_queues(client, "busy", "free", None)
    sql.run("begin")
    sql.run("select from :schema._private_job_queues where queue_name = 'busy' for update")

    assert payloads(impatient_pool.claim(10)) == [1, 2]

    sql.run("rollback")
    assert payloads(impatient_pool.claim(10)) == [0]


@pytest.mark.feature("F95")
def test_a_job_row_of_an_open_transaction_is_not_waited_for(impatient_pool, client, sql):
    jobs = add_in_queues(client, None, "queue", None)
    sql.run("begin")
    sql.run("select from :schema._private_jobs where id <> $1 for update", jobs[2].id)

    assert payloads(impatient_pool.claim(10)) == [2]

    sql.run("rollback")
    assert payloads(impatient_pool.claim(10)) == [0, 1]


@pytest.mark.feature("F5", "F95")
@pytest.mark.parametrize("queues", ["none", "each"])
@pytest.mark.parametrize("limit", [1, 10])
def test_a_fetch_that_is_not_over_hides_nothing_else(pool, client, either_database, limit, queues):
    names = [f"q{n}" if queues == "each" else None for n in range(150)]
    jobs = sorted(add_at_once(client, names), key=lambda job: job.id)

    with open_session(either_database) as other, other.transaction() as unfinished:
        mine = pool.with_id("first", unfinished).claim(limit)
        rest = pool.with_id("second").claim(200)

    assert [held.job.id for held in mine + rest] == [job.id for job in jobs]
    assert len(mine) == limit


@pytest.mark.feature("F92", "F95")
def test_the_queue_of_a_fetch_that_is_not_over_is_passed_over(pool, client, either_database):
    add_in_queues(client, "a", "a", "b")

    with open_session(either_database) as other, other.transaction() as unfinished:
        pool.with_id("first", unfinished).claim_one()
        rest = pool.with_id("second").claim(10)

    assert payloads(rest) == [2]


# Between finding a job and locking it, a fetch of this session waits for an advisory lock.
PAUSE = """
create function public.paused(flags jsonb, skipped text[]) returns boolean stable language plpgsql
as $$
begin
  perform pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1);
  return flags operator(pg_catalog.?|) skipped;
end
$$;
create operator public.?| (leftarg = jsonb, rightarg = text[], function = public.paused)
"""
MEANWHILE = {
    "taken": "update :schema._private_jobs set locked_at = now(), attempts = 1",
    "taken and failed": "update :schema._private_jobs set attempts = 1, run_at = now() + '3 s'",
    "at its limit": "update :schema._private_jobs set attempts = max_attempts",
    "deleted": "delete from :schema._private_jobs",
    "flagged": "update :schema._private_jobs set flags = '{\"x\": true}'",
    "of another task": "update :schema._private_jobs set task_id = task_id + 1",
    "in another queue": "update :schema._private_jobs set job_queue_id = job_queue_id + 1",
    "in no queue": "update :schema._private_jobs set job_queue_id = null",
    "its queue taken": "update :schema._private_job_queues set locked_at = now()",
    "its queue deleted": "delete from :schema._private_job_queues",
}

OF_NO_QUEUE = ("taken", "taken and failed", "at its limit", "deleted", "flagged", "of another task")
PLAINLY = {name: MEANWHILE[name] for name in OF_NO_QUEUE} | {
    "in a queue": "update :schema._private_jobs set job_queue_id = (\n"
    "  select id from :schema._private_job_queues\n"
    ")"
}


@pytest.mark.feature("F92", "F95")
async def test_what_has_changed_since_it_was_found_is_left_alone(
    client, sql, either_database, subtests
):
    add_pause(sql)
    for name, event in MEANWHILE.items():
        with subtests.test(name):
            delete_jobs_and_queues(sql)
            client.add_job("task", queue_name="queue")

            assert await take_while(either_database, sql, event) == []


@pytest.mark.feature("F95")
@pytest.mark.parametrize("way", [claim_first_job, claim_plain_jobs], ids=lambda way: way.args[0])
async def test_a_job_that_is_not_plain_any_more_is_left_to_the_other_statement(
    client, sql, either_database, way, subtests
):
    add_pause(sql)
    for name, event in PLAINLY.items():
        with subtests.test(name):
            delete_jobs_and_queues(sql)
            client.add_job("task")
            client.add_job("other", queue_name="queue", run_at=HOUR)

            assert await take_while(either_database, sql, event, way=way) == []


async def test_a_queue_that_was_taken_and_freed_meanwhile_is_free(client, sql, either_database):
    add_pause(sql)
    client.add_job("task", "still there", queue_name="queue")
    freed = "update :schema._private_job_queues set locked_at = null"

    assert payloads(await take_while(either_database, sql, freed)) == ["still there"]


def add_pause(sql: Sql) -> None:
    sql.connection.execute(PAUSE.encode())


def delete_jobs_and_queues(sql: Sql) -> None:
    sql.run("delete from :schema._private_jobs")
    sql.run("delete from :schema._private_job_queues")


async def take_while(
    database: Any, sql: Sql, event: str, way: Callable[..., Any] = claim_jobs
) -> list[ClaimedJob]:
    """What a fetch takes if that happens after it has found what there is."""
    sql.run("select pg_advisory_lock(1)")
    with open_pool(database, search_path="public,pg_catalog") as pool:
        taking = asyncio.to_thread(pool.claim_by, way, 10, skip_flags=["x"])
        fetch: asyncio.Task[list[ClaimedJob]] = asyncio.create_task(taking)
        try:
            await wait_for_lock(sql)
            sql.run(event)
        finally:
            sql.run("select pg_advisory_unlock(1)")
        return await fetch


@pytest.mark.single_version
@pytest.mark.feature("F5", "F92", "F95")
@pytest.mark.timeout(120)
def test_eight_fetchers_share_two_thousand_jobs_and_each_queue_stays_serial(pool, client, sql):
    queues = [f"q{n % 40}" if n % 2 else None for n in range(2000)]
    jobs = add_at_once(client, queues)
    # The database itself says so if ever two jobs of a queue are held.
    sql.run(
        "create unique index on :schema._private_jobs (job_queue_id) where locked_at is not null"
    )

    over = threading.Event()
    with ThreadPoolExecutor(8) as threads:
        parts = [threads.submit(work, pool.with_id(f"pool-{n}"), n, over) for n in range(8)]
        try:
            wait_until_empty(sql, parts)
        finally:
            over.set()
    done = Counter(job_id for part in parts for job_id in part.result())

    assert done == Counter(job.id for job in jobs)
    assert sql.value("select count(*) from :schema._private_job_queues where not is_available") == 0


def work(pool: Pool, number: int, over: threading.Event) -> list[int]:
    """Take and finish jobs; some fetchers want one at a time, others many."""
    done: list[int] = []
    while not over.is_set():
        held = pool.claim((1, 3, 10, 25)[number % 4])
        assert pool.finish(*held) == {each.job.id for each in held}
        done += [each.job.id for each in held]
    return done


def wait_until_empty(sql: Sql, parts: list[Any]) -> None:
    while sql.value("select count(*) from :schema._private_jobs"):
        if broken := next((part for part in parts if part.done()), None):
            broken.result()
        threading.Event().wait(0.02)


# Cost


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize("run_at", ["now()", "now() - n * interval '1 ms'"], ids=["same", "apart"])
def test_a_fetch_from_twenty_thousand_jobs_reads_an_index(pool, sql, schema, limit, run_at):
    insert_ready(sql, pool, 20_000, run_at)
    sql.run("analyze :schema._private_jobs")

    nodes = list(scans_of_jobs(explain_get_jobs(sql, pool, schema, limit)))

    assert {node["Node Type"] for node in nodes}.isdisjoint({"Seq Scan", "Bitmap Heap Scan"})
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in nodes) <= 2 * limit + 50


def explain_get_jobs(sql: Sql, pool: Pool, schema: str, limit: int) -> dict[str, Any]:
    name = "claim_jobs" if pool.has_indexes else "claim_jobs_unindexed"
    text = render_bytes(name, Schemas.from_names(schema))
    args = (pool.id, list(pool.tasks), ["flag"], limit, None, None, None, NO_BYTE_LIMIT)
    explained = sql.connection.execute(b"explain (analyze, format json) " + text, args).fetchone()
    assert explained is not None
    plan: dict[str, Any] = explained[0][0]["Plan"]
    return plan


def scans_of_jobs(node: dict[str, Any]) -> Any:
    is_scan = node.get("Relation Name") == "_private_jobs" and "Scan" in node["Node Type"]
    # Some are for tables that look otherwise.
    if is_scan and node["Actual Loops"]:
        yield node
    for below in node.get("Plans", ()):
        yield from scans_of_jobs(below)


# Task identifiers


def test_registered_tasks_keep_their_ids_and_cost_no_more_of_them(pool, sql):
    known = pool.register_tasks("a", "b").tasks

    for _ in range(3):
        pool.connection.run(register_tasks(["a", "b", "b"]))
    later = pool.register_tasks("a", "b", "c").tasks

    assert set(known.values()) == {"a", "b"}
    assert later == {**known, max(known) + 1: "c"}


def test_only_the_ids_of_the_named_tasks_are_returned(pool):
    pool.register_tasks("a", "b")

    assert list(pool.connection.run(get_task_ids(["b", "unknown"])).values()) == ["b"]
    assert pool.connection.run(get_task_ids([])) == {}


# What is said of a job


WAYS = [
    claim_first_job,
    claim_plain_jobs,
    claim_soonest_jobs,
    partial(claim_jobs_around, since=(0, LONG_AGO)),
    claim_jobs,
    claim_jobs_unindexed,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.args[0])
async def test_a_taken_job_is_as_its_row_is(client, pool, sql, way):
    client.add_job("task")
    client.add_job("task", run_at=LONG_AGO, priority=3, job_key="key", flags=["flag"])
    [later] = client.reschedule_jobs([client.add_job("task").id], run_at=LONG_AGO, attempts=2)
    assert later.updated_at > later.created_at
    pool.register_tasks("task")
    if not pool.has_indexes and way is claim_jobs:
        pytest.skip("is not asked there")

    taken = pool.claim_all_by(way, 10)

    assert len(taken) == 3
    for held in taken:
        row = client.get_job(held.job.id)
        assert row is not None
        for name in Job.__slots__:
            if name not in ("_payload", "_flags", "_result_source", "_shard", "_is_duplicate"):
                assert getattr(held.job, name) == getattr(row, name), name
        assert (held.job.payload, held.job.flags) == (row.payload, row.flags)

"""Several databases as one queue: a key decides the shard, and stays there until it is free."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import (
    App,
    Client,
    ConfigurationError,
    Hooks,
    JobSpec,
    JobSpecError,
    Retention,
    ShardError,
    Shards,
    WorkerOptions,
    run_once,
    sync,
)
from graphile_worker._shards import IDENTIFY_INTERVAL_SECONDS
from graphile_worker.events import AddingJobs
from tests.conftest import TestDatabase
from tests.support.clients import AsyncWrapper, open_connection, unwrap
from tests.support.recorder import wait_until
from tests.support.sql import Sql

# What Python does: test_statements.py runs each statement on the oldest pair too.
pytestmark = pytest.mark.single_version

KEYS = [f"customer-{number}" for number in range(60)]


class Queue:
    """Shards of three databases, awaited in either kind."""

    def __init__(self, kind: str, databases: dict[str, TestDatabase]) -> None:
        self.kind = kind
        self.databases = databases
        self._opened: list[Any] = []

    def open(self, names: str = "abc", **options: Any) -> Any:
        return self.open_at({name: self.databases[name].dsn for name in names}, **options)

    def open_at(self, addresses: dict[str, Any], **options: Any) -> Any:
        schema = self.databases["a"].schema
        if self.kind == "async":
            self._opened.append(Shards(addresses, schema=schema, **options))
        else:
            self._opened.append(AsyncWrapper(sync.Shards(addresses, schema=schema, **options)))
        return self._opened[-1]

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        database = self.databases[name]
        with closing(Sql(database.dsn, database.schema)) as sql:
            return sql.run(
                "select jobs.key, queue_name from :schema._private_jobs as jobs "
                "left join :schema._private_job_queues as queues on queues.id = job_queue_id "
                "order by jobs.id"
            )

    def delete_all(self, name: str) -> None:
        database = self.databases[name]
        with closing(Sql(database.dsn, database.schema)) as sql:
            sql.run("delete from :schema._private_jobs")

    async def close(self) -> None:
        for each in self._opened:
            await each.close()


@pytest.fixture
async def queue(kind, shard_databases) -> AsyncIterator[Queue]:
    queue = Queue(kind, shard_databases)
    yield queue
    await queue.close()


def localize(shards: Any, name: str) -> Any:
    """The shards of the tasks of one shard."""
    local = unwrap(shards)._localize(name)
    return local if unwrap(shards) is shards else AsyncWrapper(local)


def find_key(predicate: Callable[[str], bool]) -> str:
    return next(key for key in KEYS if predicate(key))


async def test_jobs_are_on_the_shard_of_their_key_and_know_it(queue):
    shards = queue.open("ab")
    found = Shards({"a": "", "b": ""}).find_shard

    for key in KEYS[:20]:
        keyed = await shards.add_job("task", job_key=key)
        queued = await shards.add_job("task", queue_name=key)
        given = await shards.add_job("task", job_key=f"other {key}", shard_key=key)
        assert {keyed.shard, queued.shard, given.shard} == {found(key)}
        assert (await shards.get_job_by_key(key)).id == keyed.id
        assert await shards.get_job(keyed.id, shard=keyed.shard) == keyed
        assert (await shards.status(keyed.id, shard=keyed.shard)).state == "ready"
        removed = await shards.remove_job(f"other {key}", shard_key=key)
        assert (removed.id, removed.shard) == (given.id, given.shard)

    for name in "ab":
        expected = {key for key in KEYS[:20] if found(key) == name}
        assert {key for key, _ in queue.rows(name) if key} == expected
        assert {each for _, each in queue.rows(name) if each} == expected


async def test_jobs_without_a_key_are_spread_over_the_shards(queue):
    shards = queue.open()

    added = [await shards.add_job("task") for _ in range(40)]

    assert {job.shard for job in added} == {"a", "b", "c"}


async def test_a_batch_is_added_in_the_order_of_its_specs(queue):
    shards = queue.open()
    specs = [JobSpec("task", {"n": n}, job_key=key) for n, key in enumerate(KEYS)]
    specs += [JobSpec("task", {"n": n}) for n in range(60, 90)]

    jobs = await shards.add_jobs(specs)

    assert [job.payload["n"] for job in jobs] == list(range(90))
    assert {job.shard for job in jobs[:60]} == {"a", "b", "c"}
    assert len({job.shard for job in jobs[60:]}) == 1, "all or none of the jobs without a key"


async def test_a_batch_that_fails_names_the_shards_that_have_its_jobs(queue):
    shards = queue.open()
    bad = find_key(lambda key: Shards(dict.fromkeys("abc", "")).find_shard(key) == "c")
    good = find_key(lambda key: Shards(dict.fromkeys("abc", "")).find_shard(key) == "a")
    specs = [JobSpec("task", job_key=good), JobSpec("task", object(), job_key=bad)]

    with pytest.raises(JobSpecError) as raised:
        await shards.add_jobs(specs)

    assert raised.value.__notes__ == ["1 jobs were added, on shards a"]
    assert len(queue.rows("a")) == 1


async def test_a_moved_key_stays_on_its_former_shard_while_that_has_a_job_of_it(queue):
    before, after = queue.open("ab"), queue.open("abc", new=["c"])
    old, new = Shards(dict.fromkeys("ab", "")), Shards(dict.fromkeys("abc", ""))
    moved = [key for key in KEYS if new.find_shard(key) == "c"][:4]
    keyed, queued, unused, batched = moved
    await before.add_job("task", job_key=keyed)
    await before.add_job("task", queue_name=queued)
    await before.add_job("task", job_key=batched)

    assert (await after.add_job("task", job_key=keyed)).shard == old.find_shard(keyed)
    assert (await after.add_job("task", queue_name=queued)).shard == old.find_shard(queued)
    assert (await after.add_job("task", job_key=unused)).shard == "c"
    jobs = await after.add_jobs([JobSpec("task", job_key=batched), JobSpec("task", job_key="x")])
    assert jobs[0].shard == old.find_shard(batched)
    assert (await after.get_job_by_key(keyed)).shard == old.find_shard(keyed)
    assert (await after.remove_job(keyed)).shard == old.find_shard(keyed)
    for name in "ab":
        queue.delete_all(name)
    assert (await after.add_job("task", job_key=keyed)).shard == "c"
    assert (await after.add_job("task", queue_name=queued)).shard == "c"


async def test_a_mistake_in_a_batch_of_moved_keys_adds_nothing(queue):
    shards = queue.open("abc", new=["c"])
    found = Shards(dict.fromkeys("abc", "")).find_shard
    first, second = [key for key in KEYS if found(key) == "c"][:2]
    twice = [JobSpec("task", job_key=first), JobSpec("task", {"n": 2}, job_key=first)]
    invalid = [JobSpec("task", queue_name=first), JobSpec("task", object(), queue_name=second)]

    for specs, message in ((twice, "twice"), (invalid, "object")):
        with pytest.raises(JobSpecError, match=message):
            await shards.add_jobs(specs)

    assert [queue.rows(name) for name in "abc"] == [[], [], []]


async def test_a_unique_key_decides_the_shard_and_its_window_stays_where_it_is_open(queue):
    before, after = queue.open("ab"), queue.open("abc", new=["c"])
    old, new = Shards(dict.fromkeys("ab", "")), Shards(dict.fromkeys("abc", ""))
    kept, free, batched = [key for key in KEYS if new.find_shard(key) == "c"][:3]
    day = timedelta(days=1)
    first = await before.add_job("task", unique=kept, unique_for=day)
    await before.add_job("task", unique=batched, unique_for=day)
    for name in "ab":
        queue.delete_all(name)

    again = await after.add_job("task", unique=kept, unique_for=day)
    added = await after.add_job("task", unique=free, unique_for=day)
    jobs = await after.add_jobs(
        [JobSpec("task", unique=batched, unique_for=day), JobSpec("task", job_key="x")]
    )

    assert (again.is_duplicate, again.id, again.shard) == (True, first.id, first.shard)
    assert first.shard == old.find_shard(kept)
    assert (added.is_duplicate, added.shard) == (False, "c")
    assert (jobs[0].is_duplicate, jobs[0].shard) == (True, old.find_shard(batched))
    with pytest.raises(JobSpecError, match=r"unique 'a' and queue_name 'b' may be on two shards"):
        await after.add_job("task", unique="a", unique_for=day, queue_name="b")


async def test_a_draining_shard_gets_only_keys_that_it_still_has(queue):
    before, after = queue.open("ab"), queue.open("ab", draining=["b"])
    kept, free = [key for key in KEYS if Shards({"a": "", "b": ""}).find_shard(key) == "b"][:2]
    await before.add_job("task", job_key=kept)

    assert (await after.add_job("task", {"n": 2}, job_key=kept)).shard == "b"
    assert (await after.add_job("task", job_key=free)).shard == "a"
    assert {(await after.add_job("task")).shard for _ in range(20)} == {"a"}
    assert len(queue.rows("b")) == 1, "the job was replaced"


async def test_the_status_counts_what_is_elsewhere_now(queue):
    before = queue.open("ab")
    for key in KEYS:
        await before.add_job("task", job_key=key)
    await before.add_job("task")
    new = Shards(dict.fromkeys("abc", ""))
    moved = sum(new.find_shard(key) == "c" for key in KEYS)

    unchanged = await before.read_status()
    grown = await queue.open("abc", new=["c"]).read_status()
    drained = await queue.open("ab", draining=["b"]).read_status()

    assert [each.misplaced for each in unchanged] == [0, 0]
    assert sum(each.total for each in unchanged) == len(KEYS) + 1
    assert sum(each.misplaced for each in grown) == moved > 0
    assert (grown[2].total, grown[2].is_new) == (0, True)
    assert (drained[1].is_draining, drained[1].misplaced) == (True, drained[1].total)


async def test_a_connection_decides_the_shard_of_jobs_without_a_key(queue):
    shards = queue.open("ab")
    for name in "ab":
        async with open_connection(queue.kind, queue.databases[name]) as conn:
            jobs = [await shards.add_job("task", conn=unwrap(conn)) for _ in range(5)]
            batch = await shards.add_jobs([JobSpec("task"), JobSpec("task")], conn=unwrap(conn))
            assert {job.shard for job in [*jobs, *batch]} == {name}
            assert queue.rows(name) == [], "the transaction is open"
            await conn.commit()
        assert len(queue.rows(name)) == 7


async def test_a_connection_of_another_shard_is_rejected(queue, database):
    shards = queue.open("ab")
    key = find_key(lambda key: Shards({"a": "", "b": ""}).find_shard(key) == "b")

    async with open_connection(queue.kind, queue.databases["a"]) as conn:
        for call in (
            shards.add_job("task", job_key=key, conn=unwrap(conn)),
            shards.add_jobs([JobSpec("task", queue_name=key)], conn=unwrap(conn)),
            shards.remove_job(key, conn=unwrap(conn)),
        ):
            with pytest.raises(ShardError, match="belongs to shard 'a', and jobs .* to 'b'"):
                await call
        assert (await shards.add_job("task", shard_key="x", conn=None)).shard
    async with open_connection(queue.kind, queue.databases["b"]) as conn:
        assert (await shards.add_job("task", job_key=key, conn=unwrap(conn))).shard == "b"
        assert (await shards.get_job_by_key(key, conn=unwrap(conn))).key == key
    async with open_connection(queue.kind, database) as conn:
        with pytest.raises(ShardError, match="none of the shards a, b"):
            await shards.add_job("task", conn=unwrap(conn))


async def test_a_connection_to_the_new_shard_is_rejected_while_the_former_has_the_key(queue):
    before, after = queue.open("ab"), queue.open("abc", new=["c"])
    new = Shards(dict.fromkeys("abc", ""))
    kept, free = [key for key in KEYS if new.find_shard(key) == "c"][:2]
    home = (await before.add_job("task", job_key=kept)).shard

    async with open_connection(queue.kind, queue.databases["c"]) as conn:
        with pytest.raises(ShardError, match=f"belongs to shard 'c', and jobs .* to '{home}'"):
            await after.add_job("task", job_key=kept, conn=unwrap(conn))
        assert (await after.add_job("task", job_key=free, conn=unwrap(conn))).shard == "c"
    async with open_connection(queue.kind, queue.databases[home]) as conn:
        assert (await after.add_job("task", job_key=kept, conn=unwrap(conn))).shard == home


async def test_two_shards_must_be_two_databases(queue):
    dsn = queue.databases["a"].dsn
    shards = Shards({"a": dsn, "b": dsn}, schema=queue.databases["a"].schema)
    async with shards, open_connection("async", queue.databases["a"]) as conn:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="'a' and 'b' are the same database"):
                await shards.add_job("task", conn=conn)


async def test_every_call_raises_while_two_other_shards_are_one_database(queue):
    dsns = {name: queue.databases[name].dsn for name in "ab"}
    shards = queue.open_at({**dsns, "c": dsns["b"]})
    async with open_connection(queue.kind, queue.databases["a"]) as conn:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="'b' and 'c' are the same database"):
                await shards.add_job("task", conn=unwrap(conn))


async def test_a_clone_of_a_shard_is_noticed_when_it_is_reachable_again(queue):
    dsn = queue.databases["a"].dsn
    addresses = {"b": "postgresql://127.0.0.1:9/nowhere?connect_timeout=2"}
    # A clone has the same identity, as two names of one database have.
    shards = queue.open_at({"a": dsn, "b": lambda: addresses["b"]})
    async with open_connection(queue.kind, queue.databases["a"]) as conn:
        assert (await shards.add_job("task", conn=unwrap(conn))).shard == "a"
        addresses["b"] = dsn
        assert (await shards.add_job("task", conn=unwrap(conn))).shard == "a"

        unwrap(shards)._identities.identify_at -= IDENTIFY_INTERVAL_SECONDS
        # This call asks the shards, and does not wait for their answers.
        assert (await shards.add_job("task", conn=unwrap(conn))).shard == "a"
        await wait_until(lambda: unwrap(shards)._identities.has_conflict)

        for _ in range(2):
            with pytest.raises(ConfigurationError, match="'a' and 'b' are the same database"):
                await shards.add_job("task", conn=unwrap(conn))


async def test_a_call_on_a_healthy_shard_does_not_wait_for_an_unreachable_one(queue):
    asked, answer = threading.Event(), threading.Event()
    addresses = ["postgresql://127.0.0.1:9/nowhere?connect_timeout=2"]

    def find_address() -> str:
        if len(addresses) > 1:
            asked.set()
            answer.wait(10)
        return addresses[-1]

    shards = queue.open_at({"a": queue.databases["a"].dsn, "b": find_address})
    async with open_connection(queue.kind, queue.databases["a"]) as conn:
        assert (await shards.add_job("task", conn=unwrap(conn))).shard == "a"
        addresses.append(queue.databases["b"].dsn)
        identities = unwrap(shards)._identities
        identities.identify_at -= IDENTIFY_INTERVAL_SECONDS
        try:
            # Shards for the tasks of a worker ask once for all.
            for each in (shards, localize(shards, "a"), localize(shards, "b")):
                assert (await each.add_job("task", conn=unwrap(conn))).shard == "a"
            assert await asyncio.to_thread(asked.wait, 10)
            assert list(identities.names.values()) == ["a"]
        finally:
            answer.set()
        await wait_until(lambda: len(identities.names) == 2)


async def test_a_job_id_needs_its_shard(queue):
    shards = queue.open("ab")
    for method in ("get_job", "status"):
        with pytest.raises(ConfigurationError, match=r"Pass shard=job\.shard"):
            await getattr(shards, method)(1)


async def test_every_shard_is_migrated(queue, databases, cluster, schema):
    name = databases.clone("template0")
    empty = TestDatabase(name, cluster, schema)
    queue.databases = {**queue.databases, "c": empty}
    shards = queue.open("ac")
    try:
        assert await shards.migrate() > 0
        assert queue.rows("c") == []
    finally:
        await queue.close()
        cluster.drop_database(name)


async def test_hooks_see_the_jobs_of_all_shards(queue):
    hooks, seen = Hooks(), []

    @hooks.around(AddingJobs)
    @contextmanager
    def record(operation: AddingJobs) -> Iterator[None]:
        seen.extend(operation.specs)
        yield

    shards = queue.open("ab", hooks=hooks)
    for key in KEYS[:6]:
        await shards.add_job("task", job_key=key)

    assert [spec.job_key for spec in seen] == KEYS[:6]


def test_a_blocking_hook_may_add_jobs_to_the_shard_of_a_key_that_moves(shard_databases):
    hooks = Hooks()
    added_by_hook = []

    @hooks.around(AddingJobs)
    @contextmanager
    def audit(operation: AddingJobs) -> Iterator[None]:
        is_audited = operation.specs[0].identifier == "task"
        if is_audited:
            added_by_hook.append(shards.client(home).add_job("before"))
        yield
        if is_audited:
            added_by_hook.append(shards.client(home).add_job("after"))

    addresses = {name: shard_databases[name].dsn for name in "abc"}
    schema = shard_databases["a"].schema
    key = find_key(lambda key: Shards(dict.fromkeys("abc", "")).find_shard(key) == "c")
    home = Shards(dict.fromkeys("ab", "")).find_shard(key)
    with sync.Client(addresses[home], schema=schema) as client:
        kept = client.add_job("task", job_key=key)

    with sync.Shards(addresses, schema=schema, new=["c"], hooks=hooks) as shards:
        replaced = shards.add_job("task", {"n": 2}, job_key=key)
        assert (replaced.id, replaced.shard) == (kept.id, home)
        found = [shards.client(home).get_job(job.id) for job in added_by_hook]

    assert [job and job.task_identifier for job in found] == ["before", "after"]


# Apps


@asynccontextmanager
async def open_app(queue: Queue, names: str = "ab", **options: Any) -> AsyncIterator[App[Any]]:
    dsns = {name: queue.databases[name].dsn for name in names}
    app: App[Any] = App(Shards(dsns), schema=queue.databases["a"].schema, **options)
    async with app:
        yield app


async def test_tasks_of_an_app_are_enqueued_on_the_shard_of_their_key(queue):
    async with open_app(queue) as app:
        ran: list[str] = []

        @app.task(retention=Retention(results=True))
        async def double(number: int) -> int:
            ran.append(str(number))
            return 2 * number

        async def enqueue(number: int) -> Any:
            task = double.using(shard_key=KEYS[number])
            if queue.kind == "async":
                return await task.aenqueue(number)
            return await asyncio.to_thread(task.enqueue, number)

        jobs = [await enqueue(number) for number in range(12)]
        assert {job.shard for job in jobs} == {"a", "b"}
        assert await app.worker(concurrency=3).run_once() == 12

        for number, job in enumerate(jobs):
            assert await job.aresult() == 2 * number
            assert await app.aresult(job.id, shard=job.shard) == 2 * number
            status = await app.astatus(job.id, shard=job.shard)
            assert status.state == "succeeded"
        with pytest.raises(ConfigurationError, match=r"Pass shard=job\.shard"):
            await app.aresult(jobs[0].id)


async def test_an_app_keeps_the_options_of_its_shards(queue, schema):
    dsns = {name: queue.databases[name].dsn for name in "ab"}
    shards = Shards(dsns, schema=schema, max_payload_bytes=20, notify="never")
    async with App(shards) as app:
        await app.aadd_job("task", shard_key=find_key(lambda key: shards.find_shard(key) == "a"))
        with pytest.raises(JobSpecError, match="max_payload_bytes is 20"):
            app.add_job("task", "a" * 20)

    assert len(queue.rows("a")) == 1


async def test_shards_and_their_app_or_worker_must_agree(queue, schema):
    dsns = {name: queue.databases[name].dsn for name in "ab"}
    message = "^the shards have schema='elsewhere', and their app or worker has"
    async with App(Shards(dsns, schema="elsewhere"), schema=schema) as app:
        with pytest.raises(ConfigurationError, match=message):
            await app.aadd_job("task")
    with pytest.raises(ConfigurationError, match=message):
        await run_once(
            Shards(dsns, schema="elsewhere"), {"task": print}, options=WorkerOptions(schema=schema)
        )
    with pytest.raises(ConfigurationError, match="^the shards have prepared_statements=False"):
        await run_once(
            Shards(dsns, prepared_statements=False),
            {"task": print},
            options=WorkerOptions(schema=schema),
        )


async def test_using_connection_picks_the_shard(queue):
    async with open_app(queue) as app:
        with psycopg.connect(queue.databases["b"].dsn) as conn, app.using_connection(conn):
            assert (await asyncio.to_thread(app.add_job, "task")).shard == "b"
            key = find_key(lambda key: Shards({"a": "", "b": ""}).find_shard(key) == "a")
            with pytest.raises(ShardError):
                app.add_job("task", job_key=key)


async def test_one_database_ignores_the_shard_key(database):
    async with Client(database.dsn, schema=database.schema) as client:
        job = await client.add_job("task", {"n": 1}, job_key="key", shard_key="customer")

    assert (job.shard, json.loads(job.payload_text)) == (None, {"n": 1})

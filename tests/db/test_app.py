"""An app adds the jobs of its tasks, blocking and async, on its connections and on yours."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import (
    App,
    ConfigurationError,
    JobContext,
    JobSpec,
    JobSpecError,
    SchemaMissing,
    Shards,
    Task,
    TaskRouter,
)
from tests.conftest import TestDatabase
from tests.support.clients import open_connection, unwrap
from tests.support.processes import eventually
from tests.support.sql import Sql

SOON = datetime(2030, 1, 1, tzinfo=UTC)
OPTIONS: dict[str, Any] = {
    "queue_name": "slow",
    "run_at": SOON,
    "max_attempts": 3,
    "priority": -5,
    "job_key": "key",
    "job_key_mode": "preserve_run_at",
    "flags": ["a"],
}
BACKENDS = """
select count(*)
from pg_stat_activity
where datname = current_database() and application_name = 'graphile-worker'
"""


class Shop:
    """An app with a task, called blocking or async."""

    def __init__(self, kind: str, database: TestDatabase, **options: Any) -> None:
        self.kind = kind
        self.app = App(database.dsn, schema=database.schema, **options)
        self.send_email = self.app.task(send_email)

    async def ask(self, name: str, *args: Any, of: Any = None, **options: Any) -> Any:
        """Call a method of the app, or of another object: awaited, or blocking in a thread."""
        owner = of or self.app
        if self.kind == "async":
            return await getattr(owner, f"a{name}")(*args, **options)
        return await asyncio.to_thread(getattr(owner, name), *args, **options)

    async def enqueue(self, *args: Any, using: Task[..., Any] | None = None) -> Any:
        return await self.ask("enqueue", *args, of=using or self.send_email)


def send_email(to: str, subject: str = "Hello") -> None: ...


@pytest.fixture
async def shop(kind: str, database: TestDatabase) -> AsyncIterator[Shop]:
    shop = Shop(kind, database)
    async with shop.app:
        yield shop


@pytest.fixture
def known_task(sql: Sql) -> None:
    """Add a first job, because the transaction of the first job of a task blocks others."""
    sql.run("insert into :schema._private_tasks (identifier) values ('send_email')")


beside_others = pytest.mark.usefixtures("known_task")


def app_on(database: TestDatabase) -> App[None]:
    return App(database.dsn, schema=database.schema)


def payloads(sql: Sql) -> list[Any]:
    rows = sql.run("select payload from :schema._private_jobs order by id")
    return [payload for (payload,) in rows]


def facts(job: Any) -> dict[str, Any]:
    found = {name: getattr(job, name) for name in OPTIONS if hasattr(job, name)}
    return found | {"job_key": job.key}


async def wait_until_gone(sql: Sql) -> None:
    """A server process ends some time after its connection: there is no event to wait for."""
    async with asyncio.timeout(10):
        while sql.value(BACKENDS):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# Adding


@pytest.mark.feature("F54")
async def test_enqueueing_a_task_adds_its_job(shop, sql):
    job = await shop.enqueue("ada")

    assert (job.task_identifier, job.payload) == ("send_email", {"to": "ada"})
    assert payloads(sql) == [{"to": "ada"}]


@pytest.mark.feature("F45", "F54", "F56")
async def test_the_options_of_a_job_mean_the_same_everywhere(shop):
    expected = {**OPTIONS, "flags": frozenset("a")}
    del expected["job_key_mode"]

    added = await shop.ask("add_job", "send_email", {"to": "ada"}, **OPTIONS)
    enqueued = await shop.enqueue("ada", using=shop.send_email.using(**OPTIONS))
    (many,) = await shop.ask("add_jobs", [shop.send_email.using(**OPTIONS).spec("ada")])

    assert [facts(job) for job in (added, enqueued, many)] == [expected] * 3


@pytest.mark.feature("F54")
async def test_the_options_of_a_task_reach_its_jobs(shop):
    @shop.app.task(queue_name="slow", priority=7, max_attempts=2)
    def resize(path: str) -> None: ...

    job = await shop.enqueue("a.png", using=resize)

    assert (job.queue_name, job.priority, job.max_attempts) == ("slow", 7, 2)


@pytest.mark.feature("F45", "F55")
async def test_a_task_of_another_program_is_added_by_its_name(shop, sql):
    job = await shop.ask("add_job", "only_in_node", [1, "two"])

    assert (job.task_identifier, job.payload) == ("only_in_node", [1, "two"])


@pytest.mark.feature("F57", "F58")
async def test_jobs_of_many_tasks_are_added_in_one_call(shop):
    specs = (shop.send_email.spec("ada"), JobSpec("other"), shop.send_email.spec("bob"))

    jobs = await shop.ask("add_jobs", (spec for spec in specs))

    found = [(job.task_identifier, job.payload) for job in jobs]
    assert found == [("send_email", {"to": "ada"}), ("other", {}), ("send_email", {"to": "bob"})]


@pytest.mark.feature("F45")
async def test_a_job_is_removed_by_its_key(shop, sql):
    job = await shop.enqueue("ada", using=shop.send_email.using(job_key="key"))

    removed = await shop.ask("remove_job", "key")

    assert removed.id == job.id
    assert await shop.ask("remove_job", "key") is None
    assert payloads(sql) == []


@pytest.mark.feature("F54")
async def test_the_tasks_of_routers_are_added_on_the_apps_database(shop, sql):
    router: TaskRouter[None] = TaskRouter(prefix="billing/")
    charge = router.task(name="charge")(send_email)
    shop.app.include(router)

    job = await shop.enqueue("ada", using=charge)

    assert job.task_identifier == "billing/charge"
    assert payloads(sql) == [{"to": "ada"}]


@pytest.mark.feature("F54")
async def test_an_argument_of_the_wrong_type_is_rejected_before_anything_is_sent(shop, statements):
    with pytest.raises(JobSpecError) as caught:
        await shop.enqueue(7)

    assert caught.value.argument == "payload.to"
    assert statements == []


@pytest.mark.feature("F17")
async def test_an_app_installs_the_schema_with_migrate(kind, empty_database):
    shop = Shop(kind, empty_database)

    async with shop.app:
        with pytest.raises(SchemaMissing):
            await shop.enqueue("ada")
        level = await shop.ask("migrate")
        job = await shop.enqueue("ada")

    assert level == 20
    assert job.payload == {"to": "ada"}


# Options of the app


@pytest.mark.feature("F62")
@pytest.mark.parametrize("is_local", [True, False])
async def test_use_local_time_uses_the_clock_of_the_program(kind, database, conn, is_local):
    shop = Shop(kind, database, use_local_time=is_local)
    # The database dates all jobs of a transaction with its start.
    await conn.execute("select 1")
    started_at = datetime.now(UTC)

    async with shop.app:
        with shop.app.using_connection(unwrap(conn)):
            jobs = [await shop.enqueue("ada"), *await shop.ask("add_jobs", [JobSpec("task")])]

    assert [job.run_at > started_at for job in jobs] == [is_local, is_local]


async def test_payloads_are_limited_by_max_payload_bytes_of_the_app(kind, database, sql):
    shop = Shop(kind, database, max_payload_bytes=20)

    async with shop.app:
        await shop.enqueue("ada")
        with pytest.raises(JobSpecError, match="max_payload_bytes is 20"):
            await shop.enqueue("ada" * 20)

    assert payloads(sql) == [{"to": "ada"}]


async def test_max_payload_bytes_of_the_app_limits_the_jobs_of_its_tasks(database, sql):
    app: App[None] = App(database.dsn, schema=database.schema, max_payload_bytes=20)
    errors: list[JobSpecError] = []

    @app.task
    async def parent(ctx: JobContext) -> None:
        await ctx.add_job("child", {"to": "ada"})
        try:
            await ctx.add_job("child", {"to": "ada" * 20})
        except JobSpecError as error:
            errors.append(error)

    async with app:
        await parent.aenqueue()
        await app.worker().run_once()

    assert ["max_payload_bytes is 20" in str(error) for error in errors] == [True]
    assert payloads(sql) == [{"to": "ada"}]


async def test_the_default_connection_string_comes_from_the_environment(
    kind, database, monkeypatch, sql
):
    monkeypatch.setenv("DATABASE_URL", database.url)
    monkeypatch.setenv("GRAPHILE_WORKER_SCHEMA", database.schema)
    app: App[None] = App()
    shop = Shop(kind, database)

    async with app:
        await shop.ask("add_job", "task", {"a": 1}, of=app)

    assert payloads(sql) == [{"a": 1}]


@pytest.mark.parametrize("dsn", ["postgres://127.0.0.1:1/nowhere", "not a connection string"])
async def test_an_unreachable_database_raises_at_the_first_call(kind, database, dsn):
    shop = Shop(kind, database)
    app: App[None] = App(dsn)

    with pytest.raises(psycopg.Error):
        await shop.ask("add_job", "task", of=app)


# Your transaction


async def add_in_every_way(shop: Shop, **conn: Any) -> None:
    """Add four jobs and remove one: all calls that can join a transaction."""
    await shop.ask("add_job", "task", job_key="gone", **conn)
    await shop.ask("add_job", "task", {"to": "add_job"}, **conn)
    await shop.ask("add_jobs", [shop.send_email.spec("add_jobs")], **conn)
    await shop.enqueue("enqueue", using=shop.send_email.using(**conn))
    await shop.ask("remove_job", "gone", **conn)


ADDED = [{"to": "add_job"}, {"to": "add_jobs"}, {"to": "enqueue"}]


@pytest.mark.feature("F39", "F54")
@pytest.mark.parametrize("ambient", [False, True])
async def test_jobs_exist_after_your_transaction_commits(shop, conn, sql, ambient):
    if ambient:
        with shop.app.using_connection(unwrap(conn)):
            await add_in_every_way(shop)
    else:
        await add_in_every_way(shop, conn=unwrap(conn))

    assert payloads(sql) == []
    await conn.commit()
    assert payloads(sql) == ADDED


@pytest.mark.feature("F39", "F54")
@pytest.mark.parametrize("ambient", [False, True])
async def test_jobs_disappear_when_your_transaction_rolls_back(shop, conn, sql, ambient):
    if ambient:
        with shop.app.using_connection(unwrap(conn)):
            await add_in_every_way(shop)
    else:
        await add_in_every_way(shop, conn=unwrap(conn))

    await conn.rollback()

    assert payloads(sql) == []
    assert sql.value(BACKENDS) == 0


@beside_others
@pytest.mark.feature("F39")
async def test_after_the_block_the_app_uses_its_own_connections(shop, conn, sql):
    with shop.app.using_connection(unwrap(conn)):
        await shop.enqueue("inside")
    await shop.enqueue("after")

    await conn.rollback()

    assert payloads(sql) == [{"to": "after"}]


@beside_others
@pytest.mark.feature("F39")
async def test_an_error_leaves_the_block_too(shop, conn, sql):
    async def place_order() -> None:
        with shop.app.using_connection(unwrap(conn)):
            await shop.enqueue("inside")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await place_order()
    await shop.enqueue("after")
    await conn.rollback()

    assert payloads(sql) == [{"to": "after"}]


@beside_others
@pytest.mark.feature("F39")
async def test_the_innermost_block_takes_precedence(shop, kind, database, conn, sql):
    async with open_connection(kind, database) as other:
        with shop.app.using_connection(unwrap(conn)):
            with shop.app.using_connection(unwrap(other)):
                await shop.enqueue("inner")
            await shop.enqueue("outer")
        await other.commit()

    assert payloads(sql) == [{"to": "inner"}]
    await conn.commit()
    assert payloads(sql) == [{"to": "inner"}, {"to": "outer"}]


@beside_others
@pytest.mark.feature("F39")
async def test_an_explicit_connection_takes_precedence_over_the_block(
    shop, kind, database, conn, sql
):
    async with open_connection(kind, database) as other:
        with shop.app.using_connection(unwrap(other)):
            await add_in_every_way(shop, conn=unwrap(conn))
        await other.rollback()
    await conn.commit()

    assert payloads(sql) == ADDED


@beside_others
@pytest.mark.feature("F39")
async def test_using_connection_none_leaves_the_transaction(shop, conn, sql):
    with shop.app.using_connection(unwrap(conn)), shop.app.using_connection(None):
        await shop.enqueue("on its own")

    assert payloads(sql) == [{"to": "on its own"}]


@beside_others
@pytest.mark.feature("F39")
async def test_the_block_of_one_app_is_not_that_of_another(shop, kind, database, conn, sql):
    other = Shop(kind, database)

    async with other.app:
        with shop.app.using_connection(unwrap(conn)):
            await other.enqueue("other")

    assert payloads(sql) == [{"to": "other"}]


@beside_others
@pytest.mark.feature("F39")
async def test_other_threads_are_not_in_the_block(database, sql):
    app = app_on(database)
    task = app.task(send_email)

    with ThreadPoolExecutor() as threads, psycopg.connect(database.dsn) as conn:
        with app.using_connection(conn):
            await asyncio.wrap_future(threads.submit(task.enqueue, "beside"))
            await asyncio.to_thread(task.enqueue, "inside")
        conn.rollback()
    await app.close()

    assert payloads(sql) == [{"to": "beside"}]


@beside_others
@pytest.mark.feature("F39")
async def test_asyncio_tasks_have_separate_blocks(database, sql):
    async with app_on(database) as app:
        task = app.task(send_email)
        both_inside = asyncio.Barrier(2)

        async def place(name: str, how: str) -> None:
            async with open_connection("async", database) as conn:
                with app.using_connection(conn):
                    await both_inside.wait()
                    await task.aenqueue(name)
                await conn.execute(how)

        await asyncio.gather(place("kept", "commit"), place("lost", "rollback"))

    assert payloads(sql) == [{"to": "kept"}]


@beside_others
@pytest.mark.feature("F39")
async def test_asyncio_tasks_started_in_a_block_are_in_it(database, sql):
    async with app_on(database) as app, open_connection("async", database) as conn:
        task = app.task(send_email)

        with app.using_connection(conn):
            started = asyncio.create_task(task.aenqueue("started inside"))
        await started

        assert payloads(sql) == []
        await conn.commit()
    assert payloads(sql) == [{"to": "started inside"}]


async def test_a_connection_of_the_other_kind_is_rejected(shop, kind, database, sql):
    other = "blocking" if kind == "async" else "async"

    async with open_connection(other, database) as conn:
        with pytest.raises(TypeError, match="connection"):
            await shop.enqueue("ada", using=shop.send_email.using(conn=unwrap(conn)))
        with pytest.raises(TypeError, match="connection"), shop.app.using_connection(unwrap(conn)):
            await shop.enqueue("ada")

    assert payloads(sql) == []


async def test_an_app_without_a_database_adds_jobs_on_your_connection(
    kind, database, sql, monkeypatch
):
    for variable in ("DATABASE_URL", "PGDATABASE"):
        monkeypatch.delenv(variable, raising=False)
    shop = Shop(kind, database)
    shop.app.dsn = None

    async with shop.app, open_connection(kind, database) as conn:
        await shop.enqueue("ada", using=shop.send_email.using(conn=unwrap(conn)))
        with shop.app.using_connection(unwrap(conn)):
            await shop.enqueue("bob")
        await conn.commit()
        with pytest.raises(ConfigurationError, match="no database configured"):
            await shop.enqueue("eve")

    assert payloads(sql) == [{"to": "ada"}, {"to": "bob"}]


# Event loops, threads and closing


def test_an_app_serves_several_event_loops_in_turn(database, sql):
    app = app_on(database)
    task = app.task(send_email)

    async def main(to: str) -> None:
        async with app:
            await task.aenqueue(to)

    for to in ("first", "second", "third"):
        asyncio.run(main(to))

    assert payloads(sql) == [{"to": "first"}, {"to": "second"}, {"to": "third"}]


def test_the_next_call_closes_the_connections_of_event_loops_that_have_ended(database, sql):
    for app in (app_on(database), App(Shards({"a": database.dsn}), schema=database.schema)):
        task = app.task(send_email)
        for to in ("first", "second", "third"):
            asyncio.run(task.aenqueue(to))
            # A server process ends some time after its connection.
            eventually(lambda: sql.value(BACKENDS) == 1, "only the last loop has a connection")

        asyncio.run(app.close())
        eventually(lambda: sql.value(BACKENDS) == 0, "the app has no connection")


def test_an_app_serves_several_event_loops_at_the_same_time(database, sql):
    app = app_on(database)
    task = app.task(send_email)
    both_open = threading.Barrier(2)

    async def main() -> None:
        async with app:
            await task.aenqueue("once")
            await asyncio.to_thread(both_open.wait)
            await task.aenqueue("again")

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(asyncio.run, main()) for _ in range(2)]:
            done.result()

    assert len(payloads(sql)) == 4


def test_concurrent_first_calls_share_one_client(database, sql):
    app = app_on(database)
    task = app.task(send_email)
    all_there = threading.Barrier(8)

    def add(number: int) -> int:
        all_there.wait()
        task.enqueue(str(number))
        return id(app._sync_client)

    with ThreadPoolExecutor(8) as threads:
        clients = set(threads.map(add, range(8)))
    asyncio.run(app.close())

    assert len(clients) == 1
    assert len(payloads(sql)) == 8


async def test_a_closed_app_can_be_used_again(shop, sql):
    await shop.enqueue("before")
    await shop.app.close()
    await wait_until_gone(sql)

    await shop.enqueue("after")

    assert payloads(sql) == [{"to": "before"}, {"to": "after"}]


async def test_closing_closes_both_kinds_of_connections(database, sql):
    app = app_on(database)
    async with app:
        await app.aadd_job("task")
        await asyncio.to_thread(app.add_job, "task")
        assert sql.value(BACKENDS) == 2

    await wait_until_gone(sql)
    await app.close()


async def test_an_unused_app_can_be_closed(database, sql):
    async with app_on(database) as app:
        app.task(send_email).using(run_at=timedelta(hours=1)).spec("ada")

    assert sql.value(BACKENDS) == 0

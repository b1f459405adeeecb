"""Options and checks of a task's definition apply wherever the app is known."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import (
    App,
    Client,
    ConfigurationError,
    CronItem,
    Job,
    JobContext,
    JobSpec,
    JobSpecError,
    SyncJobContext,
    TaskRouter,
    WorkerOptions,
    parse_cron_items,
    parse_crontab,
    sync,
)
from graphile_worker._cron.scheduler import CronScheduler
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._discovery.discovery import resolve_cron_items
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.hooks import Hooks
from tests.conftest import TestDatabase
from tests.support.shell import CommandResult, Shell

DEFINED = ("books", 3, -4)
PLAIN = (None, 25, 0)
THEN = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
ROWS = """
select tasks.identifier, queues.queue_name, jobs.max_attempts, jobs.priority
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as queues on queues.id = jobs.job_queue_id
order by jobs.id
"""
WITHOUT_ID = """
select (to_jsonb(jobs) - '{id,run_at,created_at,updated_at}'::text[])::text, payload::text
from :schema._private_jobs as jobs
order by id
"""
SHOP = """
from graphile_worker import App

app = App()


@app.task(queue_name="books", max_attempts=3, priority=-4)
def book(order: int) -> None: ...
"""


@pytest.fixture
def app(database: TestDatabase) -> App[None]:
    app = App(database.dsn, schema=database.schema)
    router: TaskRouter[None] = TaskRouter()
    options: dict[str, Any] = {"queue_name": "books", "max_attempts": 3, "priority": -4}
    router.task(name="book", **options)(book)
    app.include(router)
    return app


def book(order: int) -> None: ...


def options_of(job: Job) -> tuple[str | None, int, int]:
    return job.queue_name, job.max_attempts, job.priority


async def add(app: App[None], name: str, *args: Any, **options: Any) -> list[Job]:
    """The jobs of a call by name, blocking and awaited."""
    blocking = await asyncio.to_thread(getattr(app, name), *args, **options)
    awaited = await getattr(app, f"a{name}")(*args, **options)
    return [*blocking, *awaited] if isinstance(blocking, list) else [blocking, awaited]


async def test_task_definitions_apply_to_jobs_that_an_app_adds_by_name(app):
    async with app:
        jobs = await add(app, "add_job", "book", {"order": 1})
        jobs += await add(app, "add_jobs", [JobSpec("book", {"order": 1})])

    assert [options_of(job) for job in jobs] == [DEFINED] * 4


async def test_task_definitions_apply_to_the_jobs_of_a_client_with_tasks(app, database):
    async with Client(database.dsn, schema=database.schema, tasks=app) as client:
        awaited = await client.add_job("book", {"order": 1})
    with sync.Client(database.dsn, schema=database.schema, tasks=app) as blocking_client:
        blocking = blocking_client.add_job("book", {"order": 1})

    assert [options_of(job) for job in (awaited, blocking)] == [DEFINED] * 2


async def test_an_explicit_option_takes_precedence_over_the_definition_of_its_task(app):
    given: dict[str, Any] = {"queue_name": "other", "max_attempts": 1, "priority": 0}

    async with app:
        jobs = await add(app, "add_job", "book", {"order": 1}, **given)
        jobs += await add(app, "add_jobs", [JobSpec("book", {"order": 1}, priority=0)])

    assert [options_of(job) for job in jobs[:2]] == [("other", 1, 0)] * 2
    assert [options_of(job) for job in jobs[2:]] == [("books", 3, 0)] * 2


async def test_jobs_of_unknown_tasks_do_not_change(app, database, sql):
    payload = {"order": "one", "_mark": [1.0, None, "ü"]}
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.add_job("other", payload)

    async with app:
        await add(app, "add_job", "other", payload)
        await add(app, "add_jobs", [JobSpec("other", payload)])

    assert len(rows := sql.run(WITHOUT_ID)) == 5
    assert len(set(rows)) == 1


@pytest.mark.parametrize("payload", [None, {"order": "one"}, [1]])
async def test_an_invalid_payload_of_a_job_added_by_name_is_rejected(app, sql, payload):
    for name, args in [
        ("add_job", ("book", payload)),
        ("add_jobs", ([JobSpec("book", payload)],)),
    ]:
        async with app:
            with pytest.raises(JobSpecError, match=r"^book: "):
                await add(app, name, *args)

    assert sql.run(ROWS) == []


async def test_keys_that_begin_with_an_underscore_pass_the_check_of_a_payload(app):
    async with app:
        jobs = await add(app, "add_job", "book", {"order": 1, "_trace": "x", "more": 2})

    assert [job.payload for job in jobs] == [{"order": 1, "_trace": "x", "more": 2}] * 2


async def test_task_definitions_apply_to_the_jobs_that_a_running_job_adds(app, sql):
    @app.task
    async def in_loop(ctx: JobContext) -> None:
        await ctx.add_job("book", {"order": 1})
        await ctx.add_jobs([JobSpec("book", {"order": 1}), JobSpec("other")])

    @app.task
    def in_thread(ctx: SyncJobContext) -> None:
        ctx.add_job("book", {"order": 1})
        ctx.add_jobs([JobSpec("book", {"order": 1}), JobSpec("other")])

    async with app:
        for task in (in_loop, in_thread):
            await task.aenqueue()
        # A worker of some tasks still knows how the app defines the others.
        assert await app.worker(tasks=["in_loop", "in_thread"]).run_once() == 2

    assert sorted(sql.run(ROWS), key=str) == [("book", *DEFINED)] * 4 + [("other", *PLAIN)] * 2


async def test_a_running_job_that_adds_an_invalid_job_fails(app, sql):
    @app.task(max_attempts=1)
    async def careless(ctx: JobContext) -> None:
        await ctx.add_job("book", {"order": "one"})

    async with app:
        await careless.aenqueue()
        await app.worker(tasks=["careless"]).run_once()

    error = sql.value("select last_error from :schema._private_jobs")
    assert error.splitlines()[0] == 'JobSpecError: book: "order" must be int, got str'


async def test_task_definitions_apply_to_the_jobs_that_a_runner_adds(app):
    async with app.worker(WorkerOptions(), tasks=["book"]) as runner:
        job = await runner.add_job("book", {"order": 1})

    assert options_of(job) == DEFINED


# Cron items


async def test_task_definitions_apply_to_cron_items_and_to_crontabs(app, database, sql):
    crontab = """
        * * * * * book ?id=plain {order: 1}
        * * * * * book ?id=told&queue=q&max=9&priority=0 {order: 1}
        * * * * * other
    """
    in_code = parse_cron_items([CronItem(task="book", match="* * * * *", payload={"order": 1})])
    connections = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema))
    try:
        for items in (
            resolve_cron_items(app, crontab=crontab),
            resolve_cron_items(app.subset(["book"]), cron_items=in_code),
        ):
            assert items is not None
            await CronScheduler(connections, items, Hooks()).tick(THEN)
    finally:
        await connections.close()

    told = ("book", "q", 9, 0)
    defined = ("book", *DEFINED)
    assert sql.run(ROWS) == [defined, told, ("other", *PLAIN), defined]


async def test_a_crontab_with_an_invalid_payload_is_rejected(app):
    with pytest.raises(ConfigurationError) as caught:
        app.worker(crontab="* * * * * book ?id=nightly {order: 'one'}")

    assert str(caught.value) == "cron item 'nightly': book: \"order\" must be int, got str"


async def test_a_cron_item_that_is_added_later_gets_the_options_of_its_task(app):
    items = parse_crontab("* * * * * other")
    find = resolve_cron_items(app, cron_items=items)
    items += parse_crontab("* * * * * book {order: 'one'}")

    assert find is not None
    assert [each.spec.queue_name for each in find()] == [None, "books"]


# The command


@pytest.fixture
def shell(database, tmp_path: Path, monkeypatch, capsys) -> Shell:
    (tmp_path / "book_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    return Shell(database, tmp_path, monkeypatch, capsys)


def test_task_definitions_apply_to_add_with_an_app(shell, sql, monkeypatch):
    order = '{"order": 1}'
    shell("add", "book", order)
    shell("add", "--app", "book_shop:app", "book", order, "--priority", "0")
    monkeypatch.setenv("GRAPHILE_WORKER_APP", "book_shop:app")
    shell("add", "book", order)
    shell("add", "other", order)

    assert sql.run(ROWS) == [
        ("book", *PLAIN),
        ("book", "books", 3, 0),
        ("book", *DEFINED),
        ("other", *PLAIN),
    ]


def test_add_with_an_app_rejects_an_invalid_payload(shell, sql):
    said = shell("add", "--app", "book_shop:app", "book", '{"order": "one"}')

    assert said == CommandResult(1, "", 'graphile-worker: book: "order" must be int, got str\n')
    assert sql.run(ROWS) == []


# A mode without a key


async def test_job_key_mode_without_a_key_is_ignored(app, database):
    modes: list[Any] = ["replace", "preserve_run_at", "unsafe_dedupe"]
    async with app:
        for mode in modes:
            jobs = await add(app, "add_job", "other", job_key_mode=mode)
            jobs += await add(app, "add_jobs", [JobSpec("other", job_key_mode=mode)] * 2)
            jobs.append(await app.find("book").using(job_key_mode=mode).aenqueue(1))

            assert len({job.id for job in jobs}) == 7
            assert {job.key for job in jobs} == {None}

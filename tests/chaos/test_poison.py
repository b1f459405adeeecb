"""Rows, errors and tasks that are bad on purpose: each fails alone, the others of its fetch run."""

import asyncio
import json
from typing import Any

import pytest

from graphile_worker import App, JobContext, JobSpec, Logger, WorkerOptions, run_once
from graphile_worker._worker.claimer import Claimer
from tests.support.fakes import UnprintableError

ROWS = """
select tasks.identifier, jobs.payload ->> 'name', jobs.attempts, jobs.locked_by, jobs.last_error
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
order by jobs.id
"""

INSERT = """
insert into :schema._private_jobs (task_id, payload, run_at, max_attempts)
select id, $2::text::json, $3::text::timestamptz, 1
from :schema._private_tasks where identifier = $1
"""

DEEP = "[" * 5000 + "]" * 5000
LONG = '{"n": 1' + "0" * 4999 + "}"


def is_read_here(text: str) -> bool:
    """Newer versions of Python read deeper JSON, which is then not a bad row."""
    try:
        json.loads(text)
    except (RecursionError, ValueError):
        return False
    return True


class Endless(Exception):
    """Its own cause."""

    def __init__(self) -> None:
        self.__cause__ = self


ERRORS: dict[str, BaseException] = {
    "nul": ValueError("a\x00b"),
    "surrogate": ValueError("a\ud800b"),
    "unspeakable": UnprintableError(),
    "huge": ValueError("x" * 10_000_000),
    "endless": Endless(),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "cancelled": asyncio.CancelledError(),
    "generator": GeneratorExit(),
    "stop": StopAsyncIteration(),
}


@pytest.fixture
def all_at_once(monkeypatch) -> list[int]:
    """How many jobs each fetch brought: the bad ones must come together with the good."""
    sizes: list[int] = []
    take = Claimer.claim

    async def counted(claims: Claimer, limit: int) -> Any:
        taken = await take(claims, limit)
        sizes.append(len(taken))
        return taken

    monkeypatch.setattr(Claimer, "claim", counted)
    return sizes


async def run(app: App, database: Any, concurrency: int) -> None:
    """Quietly: the log of these errors is as long and as odd as they are."""
    options = WorkerOptions(schema=database.schema, concurrency=concurrency)
    quiet = Logger(lambda scope: lambda level, message, meta: None)
    await run_once(database.dsn, app, options=options, logger=quiet)


async def test_a_row_that_cannot_be_decoded_fails_alone(app, database, sql, all_at_once):
    good = []

    @app.task
    async def take(payload: Any, /) -> None:
        good.append("deep" if isinstance(payload, list) else payload)

    @app.task
    async def number(n: int) -> None:
        good.append(n)

    sql.run("insert into :schema._private_tasks (identifier) values ('take'), ('number')")
    poison = [("take", DEEP, "now"), ("number", LONG, "now"), ("number", "null", "now")]
    poison += [("take", '"early"', "-infinity"), ("take", '"long ago"', "4000-01-01 BC")]
    for row in poison:
        sql.run(INSERT, *row)
    await app.aadd_jobs([JobSpec("take", n) for n in range(5)])

    await run(app, database, 10)

    # A time is not what a task is about: those two run.
    deep = ["deep"] if is_read_here(DEEP) else []
    assert sorted(map(str, good)) == ["0", "1", "2", "3", "4", *deep, "early", "long ago"]
    assert max(all_at_once) == 10
    failed = sql.run(ROWS.replace("jobs.payload ->> 'name'", "null"))
    assert [(name, attempts, holder) for name, _, attempts, holder, _ in failed] == [
        *([] if deep else [("take", 1, None)]),
        ("number", 1, None),
        ("number", 1, None),
    ]
    assert all(error for *_, error in failed)


@pytest.mark.feature("F118")
async def test_an_error_without_a_message_fails_only_its_job(app, database, sql, all_at_once):
    good = []

    @app.task
    async def fail(name: str) -> None:
        raise ERRORS[name]

    @app.task
    def fail_in_thread(name: str) -> None:
        raise ERRORS[name]

    @app.task
    async def work(n: int) -> None:
        good.append(n)

    specs = [JobSpec("work", {"n": 1})]
    # Once: the run may last until they would be due again.
    failing = [(task, name) for name in ERRORS for task in TASKS]
    specs += [JobSpec(task, {"name": name}, max_attempts=1) for task, name in failing]
    await app.aadd_jobs([*specs, JobSpec("work", {"n": 2})])

    await run(app, database, 2 * len(ERRORS) + 2)

    assert sorted(good) == [1, 2]
    assert max(all_at_once) == 2 * len(ERRORS) + 2
    rows = sql.run(ROWS)
    assert {(task, name) for task, name, *_ in rows} == {
        (task, name) for task in TASKS for name in ERRORS
    }
    assert {(attempts, holder) for _, _, attempts, holder, _ in rows} == {(1, None)}
    assert all(error and len(error.encode()) < 9000 for *_, error in rows)


TASKS = ("fail", "fail_in_thread")


async def test_changes_of_a_task_to_its_job_or_connection_affect_no_other_job(app, database, sql):
    good = []

    @app.task
    async def misuse(ctx: JobContext) -> None:
        async with ctx.connection() as connection:
            await connection.execute("begin")
            await connection.execute("create temporary table left_open ()")
            await connection.close()

    @app.task
    async def change(ctx: JobContext) -> None:
        ctx.job.payload["n"] = json.dumps
        ctx.job.attempts = 99

    @app.task
    async def work(ctx: JobContext, n: int) -> None:
        await ctx.query("select 1")
        good.append(n)

    await app.aadd_jobs([JobSpec("misuse"), JobSpec("change")] * 3)
    await app.aadd_jobs([JobSpec("work", {"n": n}) for n in range(10)])

    await run(app, database, 4)

    assert sorted(good) == list(range(10))
    assert sql.value("select count(*) from :schema._private_jobs") == 0

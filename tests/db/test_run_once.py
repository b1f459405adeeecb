"""One job, start to end: how each ending of a task is written, and who hears of it."""

import asyncio
import contextvars
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import pytest

from graphile_worker import App, JobContext, SyncJobContext, WorkerOptions
from graphile_worker.events import Event, JobEvent, JobStarted, RunningJob
from graphile_worker.retries import Backoff, Discard, PartialFailure, Retry, Snooze
from graphile_worker.runner import run_once

# What Python does: test_statements.py runs each statement on the oldest pair too.
pytestmark = pytest.mark.single_version

ROW = """
select attempts, max_attempts, locked_by, locked_at, last_error,
  extract(epoch from run_at - now())::float8
from :schema._private_jobs
"""


class Gone(Exception):
    pass


def backed_off(seconds: float, began: float) -> bool:
    """Is what is left of the usual wait after a first failure, in a run since then, so much?"""
    gone, spare = time.monotonic() - began, 0.1
    return math.e - gone - spare < seconds < math.e + spare


@pytest.fixture
def heard(hooks) -> list[Event]:
    events: list[Event] = []
    hooks.on(JobEvent)(events.append)
    return events


@pytest.fixture
def run(database, app, hooks):
    async def run(concurrency: int = 1, **more) -> int:
        options = WorkerOptions(schema=database.schema, concurrency=concurrency)
        return await run_once(database.dsn, app, options=options, hooks=hooks, **more)

    return run


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


async def test_a_task_that_returns_is_done_and_its_row_gone(app, run, heard, sql):
    seen = []

    @app.task
    async def greet(name: str, *, loud: bool = False) -> None:
        seen.append((name, loud))

    await greet.aenqueue("ada", loud=True)

    assert await run() == 1
    assert seen == [("ada", True)]
    assert sql.run(ROW) == []
    assert names(heard) == ["job:start", "job:success", "job:complete"]


@pytest.mark.feature("F209")
async def test_a_task_that_raises_backs_off_and_keeps_its_error(app, run, heard, sql):
    @app.task
    async def fail() -> None:
        raise Gone("the\x00 file")

    await fail.aenqueue()
    began = time.monotonic()

    assert await run() == 1
    [(attempts, _, locked_by, locked_at, error, seconds)] = sql.run(ROW)
    assert (attempts, locked_by, locked_at) == (1, None, None)
    assert error.startswith("Gone: the␀ file\n")
    assert backed_off(seconds, began)
    assert names(heard) == ["job:start", "job:error", "job:complete"]


async def test_the_last_attempt_fails_permanently(app, run, heard, sql):
    @app.task(max_attempts=1)
    async def fail() -> None:
        raise Gone

    await fail.aenqueue()

    await run()
    assert names(heard) == ["job:start", "job:error", "job:failed", "job:complete"]
    assert sql.run(ROW)[0][:2] == (1, 1)


async def test_a_permanent_failure_is_one_error_record_with_its_template_and_fields(
    app, run, caplog
):
    @app.task(max_attempts=1, queue_name="files")
    async def fail() -> None:
        raise Gone("away")

    @app.task
    async def discard() -> None:
        raise Discard("no such invoice")

    @app.task
    async def retry() -> None:
        raise Gone("for a while")

    for task in (fail, discard, retry):
        await task.aenqueue()
    await run()

    records = {vars(each)["task_identifier"]: each for each in caplog.records}
    assert len(records) == len(caplog.records)
    levels = {task: record.levelname for task, record in records.items()}
    assert levels == {"fail": "ERROR", "discard": "ERROR", "retry": "WARNING"}
    found = vars(records["fail"])
    assert found["msg"].startswith("permanently failed job %s (%s")
    assert found["args"][:4] == (found["job_id"], "fail", 1, 1)
    assert found["exc_info"][0] is Gone
    fields = {"pid": os.getpid(), "queue_name": "files", "attempt": 1, "max_attempts": 1}
    assert fields.items() <= found.items()
    assert found["pool_id"].startswith("pypool-")
    assert found["worker_id"].startswith("worker-")
    assert found["duration_ms"] >= 0
    assert found["wait_ms"] >= 0


@pytest.mark.parametrize(
    ("signal", "attempts", "seconds"),
    [
        (Snooze(timedelta(hours=1)), 0, 3600),
        (Retry(timedelta(minutes=1)), 1, 60),
        (Discard("no such invoice"), 25, None),
    ],
)
async def test_a_task_may_say_how_its_job_goes_on(app, run, sql, signal, attempts, seconds):
    @app.task
    async def speak() -> None:
        raise signal

    await speak.aenqueue()

    await run()
    row = sql.run(ROW)[0]
    assert row[0] == attempts
    assert row[2:4] == (None, None)
    assert seconds is None or abs(row[5] - seconds) < 20


@pytest.mark.parametrize(
    ("policy", "attempts", "seconds"),
    [
        (Backoff(base=timedelta(minutes=5), jitter=0), 1, 300),
        (Backoff(give_up_on=(Gone,)), 25, None),
        (Backoff(retry_on=(OSError,)), 25, None),
        (lambda error, job: timedelta(minutes=job.attempts), 1, 60),
        (lambda error, job: None, 25, None),
    ],
)
async def test_a_policy_decides_about_the_next_attempt(app, run, sql, policy, attempts, seconds):
    @app.task(retry=policy)
    async def fail() -> None:
        raise Gone

    await fail.aenqueue()

    await run()
    row = sql.run(ROW)[0]
    assert row[0] == attempts
    assert seconds is None or abs(row[5] - seconds) < 20


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (Backoff(base=timedelta(minutes=5), jitter=0), 300),
        # A policy that permits no further attempt: the task asked for one, after the default delay.
        (Backoff(retry_on=(OSError,)), math.e),
        (lambda error, job: None, math.e),
    ],
)
async def test_retry_without_a_delay_waits_as_long_as_the_policy_of_its_task(
    app, run, sql, policy, seconds
):
    @app.task(retry=policy)
    async def fail() -> None:
        raise Retry(reason="busy")

    await fail.aenqueue()

    await run()
    row = sql.run(ROW)[0]
    assert row[0] == 1
    assert abs(row[5] - seconds) < 20


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
async def test_an_exception_of_any_kind_fails_only_its_job(app, run, sql, error):
    seen = []

    @app.task
    async def fail() -> None:
        raise error

    @app.task
    async def fine() -> None:
        seen.append("fine")

    await fail.aenqueue()
    await fine.aenqueue()

    assert await run() == 2
    assert seen == ["fine"]
    assert sql.run(ROW)[0][0] == 1


async def test_a_task_that_cancels_itself_fails_its_job_alone(app, run, sql):
    seen = []

    def cancel_me() -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()

    @app.task
    async def cancelled() -> None:
        cancel_me()
        await asyncio.sleep(20)

    @app.task
    async def cancelled_late() -> None:
        # Too late to harm the jobs after this one.
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]

    @app.task
    async def cancelled_and_done() -> None:
        cancel_me()

    @app.task
    async def caught() -> None:
        # As libraries did before Python had `Task.uncancel`.
        cancel_me()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(20)

    @app.task
    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(20))
            raise Gone

    @app.task
    async def work(n: int) -> None:
        await asyncio.sleep(0)
        seen.append(n)

    tasks = [cancelled, cancelled_and_done, caught, group]
    if sys.version_info >= (3, 12):
        # Before, the first step of a job is made in the asyncio task of its worker.
        tasks.append(cancelled_late)
    for n, task in enumerate(tasks):
        await task.aenqueue()
        await work.aenqueue(n)

    # With one worker, which would end with the first of them.
    assert await run() == 2 * len(tasks)
    assert seen == list(range(len(tasks)))
    assert [row[4].partition("\n")[0].partition(":")[0] for row in sql.run(ROW)] == [
        "CancelledError",
        "ExceptionGroup",
    ]
    assert [row[:3] for row in sql.run(ROW)] == [(1, 25, None)] * 2


async def test_an_error_in_what_follows_a_task_fails_its_job_alone(app, run, sql):
    class Unnoted(Exception):
        def add_note(self, note: str) -> None:
            raise RuntimeError("no room for notes")

    class Unsaid(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    class Blank(Retry):
        def __init__(self) -> None:
            """Without a delay, as the base class was not asked."""

    spoiled = PartialFailure({0: ValueError("bad row")})
    spoiled.errors[0] = "no exception any more"  # type: ignore[assignment]  # what it is about

    of_policies = [LookupError(), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)]
    endings: list[tuple[BaseException, BaseException | None]] = [
        *((Gone("away"), error) for error in (*of_policies, GeneratorExit())),
        (Unnoted(), LookupError()),
        (Unsaid(), None),
        (Blank(), None),
        (spoiled, None),
    ]
    for number, (error, of_policy) in enumerate(endings):
        policy = None if of_policy is None else partial(_raise, of_policy)
        task = app.batch_task(name=f"task {number}", retry=policy)(_batch_that_raises(error))
        await task.aenqueue([1, 2])

    assert await run() == len(endings)
    rows = sql.run(ROW)
    assert [row[:3] for row in rows] == [(1, 25, None)] * len(endings)
    assert all(row[4] for row in rows)


def _raise(error: BaseException, *_given: object) -> NoReturn:
    raise error


def _batch_that_raises(error: BaseException) -> Any:
    async def body(items: list[int]) -> None:
        raise error

    return body


@pytest.mark.parametrize(
    "payload", ["[" * 5000 + "]" * 5000, "9" * 5000, "null", '{"to": 1}', "{}"]
)
async def test_a_payload_that_cannot_be_read_fails_its_job_alone(app, run, sql, payload):
    seen = []

    @app.task
    async def send(to: str) -> None:
        seen.append(to)

    sql.run("select :schema.add_job('send', $1::text::json)", payload)
    await send.aenqueue("ada")

    assert await run() == 2
    assert seen == ["ada"]
    assert sql.run(ROW)[0][0] == 1


async def test_a_task_is_stopped_at_its_timeout(app, run, sql):
    @app.task(timeout=timedelta(milliseconds=50))
    async def slow() -> None:
        await asyncio.Event().wait()

    await slow.aenqueue()

    await run()
    assert sql.run(ROW)[0][4].startswith("TimeoutError")


async def test_plain_functions_run_in_threads_with_the_context_variables(app, run):
    variable = contextvars.ContextVar("variable", default="")
    seen = []

    @app.task
    def where() -> None:
        seen.append((threading.current_thread().name, variable.get()))

    where.using().spec()
    await app.aadd_jobs([where.spec()])
    variable.set("set")

    await run()
    assert seen[0][0].startswith("graphile-worker")
    assert seen[0][1] == "set"


async def test_each_job_has_its_own_copy_of_the_context_variables(app, run, hooks):
    tenant = contextvars.ContextVar("tenant", default="nobody")
    request = contextvars.ContextVar("request", default=0)
    seen = []

    @asynccontextmanager
    async def lifespan():
        tenant.set("of the lifespan")
        yield

    @hooks.on(JobStarted)
    def begin(event: JobStarted) -> None:
        request.set(request.get() + event.job.id)

    @hooks.around(RunningJob)
    @contextmanager
    def wrapped(moment: RunningJob) -> Iterator[None]:
        token = tenant.set(f"{tenant.get()}, wrapped")
        yield
        tenant.reset(token)

    def look(name: str) -> None:
        seen.append((name, tenant.get(), request.get()))
        tenant.set(name)
        request.set(1000)

    @app.task
    async def at_once(name: str) -> None:
        look(name)

    @app.task
    async def later(name: str) -> None:
        await asyncio.sleep(0.001)
        look(name)
        await asyncio.sleep(0.001)

    @app.task
    def in_thread(name: str) -> None:
        look(name)

    @app.task(run_in="loop")
    def on_loop(name: str) -> None:
        look(name)

    tasks = [at_once, later, in_thread, on_loop] * 2
    jobs = [await task.aenqueue(str(n)) for n, task in enumerate(tasks)]

    assert await run(lifespan=lifespan) == len(tasks)
    assert seen == [(str(n), "of the lifespan, wrapped", job.id) for n, job in enumerate(jobs)]


async def test_plain_functions_run_side_by_side(app, run):
    together = threading.Barrier(4, timeout=20)

    @app.task
    def meet() -> None:
        together.wait()

    await app.aadd_jobs([meet.spec() for _ in range(4)])

    assert await run(concurrency=4) == 4


async def test_the_context_has_the_job_and_what_the_lifespan_yielded(app, run, database):
    seen = []

    @asynccontextmanager
    async def lifespan():
        yield {"http": "client"}

    @app.task
    async def look(ctx: JobContext, n: int) -> None:
        seen.append((ctx.job.id, ctx.job.attempts, ctx.deps, ctx.queue_name, ctx.schema, n))

    job = await look.using(queue_name="q").aenqueue(7)

    await run(lifespan=lifespan)
    assert seen == [(job.id, 1, {"http": "client"}, "q", database.schema, 7)]


async def test_a_transaction_of_the_task_ends_its_job_with_it(app, run, sql, heard):
    sql.run("create table paid (n int)")

    @app.task
    async def pay(ctx: JobContext, n: int) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("insert into paid values (%s)", [n])

    @app.task
    def pay_blocking(ctx: SyncJobContext, n: int) -> None:
        with ctx.transaction() as conn:
            conn.execute("insert into paid values (%s)", [n])

    await pay.using(queue_name="q").aenqueue(1)
    await app.aadd_jobs([pay_blocking.using(queue_name="q").spec(2)])

    assert await run() == 2
    assert sql.run("select n from paid order by n") == [(1,), (2,)]
    assert sql.run(ROW) == []
    assert sql.run("select 1 from :schema._private_job_queues where locked_by is not null") == []
    assert names(heard).count("job:success") == 2


async def test_what_fails_in_the_transaction_leaves_no_effect(app, run, sql):
    sql.run("create table paid (n int)")

    @app.task
    async def pay(ctx: JobContext) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("insert into paid values (1)")
            raise Gone

    await pay.aenqueue()

    await run()
    assert sql.run("select n from paid") == []
    assert sql.run(ROW)[0][0] == 1


async def test_an_error_after_the_transaction_does_not_bring_the_job_back(app, run, sql):
    @app.task
    async def pay(ctx: JobContext) -> None:
        async with ctx.transaction():
            pass
        raise Gone

    await pay.aenqueue()

    assert await run() == 1
    assert sql.run(ROW) == []


async def test_a_lost_lock_undoes_the_transaction_and_is_announced(app, run, sql, heard):
    sql.run("create table paid (n int)")

    @app.task
    async def pay(ctx: JobContext) -> None:
        sql.run("update :schema._private_jobs set locked_by = 'another pool'")
        async with ctx.transaction() as conn:
            await conn.execute("insert into paid values (1)")

    await pay.aenqueue()

    await run()
    assert sql.run("select n from paid") == []
    assert sql.run(ROW)[0][2] == "another pool"
    assert names(heard) == ["job:start", "job:lockLost"]


async def test_a_job_that_was_taken_away_is_left_alone(app, run, sql, heard):
    @app.task
    async def slow() -> None:
        sql.run("update :schema._private_jobs set locked_by = 'another pool'")

    await slow.aenqueue()

    await run()
    assert sql.run(ROW)[0][2] == "another pool"
    assert names(heard) == ["job:start", "job:lockLost"]


async def test_the_end_is_written_even_if_the_connection_is_lost(app, run, sql):
    @app.task
    async def cut() -> None:
        sql.run(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )

    await cut.using(queue_name="q").aenqueue()
    await cut.using(queue_name="q").aenqueue()

    assert await run() == 2
    assert sql.run(ROW) == []


async def test_events_come_after_the_write(app, run, hooks, sql):
    left = []
    hooks.on("job:success")(lambda event: left.append(sql.run(ROW)))

    @app.task
    async def fine() -> None: ...

    await fine.aenqueue()

    await run()
    assert left == [[]]


async def test_running_is_wrapped_in_the_thread_of_a_plain_function(app, run, hooks):
    seen = []

    @hooks.around(RunningJob)
    @contextmanager
    def watched(running):
        seen.append(("in", threading.current_thread().name, running.job.task_identifier))
        yield
        seen.append(("out", threading.current_thread().name, running.job.task_identifier))

    @app.task
    def plain() -> None:
        seen.append(("run", threading.current_thread().name, "plain"))

    await app.aadd_jobs([plain.spec()])

    await run()
    assert [each[0] for each in seen] == ["in", "run", "out"]
    assert len({each[1] for each in seen}) == 1


@pytest.mark.timeout(120)
async def test_named_queues_are_drained_one_job_at_a_time(app, run, sql):
    running: dict[str, int] = {}
    overlaps = []

    @app.task
    async def step(ctx: JobContext) -> None:
        queue = str(ctx.queue_name)
        running[queue] = running.get(queue, 0) + 1
        overlaps.append(running[queue])
        await asyncio.sleep(0.001)
        running[queue] -= 1

    await app.aadd_jobs([step.using(queue_name=f"q{n % 20}").spec() for n in range(400)])

    assert await run(concurrency=8) == 400
    assert set(overlaps) == {1}
    assert sql.run(ROW) == []


async def test_functions_of_a_mapping_are_called_as_in_the_reference(database, sql):
    seen: list[object] = []

    async def with_context(payload, ctx):
        seen.append((payload, ctx.job.task_identifier))

    sql.run("""select :schema.add_job('a', '{"x": 1}'), :schema.add_job('b', '[2]')""")
    options = WorkerOptions(schema=database.schema)
    tasks: dict[str, Callable[..., object]] = {"a": with_context, "b": seen.append}

    assert await run_once(database.dsn, tasks, options=options) == 2
    assert ({"x": 1}, "a") in seen
    assert [2] in seen


async def test_a_worker_leaves_tasks_that_it_does_not_have(app, run, sql):
    @app.task
    async def mine() -> None: ...

    sql.run("select :schema.add_job('somebody_elses')")
    await mine.aenqueue()
    began = time.monotonic()

    assert await run() == 1
    assert time.monotonic() - began < 20
    assert sql.run(ROW)[0][:3] == (0, 25, None)


async def test_an_app_brings_its_own_lifespan_and_hooks(database):
    seen: list[object] = []

    @asynccontextmanager
    async def lifespan():
        yield "deps"

    async with App(database.dsn, schema=database.schema, lifespan=lifespan) as app:

        @app.task
        async def look(ctx: JobContext) -> None:
            seen.append(ctx.deps)

        app.on("job:success")(lambda event: seen.append(event.name))
        await look.aenqueue()
        await run_once(database.dsn, app, options=WorkerOptions(schema=database.schema))

    assert seen == ["deps", "job:success"]


async def test_a_program_that_ends_hands_its_running_job_back(app, run, sql):
    started = asyncio.Event()

    @app.task
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    await endless.using(queue_name="q").aenqueue()
    running = asyncio.create_task(run())
    await started.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert sql.run(ROW)[0][:3] == (0, 25, None)
    assert sql.run("select 1 from :schema._private_job_queues where locked_by is not null") == []


@pytest.mark.parametrize("signal", [Retry, Snooze])
async def test_a_time_beyond_the_calendar_backs_off_as_usual(app, run, sql, signal):
    @app.task
    async def speak() -> None:
        raise signal(timedelta.max)

    await speak.aenqueue()
    began = time.monotonic()

    assert await run() == 1
    [(attempts, _, locked_by, _, error, seconds)] = sql.run(ROW)
    assert (attempts, locked_by) == (1, None)
    assert "after 9999" in error
    assert backed_off(seconds, began)


async def test_a_function_that_only_makes_a_coroutine_has_not_run(app, run, sql):
    def decorated(function):
        return lambda: function()

    @decorated
    async def hidden() -> None: ...

    def unrun():
        yield

    app.task(name="hidden")(hidden)
    app.task(unrun)
    await app.aadd_job("hidden")
    await app.aadd_job("unrun")

    assert await run() == 2
    errors = [error for *_, error, _ in sql.run(ROW)]
    assert [error.split(" that is never awaited")[0] for error in errors] == [
        "TypeError: the task returned a coroutine",
        "TypeError: the task returned a generator",
    ]


async def test_an_outcome_after_the_transaction_of_the_task_has_no_effect(app, run, heard, sql):
    @app.task
    async def speak(ctx: JobContext) -> None:
        async with ctx.transaction():
            pass
        raise Snooze(timedelta(hours=1))

    await speak.aenqueue()

    await run()
    assert names(heard) == ["job:start", "job:success:late", "job:complete"]
    assert isinstance(heard[1].late_error, Snooze)
    assert sql.run(ROW) == []


@pytest.mark.single_version
@pytest.mark.feature("F144")
@pytest.mark.timeout(180)
async def test_once_leaves_nothing_of_five_thousand_jobs_in_five_hundred_queues(app, run, sql):
    @app.task
    async def note(n: int) -> None:
        pass

    specs = [note.using(queue_name=f"queue {n % 500}").spec(n) for n in range(5000)]
    await app.aadd_jobs(specs)

    assert await run(concurrency=20) == 5000
    assert sql.value("select count(*) from :schema._private_jobs") == 0


# What a task starts, it must wait for.


@pytest.mark.feature("F109")
async def test_what_a_task_started_and_did_not_await_cannot_fail_its_job(app, run, heard, sql):
    started: list[asyncio.Task[None]] = []
    go_on = asyncio.Event()

    async def send() -> None:
        await go_on.wait()
        raise Gone

    @app.task
    async def careless() -> None:
        started.append(asyncio.create_task(send()))

    await careless.aenqueue()
    await run()
    go_on.set()

    assert names(heard) == ["job:start", "job:success", "job:complete"]
    assert sql.run(ROW) == []
    with pytest.raises(Gone):
        await started[0]


@pytest.mark.feature("F109")
async def test_what_a_task_awaits_in_a_group_fails_its_job(app, run, heard, sql):
    async def send() -> None:
        raise Gone

    @app.task
    async def careful() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(send())

    await careful.aenqueue()
    await run()

    assert names(heard) == ["job:start", "job:error", "job:complete"]
    assert len(sql.run(ROW)) == 1

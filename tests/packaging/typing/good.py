"""Calls of the public API that type checkers accept as they stand."""

from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, assert_type
from uuid import uuid4

from graphile_worker import (
    AddingJobs,
    App,
    Backoff,
    BaseJobContext,
    BatchTask,
    CleanupTask,
    Client,
    Cron,
    CronItem,
    Discard,
    ExternalTask,
    GraphileWorkerError,
    Hooks,
    Job,
    JobContext,
    JobErrored,
    JobFailed,
    JobKeyMode,
    JobOptions,
    JobSpec,
    JobSpecError,
    JobStatus,
    JobStatusState,
    LocalQueueOptions,
    ParsedCronItem,
    PartialFailure,
    RecoveryOptions,
    Retention,
    Retry,
    Runner,
    RunningJob,
    SchemaTooNew,
    Snooze,
    SyncJobContext,
    Task,
    TaskProcessError,
    TaskProcessOptions,
    TaskRouter,
    WorkerOptions,
    add_job_adhoc,
    lane,
    make_worker_utils,
    migration_sql,
    parse_cron_items,
    parse_crontab,
    quick_add_job,
    run,
    run_migrations,
    run_once,
    run_task_list_once,
    sync,
)
from graphile_worker.testing import DrainResult, Harness


async def add(client: Client, connection: object) -> Job:
    await client.add_job("resize")
    await client.add_job("resize", {"path": "a.png", "sizes": [1, 2]})
    await client.add_job("resize", [1, "two", None], conn=connection)
    await client.add_job("resize", queue_name=lane("tenant", 42, of=4))
    await client.add_job("resize", queue_name=lane("tenant", "acme", of=4, by=uuid4()))
    return await client.add_job(
        "resize",
        {"path": "a.png"},
        queue_name="images",
        run_at=datetime.now(UTC),
        max_attempts=3,
        priority=-5,
        job_key="a.png",
        job_key_mode="preserve_run_at",
        flags={"slow"},
    )


async def add_many(client: Client) -> list[int]:
    specs: Sequence[JobSpec] = [
        JobSpec("resize", {"path": "a.png"}),
        JobSpec("resize", run_at=timedelta(minutes=5), job_key="b"),
        JobSpec("mail", job_key="c", job_key_mode=JobKeyMode.REPLACE, flags=["a"]),
        JobSpec("mail", unique="d", unique_for=timedelta(days=1)),
    ]
    jobs = await client.add_jobs(specs)
    jobs += await client.add_jobs(JobSpec("mail", number) for number in range(3))
    return [job.id for job in jobs if not job.is_duplicate]


async def look_after(client: Client) -> None:
    found: Job | None = await client.get_job(1)
    keyed: Job | None = await client.get_job_by_key("a")
    removed: Job | None = await client.remove_job("a")
    done: list[Job] = await client.complete_jobs([1, 2])
    failed: list[Job] = await client.permanently_fail_jobs({3}, "gone")
    later: list[Job] = await client.reschedule_jobs((4,), run_at=timedelta(hours=1), attempts=0)
    await client.force_unlock_workers(["pool-1"])
    await client.cleanup([CleanupTask.GC_JOB_QUEUES, "GC_TASK_IDENTIFIERS"])
    level: int = await client.migrate() + await client.check_schema()
    print_all(found, keyed, removed, done, failed, later, level)


def read(job: Job) -> None:
    number: int = job.id
    names: list[str | None] = [job.task_identifier, job.queue_name, job.key, job.last_error]
    times: list[datetime] = [job.run_at, job.created_at, job.updated_at]
    locked: datetime | None = job.locked_at
    flags: frozenset[str] = job.flags
    counts: list[int] = [job.priority, job.attempts, job.max_attempts, job.revision]
    print_all(number, names, times, locked, flags, counts, job.payload, job.payload_text)


async def with_and_without_a_block() -> None:
    async with Client("postgres:///shop", schema="jobs", max_payload_bytes=10_000) as client:
        await client.add_job("resize")
    utils: Client = await make_worker_utils("postgres:///shop", use_local_time=True)
    await utils.release()
    level: int = await run_migrations(options=WorkerOptions(schema="jobs"))
    job: Job = await add_job_adhoc("postgres:///shop", "resize", {"a": 1}, priority=1)
    same: Job = await quick_add_job(None, "resize")
    print_all(level, job, same, migration_sql("jobs", from_level=18))


def blocking(connection: object) -> None:
    with sync.Client() as client:
        job: Job = client.add_job("resize", {"a": 1}, job_key="a", conn=connection)
        jobs: list[Job] = client.add_jobs([JobSpec("resize")])
        found: Job | None = client.get_job(job.id)
        level: int = client.migrate()
        print_all(job, jobs, found, level)
    utils: sync.Client = sync.make_worker_utils()
    utils.close()
    print_all(sync.run_migrations(), sync.add_job_adhoc(None, "resize").id)


@dataclass
class Deps:
    http: str


class Resize(TypedDict):
    path: str
    width: int


@asynccontextmanager
async def lifespan() -> AsyncGenerator[Deps]:
    yield Deps("client")


billing: TaskRouter[Deps] = TaskRouter(prefix="billing/")
app = App("postgres:///shop", lifespan=lifespan, include=[billing])
plain = App()
others = TaskRouter[None]()
plain.include(others)


@app.task
async def send_email(to: str, subject: str = "Hello") -> None: ...


@app.task(max_attempts=5, queue_name="charges", timeout=timedelta(minutes=2))
async def charge(ctx: JobContext[Deps], invoice_id: int) -> None:
    print_all(ctx.deps.http.upper(), ctx.job.attempts, ctx.cancelled)


@app.task(name="images/resize", run_in="process", priority=3)
def resize(payload: Resize, /) -> int:
    return payload["width"]


@app.task
def resize_with_context(ctx: SyncJobContext[Deps], payload: Resize, /) -> None: ...


@billing.task
async def refund(ctx: JobContext[Deps], invoice_id: int, *, reason: str | None = None) -> None: ...


@billing.task
async def any_context(ctx: JobContext[Any], invoice_id: int) -> None: ...


@app.task
async def bare_context(ctx: JobContext, invoice_id: int) -> None: ...


@plain.task
async def without_lifespan(ctx: JobContext[None], invoice_id: int) -> None: ...


@others.task()
def no_parameters() -> None: ...


@others.task
def the_rest(to: str, **rest: int) -> None: ...


async def enqueue(connection: object) -> None:
    job: Job = send_email.enqueue("ada@example.com")
    same: Job = await send_email.aenqueue(to="ada@example.com", subject="Hi")
    await charge.using(run_at=timedelta(hours=1), job_key="1", conn=connection).aenqueue(1)
    await charge.using(job_key_mode="preserve_run_at", flags={"a"}).aenqueue(invoice_id=1)
    await resize.aenqueue({"path": "a.png", "width": 1})
    resize_with_context.enqueue({"path": "a.png", "width": 1})
    refund.enqueue(1, reason="late")
    any_context.enqueue(invoice_id=1)
    bare_context.enqueue(invoice_id=1)
    without_lifespan.enqueue(invoice_id=1)
    no_parameters.using(priority=1).using(max_attempts=2).enqueue()
    the_rest.enqueue("ada", more=1)
    specs: list[JobSpec] = [send_email.spec("ada"), resize.spec({"path": "b.png", "width": 2})]
    jobs: list[Job] = await app.aadd_jobs(specs, conn=connection) + app.add_jobs(specs)
    with app.using_connection(connection):
        charge.enqueue(2)
    print_all(job, same, jobs)


def call(ctx: JobContext[Deps]) -> None:
    running: Coroutine[Any, Any, None] = send_email("ada@example.com")
    width: int = resize({"path": "a.png", "width": 1})
    same: int = resize.fn({"path": "a.png", "width": 1})
    running.close()
    print_all(width, same, resize.identifier, charge.fn(ctx, 1).close())


@app.task(retention=Retention(results=True))
async def measure(path: str) -> list[Resize]:
    return [{"path": path, "width": 1}]


@app.task(retention=Retention(results=True, attempts=True, keep=timedelta(days=1)))
async def measure_with_context(ctx: JobContext[Deps], path: str) -> str | None:
    return path


@app.task
def count(path: str) -> int:
    return len(path)


@app.task
def count_with_context(ctx: SyncJobContext[Deps], path: str) -> dict[str, int]:
    return {path: 1}


async def results(client: Client, blocking: sync.Client, connection: object) -> None:
    soon = timedelta(seconds=30)
    assert_type(measure.enqueue("a.png"), Job[list[Resize]])
    assert_type(await measure.aenqueue("a.png"), Job[list[Resize]])
    assert_type(measure.enqueue("a.png").result(), list[Resize])
    assert_type(await (await measure.aenqueue("a.png")).aresult(timeout=soon), list[Resize])
    assert_type(measure_with_context.enqueue("a.png").result(soon), str | None)
    job = await measure_with_context.using(priority=1, conn=connection).aenqueue("a.png")
    assert_type(await job.aresult(), str | None)
    assert_type(count.enqueue("a.png").result(timeout=soon), int)
    assert_type(await (await count.aenqueue("a.png")).aresult(), int)
    assert_type(count_with_context.enqueue("a.png").result(), dict[str, int])
    assert_type(await (await count_with_context.aenqueue("a.png")).aresult(), dict[str, int])
    any_job: Job = job
    wider: Job[object] = job
    widened: Task[[str], object] = count
    status: JobStatus = app.status(job.id, conn=connection)
    state: JobStatusState = (await app.astatus(job.id)).state
    values: list[object] = [app.result(1), await app.aresult(1, timeout=soon)]
    values += [await client.result(1, timeout=soon), blocking.result(1)]
    more: list[JobStatus] = [await client.status(1, conn=connection), blocking.status(1)]
    print_all(any_job, wider, widened, status, state, values, more, str(status))


async def by_name() -> None:
    job: Job = app.add_job("in_node", {"any": "json"}, queue_name="q", run_at=timedelta(1))
    same: Job = await app.aadd_job("in_node", [1], priority=1, job_key="a", conn=None)
    removed: Job | None = app.remove_job("a") or await app.aremove_job("a")
    level: int = plain.migrate() + await app.amigrate()
    tasks: dict[str, Task[..., Any]] = app.tasks()
    async with plain:
        await app.close()
    print_all(job, same, removed, level, tasks)


@app.task
async def in_context(ctx: JobContext[Deps], user: int) -> None:
    await ctx.add_job("in_node", {"user": user}, priority=1)
    await ctx.add_jobs([send_email.spec("ada")])
    async with ctx.connection() as connection:
        await connection.execute("select 1")
    rows = await ctx.query("select %s as user", (user,))
    ctx.logger.scope(user=user).info("%s rows", len(rows), more=1)
    if ctx.cancelled or ctx.cron is not None:
        await ctx.wait_cancelled()


@app.task
def in_thread(ctx: SyncJobContext[Deps]) -> None:
    job: Job = ctx.add_job("in_node", priority=1)
    jobs: list[Job] = ctx.add_jobs([send_email.spec("ada")])
    rows: list[dict[str, Any]] = ctx.query("select 1 as one")
    with ctx.transaction() as connection:
        connection.execute("select 1")
    while not ctx.wait_cancelled(timedelta(seconds=1)):
        in_both(ctx)
    print_all(job, jobs, rows)


@app.task
async def on_the_event_loop(ctx: JobContext[Deps]) -> None:
    job: Job = await ctx.add_job("in_node", priority=1)
    jobs: list[Job] = await ctx.add_jobs([send_email.spec("ada")])
    rows: list[dict[str, Any]] = await ctx.query("select 1 as one")
    async with ctx.transaction() as connection:
        await connection.execute("select 1")
    while not await ctx.wait_cancelled(timedelta(seconds=1)):
        in_both(ctx)
    print_all(job, jobs, rows)


def in_both(ctx: BaseJobContext[Deps]) -> None:
    print_all(ctx.deps.http, ctx.job.id, ctx.pool_id, ctx.worker_id, ctx.schema, ctx.queue_name)


@app.task
async def base_context_async(ctx: BaseJobContext[Deps], user: int) -> None: ...


@app.task(name="base_context_plain")
def base_context_plain(ctx: BaseJobContext[Deps], user: int) -> None: ...


async def with_shared_options(client: Client) -> None:
    options: JobOptions = {"queue_name": "images", "run_at": timedelta(hours=1), "flags": ["slow"]}
    await client.add_job("resize", **options)
    app.add_job("resize", conn=None, **options)
    send_email.using(**options).using(priority=1).enqueue("ada")
    base_context_async.enqueue(1)
    base_context_plain.enqueue(user=1)


async def run_workers() -> None:
    options = WorkerOptions(
        concurrency=5, poll_interval=timedelta(seconds=1), shutdown_timeout=None
    )
    async with app.worker(options, tasks=["in_thread"], forbidden_flags={"slow"}) as worker:
        job: Job = await worker.add_job("in_node")
    count: int = await app.worker(concurrency=2).run_once()
    runner: Runner = await run(None, app, options=options, forbidden_flags=lambda: None)
    await runner.stop()
    await runner
    count += await run_once("my_database", {"hello": print_all}, hooks=app.hooks)
    count += await run_task_list_once(app, object())
    print_all(job, count)


def in_tests(gw: Harness) -> None:
    found: Job = gw.assert_enqueued(send_email, to="ada", options={"priority": 1})
    gw.assert_enqueued(send_email.using(run_at=timedelta(hours=1)))
    gw.assert_not_enqueued("in_node", user=7)
    ran: DrainResult = gw.drain(raise_errors=False)
    errors: list[tuple[Job, BaseException]] = ran.errors
    jobs: list[Job] = [*ran, *gw.enqueued()]
    with gw.inline(), gw.freeze(datetime.now(UTC)), gw.travel(timedelta(days=1)):
        in_thread.enqueue()
    ctx: SyncJobContext[Deps] = gw.context(in_thread, {"user": 7}, attempts=2)
    in_thread.fn(ctx)
    in_loop: JobContext[Deps] = gw.context(in_context, cancelled=True)
    by_its_name: JobContext[Deps] = gw.context("in_node")
    print_all(found, errors, jobs, gw.now(), in_loop, by_its_name)


@app.cron("30 4 * * 1", id="weekly", backfill=timedelta(days=2), tz="Europe/Paris")
@app.external_task("render_in_node", queue_name="images", max_attempts=3)
def render(page: int, *, title: str = "") -> None:
    """Render a page, in Node."""


@app.cron("0 4 * * *", payload={"page": 1})
@TaskRouter[Deps]().external_task("sum_in_rust", schema={"type": "array"})
def sum_in_rust(numbers: Sequence[int], /) -> None: ...


async def external() -> None:
    job: Job[None] = await render.using(priority=1).aenqueue(1, title="x")
    tasks: dict[str, ExternalTask[..., Any]] = app.external_tasks()
    assert_type(job.id, int)
    assert_type(sum_in_rust.spec([1, 2]), JobSpec)
    assert_type(tasks["render_in_node"].identifier, str)


@app.cron(Cron.daily_at(8, 30), payload={"short": True}, job_key_mode="replace")
@app.cron(lambda minute: minute.dow == 1 and minute.min == 0, id="by_function")
@app.task
async def report(ctx: JobContext, short: bool = False) -> None:
    if ctx.cron is not None:
        at: datetime = ctx.cron.ts
        print_all(at, ctx.cron.backfilled, short)


@app.batch_task
async def batch(ctx: JobContext, items: list[int]) -> list[BaseException | None]:
    return [None for _ in items]


@app.batch_task(name="plain_batch", max_attempts=3)
def plain_batch(items: list[str]) -> None:
    raise PartialFailure({0: ValueError()})


async def batches() -> None:
    numbers: BatchTask[int] = batch
    numbers.enqueue([1, 2])
    await plain_batch.using(priority=1).aenqueue(("a", "b"))
    job: Job = plain_batch.accumulate("a", "b", key="k", delay=timedelta(seconds=1))
    await numbers.aaccumulate(3, key="k", delay=timedelta(seconds=1), conn=object())
    print_all(job)


@plain.batch_task(name="b1")
def with_context(ctx: SyncJobContext[None], items: list[Resize]) -> list[BaseException | None]:
    return [ctx.deps for _ in items]


@app.batch_task(name="b2")
async def any_sequence(items: Sequence[int]) -> None: ...


@app.batch_task
async def context_and_sequence(ctx: JobContext[Deps], items: Sequence[Resize]) -> None: ...


@app.batch_task(name="b3", run_in="process", timeout=timedelta(minutes=1))
def in_a_process(items: list[int]) -> None: ...


async def other_batches() -> None:
    widths: BatchTask[Resize] = context_and_sequence
    await widths.aenqueue([{"path": "a.png", "width": 1}])
    with_context.accumulate({"path": "a.png", "width": 1}, key="k", delay=timedelta(seconds=1))
    any_sequence.enqueue([1, 2])
    in_a_process.using(queue_name="q").enqueue([3])
    specs: list[JobSpec] = [any_sequence.spec([1]), widths.spec([])]
    print_all(specs)


@app.task(retry=Backoff(max=timedelta(minutes=10), give_up_on=(KeyError,)))
async def outcomes(ctx: JobContext[Deps], status: int) -> None:
    if status == 404:
        raise Discard("no such invoice")
    if status == 429:
        raise Snooze(timedelta(seconds=30))
    raise Retry(reason="busy")


@app.task(retry=lambda error, job: timedelta(minutes=job.attempts) if error else None)
def by_a_function(status: int) -> None: ...


@app.task
async def pay(ctx: JobContext[Deps], order_id: int) -> None:
    async with ctx.transaction() as conn:
        await conn.execute("update orders set paid = true where id = %s", [order_id])


@app.on(JobFailed)
async def alert(event: JobFailed) -> None:
    error: BaseException = event.error
    print_all(event.job.id, event.job.task_identifier, error)


@app.on(JobErrored)
def by_words(event: JobErrored) -> None:
    if isinstance(event.error, TaskProcessError):
        words: str = event.error.kind + event.error.text
        print_all(words)


@app.on("job:success")
def by_its_name(event: object) -> None: ...


@app.around(RunningJob)
@contextmanager
def timing(event: RunningJob) -> Generator[None, None, None]:
    yield


@app.around(RunningJob)
@asynccontextmanager
async def on_the_loop(event: RunningJob) -> AsyncGenerator[None]:
    yield


hooks = Hooks()


@hooks.around(AddingJobs)
def marked(event: AddingJobs) -> AbstractContextManager[None]:
    event.specs[:] = [each for each in event.specs if each.identifier]
    jobs: list[Job] = event.jobs
    print_all(jobs)
    return nullcontext()


def options() -> WorkerOptions:
    return WorkerOptions(
        local_queue=LocalQueueOptions(size=100),
        recovery=RecoveryOptions(lease_duration=timedelta(seconds=10)),
        task_processes=TaskProcessOptions(max_jobs=10, max_memory=100, memory_limit=200),
        complete_batch_delay=None,
        only_tasks=["mail_*"],
        except_tasks=("mail_news",),
        forbidden_flags=["slow"],
    )


async def recurring() -> None:
    items: list[ParsedCronItem] = parse_cron_items([CronItem(task="report", match="* * * * *")])
    items += parse_crontab("* * * * * report ?id=file")
    runner = await run(None, app, cron_items=items)
    await runner.stop()
    report.enqueue(short=True)


def errors(error: GraphileWorkerError) -> str:
    match error:
        case JobSpecError():
            return f"{error.argument} {error.code} {error.reason}"
        case SchemaTooNew():
            return f"{error.schema} {error.level} {error.exit_code}"
        case _:
            return str(error)


def print_all(*values: object) -> None:
    """Use them."""

"""One worker over several shards: one pool for each, which share the concurrency."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from graphile_worker import (
    App,
    ConcurrencyLimit,
    JobContext,
    JobSpec,
    SchemaMissing,
    Shards,
    SyncJobContext,
    TaskRouter,
    WorkerOptions,
    run,
    run_once,
)
from graphile_worker._metrics.exposition import write_metrics
from graphile_worker._worker.limited_jobs import LimitedJobs
from graphile_worker._worker.shared_concurrency import SharedConcurrency, SlotGate
from graphile_worker.events import (
    CronStarted,
    JobStarted,
    JobSucceeded,
    RunnerStarted,
    RunnerStopped,
)
from graphile_worker.runner import Runner, build_runner
from tests.support.recorder import Recorder, wait_until

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

NOWHERE = "postgresql://127.0.0.1:9/nowhere?connect_timeout=2"
KEYS = [f"customer-{number}" for number in range(30)]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def shards(shard_databases) -> AsyncIterator[Shards]:
    dsns = {name: each.dsn for name, each in shard_databases.items()}
    async with Shards(dsns, schema=shard_databases["a"].schema) as shards:
        yield shards


@asynccontextmanager
async def running(
    on: Shards, tasks: Any, recorder: Recorder, schema: str, **options: Any
) -> AsyncIterator[Runner]:
    runner = await run(
        on,
        tasks,
        options=WorkerOptions(schema=schema, **options),
        hooks=recorder.hooks,
        handle_signals=False,
    )
    try:
        yield runner
    finally:
        await runner.stop()


async def test_jobs_of_all_shards_run_and_their_events_name_the_shard(shards, recorder, schema):
    seen: dict[int, str | None] = {}

    async def task(payload: dict[str, int], ctx: JobContext) -> None:
        seen[payload["n"]] = ctx.job.shard

    async with running(shards, {"task": task}, recorder, schema, concurrency=4) as runner:
        jobs = [
            await runner.client.add_job("task", {"n": n}, job_key=key) for n, key in enumerate(KEYS)
        ]
        done = await recorder.wait_for(JobSucceeded, count=len(KEYS))
        assert runner.is_ready

    assert seen == {n: job.shard for n, job in enumerate(jobs)}
    assert {(event.job.id, event.shard) for event in done} == {(j.id, j.shard) for j in jobs}
    assert {event.shard for event in recorder.events_of(RunnerStarted)} == {"a", "b", "c"}


async def test_all_shards_together_run_no_more_jobs_than_the_concurrency(shards, schema):
    running_now, most = 0, 0
    ran: Counter[str | None] = Counter()

    async def task(payload: object, ctx: JobContext) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        ran[ctx.job.shard] += 1
        await asyncio.sleep(0.001)
        running_now -= 1

    for name in shards.names:
        specs = [_spec(name, number) for number in range(60)]
        await shards.client(name).add_jobs(specs)

    count = await run_once(
        shards, {"task": task}, options=WorkerOptions(schema=schema, concurrency=4)
    )

    assert (count, most) == (180, 4)
    assert ran == dict.fromkeys(shards.names, 60)


async def test_a_shard_with_long_jobs_leaves_slots_to_the_others_as_they_end(shards, schema):
    """Every shard makes progress while the jobs of all shards are more than the slots."""
    order: list[str | None] = []

    async def task(payload: object, ctx: JobContext) -> None:
        order.append(ctx.job.shard)
        await asyncio.sleep(0.01)

    for name in shards.names:
        await shards.client(name).add_jobs([_spec(name, number) for number in range(40)])

    await run_once(shards, {"task": task}, options=WorkerOptions(schema=schema, concurrency=2))

    # Without turns, one shard would be empty before the next one begins.
    assert set(order[:60]) == {"a", "b", "c"}


async def test_a_worker_starts_without_a_shard_and_picks_it_up_later(
    shards, shard_databases, recorder, schema
):
    target = [NOWHERE]
    partly = Shards(
        {"a": shard_databases["a"].dsn, "b": lambda: target[0]},
        schema=schema,
    )

    async def task(payload: object) -> None: ...

    recorder.hooks._enable_metrics()
    async with running(partly, {"task": task}, recorder, schema) as runner:
        await shards.client("a").add_job("task")
        await shards.client("b").add_job("task")
        [event] = await recorder.wait_for(JobSucceeded)
        text = write_metrics(recorder.hooks._recorder.collect())
        assert (event.shard, runner.is_ready) == ("a", True)
        assert 'graphile_worker_database_reachable{shard="a"} 1' in text
        assert 'graphile_worker_database_reachable{shard="b"} 0' in text

        target[0] = shard_databases["b"].dsn
        _, event = await recorder.wait_for(JobSucceeded, count=2)
        assert event.shard == "b"


async def test_a_worker_does_not_start_if_no_shard_is_reachable(schema):
    with pytest.raises(Exception, match="connection failed"):
        await run(
            Shards({"a": NOWHERE, "b": NOWHERE}),
            {"task": print},
            options=WorkerOptions(schema=schema),
            handle_signals=False,
        )


async def test_run_once_ends_the_reachable_shards_and_then_raises(shards, shard_databases, schema):
    ran = []

    async def task(payload: object) -> None:
        ran.append(payload)

    await shards.client("a").add_job("task")
    with pytest.raises(Exception, match="connection failed"):
        await run_once(
            Shards({"a": shard_databases["a"].dsn, "b": NOWHERE}),
            {"task": task},
            options=WorkerOptions(schema=schema),
        )
    assert len(ran) == 1


async def test_tasks_add_jobs_on_the_shard_of_their_key_and_others_on_their_own(
    shards, recorder, schema
):
    added: list[tuple[str | None, str | None, str | None]] = []
    app = App[Any](shards, schema=schema)
    ran = []

    @app.task
    async def parent(ctx: JobContext, key: str) -> None:
        keyed = await ctx.add_job("child", job_key=f"async {key}", shard_key=key)
        plain = await ctx.add_job("child")
        added.append((key, keyed.shard, plain.shard))
        assert plain.shard == ctx.job.shard

    @app.task
    def sync_parent(ctx: SyncJobContext, key: str) -> None:
        keyed = ctx.add_job("child", job_key=f"sync {key}", shard_key=key)
        plain = ctx.add_job("child")
        added.append((key, keyed.shard, plain.shard))
        assert plain.shard == ctx.job.shard

    @app.task
    async def child() -> None:
        ran.append(1)

    for key in KEYS[:8]:
        await app.aadd_job("parent", {"key": key})
        await app.aadd_job("sync_parent", {"key": key})

    count = await app.worker(concurrency=4).run_once()
    await app.close()

    assert (count, len(ran), len(added)) == (48, 32, 16)
    assert all(shards.find_shard(key) == shard for key, shard, _ in added)


async def test_a_cron_item_is_scheduled_on_one_shard(shards, recorder, schema, shard_databases):
    app = App[Any](shards, schema=schema)

    @app.task
    async def task() -> None: ...

    identifiers = [f"item-{number}" for number in range(9)]
    for identifier in identifiers:
        app.cron("0 0 1 1 *", id=identifier)(task)
    async with running(shards, app, recorder, schema):
        await recorder.wait_for(CronStarted, count=3)
        for name in shards.names:
            known = await shards.client(name).list_known_crontabs()
            assert set(known) == {each for each in identifiers if shards.find_shard(each) == name}
    await app.close()


async def test_a_cron_item_is_scheduled_on_the_shard_of_its_queue(shards, recorder, schema):
    app = App[Any](shards, schema=schema)

    @app.task
    async def task() -> None: ...

    queues = [f"queue-{number}" for number in range(9)]
    for queue in queues:
        app.cron("0 0 1 1 *", id=f"item of {queue}", queue_name=queue)(task)
    async with running(shards, app, recorder, schema):
        await recorder.wait_for(CronStarted, count=3)
        for name in shards.names:
            known = await shards.client(name).list_known_crontabs()
            on_shard = {each for each in queues if shards.find_shard(each) == name}
            assert set(known) == {f"item of {each}" for each in on_shard}
    await app.close()


async def test_the_lifespan_is_entered_once(shards, schema):
    entered, left, seen = [], [], []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        entered.append(1)
        yield "deps"
        left.append(1)

    async def task(payload: object, ctx: JobContext) -> None:
        seen.append(ctx.deps)

    for name in shards.names:
        await shards.client(name).add_job("task")
    await run_once(shards, {"task": task}, options=WorkerOptions(schema=schema), lifespan=lifespan)

    assert (len(entered), len(left), seen) == (1, 1, ["deps"] * 3)


async def test_metrics_have_the_label_shard_and_one_concurrency(shards, recorder, schema):
    async def task(payload: object) -> None: ...

    recorder.hooks._enable_metrics()
    async with running(shards, {"task": task}, recorder, schema, concurrency=5) as runner:
        for key in {shards.find_shard(key): key for key in KEYS}.values():
            await runner.client.add_job("task", shard_key=key)
        await recorder.wait_for(JobSucceeded, count=3)
        text = write_metrics(recorder.hooks._recorder.collect())

    for name in shards.names:
        finished = f'jobs_finished_total{{task="task",outcome="success",shard="{name}"}} 1'
        assert finished in text
        assert f'jobs_added_total{{task="task",mode="single",shard="{name}"}} 1' in text
    assert "graphile_worker_concurrency 5" in text
    assert "graphile_worker_concurrency{" not in text
    assert text.count("# TYPE graphile_worker_jobs_finished_total") == 1


async def test_an_error_that_is_not_an_outage_stops_all_shards(
    shards, shard_databases, databases, cluster, recorder, schema
):
    name = databases.clone("template0")
    partly = Shards({"a": shard_databases["a"].dsn, "empty": cluster.dsn(name)})
    try:
        with pytest.raises(SchemaMissing):
            await build_runner(
                partly,
                {"task": print},
                options=WorkerOptions(schema=schema),
                hooks=recorder.hooks,
                migrate=False,
            ).start()
        assert {event.shard for event in recorder.events_of(RunnerStopped)} <= {"a", "empty"}
    finally:
        cluster.drop_database(name)


async def test_a_worker_stops_its_shards_together(shards, recorder, schema):
    gate = asyncio.Event()

    async def task(payload: object) -> None:
        await gate.wait()

    runner = await run(
        shards,
        {"task": task},
        options=WorkerOptions(schema=schema),
        hooks=recorder.hooks,
        handle_signals=False,
    )
    for name in shards.names:
        await shards.client(name).add_job("task")
    await recorder.wait_for(JobStarted, count=1)
    stopping = asyncio.create_task(runner.stop())
    await asyncio.sleep(0)
    assert not runner.is_ready
    gate.set()
    await stopping


async def test_jobs_finish_although_another_shard_is_unreachable(
    shards, shard_databases, recorder, schema
):
    """A shard that cannot be reached at the end does not limit the time of the others."""
    held: list[asyncio.StreamWriter] = []
    holds = False
    gate = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if holds:
            held.append(writer)
        else:
            writer.close()

    async def task(payload: object) -> None:
        await gate.wait()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    partly = Shards(
        {"a": shard_databases["a"].dsn, "b": f"host=127.0.0.1 port={port} sslmode=disable"},
        schema=schema,
    )
    async with server, running(partly, {"task": task}, recorder, schema) as runner:
        await shards.client("a").add_job("task")
        await recorder.wait_for(JobStarted)
        holds = True
        await wait_until(lambda: held)
        runner.finish()
        holds = False
        for each in held:
            each.close()
        await wait_until(lambda: "shard b" not in {each.get_name() for each in asyncio.all_tasks()})

        components: Any = runner._components
        assert not components.pool.is_stopping
        gate.set()
        await recorder.wait_for(JobSucceeded)
        await runner.wait()


async def test_a_shard_that_fails_while_its_worker_starts_leaves_no_gate(
    shards, recorder, schema, monkeypatch
):
    """The gates of its earlier tries would cost time for each job."""
    gates: list[SlotGate] = []
    failures = [psycopg.OperationalError("no answer") for _ in range(2)]
    open_gate, register = SharedConcurrency.open_gate, LimitedJobs.register

    def record_gate(limit: SharedConcurrency) -> SlotGate:
        gates.append(open_gate(limit))
        return gates[-1]

    async def fail_first(jobs: LimitedJobs) -> None:
        if failures:
            raise failures.pop()
        await register(jobs)

    monkeypatch.setattr(SharedConcurrency, "open_gate", record_gate)
    monkeypatch.setattr(LimitedJobs, "register", fail_first)
    tasks = TaskRouter()

    @tasks.task(limit=ConcurrencyLimit(1))
    async def task() -> None: ...

    async with running(shards, tasks, recorder, schema):
        await shards.client("a").add_job("task")
        await recorder.wait_for(JobSucceeded)
        await wait_until(lambda: len(gates) == 5)

        assert len(gates[0].limit.gates) == 3


def _spec(shard: str, number: int) -> Any:
    return JobSpec("task", {"shard": shard, "n": number})

"""One named queue and many workers: those that cannot help do not stand in the way."""

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import App, Hooks, JobSpec, WorkerOptions, run_once
from graphile_worker._worker.sources.base import ONCE_POLL_INTERVAL
from graphile_worker.events import GetJobStarted
from tests.support.tools import MODULES, NODE

PROGRAMS = Path(__file__).parent / "programs"
JOBS = 2000
ROUNDS = 9


@pytest.fixture
async def app(database, monkeypatch):
    monkeypatch.setenv("NO_LOG_SUCCESS", "1")
    async with App(database.dsn, schema=database.schema) as app:

        @app.task
        async def noop() -> None:
            pass

        yield app


# Each job by itself: fetched ahead, those without a queue would come by the hundred.
ONE_BY_ONE: dict[str, Any] = {"local_queue": None, "complete_batch_delay": None}


async def rate(app: App, queue_name: str | None, **options: Any) -> float:
    """Jobs per second, from the start of a worker to its end."""
    await app.aadd_jobs([JobSpec("noop", queue_name=queue_name)] * JOBS)
    began = time.monotonic()
    assert await app.worker(WorkerOptions(**options)).run_once() == JOBS
    return JOBS / (time.monotonic() - began)


async def rate_of_node(app: App, database: Any, sql: Any) -> float:
    """Jobs of one queue per second, over ten seconds of the reference with ten workers."""
    await app.aadd_jobs([JobSpec("noop", queue_name="one")] * 20_000)
    left = "select count(*) from :schema._private_jobs"
    command = [str(NODE), str(PROGRAMS / "rate.js"), str(MODULES / "gw018"), database.url, "10"]
    worker = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "NO_LOG_SUCCESS": "1"},
    )
    try:
        while (before := sql.value(left)) == 20_000:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.sleep(10)
        return float(before - sql.value(left)) / 10
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.feature("F91")
@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(300)
async def test_a_named_queue_runs_nearly_as_fast_as_one_worker_alone(app, database, sql, figure):
    if database.schema != "graphile_worker":
        pytest.skip("measured once is enough")

    rounds = [
        (
            await rate(app, None, concurrency=1, **ONE_BY_ONE),
            await rate(app, "one", concurrency=10, **ONE_BY_ONE),
        )
        for _ in range(ROUNDS)
    ]
    # Worlds apart, so that once is enough.
    usual = await rate(app, "one", concurrency=10)
    theirs = await rate_of_node(app, database, sql)

    ratios = sorted(queued / alone for alone, queued in rounds)
    alone, queued = (sorted(each)[ROUNDS // 2] for each in zip(*rounds, strict=True))
    figure(
        f"2,000 jobs: {alone:.0f}/s unqueued with one worker, {queued:.0f}/s in a queue with ten, "
        f"ratio {ratios[ROUNDS // 2]:.2f}, {usual:.0f}/s with our defaults; "
        f"Node {theirs:.0f}/s in one queue with ten"
    )
    assert ratios[ROUNDS // 2] >= 0.7
    assert usual > theirs


async def test_idle_workers_do_not_ask_for_each_job_of_a_queue(app, database):
    hooks = Hooks()
    asked: list[GetJobStarted] = []
    hooks.on(GetJobStarted)(asked.append)
    await app.aadd_jobs([JobSpec("noop", queue_name="one")] * 200)

    options = WorkerOptions(schema=database.schema, concurrency=10, **ONE_BY_ONE)
    began = time.monotonic()
    await run_once(database.dsn, app, options=options, hooks=hooks)
    polls = (time.monotonic() - began) / ONCE_POLL_INTERVAL.total_seconds()

    # Each job once, each worker once at first, whenever it is time to poll, and a few times at the
    # end. There would be 2,000 if each asked for each.
    assert len(asked) < 200 + 50 + 10 * polls

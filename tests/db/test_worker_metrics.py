"""A worker counts its jobs, fetches and writes, and a client the jobs that it adds."""

import asyncio
from datetime import timedelta

from graphile_worker import Discard, JobSpec, Snooze
from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import JobResult, Metric
from graphile_worker._metrics.recorder import Recorder as Cells
from graphile_worker._metrics.values import HistogramValue, Value
from graphile_worker.events import CronScheduled, JobFinished, JobInterrupted, ListenStarted
from tests.support.tasks import nothing


def read(cells: Cells, metric: Metric, *labels: str) -> Value:
    return cells.collect()[metric].get(labels, 0)


def count_observations(cells: Cells, metric: Metric, *labels: str) -> int:
    value = read(cells, metric, *labels)
    assert isinstance(value, HistogramValue)
    return sum(value.counts)


def fail(_: object) -> None:
    raise ValueError("as the test wants")


def discard(_: object) -> None:
    raise Discard("not again")


class SnoozeOnce:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _: object) -> None:
        self.calls += 1
        if self.calls == 1:
            raise Snooze(timedelta(0))


async def test_each_outcome_is_counted(start, recorder, sql):
    cells = recorder.hooks._enable_metrics()
    tasks = {"nothing": nothing, "fail": fail, "discard": discard, "snooze": SnoozeOnce()}
    sql.run("select :schema.add_job('nothing') from generate_series(1, 20)")
    sql.run("select :schema.add_job('fail', max_attempts => 1)")
    sql.run("select :schema.add_job('fail')")
    sql.run("select :schema.add_job('discard')")
    sql.run("select :schema.add_job('snooze')")

    runner = await start(tasks, concurrency=4)
    await recorder.wait_for(JobFinished, count=25)
    await runner.stop()

    expected = {
        ("nothing", JobResult.SUCCESS): 20,
        ("fail", JobResult.FAILED): 1,
        ("fail", JobResult.RETRY): 1,
        ("discard", JobResult.FAILED): 1,
        ("snooze", JobResult.SNOOZED): 1,
        ("snooze", JobResult.SUCCESS): 1,
    }
    finished = cells.collect()[definitions.JOBS_FINISHED]
    assert {labels: count for labels, count in finished.items() if count} == expected
    for task, started, first_attempts in (("nothing", 20, 20), ("fail", 2, 2), ("snooze", 2, 2)):
        assert read(cells, definitions.JOBS_STARTED, task) == started
        assert count_observations(cells, definitions.JOB_DURATION, task) == started
        # The attempt of a snoozed job is not counted, so its next run is a first attempt, too.
        assert count_observations(cells, definitions.JOB_WAIT, task) == first_attempts


async def test_fetches_and_writes_are_timed(start, recorder, sql):
    cells = recorder.hooks._enable_metrics()
    sql.run("select :schema.add_job('nothing') from generate_series(1, 5)")
    sql.run("select :schema.add_job('fail')")
    runner = await start({"nothing": nothing, "fail": fail}, concurrency=2)
    await recorder.wait_for(JobFinished, count=6)
    await runner.stop()

    fetches = cells.collect()[definitions.FETCHES]
    assert fetches["hit",]
    assert "error" not in str(fetches)
    assert count_observations(cells, definitions.FETCH_DURATION) == sum(map(int, fetches.values()))
    assert count_observations(cells, definitions.WRITE_DURATION, "complete")
    assert count_observations(cells, definitions.WRITE_DURATION, "fail")


async def test_gauges_exist_while_the_worker_runs(start, recorder):
    cells = recorder.hooks._enable_metrics()
    began, release = asyncio.Event(), asyncio.Event()

    async def wait(_: object) -> None:
        began.set()
        await release.wait()

    runner = await start({"wait": wait}, concurrency=3)
    await recorder.wait_for(ListenStarted)
    await runner.add_job("wait")
    await began.wait()

    assert read(cells, definitions.JOBS_RUNNING) == 1
    assert read(cells, definitions.CONCURRENCY) == 3
    assert read(cells, definitions.DATABASE_REACHABLE) == 1
    assert read(cells, definitions.LISTEN_CONNECTED) == 1
    assert read(cells, definitions.CONNECTIONS, "waiting") == 0
    [(labels, value)] = cells.collect()[definitions.INFO].items()
    assert value == 1
    assert labels[-1] == runner.options.schema
    release.set()
    await recorder.wait_for(JobFinished)
    await runner.stop()

    assert definitions.JOBS_RUNNING not in cells.collect()
    assert read(cells, definitions.JOBS_STARTED, "wait") == 1


async def test_a_job_that_a_shutdown_released_is_interrupted(start, recorder):
    cells = recorder.hooks._enable_metrics()
    began = asyncio.Event()

    async def wait(_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    runner = await start({"wait": wait}, shutdown_timeout=timedelta(0))
    await runner.add_job("wait")
    await began.wait()
    await runner.stop()

    assert recorder.events_of(JobInterrupted)
    assert read(cells, definitions.JOBS_FINISHED, "wait", JobResult.INTERRUPTED) == 1
    assert count_observations(cells, definitions.WRITE_DURATION, "release")


async def test_added_jobs_are_counted(start, recorder):
    cells = recorder.hooks._enable_metrics()
    runner = await start({"nothing": nothing})
    await runner.add_job("nothing")
    await runner.client.add_jobs([JobSpec("nothing"), JobSpec("unknown")])

    assert read(cells, definitions.JOBS_ADDED, "nothing", "single") == 1
    assert read(cells, definitions.JOBS_ADDED, "nothing", "batch") == 1
    assert read(cells, definitions.JOBS_ADDED, "unknown", "batch") == 1


async def test_workers_with_the_same_hooks_count_together(start, recorder):
    cells = recorder.hooks._enable_metrics()
    runners = [await start({"nothing": nothing}, concurrency=2) for _ in range(2)]
    await recorder.wait_for(ListenStarted, count=2)
    assert read(cells, definitions.CONCURRENCY) == 4
    assert read(cells, definitions.LISTEN_CONNECTED) == 2
    await runners[0].add_job("nothing")
    await recorder.wait_for(JobFinished)
    assert read(cells, definitions.JOBS_STARTED, "nothing") == 1
    await runners[0].stop()
    assert read(cells, definitions.CONCURRENCY) == 2


async def test_without_a_recorder_nothing_is_counted(start, recorder):
    runner = await start({"nothing": nothing})
    assert runner._components.metrics is None
    assert recorder.hooks._recorder is None
    assert not recorder.hooks._listeners.get(CronScheduled)

"""Plain functions that run past their timeout: no second attempt runs beside them."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import App, SyncJobContext
from graphile_worker.events import (
    JobErrored,
    JobFinished,
    JobInterrupted,
    JobOverran,
    JobStarted,
    JobSucceeded,
    TaskPaused,
    TaskResumed,
)

SOON = timedelta(milliseconds=50)

JOBS = """
select jobs.id, jobs.locked_by is not null, job_queues.locked_by is not null, jobs.attempts,
  jobs.last_error
from :schema._private_jobs as jobs
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id
"""


class Bodies:
    """Functions that stay until they are let go, and how many of them there are at once."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.most = 0
        self._count = 0
        self._lock = threading.Lock()

    def stay(self) -> None:
        with self._lock:
            self._count += 1
            self.most = max(self.most, self._count)
        self.release.wait(60)
        with self._lock:
            self._count -= 1


@pytest.fixture
def bodies() -> Any:
    bodies = Bodies()
    yield bodies
    bodies.release.set()


def at_once(error: BaseException, job: object) -> timedelta:
    return timedelta(0)


@pytest.fixture
def stuck(app: App, bodies: Bodies) -> Any:
    """A task that hangs at its first attempt."""

    @app.task(timeout=SOON, retry=at_once, queue_name="serial")
    def stuck(ctx: SyncJobContext, error: str = "") -> None:
        if ctx.job.attempts == 1:
            bodies.stay()
        if error:
            raise LookupError(error)

    return stuck


async def test_a_plain_function_that_outlives_its_timeout_keeps_its_job_until_it_returns(
    app, start, recorder, sql, stuck, bodies
):
    jobs = [await stuck.aenqueue(), await stuck.aenqueue()]
    await start(app, concurrency=4)

    [overran] = await recorder.wait_for(JobOverran)
    assert (overran.job.id, overran.timeout) == (jobs[0].id, SOON)
    # Its lock and that of its queue stay, so that nothing runs beside it.
    expected = [(jobs[0].id, True, True, 1, None), (jobs[1].id, False, True, 0, None)]
    assert sql.run(JOBS) == expected
    assert len(recorder.events_of(JobStarted)) == 1

    bodies.release.set()
    [failed, *_] = await recorder.wait_for(JobErrored, job_id=jobs[0].id)
    assert isinstance(failed.error, TimeoutError)
    assert str(failed.error) == "the function ran longer than its timeout of 0:00:00.050000"
    # Then the retry comes, and the rest of the queue.
    await recorder.wait_for(JobSucceeded, job_id=jobs[0].id)
    await recorder.wait_for(JobSucceeded, job_id=jobs[1].id)
    assert bodies.most == 1


async def test_an_error_after_the_timeout_is_the_cause_of_the_timeout(
    app, start, recorder, stuck, bodies
):
    await stuck.using(max_attempts=1).aenqueue("too late")
    await start(app)
    await recorder.wait_for(JobOverran)

    bodies.release.set()

    [failed] = await recorder.wait_for(JobErrored)
    assert isinstance(failed.error, TimeoutError)
    assert isinstance(failed.error.__cause__, LookupError)


async def test_a_plain_function_is_asked_to_give_up_at_its_timeout(app, start, recorder):
    @app.task(timeout=SOON, max_attempts=1)
    def polite(ctx: SyncJobContext, *, waits: bool) -> None:
        if waits:
            assert ctx.wait_cancelled(timedelta(seconds=60))
        while not ctx.cancelled:
            time.sleep(0.01)

    await polite.aenqueue(waits=True)
    await polite.aenqueue(waits=False)
    await start(app)

    failed = await recorder.wait_for(JobErrored, count=2)
    assert {type(each.error) for each in failed} == {TimeoutError}


async def test_a_stop_releases_the_job_of_a_function_past_its_timeout(
    app, start, recorder, sql, stuck, bodies
):
    job = await stuck.aenqueue()
    runner = await start(app, shutdown_timeout=SOON)
    await recorder.wait_for(JobOverran)

    await runner.stop()

    assert [each.job.id for each in recorder.events_of(JobInterrupted)] == [job.id]
    assert sql.run(JOBS) == [(job.id, False, False, 0, None)]
    assert recorder.events_of(JobErrored) == []


@pytest.mark.parametrize("queue", ["ahead", "none"])
async def test_with_too_many_functions_past_their_timeout_no_more_jobs_of_their_task_are_taken(
    app, start, recorder, bodies, queue
):
    @app.task(timeout=SOON, max_attempts=1)
    def hang() -> None:
        bodies.stay()

    @app.task
    async def work() -> None: ...

    given: dict[str, Any] = {} if queue == "ahead" else {"local_queue": None}
    hour = timedelta(hours=1)
    await app.aadd_jobs([hang.spec()] * 2)
    await start(app, concurrency=4, max_runaway_threads=2, poll_interval=hour, **given)
    [paused] = await recorder.wait_for(TaskPaused)
    assert (paused.task_identifier, paused.count) == ("hang", 2)

    recorder.clear()
    waiting = await app.aadd_jobs([hang.spec()] * 2)
    await app.aadd_jobs([work.spec()] * 5)
    await recorder.wait_for(JobSucceeded, count=5)
    assert {each.job.task_identifier for each in recorder.events_of(JobStarted)} == {"work"}
    assert bodies.most == 2

    bodies.release.set()
    await recorder.wait_for(TaskResumed, task_identifier="hang")
    for job in waiting:
        await recorder.wait_for(JobFinished, job_id=job.id)

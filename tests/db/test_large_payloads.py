"""Large payloads: which are read, when, and how many bytes of them a worker holds at once."""

import asyncio

import pytest

from graphile_worker import JobSpec, LocalQueueOptions
from graphile_worker._sql.queries.claim import (
    claim_first_job,
    claim_jobs,
    claim_jobs_unindexed,
    claim_plain_jobs,
    claim_soonest_jobs,
    get_payload,
)
from graphile_worker.errors import PayloadTooLarge
from graphile_worker.events import JobFailed, JobStarted, JobSucceeded
from tests.support.recorder import wait_until

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

WAYS = [claim_first_job, claim_plain_jobs, claim_soonest_jobs, claim_jobs, claim_jobs_unindexed]

# Hardly compressible, and as compressible as can be.
DIGITS = "(select string_agg(md5(n::text), '') from generate_series(1, {} / 32) as n)"
LETTERS = "repeat('a', {})"

LOCKED = "select count(*) from :schema.jobs where locked_at is not null"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.args[0])
def test_a_fetch_brings_no_payload_that_is_larger_than_it_may_be(pool, sql, way):
    sizes = [100, 1_000, 2_000, 10_000, 100_000, 1_000_000]
    for text in (DIGITS, LETTERS):
        for size in sizes:
            sql.run(f"select :schema.add_job('task', to_json({text.format(size)}))")
    expected = sql.run("select id, octet_length(payload::text) from :schema._private_jobs")

    for limit in (50, 1_500, 20_000, 500_000, 2_000_000):
        taken = pool.claim_all_by(way, 50, max_bytes=limit)
        found = {each.job.id: each for each in taken}
        for job_id, size in expected:
            held = found[job_id]
            is_sent = size <= limit
            assert len(held.job.payload_text) == (size if is_sent else 0)
            assert (held.size, held.unread_bytes) == (size, 0 if is_sent else size)
            if not is_sent:
                text = pool.connection.run(get_payload(job_id, pool.id))
                assert text is not None
                assert len(text) == size
                assert pool.connection.run(get_payload(job_id, "another")) is None
        pool.release(*taken)


async def test_a_job_whose_payload_is_too_large_fails_permanently_and_is_not_read(
    start, recorder, sql
):
    ran: list[object] = []

    async def work(payload: object) -> None:
        ran.append(payload)

    sql.run(f"select :schema.add_job('work', to_json({LETTERS.format(10_000)}))")
    sql.run("select :schema.add_job('work', to_json('small'::text))")

    await start({"work": work}, max_payload_bytes=10_000)
    [failed] = await recorder.wait_for(JobFailed)
    await recorder.wait_for(JobSucceeded)

    assert ran == ["small"]
    assert isinstance(failed.error, PayloadTooLarge)
    [(attempts, last_error)] = sql.run(
        "select attempts, last_error from :schema._private_jobs where attempts = max_attempts"
    )
    assert attempts == 25
    assert (
        "the payload has 10,002 bytes and was not read: max_payload_bytes is 10,000" in last_error
    )


QUEUES = {
    "by time": LocalQueueOptions(max_bytes=100_000),
    "of a size": LocalQueueOptions(size=20, max_bytes=100_000),
}


@pytest.mark.parametrize("queue", QUEUES)
async def test_payloads_of_waiting_and_running_jobs_stay_within_the_budget_of_the_pool(
    start, recorder, queue
):
    running = most = 0

    async def work(payload: str) -> None:
        nonlocal running, most
        running += len(payload)
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= len(payload)

    runner = await start({"work": work}, concurrency=8, local_queue=QUEUES[queue])
    await runner.add_jobs([JobSpec("work", "x" * 40_000) for _ in range(20)])
    await recorder.wait_for(JobSucceeded, count=20)

    # Beside those that were sent together one more may be read by itself.
    assert 40_000 <= most <= 140_000


async def test_small_jobs_run_while_a_large_one_waits_for_room(start, recorder):
    may_end = asyncio.Event()

    async def large(payload: str) -> None:
        await may_end.wait()

    async def small(payload: object) -> None: ...

    queue = LocalQueueOptions(max_bytes=100_000)
    runner = await start({"large": large, "small": small}, concurrency=4, local_queue=queue)
    await runner.add_jobs([JobSpec("large", "x" * 80_000) for _ in range(3)])
    await recorder.wait_for(JobStarted)
    await runner.add_jobs([JobSpec("small", number) for number in range(10)])

    await recorder.wait_for(JobSucceeded, count=10)
    started = [event.job.task_identifier for event in recorder.events_of(JobStarted)]
    assert 1 <= started.count("large") < 3
    may_end.set()
    await recorder.wait_for(JobSucceeded, count=13)


async def test_a_stop_returns_a_job_that_waits_for_room(start, recorder, sql):
    may_end = asyncio.Event()

    async def large(payload: str) -> None:
        await may_end.wait()

    queue = LocalQueueOptions(max_bytes=100_000)
    runner = await start({"large": large}, concurrency=3, local_queue=queue)
    await runner.add_jobs([JobSpec("large", "x" * 80_000) for _ in range(3)])
    await recorder.wait_for(JobStarted)
    await wait_until(lambda: sql.value(LOCKED) == 3)

    stopping = asyncio.create_task(runner.stop())
    await wait_until(lambda: sql.value(LOCKED) < 3)
    may_end.set()
    await stopping

    left = sql.run("select attempts, locked_by from :schema.jobs")
    assert left == [(0, None)] * (3 - len(recorder.events_of(JobStarted)))
    assert left

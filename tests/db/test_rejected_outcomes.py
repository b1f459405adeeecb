"""An outcome that the database rejects fails its own job and delays no other."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from graphile_worker import JobsLeftLocked, OutcomeRefused, RecoveryOptions
from graphile_worker._db.worker_connections import ConnectionTimings
from graphile_worker._worker.completer import CompletionTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import JobErrored, JobSucceeded, PoolFatalError
from tests.support.recorder import Start, open_runners, wait_until

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

OTHERS = 300

# An outcome counts as rejected once the database has accepted a heartbeat meanwhile.
OFTEN = RecoveryOptions(heartbeat_interval=timedelta(milliseconds=200))

FUNCTION = """
create function public.refuse() returns trigger language plpgsql as $$
begin
  if old.payload->>'x' = 'rejected' and ({condition}) then
    raise exception 'the archive refuses this job';
  end if;
  return coalesce(new, old);
end
$$
"""
TRIGGER = """
create trigger refuse before delete or update on :schema._private_jobs
for each row execute function public.refuse()
"""


TIMINGS = WorkerTimings(completion=CompletionTimings(max_backoff_seconds=0.05))


@pytest.fixture
async def start(database, recorder) -> AsyncIterator[Start]:
    async with open_runners(database, recorder.hooks, TIMINGS) as start:
        yield start


async def archive(payload: object) -> None:
    pass


def refuse(sql, condition: str) -> None:
    sql.run(FUNCTION.format(condition=condition))
    sql.run(TRIGGER)


def add_all(client) -> int:
    """One job whose outcome is rejected, and others that end with it and after it."""
    rejected: int = client.add_job("archive", {"x": "rejected"}).id
    for number in range(OTHERS):
        client.add_job("archive", {"x": number})
    return rejected


async def test_a_rejected_completion_fails_its_job_and_delays_no_other(
    start, recorder, blocking_client, sql
):
    refuse(sql, "tg_op = 'DELETE'")
    rejected = add_all(blocking_client)

    await start({"archive": archive}, concurrency=4, recovery=OFTEN)
    await recorder.wait_for(JobSucceeded, count=OTHERS)
    [failed] = await recorder.wait_for(JobErrored)

    assert failed.job.id == rejected
    assert isinstance(failed.error, OutcomeRefused)
    [(attempts, last_error, locked_by)] = sql.run(
        "select attempts, last_error, locked_by from :schema._private_jobs"
    )
    assert (attempts, locked_by) == (1, None)
    assert "the archive refuses this job" in last_error


async def test_what_cannot_be_written_at_all_is_reported_and_left_to_recovery(
    start, recorder, blocking_client, sql
):
    refuse(sql, "old.locked_by is not null")
    rejected = add_all(blocking_client)

    runner = await start({"archive": archive}, concurrency=4)
    await recorder.wait_for(JobSucceeded, count=OTHERS)
    [reported] = await recorder.wait_for(PoolFatalError)
    assert "the archive refuses this job" in str(reported.error)
    with pytest.raises(JobsLeftLocked) as left:
        await runner.stop()

    assert left.value.job_ids == [rejected]
    # Its worker stays registered, so that others recover the job when its lease has expired.
    assert sql.value("select count(*) from :ext_schema.pools") == 1
    assert sql.value("select count(*) from :schema._private_jobs") == 1


async def test_a_row_that_another_session_has_locked_delays_no_other_outcome(
    start, recorder, blocking_client, sql
):
    connections = ConnectionTimings(query_timeout=timedelta(seconds=1))
    started, locked = asyncio.Event(), asyncio.Event()

    async def slow(payload: object) -> None:
        started.set()
        await locked.wait()

    job = blocking_client.add_job("slow")
    await start(
        {"slow": slow, "archive": archive},
        concurrency=2,
        timings=replace(TIMINGS, connections=connections),
    )
    await started.wait()
    sql.run("begin")
    sql.run("select from :schema._private_jobs where id = $1 for update", job.id)
    locked.set()
    for number in range(10):
        blocking_client.add_job("archive", {"x": number})
    await recorder.wait_for(JobSucceeded, count=10, timeout=60)

    sql.run("commit")
    await wait_until(lambda: sql.value("select count(*) from :schema._private_jobs") == 0)

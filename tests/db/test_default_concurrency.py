"""One job at a time unless told otherwise; tasks that wait want more."""

import asyncio
from typing import Any

import pytest

from graphile_worker import JobSpec, JobSucceeded, WorkerOptions, sync


class Waiting:
    """A task that waits for others, and knows how many of it run."""

    def __init__(self, together: int) -> None:
        self._all_here = asyncio.Barrier(together)
        self.at_once = 0
        self.most_at_once = 0

    async def __call__(self, payload: Any) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        async with self._all_here:
            pass
        self.at_once -= 1


def add(database: Any, count: int) -> None:
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.add_jobs([JobSpec("wait") for _ in range(count)])


@pytest.mark.feature("F302")
async def test_by_default_a_worker_runs_one_job_at_a_time(database, start, recorder):
    task = Waiting(together=1)
    add(database, 5)

    await start({"wait": task})

    await recorder.wait_for(JobSucceeded, count=5)
    assert WorkerOptions().concurrency == 1
    assert task.most_at_once == 1


@pytest.mark.feature("F302")
async def test_waiting_jobs_all_run_at_once_with_enough_concurrency(database, start, recorder):
    """Each waits until all fifty are there: with fewer at once they would never end."""
    task = Waiting(together=50)
    add(database, 50)

    await start({"wait": task}, concurrency=50, max_pool_size=4)

    await recorder.wait_for(JobSucceeded, count=50)
    assert task.most_at_once == 50

"""Limits use what they allow: at least 95 % of the slots, with short and with long jobs."""

import asyncio
import time

import pytest

from graphile_worker import App, ConcurrencyLimit, JobSpec
from tests.support.recorder import open_runners

pytestmark = [pytest.mark.nightly, pytest.mark.serial]

SLOTS = 4
POOLS = 2


@pytest.mark.parametrize(("seconds", "jobs"), [(0.005, 8_000), (5.0, 24)])
async def test_jobs_use_at_least_95_percent_of_the_slots(
    app: App, database, hooks, figure, seconds, jobs
):
    are_all_done = asyncio.Event()
    busy: list[tuple[float, float]] = []

    @app.task(limit=ConcurrencyLimit(SLOTS))
    async def work() -> None:
        began = time.monotonic()
        await asyncio.sleep(seconds)
        busy.append((began, time.monotonic()))
        if len(busy) == jobs:
            are_all_done.set()

    await app.aadd_jobs([JobSpec("work")] * jobs)
    async with open_runners(database, hooks) as start:
        for _ in range(POOLS):
            await start(app, concurrency=SLOTS)
        async with asyncio.timeout(90):
            await are_all_done.wait()

    # Without the start and the end, when fewer jobs than slots are left.
    since, until = busy[jobs // 10][1], busy[-SLOTS * 2][0]
    used = sum(max(0.0, min(end, until) - max(began, since)) for began, end in busy)
    share = used / (SLOTS * (until - since))
    figure(f"{share:.1%} of {SLOTS} slots with jobs of {seconds:g} s")
    assert share >= 0.95

"""From add_job to the start of a job, urgent or not, by workers far from the server."""

import asyncio
import statistics
import time
from contextlib import suppress

import pytest

from graphile_worker import Client, Hooks
from tests.chaos.field import through
from tests.support.proxy import Delay
from tests.support.recorder import open_runners

ROUNDS = 20
KINDS = {"normal": 0, "urgent": -10}

# Seconds that bytes travel, each way.
DISTANCES = (0.0, 0.005, 0.02, 0.1)

# Between two jobs that keep the worker fetching, and between two that are measured.
BESIDE_SECONDS = 0.05
APART_SECONDS = 0.15


class Started:
    """When each job has started, by the number in its payload."""

    def __init__(self) -> None:
        self._at: dict[int, asyncio.Future[float]] = {}

    def of(self, number: int) -> asyncio.Future[float]:
        return self._at.setdefault(number, asyncio.get_running_loop().create_future())

    async def task(self, payload: int) -> None:
        if not self.of(payload).done():
            self.of(payload).set_result(time.monotonic())


async def medians(database, distance: float, proxy) -> dict[str, float]:
    """Milliseconds from add to start, of a worker that runs other jobs and has idle slots."""
    started = Started()
    proxy.mode = Delay(distance)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    far = through(proxy.port, database)
    async with (
        open_runners(database, Hooks()) as start,
        Client(database.dsn, schema=database.schema) as client,
    ):
        await start({"task": started.task}, on=far, concurrency=4)
        beside = asyncio.create_task(keep_busy(client))
        await asyncio.sleep(1.5)
        for number in range(1, 2 * ROUNDS + 1):
            kind = list(KINDS)[number % 2]
            began = time.monotonic()
            await client.add_job("task", number, priority=KINDS[kind])
            found[kind].append(await asyncio.wait_for(started.of(number), 20) - began)
            await asyncio.sleep(APART_SECONDS)
        beside.cancel()
        with suppress(asyncio.CancelledError):
            await beside
    return {kind: statistics.median(each) * 1000 for kind, each in found.items()}


async def keep_busy(client: Client) -> None:
    while True:
        await client.add_job("task", 0)
        await asyncio.sleep(BESIDE_SECONDS)


@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(300)
async def test_urgent_jobs_start_as_soon_as_others_at_any_distance(database, proxy, figure):
    found = {distance: await medians(database, distance, proxy) for distance in DISTANCES}

    for distance, each in found.items():
        figure(
            f"add to start at {distance * 1000:g} ms one way: "
            f"urgent {each['urgent']:.0f} ms, normal {each['normal']:.0f} ms"
        )
    ratios = {at: each["urgent"] / each["normal"] for at, each in found.items()}
    assert {at: ratio for at, ratio in ratios.items() if not 1 / 1.5 <= ratio <= 1.5} == {}

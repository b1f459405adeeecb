"""A queue for each account: its jobs exclude each other, and nobody else's."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from graphile_worker import JobSpec, lane
from graphile_worker.events import JobStarted, JobSucceeded

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

ACCOUNTS = ("ada", "bob", "carol")


def bookings(each: int) -> list[JobSpec]:
    """As many jobs of each account, in a queue of its own."""
    return [
        JobSpec("book", {"account": account}, queue_name=f"account:{account}")
        for _ in range(each)
        for account in ACCOUNTS
    ]


@pytest.mark.feature("F93")
async def test_jobs_of_one_account_never_overlap_in_two_workers(start, recorder):
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def book(payload: Any) -> None:
        account = payload["account"]
        running[account] += 1
        most[account] = max(most[account], running[account])
        await asyncio.sleep(0)
        running[account] -= 1

    first = await start({"book": book}, concurrency=5)
    await start({"book": book}, concurrency=5)
    await first.add_jobs(bookings(each=20))
    await recorder.wait_for(JobSucceeded, count=20 * len(ACCOUNTS))

    assert most == dict.fromkeys(ACCOUNTS, 1)


@pytest.mark.feature("F93")
async def test_jobs_of_different_accounts_run_side_by_side(start, recorder):
    everybody = asyncio.Barrier(len(ACCOUNTS))

    async def book(payload: Any) -> None:
        await everybody.wait()

    runner = await start({"book": book}, concurrency=len(ACCOUNTS))
    await runner.add_jobs(bookings(each=2))

    await recorder.wait_for(JobSucceeded, count=2 * len(ACCOUNTS))


@pytest.mark.feature("F93")
async def test_a_queue_is_not_a_group_of_workers(start, recorder):
    ran: list[Any] = []

    runner = await start({"book": ran.append})
    await runner.add_jobs(
        [JobSpec("book", n, queue_name=q) for n, q in enumerate(["a", "b", None])]
    )
    await recorder.wait_for(JobSucceeded, count=3)

    assert sorted(ran) == [0, 1, 2]


@pytest.mark.feature("F93")
async def test_without_a_queue_they_do_overlap(start, recorder):
    both = asyncio.Barrier(2)

    async def book(payload: Any) -> None:
        await both.wait()

    runner = await start({"book": book}, concurrency=2)
    await runner.add_jobs([JobSpec("book") for _ in range(2)])

    await recorder.wait_for(JobSucceeded, count=2)


async def test_lanes_limit_a_tenant_and_leave_workers_to_other_tenants(start, recorder):
    end_of_busy = asyncio.Event()

    def import_for(tenant: str, number: int) -> JobSpec:
        return JobSpec("load", tenant, queue_name=lane("tenant", tenant, of=4, by=number))

    async def load(tenant: str) -> None:
        if tenant == "busy":
            await end_of_busy.wait()

    first = await start({"load": load}, concurrency=5)
    await start({"load": load}, concurrency=5)
    await first.add_jobs(import_for("busy", number) for number in range(40))
    await recorder.wait_for(JobStarted, count=4)
    await first.add_jobs(import_for("small", number) for number in range(20))

    # Two workers with room for ten jobs: the backlog, which came first, takes only its four.
    await recorder.wait_for(JobSucceeded, count=20)
    started = Counter(each.job.payload for each in recorder.events_of(JobStarted))
    assert started == {"busy": 4, "small": 20}
    end_of_busy.set()
    await recorder.wait_for(JobSucceeded, count=60)

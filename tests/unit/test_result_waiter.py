"""Waiters for results: when they look, and that one query serves them all."""

import asyncio
import gc
import os
import threading
import weakref
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import Client, ConfigurationError, GraphileWorkerError, _result_waiter, sync
from graphile_worker._result_waiter import (
    MAX_DELAY_SECONDS,
    MIN_DELAY_SECONDS,
    ResultWaiter,
    SyncResultWaiter,
    Waiter,
    WaitSchedule,
)
from graphile_worker._sql.plans.status import EndedJob
from graphile_worker.results import JobStatusState
from tests.support.fake_database import FakeDatabaseError

SOON = timedelta(seconds=30)


def build_ended(job_id: int) -> EndedJob:
    return EndedJob(job_id, JobStatusState.SUCCEEDED, "task", "1")


class FakeJobs:
    """Jobs that end when a test says so, and the ids of each query."""

    def __init__(self) -> None:
        self.ended: set[int] = set()
        self.looks: list[list[int]] = []
        self.errors: list[Exception] = []
        self.looked = threading.Event()

    def find(self, job_ids: list[int]) -> dict[int, EndedJob]:
        self.looks.append(job_ids)
        self.looked.set()
        if self.errors:
            raise self.errors.pop(0)
        return {each: build_ended(each) for each in job_ids if each in self.ended}

    async def afind(self, job_ids: list[int]) -> dict[int, EndedJob]:
        await asyncio.sleep(0)
        return self.find(job_ids)

    async def wait_for_looks(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.looks) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture
def jobs() -> FakeJobs:
    return FakeJobs()


# The schedule


def list_looks(until: float) -> list[float]:
    """The times of the looks of one waiter, without other waiters."""
    schedule: WaitSchedule[Waiter] = WaitSchedule()
    waiter = Waiter(1, 0.0)
    schedule.add(waiter)
    now, looks = 0.0, []
    while now <= until:
        now += schedule.get_delay(now)
        assert schedule.list_due(now) == [waiter]
        looks.append(now)
        waiter.postpone(now)
    return looks


def test_a_waiter_looks_at_once_then_after_half_of_the_time_waited_from_5_ms_to_1_s():
    looks = list_looks(until=60)
    delays = [after - before for before, after in zip(looks, looks[1:], strict=False)]

    assert looks[:5] == pytest.approx([0, 0.005, 0.01, 0.015, 0.0225])
    for before, delay in zip(looks, delays, strict=False):
        assert delay == pytest.approx(min(max(MIN_DELAY_SECONDS, before / 2), MAX_DELAY_SECONDS))


def test_the_overhead_of_waiting_is_at_most_half_of_the_time_waited():
    looks = list_looks(until=60)

    for milliseconds in range(10, 50_000, 7):
        ended_at = milliseconds / 1000
        seen_at = next(look for look in looks if look >= ended_at)
        assert seen_at - ended_at <= ended_at / 2


def test_waiters_who_came_at_different_times_soon_share_their_looks():
    schedule: WaitSchedule[Waiter] = WaitSchedule()
    now, sizes = 0.0, []
    for number in range(100):
        schedule.add(Waiter(number, number / 100))
    while now < 10:
        now += schedule.get_delay(now)
        due = schedule.list_due(now)
        if now > 5:
            sizes.append(len(due))
        for waiter in due:
            waiter.postpone(now)

    assert len(sizes) <= 12
    assert sum(sizes) <= 2 * 100 * 5 + 100


# Waiting


async def test_all_waiters_of_an_event_loop_share_each_query(jobs):
    waiter = ResultWaiter(jobs.afind)
    tasks = [asyncio.create_task(waiter.wait(n % 2500, SOON)) for n in range(5000)]
    await jobs.wait_for_looks(1)

    jobs.ended.update(range(2500))
    answers = await asyncio.gather(*tasks)

    assert [each.job_id for each in answers] == [n % 2500 for n in range(5000)]
    assert sorted(jobs.looks[0]) == list(range(2500))
    assert all(len(set(look)) == len(look) for look in jobs.looks)
    assert len(jobs.looks) < 50


def test_one_of_the_waiting_threads_looks_for_all_and_none_is_started(jobs):
    waiter = SyncResultWaiter(jobs.find)
    answers: dict[int, EndedJob] = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.update({n: waiter.wait(n, SOON)}))
        for n in range(20)
    ]
    before = threading.active_count()
    for thread in threads:
        thread.start()

    assert threading.active_count() <= before + 20
    # The jobs end one by one, so that each thread that looks is replaced by another.
    for number in range(20):
        jobs.ended.add(number)
        threads[number].join(20)

    assert sorted(answers) == list(range(20))
    assert waiter._leader is None
    assert not waiter._schedule


async def test_a_cancelled_waiter_leaves_nothing_behind(jobs):
    waiter = ResultWaiter(jobs.afind)
    tasks = [asyncio.create_task(waiter.wait(n, None)) for n in range(3)]
    await jobs.wait_for_looks(1)

    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert all(task.cancelled() for task in tasks)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_waiter_continues_after_others_are_cancelled(jobs):
    waiter = ResultWaiter(jobs.afind)
    first, second = (asyncio.create_task(waiter.wait(n, SOON)) for n in (1, 2))
    await jobs.wait_for_looks(1)

    first.cancel()
    jobs.ended.add(2)

    assert (await second).job_id == 2


async def test_closing_a_client_raises_in_its_waiters(jobs):
    waiter = ResultWaiter(jobs.afind)
    task = asyncio.create_task(waiter.wait(7, None))
    await jobs.wait_for_looks(1)

    waiter.close()

    with pytest.raises(GraphileWorkerError, match="closed while a caller waited for job 7"):
        await task
    jobs.ended.add(8)
    assert (await waiter.wait(8, SOON)).job_id == 8


async def test_closing_a_blocking_client_raises_in_its_waiting_threads(jobs):
    waiter = SyncResultWaiter(jobs.find)
    calls = [asyncio.create_task(asyncio.to_thread(waiter.wait, n, None)) for n in (7, 8)]
    await jobs.wait_for_looks(2)

    waiter.close()

    for call in calls:
        with pytest.raises(GraphileWorkerError, match="closed while a caller waited"):
            await call


async def test_a_waiter_of_an_event_loop_that_ended_does_not_block_the_next_loop(jobs):
    waiter = ResultWaiter(jobs.afind)
    jobs.ended.add(1)

    def run_in_loop() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(waiter.wait(2, None))
        loop.run_until_complete(asyncio.wait([task], timeout=0.02))
        # As a program does that stops a loop without ending its tasks.
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()

    await asyncio.to_thread(run_in_loop)

    assert (await waiter.wait(1, SOON)).job_id == 1


def test_a_forked_process_does_not_wait_for_threads_of_its_parent(jobs, monkeypatch):
    waiter = SyncResultWaiter(jobs.find)
    waiter._leader = _result_waiter._SyncWaiter(1, 0.0)
    jobs.ended.add(2)
    pid = os.getpid()

    monkeypatch.setattr(os, "getpid", lambda: pid + 1)

    assert waiter.wait(2, SOON).job_id == 2


async def wait_both_ways(jobs: FakeJobs, job_id: int, limit: Any) -> tuple[Any, Any]:
    """What an async and a blocking caller get."""
    first, second = await asyncio.gather(
        ResultWaiter(jobs.afind).wait(job_id, limit),
        asyncio.to_thread(SyncResultWaiter(jobs.find).wait, job_id, limit),
        return_exceptions=True,
    )
    return first, second


async def test_a_temporary_error_is_retried_and_logged_once(jobs, caplog):
    jobs.ended.add(1)
    for wait in (
        ResultWaiter(jobs.afind).wait,
        lambda *args: asyncio.to_thread(SyncResultWaiter(jobs.find).wait, *args),
    ):
        caplog.clear()
        jobs.errors = [FakeDatabaseError("57P01"), ConnectionRefusedError(), OSError()]

        assert (await wait(1, SOON)).job_id == 1
        assert [record.getMessage() for record in caplog.records] == [
            "waiting for the results of jobs failed, retrying: FakeDatabaseError: 57P01"
        ]


@pytest.mark.parametrize(
    "error",
    [FakeDatabaseError("42P01"), type("PoolClosed", (OSError,), {})(), ZeroDivisionError()],
)
async def test_another_error_is_raised_in_all_waiters(jobs, error):
    jobs.errors = [error, error]

    assert await wait_both_ways(jobs, 1, SOON) == (error, error)


@pytest.mark.parametrize("milliseconds", [0, 30])
async def test_a_timeout_raises_timeout_error_after_a_look(jobs, milliseconds):
    timeout = timedelta(milliseconds=milliseconds)

    for error in await wait_both_ways(jobs, 7, timeout):
        assert isinstance(error, TimeoutError)
        assert str(error) == f"job 7 did not end within {milliseconds / 1000:g} s"
    assert len(jobs.looks) >= 2

    jobs.ended.add(7)
    assert [each.job_id for each in await wait_both_ways(jobs, 7, timedelta(0))] == [7, 7]


async def test_a_timeout_must_be_a_timedelta(jobs):
    for error in await wait_both_ways(jobs, 7, 30):
        assert isinstance(error, ConfigurationError)
        assert str(error) == "timeout must be a timedelta, got 30"


@pytest.mark.parametrize("kind", [Client, sync.Client])
def test_a_client_is_freed_with_its_last_reference(kind):
    client = kind("postgres://nowhere.invalid/")
    reference = weakref.ref(client)
    gc.disable()
    try:
        del client
        assert reference() is None
    finally:
        gc.enable()

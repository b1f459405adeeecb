"""Cancellation: a request to one or all tasks to stop, and how tasks wait for it."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._worker.cancellation import Cancellation

MANY = timedelta(minutes=1)
SOON = timedelta(milliseconds=1)


class Flag:
    """Whether one task is cancelled."""

    def __init__(self) -> None:
        self.is_set = False
        self.checked = threading.Semaphore(0)

    def __call__(self) -> bool:
        self.checked.release()
        return self.is_set

    async def wait_until_checked(self) -> None:
        assert await asyncio.to_thread(self.checked.acquire, timeout=20)


def wait_on_loop(it: Cancellation, is_cancelled: Callable[[], bool], within: Any = None) -> Any:
    return asyncio.ensure_future(it.wait(is_cancelled, within))


def wait_in_thread(it: Cancellation, is_cancelled: Callable[[], bool], within: Any = None) -> Any:
    return asyncio.ensure_future(asyncio.to_thread(it.wait_in_thread, is_cancelled, within))


pytestmark = pytest.mark.parametrize("wait", [wait_on_loop, wait_in_thread])


async def test_a_cancelled_task_does_not_wait(wait):
    it = Cancellation()

    assert await wait(it, lambda: True)


async def test_who_waits_is_woken_by_the_request_to_all(wait):
    it = Cancellation()
    waiting = wait(it, lambda: it.is_requested, MANY)

    it.request()

    assert it.is_requested
    assert await waiting


async def test_who_waits_is_woken_by_a_request_to_him_alone(wait):
    it, is_cancelled, other = Cancellation(), Flag(), Flag()
    waiting = [wait(it, each, MANY) for each in (is_cancelled, other)]
    for each in (is_cancelled, other):
        await each.wait_until_checked()

    is_cancelled.is_set = True
    it.recheck()

    assert await waiting[0]
    assert not it.is_requested
    # The other task has checked, and waits on.
    await other.wait_until_checked()
    assert not waiting[1].done()

    other.is_set = True
    it.recheck()
    assert await waiting[1]


async def test_all_who_wait_are_woken(wait):
    it = Cancellation()
    waiting = [wait(it, lambda: it.is_requested, MANY) for _ in range(5)]

    it.request()

    assert await asyncio.gather(*waiting) == [True] * 5


async def test_wait_cancelled_returns_false_after_its_timeout(wait):
    it = Cancellation()

    assert not await wait(it, lambda: False, SOON)


async def test_a_cancellation_without_a_recheck_is_found_at_the_timeout(wait):
    it = Cancellation()
    checks = iter([False])

    assert await wait(it, lambda: next(checks, True), SOON)


async def test_a_recheck_without_a_change_does_not_extend_the_timeout(wait):
    it, is_cancelled = Cancellation(), Flag()
    waiting = wait(it, is_cancelled, timedelta(milliseconds=20))

    async with asyncio.timeout(20):
        while not waiting.done():
            it.recheck()
            await asyncio.sleep(0.001)

    assert not await waiting


async def test_one_request_is_for_those_who_come_later_too(wait):
    it = Cancellation()

    it.request()

    assert await wait(it, lambda: it.is_requested)


async def test_a_bare_number_is_not_a_duration(wait):
    it = Cancellation()

    with pytest.raises(TypeError, match="expected a timedelta, got 5"):
        await wait(it, lambda: False, 5)

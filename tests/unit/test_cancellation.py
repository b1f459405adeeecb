"""Cancellation: a request to tasks to give up, heard by those who wait for it and who are meant."""

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
    """Whether somebody is asked."""

    def __init__(self) -> None:
        self.is_set = False
        self.looked = threading.Semaphore(0)

    def __call__(self) -> bool:
        self.looked.release()
        return self.is_set

    async def was_looked_at(self) -> None:
        assert await asyncio.to_thread(self.looked.acquire, timeout=20)


def wait_on_loop(it: Cancellation, asked: Callable[[], bool], within: Any = None) -> Any:
    return asyncio.ensure_future(it.wait(asked, within))


def wait_in_thread(it: Cancellation, asked: Callable[[], bool], within: Any = None) -> Any:
    return asyncio.ensure_future(asyncio.to_thread(it.wait_in_thread, asked, within))


pytestmark = pytest.mark.parametrize("wait", [wait_on_loop, wait_in_thread])


async def test_who_is_asked_already_does_not_wait(wait):
    it = Cancellation()

    assert await wait(it, lambda: True)


async def test_who_waits_is_woken_by_the_request_to_all(wait):
    it = Cancellation()
    waiting = wait(it, lambda: it.is_requested, MANY)

    it.request()

    assert it.is_requested
    assert await waiting


async def test_who_waits_is_woken_by_a_request_to_him_alone(wait):
    it, asked, other = Cancellation(), Flag(), Flag()
    waiting = [wait(it, each, MANY) for each in (asked, other)]
    for each in (asked, other):
        await each.was_looked_at()

    asked.is_set = True
    it.recheck()

    assert await waiting[0]
    assert not it.is_requested
    # The other one has looked, and waits on.
    await other.was_looked_at()
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


async def test_who_was_asked_without_a_word_learns_it_when_his_time_is_over(wait):
    it = Cancellation()
    looks = iter([False])

    assert await wait(it, lambda: next(looks, True), SOON)


async def test_a_look_that_changes_nothing_lasts_no_longer_than_was_wanted(wait):
    it, asked = Cancellation(), Flag()
    waiting = wait(it, asked, timedelta(milliseconds=20))

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

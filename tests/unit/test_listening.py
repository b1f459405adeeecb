"""What waits between a connection that hears and its reader: bounded, and no channel starves."""

import pytest

from graphile_worker.db import listening
from graphile_worker.db.listening import (
    MAX_PER_SECOND,
    MAX_WAITING,
    Flooded,
    Notification,
    _AsyncpgListening,
    _Heard,
)
from tests.support.clocks import ManualClock

JOBS = b"jobs:insert"
UNREADABLE = b"\xff"


def put(heard: _Heard, number: int) -> None:
    heard.put(JOBS, str(number).encode())


def added(number: int, others: int = 0) -> Notification:
    return Notification(JOBS.decode(), str(number), others)


async def test_notifications_beyond_a_few_are_counted_and_neither_kept_nor_decoded():
    heard = _Heard()
    for number in range(MAX_WAITING):
        put(heard, number)
    for _ in range(1000):
        heard.put(JOBS, UNREADABLE)
    heard.put(b"worker:migrate", b"late")

    told = [await heard.next(0) for _ in range(MAX_WAITING + 1)]

    # The first that is read stands for all that are not.
    assert told[0] == added(0, others=1000)
    assert told[1:-1] == [added(number) for number in range(1, MAX_WAITING)]
    assert told[-1] == Notification("worker:migrate", "late")
    assert await heard.next(0) is None


async def test_what_comes_after_a_flood_is_heard():
    heard = _Heard()
    for number in range(2 * MAX_WAITING):
        put(heard, number)
    while await heard.next(0) is not None:
        pass

    put(heard, 7)

    assert await heard.next(0) == added(7)


def test_more_than_5000_notifications_in_a_second_are_a_flood(monkeypatch):
    clock = ManualClock.patch(monkeypatch, listening)
    heard = _Heard()
    for _ in range(10):
        heard.count(MAX_PER_SECOND)
        clock.now += 1.0

    heard.count(MAX_PER_SECOND)
    with pytest.raises(Flooded, match="more than 5,000 notifications in a second"):
        heard.count(1)


async def test_a_flood_ends_what_asyncpg_is_heard_by():
    heard = _AsyncpgListening(connection=None)

    for number in range(2 * MAX_PER_SECOND):
        heard._notified(None, 1, "jobs:insert", str(number))

    assert await heard.next(0) == added(0, others=MAX_PER_SECOND + 1 - MAX_WAITING)
    for _ in range(MAX_WAITING - 1):
        assert await heard.next(0) is not None
    with pytest.raises(Flooded):
        await heard.next(0)
    assert await heard.next(0) is None

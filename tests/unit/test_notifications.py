"""What waits between a connection that hears and its reader: bounded, and no channel starves."""

import pytest

from graphile_worker._db import notifications
from graphile_worker._db.notifications import (
    MAX_NOTIFICATIONS_PER_SECOND,
    MAX_QUEUED_PER_CHANNEL,
    Notification,
    TooManyNotifications,
    _AsyncpgNotificationStream,
    _NotificationQueue,
)
from tests.support.clocks import ManualClock

JOBS = b"jobs:insert"
UNREADABLE = b"\xff"


def put(heard: _NotificationQueue, number: int) -> None:
    heard.put(JOBS, str(number).encode())


def added(number: int, others: int = 0) -> Notification:
    return Notification(JOBS.decode(), str(number), others)


async def test_notifications_beyond_a_few_are_counted_and_neither_kept_nor_decoded():
    heard = _NotificationQueue()
    for number in range(MAX_QUEUED_PER_CHANNEL):
        put(heard, number)
    for _ in range(1000):
        heard.put(JOBS, UNREADABLE)
    heard.put(b"worker:migrate", b"late")

    told = [await heard.wait_for_notification(0) for _ in range(MAX_QUEUED_PER_CHANNEL + 1)]

    # The first that is read stands for all that are not.
    assert told[0] == added(0, others=1000)
    assert told[1:-1] == [added(number) for number in range(1, MAX_QUEUED_PER_CHANNEL)]
    assert told[-1] == Notification("worker:migrate", "late")
    assert await heard.wait_for_notification(0) is None


async def test_notifications_after_a_flood_are_received():
    heard = _NotificationQueue()
    for number in range(2 * MAX_QUEUED_PER_CHANNEL):
        put(heard, number)
    while await heard.wait_for_notification(0) is not None:
        pass

    put(heard, 7)

    assert await heard.wait_for_notification(0) == added(7)


async def test_a_handler_is_called_for_the_first_notifications_of_a_read_and_the_rest_are_queued():
    heard = _NotificationQueue()
    handled: list[Notification] = []
    heard.call_at_once("jobs:insert", handled.append)

    heard._calls_left = MAX_QUEUED_PER_CHANNEL
    heard.put(b"worker:migrate", b"queued")
    for number in range(3 * MAX_QUEUED_PER_CHANNEL):
        put(heard, number)

    assert handled == [added(number) for number in range(MAX_QUEUED_PER_CHANNEL)]
    assert await heard.wait_for_notification(0) == Notification("worker:migrate", "queued")
    assert await heard.wait_for_notification(0) == added(
        MAX_QUEUED_PER_CHANNEL, others=MAX_QUEUED_PER_CHANNEL
    )


async def test_a_handler_is_called_for_each_notification_of_asyncpg():
    heard = _AsyncpgNotificationStream(connection=None)
    handled: list[Notification] = []
    heard.call_at_once("jobs:insert", handled.append)

    for number in range(2 * MAX_QUEUED_PER_CHANNEL):
        heard._handle_notification(None, 1, "jobs:insert", str(number))

    assert handled == [added(number) for number in range(2 * MAX_QUEUED_PER_CHANNEL)]
    assert await heard.wait_for_notification(0) is None


def test_more_than_5000_notifications_in_a_second_are_a_flood(monkeypatch):
    clock = ManualClock.patch(monkeypatch, notifications)
    heard = _NotificationQueue()
    for _ in range(10):
        heard.check_rate(MAX_NOTIFICATIONS_PER_SECOND)
        clock.now += 1.0

    heard.check_rate(MAX_NOTIFICATIONS_PER_SECOND)
    with pytest.raises(TooManyNotifications, match="more than 5,000 notifications in a second"):
        heard.check_rate(1)


async def test_a_flood_ends_the_stream_of_asyncpg():
    heard = _AsyncpgNotificationStream(connection=None)

    for number in range(2 * MAX_NOTIFICATIONS_PER_SECOND):
        heard._handle_notification(None, 1, "jobs:insert", str(number))

    assert await heard.wait_for_notification(0) == added(
        0, others=MAX_NOTIFICATIONS_PER_SECOND + 1 - MAX_QUEUED_PER_CHANNEL
    )
    for _ in range(MAX_QUEUED_PER_CHANNEL - 1):
        assert await heard.wait_for_notification(0) is not None
    with pytest.raises(TooManyNotifications):
        await heard.wait_for_notification(0)
    assert await heard.wait_for_notification(0) is None

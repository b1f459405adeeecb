"""NotificationListener: notifications, connection checks, and lost connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from graphile_worker._db.notifications import (
    Notification,
    NotificationHandler,
    TooManyNotifications,
)
from graphile_worker._lease.lease import Lease
from graphile_worker._worker import listener as listener_module
from graphile_worker._worker.listener import ListenTimings, NotificationListener, parse_job_count
from graphile_worker.events import (
    ListenConnecting,
    ListenFailed,
    ListenNotified,
    ListenReleased,
    ListenStarted,
    PoolEvent,
)
from graphile_worker.hooks import Hooks
from tests.support.clocks import skip_delays
from tests.support.job_sources import run_until_idle

MIGRATED = Notification("worker:migrate", '{"migrationNumber":20,"breaking":false}')
TIMINGS = ListenTimings(migration_check_interval_seconds=0.0)


class LostError(Exception):
    """The connection is lost."""


class FakeListening:
    """Delivers notifications, None for none in time, and is lost afterwards."""

    def __init__(
        self, *notifications: Notification | Exception | None, unanswered: bool = False
    ) -> None:
        self.checked: list[float] = []
        self._notifications = list(notifications)
        self._unanswered = unanswered
        self.handlers: dict[str, NotificationHandler] = {}

    def call_at_once(self, channel: str, handler: NotificationHandler) -> None:
        self.handlers[channel] = handler

    async def wait_for_notification(self, within: float) -> Notification | None:
        if not self._notifications:
            raise LostError
        if isinstance(notification := self._notifications.pop(0), Exception):
            raise notification
        return notification

    async def check(self, within: float) -> None:
        self.checked.append(within)
        if self._unanswered:
            raise TimeoutError


class Silence(FakeListening):
    """Never delivers a notification."""

    async def wait_for_notification(self, within: float) -> Notification | None:
        await asyncio.Event().wait()
        return None


class ListeningDatabase:
    """Returns one connection after the other. An error stands for a failed connection."""

    def __init__(self, *connections: FakeListening | Exception) -> None:
        self.channels: tuple[str, ...] = ()
        self.open = 0
        self._connections = list(connections)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[FakeListening]:
        self.channels = channels
        connection = self._connections.pop(0)
        if isinstance(connection, Exception):
            raise connection
        self.open += 1
        try:
            yield connection
        finally:
            self.open -= 1


class Scene:
    """A listener, and its calls of the pool."""

    def __init__(
        self, *connections: FakeListening | Exception, timings: ListenTimings = TIMINGS
    ) -> None:
        self.database = ListeningDatabase(*connections)
        self.calls: list[object] = []
        # For each read of the pauses, how many calls came before it.
        self.pause_reads: list[int] = []
        self.events: list[PoolEvent] = []
        self.hooks = Hooks()
        self.hooks.on(PoolEvent)(self.events.append)
        database: Any = self.database
        self.listener = NotificationListener(
            database,
            Lease(pool_id="p1"),
            self.hooks,
            on_jobs=self.calls.append,
            on_migration=self._migrated,
            on_pauses=lambda: self.pause_reads.append(len(self.calls)),
            timings=timings,
        )

    async def listen_until_lost(self) -> None:
        with pytest.raises(LostError):
            await self.listener.listen_once()

    async def run_until(self, event: type[PoolEvent], *, times: int) -> None:
        """Run until a condition, and stop the listener."""
        enough = asyncio.Event()

        @self.hooks.on(event)
        def count(_: PoolEvent) -> None:
            if sum(isinstance(each, event) for each in self.events) == times:
                enough.set()

        running = asyncio.create_task(self.listener.run())
        waiting = asyncio.create_task(enough.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.exception()
        running.cancel()
        await asyncio.wait([running])

    async def _migrated(self) -> None:
        self.calls.append("migration")

    @property
    def kinds(self) -> list[type[PoolEvent]]:
        return [type(event) for event in self.events]


def added(count: object) -> Notification:
    return Notification("jobs:insert", f'{{"r":"0.123","count":{count}}}')


@pytest.fixture(autouse=True)
def pauses(monkeypatch) -> list[int]:
    return skip_delays(monkeypatch, listener_module)


# Payloads


@pytest.mark.feature("F102")
@pytest.mark.parametrize("count", [0, 1, 2, 999_999])
def test_a_notification_contains_the_number_of_jobs(count):
    assert parse_job_count(added(count).payload) == count


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "hello",
        "{",
        "null",
        "[]",
        '"count"',
        "{}",
        '{"r":"0.123"}',
        '{"count":null}',
        '{"count":"7"}',
        '{"count":7.5}',
        '{"count":[7]}',
        '{"count":-1}',
        '{"count":1000000}',
        f'{{"count":{"9" * 5000}}}',
        "[" * 100_000,
        "\N{SNOWMAN}",
    ],
    ids=lambda payload: payload[:20],
)
def test_a_notification_of_anybody_else_is_a_hint_of_one_job(payload):
    assert parse_job_count(payload) == 1


# A connection


@pytest.mark.feature("F166")
async def test_a_new_listener_checks_for_earlier_jobs_and_migrations():
    it = Scene(FakeListening())

    await it.listen_until_lost()

    assert it.database.channels == ("jobs:insert", "worker:migrate", "gwpy:pauses")
    assert it.calls == [None, "migration"]
    assert it.kinds == [ListenConnecting, ListenStarted, ListenReleased]


@pytest.mark.feature("F102")
async def test_each_notification_is_passed_on_as_it_comes():
    it = Scene(FakeListening(*(added(count) for count in range(100))))

    await it.listen_until_lost()

    assert it.calls[2:] == list(range(100))


async def test_a_new_job_does_not_wait_for_the_asyncio_task_of_the_listener():
    connection = Silence()
    it = Scene(connection)
    listening = asyncio.create_task(it.listener.listen_once())
    await run_until_idle()

    connection.handlers["jobs:insert"](added(7))

    assert it.calls[-1] == 7
    assert it.kinds[-1] is ListenNotified
    listening.cancel()


async def test_a_notification_after_skipped_ones_announces_an_unknown_number_of_jobs():
    it = Scene(
        FakeListening(added(7)._replace(skipped_count=1000), MIGRATED._replace(skipped_count=3))
    )

    await it.listen_until_lost()

    assert it.calls[2:] == [None, "migration"]
    assert it.kinds.count(ListenNotified) == 2


async def test_a_pause_is_read_when_listening_begins_and_after_its_notification():
    it = Scene(FakeListening(added(1), Notification("gwpy:pauses", "task"), added(2)))

    await it.listen_until_lost()

    assert it.calls == [None, "migration", 1, 2]
    assert it.pause_reads == [1, 3]


async def test_a_migration_is_not_a_job():
    it = Scene(FakeListening(MIGRATED))

    await it.listen_until_lost()

    assert it.calls[2:] == ["migration"]


async def test_after_many_migration_notifications_the_ledger_is_read_twice():
    it = Scene(
        FakeListening(*[MIGRATED] * 100, added(3)),
        timings=ListenTimings(migration_check_interval_seconds=3600.0),
    )

    await it.listen_until_lost()

    # Only at the start. The next check is due in an hour, and jobs do not wait for it.
    assert it.calls == [None, "migration", 3]

    it = Scene(FakeListening(MIGRATED, added(1)))
    await it.listen_until_lost()
    assert it.calls[2:] == ["migration", 1]


async def test_every_notification_is_an_event():
    notifications = [added(2), MIGRATED, Notification("other_channel", "other payload")]
    it = Scene(FakeListening(*notifications))

    await it.listen_until_lost()

    notified = [event for event in it.events if isinstance(event, ListenNotified)]
    assert [Notification(event.channel, event.payload) for event in notified] == notifications
    assert it.calls[2:] == [2, "migration"]


async def test_a_connection_without_notifications_is_checked():
    connection = FakeListening(None, added(1), None, None)
    it = Scene(connection)

    await it.listen_until_lost()

    assert connection.checked == [TIMINGS.connection_check_seconds] * 3
    assert it.calls[2:] == [1]


# Reconnecting


@pytest.mark.feature("F165", "F167")
async def test_a_failed_connection_is_retried_forever(pauses):
    it = Scene(*[OSError(f"no {each}") for each in range(50)], Silence())

    await it.run_until(ListenStarted, times=1)

    failed = [str(event.error) for event in it.events if isinstance(event, ListenFailed)]
    assert failed == [f"no {each}" for each in range(50)]
    attempts = [event.attempts for event in it.events if isinstance(event, ListenConnecting)]
    assert attempts == list(range(51))
    assert pauses == list(range(50))


@pytest.mark.feature("F167")
async def test_after_a_reconnect_jobs_and_migrations_are_checked():
    it = Scene(FakeListening(added(1)), FakeListening(added(2)), Silence())

    await it.run_until(ListenStarted, times=3)

    assert it.calls == [None, "migration", 1, None, "migration", 2, None, "migration"]
    assert it.kinds.count(ListenFailed) == 2


async def test_after_a_flood_it_polls_for_a_while_and_listens_again():
    timings = replace(TIMINGS, flood_poll_interval_seconds=0.0, flood_poll_duration_seconds=0.01)
    it = Scene(FakeListening(added(1), TooManyNotifications()), Silence(), timings=timings)

    await it.run_until(ListenStarted, times=2)

    [failed] = [event for event in it.events if isinstance(event, ListenFailed)]
    assert isinstance(failed.error, TooManyNotifications)
    assert it.calls[:3] == [None, "migration", 1]
    assert it.calls[-2:] == [None, "migration"]
    assert set(it.calls[3:-2]) == {None}
    # Connections are closed meanwhile.
    assert it.kinds.index(ListenReleased) < it.kinds.index(ListenFailed)


async def test_the_first_pause_after_a_success_is_a_short_one_again(pauses):
    it = Scene(OSError(), OSError(), FakeListening(), OSError(), Silence())

    await it.run_until(ListenStarted, times=2)

    assert pauses == [0, 1, 0, 1]


async def test_a_server_that_does_not_answer_is_a_lost_connection():
    it = Scene(FakeListening(None, added(1), unanswered=True), Silence())

    await it.run_until(ListenStarted, times=2)

    [failed] = [event for event in it.events if isinstance(event, ListenFailed)]
    assert isinstance(failed.error, TimeoutError)
    assert 1 not in it.calls


async def test_a_connection_is_given_back_when_the_listener_ends():
    it = Scene(Silence())

    await it.run_until(ListenStarted, times=1)

    assert it.database.open == 0
    assert it.kinds[-1] is ListenReleased

"""LeaseMonitor: a pool gives up its jobs once for each time that its heartbeat is not heard."""

import asyncio
from datetime import timedelta

import pytest

from graphile_worker._lease import lease as lease_module
from graphile_worker._lease import lease_monitor as fence_module
from graphile_worker._lease.lease import Lease
from graphile_worker._lease.lease_monitor import (
    CHECK_INTERVAL_SECONDS,
    MIN_CHECK_INTERVAL_SECONDS,
    LeaseMonitor,
)
from tests.support.clocks import ManualClock


class Scene:
    """A fence, and how often jobs were given up."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.lease = Lease(timedelta(seconds=30))
        self.given_up = 0
        self.fence = LeaseMonitor(self.lease, self._give_up)

    def _give_up(self) -> None:
        self.given_up += 1

    def beat(self) -> None:
        self.lease.renew(self.clock.now)

    def look_after(self, seconds: float) -> int:
        """Look then; how often jobs were given up until now."""
        self.clock.now += seconds
        self.fence.check_once()
        return self.given_up


@pytest.fixture
def it(monkeypatch) -> Scene:
    clock = ManualClock.patch(monkeypatch, lease_module)
    return Scene(clock)


# When


def test_jobs_are_kept_while_heartbeats_succeed(it):
    for _ in range(20):
        it.beat()
        assert it.look_after(24.9) == 0


def test_jobs_are_given_up_before_the_lease_has_ended(it):
    it.beat()

    assert it.look_after(24.9) == 0
    assert it.look_after(0.1) == 1


def test_jobs_are_given_up_once_however_long_the_silence_lasts(it):
    it.beat()

    assert [it.look_after(25) for _ in range(10)] == [1] * 10


def test_the_next_silence_ends_the_next_jobs(it):
    it.beat()
    assert it.look_after(25) == 1

    it.beat()
    assert it.look_after(1) == 1
    assert it.look_after(24) == 2


def test_a_pool_that_is_not_registered_keeps_its_jobs(it):
    assert it.look_after(1_000_000) == 0

    it.beat()
    it.lease.mark_unregistered()
    assert it.look_after(1_000_000) == 0


# How often it looks


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """How long it waits between its looks; the third one ends it."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise asyncio.CancelledError

    stand_in = type("asyncio", (), {"sleep": staticmethod(sleep)})
    monkeypatch.setattr(fence_module, "asyncio", stand_in)
    return waited


@pytest.mark.parametrize(
    ("silence", "pause"),
    [
        (0, CHECK_INTERVAL_SECONDS),
        (24, CHECK_INTERVAL_SECONDS),
        (24.5, 0.5),
        (24.99, MIN_CHECK_INTERVAL_SECONDS),
        (25, MIN_CHECK_INTERVAL_SECONDS),
        (1000, MIN_CHECK_INTERVAL_SECONDS),
    ],
)
async def test_the_closer_the_end_the_sooner_is_the_next_look(it, pauses, silence, pause):
    it.beat()
    it.clock.now += silence

    with pytest.raises(asyncio.CancelledError):
        await it.fence.run()

    assert pauses == [pytest.approx(pause)] * 3

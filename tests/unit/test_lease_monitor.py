"""LeaseMonitor: calls its callback once for each expiry of the lease."""

import asyncio
from datetime import timedelta

import pytest

from graphile_worker._lease import lease as lease_module
from graphile_worker._lease import lease_monitor as monitor_module
from graphile_worker._lease.lease import Lease
from graphile_worker._lease.lease_monitor import (
    CHECK_INTERVAL_SECONDS,
    MIN_CHECK_INTERVAL_SECONDS,
    LeaseMonitor,
)
from tests.support.clocks import ManualClock


class Scene:
    """A monitor, and the number of its calls."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.lease = Lease(timedelta(seconds=30))
        self.expiry_count = 0
        self.monitor = LeaseMonitor(self.lease, self._on_expired)

    def _on_expired(self) -> None:
        self.expiry_count += 1

    def beat(self) -> None:
        self.lease.renew(self.clock.now)

    def check_after(self, seconds: float) -> int:
        """Check after a time, and return the number of calls so far."""
        self.clock.now += seconds
        self.monitor.check_once()
        return self.expiry_count


@pytest.fixture
def it(monkeypatch) -> Scene:
    clock = ManualClock.patch(monkeypatch, lease_module)
    return Scene(clock)


# Expiry


def test_jobs_are_kept_while_heartbeats_succeed(it):
    for _ in range(20):
        it.beat()
        assert it.check_after(24.9) == 0


def test_jobs_are_revoked_before_the_lease_ends(it):
    it.beat()

    assert it.check_after(24.9) == 0
    assert it.check_after(0.1) == 1


def test_jobs_are_revoked_once_per_expiry(it):
    it.beat()

    assert [it.check_after(25) for _ in range(10)] == [1] * 10


def test_the_next_expiry_revokes_jobs_again(it):
    it.beat()
    assert it.check_after(25) == 1

    it.beat()
    assert it.check_after(1) == 1
    assert it.check_after(24) == 2


def test_a_pool_that_is_not_registered_keeps_its_jobs(it):
    assert it.check_after(1_000_000) == 0

    it.beat()
    it.lease.mark_unregistered()
    assert it.check_after(1_000_000) == 0


# Interval of checks


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The seconds between checks. The third sleep ends the monitor."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise asyncio.CancelledError

    fake_module = type("asyncio", (), {"sleep": staticmethod(sleep)})
    monkeypatch.setattr(monitor_module, "asyncio", fake_module)
    return waited


@pytest.mark.parametrize(
    ("elapsed", "pause"),
    [
        (0, CHECK_INTERVAL_SECONDS),
        (24, CHECK_INTERVAL_SECONDS),
        (24.5, 0.5),
        (24.99, MIN_CHECK_INTERVAL_SECONDS),
        (25, MIN_CHECK_INTERVAL_SECONDS),
        (1000, MIN_CHECK_INTERVAL_SECONDS),
    ],
)
async def test_checks_are_more_frequent_shortly_before_the_expiry(it, pauses, elapsed, pause):
    it.beat()
    it.clock.now += elapsed

    with pytest.raises(asyncio.CancelledError):
        await it.monitor.run()

    assert pauses == [pytest.approx(pause)] * 3

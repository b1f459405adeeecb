"""Lease: until when a pool may claim and start jobs, and recover those of dead pools."""

import math
from datetime import timedelta

import pytest

from graphile_worker._lease import lease as lease_module
from graphile_worker._lease.lease import Lease, generate_pool_id
from tests.support.clocks import ManualClock

LENGTH = timedelta(seconds=30)


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, lease_module)


@pytest.fixture
def lease(clock) -> Lease:
    """A lease that was just renewed for the first time."""
    lease = Lease(LENGTH, pool_id="p1")
    lease.renew(clock.now)
    return lease


def beat(lease: Lease, clock: ManualClock, *, every: float = 5, times: int) -> None:
    """Renew the lease with this number of heartbeats."""
    for _ in range(times):
        clock.now += every
        lease.renew(clock.now)


# Expiry


@pytest.mark.parametrize(
    ("elapsed", "can_claim"), [(0, True), (14.9, True), (15, False), (25, False), (999, False)]
)
def test_half_a_lease_without_a_heartbeat_ends_the_taking_of_jobs(lease, clock, elapsed, can_claim):
    clock.now += elapsed

    assert lease.can_claim is can_claim
    assert lease.seconds_since_heartbeat == pytest.approx(elapsed)


def test_jobs_stop_after_five_sixths_of_the_lease_before_other_pools_recover_them(lease, clock):
    assert lease.seconds_left == pytest.approx(25)

    clock.now += 26

    assert lease.seconds_left == pytest.approx(-1)


@pytest.mark.parametrize(("elapsed", "can_start"), [(0, True), (24.9, True), (25, False)])
def test_jobs_may_start_until_the_lease_expires(lease, clock, elapsed, can_start):
    clock.now += elapsed

    assert lease.can_start is can_start


def test_a_heartbeat_counts_from_when_it_was_sent(lease, clock):
    sent = clock.now + 5
    clock.now += 12

    lease.renew(sent)

    assert lease.seconds_since_heartbeat == pytest.approx(7)
    assert lease.seconds_left == pytest.approx(18)


def test_a_heartbeat_allows_claims_again_after_any_time_without_heartbeats(lease, clock):
    clock.now += 1000
    assert not lease.can_claim

    lease.renew(clock.now)

    assert lease.can_claim
    assert lease.seconds_left == pytest.approx(25)


# A lost lease


def test_a_lease_that_is_lost_lets_nothing_go_on_until_there_is_another_id(lease, clock):
    lease.mark_lost()
    assert not lease.can_claim
    assert not lease.can_start

    lease.renew(clock.now)
    assert not lease.can_claim
    assert not lease.can_start

    lease.rotate_id("p2")
    assert lease.can_claim
    assert lease.can_start


def test_a_pool_with_a_lost_lease_does_not_check_for_dead_pools(lease):
    lease.mark_lost()

    assert not lease.is_stable


# Without registration


def test_a_lease_that_was_never_renewed_does_not_end(clock):
    lease = Lease(LENGTH)

    clock.now += 1_000_000

    assert not lease.is_registered
    assert lease.can_claim
    assert lease.can_start
    assert lease.seconds_left > 0
    assert lease.seconds_since_heartbeat == 0


def test_a_lease_without_a_length_does_not_end_either(clock):
    lease = Lease()

    clock.now += 1_000_000

    assert lease.can_claim
    assert lease.seconds_left == math.inf


def test_a_lease_that_is_not_registered_does_not_expire(lease, clock):
    clock.now += 1000
    assert not lease.can_claim

    lease.mark_unregistered()

    assert not lease.is_registered
    assert lease.can_claim
    assert lease.seconds_left > 0


# Stability


def test_a_lease_is_steady_from_its_first_heartbeat_on(lease):
    # A worker that replaces dead ones must not wait for a whole lease duration.
    assert lease.is_stable


def test_heartbeats_that_come_in_time_keep_it_steady(lease, clock):
    beat(lease, clock, every=14.9, times=10)

    assert lease.is_stable


def test_a_lease_without_heartbeats_is_not_stable(lease, clock):
    clock.now += 15

    assert not lease.is_stable


def test_after_a_gap_a_whole_lease_must_pass_before_it_is_steady_again(lease, clock):
    clock.now += 100
    lease.renew(clock.now)
    assert not lease.is_stable

    beat(lease, clock, times=6)
    assert not lease.is_stable

    beat(lease, clock, times=1)
    assert lease.is_stable


def test_another_gap_restarts_the_count(lease, clock):
    beat(lease, clock, every=16, times=1)
    beat(lease, clock, times=5)

    beat(lease, clock, every=16, times=1)
    beat(lease, clock, times=6)
    assert not lease.is_stable

    beat(lease, clock, times=1)
    assert lease.is_stable


@pytest.mark.parametrize("moved", [-3600, -16, 16, 3600])
def test_a_jump_of_the_server_clock_counts_as_an_outage(lease, clock, moved):
    lease.renew(clock.now, server_time=50_000)
    clock.now += 5

    # By that clock, live pools look dead, or dead ones look alive.
    lease.renew(clock.now, server_time=50_005 + moved)
    assert not lease.is_stable

    clock.now += 5
    lease.renew(clock.now, server_time=50_010 + moved)
    assert not lease.is_stable


def test_a_slewed_server_clock_keeps_the_lease_stable(lease, clock):
    for beat in range(10):
        clock.now += 5
        lease.renew(clock.now, server_time=50_000 + beat * 5.5)

    assert lease.is_stable


def test_a_slow_heartbeat_is_not_a_clock_jump(lease, clock):
    lease.renew(clock.now, server_time=50_000)
    clock.now += 5

    lease.renew(clock.now, server_time=50_014)

    assert lease.is_stable


def test_a_lease_that_starts_again_is_stable(lease, clock):
    lease.renew(clock.now, server_time=50_000)
    lease.mark_unregistered()

    clock.now += 1000
    lease.renew(clock.now, server_time=60_000)

    assert lease.is_stable


# The pool id


def test_a_pool_that_goes_on_under_another_id_has_had_both():
    lease = Lease(pool_id="p1")

    lease.rotate_id("p2")

    assert lease.pool_id == "p2"
    assert lease.pool_ids == {"p1", "p2"}


def test_new_ids_are_visible_in_the_set_of_ids():
    lease = Lease(pool_id="p1")
    ids = lease.pool_ids

    lease.rotate_id("p2")

    assert "p2" in ids


def test_a_new_id_is_not_a_heartbeat(lease, clock):
    clock.now += 20

    lease.rotate_id("p2")

    assert lease.seconds_since_heartbeat == pytest.approx(20)
    assert not lease.can_claim


def test_each_pool_has_its_own_id():
    ids = {Lease().pool_id for _ in range(100)} | {generate_pool_id() for _ in range(100)}

    assert len(ids) == 200
    assert all(each.startswith("pypool-") for each in ids)

"""The series of the overview, the pauses of the poller, and settings, without a database."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.contrib.dashboard._api import Problem
from graphile_worker.contrib.dashboard._auth import (
    FAILURE_WINDOW_SECONDS,
    MAX_FAILURES,
    Throttle,
)
from graphile_worker.contrib.dashboard._poller import (
    MAX_SERIES_POINTS,
    MAX_SERIES_STEP_SECONDS,
    SNAPSHOT_PAUSE_FACTOR,
    Poller,
    PollTimings,
    Sample,
    Series,
)
from graphile_worker.contrib.dashboard._resources._common import Cache
from graphile_worker.contrib.dashboard._settings import DashboardSettings
from graphile_worker.contrib.dashboard._stream import EventStream
from graphile_worker.errors import ConfigurationError, QueryTimeoutError
from graphile_worker.ops.snapshot import ServerStats, Snapshot
from tests.support.clocks import ManualClock

START = datetime(2026, 1, 1, tzinfo=UTC)
SERVER = ServerStats(database="x", role="x", level=20, rows_added=0, rows_deleted=0)


def take(seconds: float) -> Snapshot:
    return Snapshot(now=START + timedelta(seconds=seconds), server=SERVER)


def test_a_series_covers_an_hour_with_few_points() -> None:
    series = Series()
    for second in range(3 * 3600):
        series.add(take(second), None)
        assert len(series.points) <= MAX_SERIES_POINTS
    times = [(point.at - START).total_seconds() for point in series.points]
    assert times[-1] == 3 * 3600 - 1
    assert times == sorted(times)
    assert 3600 <= times[-1] - times[0] <= MAX_SERIES_POINTS * MAX_SERIES_STEP_SECONDS + 1
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    assert max(gaps) <= MAX_SERIES_STEP_SECONDS


def test_a_series_begins_with_short_steps() -> None:
    series = Series()
    for second in range(10):
        series.add(take(second), None)
    times = [(point.at - START).total_seconds() for point in series.points]
    assert times == [0, 2, 4, 6, 8, 9]


def test_a_series_forgets_what_is_older_than_it_covers() -> None:
    series = Series()
    series.add(take(0), None)
    series.add(take(10_000), None)
    assert [point.at for point in series.points] == [take(10_000).now]


def build_poller(**timings: float) -> Poller:
    database = PsycopgDatabase("host=nowhere", Schemas.from_names("x"))
    return Poller(database, timings=PollTimings(**timings))


def test_the_pause_keeps_snapshots_within_a_budget() -> None:
    for duration, pause in ((0.001, 1.0), (0.5, 40.0), (9.0, 720.0)):
        assert build_poller()._snapshot_pacer.compute_pause(duration) == pause
    pacer = build_poller()._snapshot_pacer
    pacer.compute_pause(0.5)
    assert pacer.compute_pause(0.2) == pytest.approx(16.0)


async def test_snapshots_after_changes_stay_within_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    poller = build_poller()

    async def read(*_arguments: object) -> object:
        clock.now += 1.0
        return take(clock.now)

    async def read_nothing() -> None:
        return None

    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(poller, "_run_plan", read)
    monkeypatch.setattr(poller, "_read_recent", read_nothing)
    started_at = clock.now
    for _ in range(20):
        await poller._take_snapshot()
        poller.look_soon()
        clock.now = max(clock.now, poller._next_snapshot_at)
    assert 20 / (clock.now - started_at) == pytest.approx(1 / SNAPSHOT_PAUSE_FACTOR, rel=0.1)


def test_the_pause_doubles_with_each_timeout_up_to_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    poller = build_poller(snapshot_timeout=10.0)
    poller.latest = Sample(snapshot=take(0), taken_at=clock.now, now=START)
    pauses = []
    for _ in range(6):
        poller._record_outage(QueryTimeoutError("slow"))
        pauses.append(poller._next_snapshot_at - clock.now)
    assert pauses == [60.0, 120.0, 240.0, 480.0, 800.0, 800.0]


def test_failed_attempts_are_limited_for_each_address() -> None:
    clock = ManualClock()
    throttle = Throttle(clock.monotonic)
    for _ in range(MAX_FAILURES):
        throttle.check("a")
        throttle.record_failure("a")
    with pytest.raises(Problem, match="too many"):
        throttle.check("a")
    throttle.check("b")
    clock.now += FAILURE_WINDOW_SECONDS + 1
    throttle.check("a")


async def test_requests_that_wait_share_an_answer_and_a_failure() -> None:
    cache, service, calls = Cache(60.0), Throttle(), []

    async def compute() -> int:
        calls.append(1)
        await asyncio.sleep(0.01)
        if len(calls) == 1:
            raise Problem(504, "timeout", "slow")
        return 7

    async def ask() -> object:
        try:
            return await cache.get(service, compute)  # type: ignore[arg-type]
        except Problem as problem:
            return problem.status

    assert await asyncio.gather(*(ask() for _ in range(5))) == [504] * 5
    cache.clear(service)  # type: ignore[arg-type]
    assert await asyncio.gather(*(ask() for _ in range(5))) == [7] * 5
    assert len(calls) == 2


async def test_a_newer_event_replaces_an_older_one_of_its_key() -> None:
    stream = EventStream()
    stream.put("overview", "overview", b"1")
    stream.put("bulk:7", "bulk", b"2")
    stream.put("overview", "overview", b"3")
    assert await stream.take(1.0) == b"event: bulk\ndata: 2\n\nevent: overview\ndata: 3\n\n"
    assert await stream.take(0.0) == b""


def test_the_name_of_an_environment_shows_how_careful_to_be() -> None:
    levels = {
        "production": "production",
        "prod-eu": "production",
        "Staging 2": "staging",
        "dev": "development",
        "acme": "other",
        "reproduction": "other",
    }
    for name, level in levels.items():
        assert DashboardSettings(environment=name).environment_level == level, name


def test_settings_are_checked() -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"redact": ("(",)}, "invalid pattern"),
        ({"allowed_hosts": ("http://x",)}, "is not a host"),
        ({"trusted_proxies": ("x",)}, "trusted_proxies"),
        ({"query_timeout": timedelta(0)}, "at least 100 ms"),
        ({"trace_url": "javascript:x"}, "must begin with"),
    ]
    for settings, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            DashboardSettings(**settings)  # type: ignore[arg-type]

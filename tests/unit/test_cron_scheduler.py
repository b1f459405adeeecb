"""CronScheduler: the jobs of each minute, its events, and its failures."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from graphile_worker import CronItem, ParsedCronItem, TimestampDigest, parse_cron_items
from graphile_worker._cron import scheduler as scheduler_module
from graphile_worker._cron.scheduler import MAX_CATCH_UP, MAX_RETRY_DELAY_SECONDS, CronScheduler
from graphile_worker._metrics.definitions import CRON_CHECKED
from graphile_worker._sql.query import Query
from graphile_worker.events import (
    BackfillJob,
    CronBackfillDue,
    CronDue,
    CronFailed,
    CronJob,
    CronScheduled,
    CronStarted,
    CronStarting,
    CronTimerEarly,
    CronTimerLate,
)
from tests.support.recorder import Recorder

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NOON = datetime(2024, 3, 1, 12, 0, tzinfo=UTC)
# Forty seconds before the first minute that the scheduler waits for.
START = NOON - 40 * SECOND

TIME = "get_server_time"
KNOWN = "get_known_crontabs"
REGISTER = "register_crontabs"
SCHEDULE = "schedule_jobs"


class World:
    """A database with the table of items, and time that passes only while somebody sleeps.

    It stands in for the module `time` and for `asyncio.sleep`.
    """

    def __init__(self) -> None:
        self.now = START
        self.seconds = 1000.0
        self.statements: list[str] = []
        self.rows: dict[str, tuple[datetime, datetime | None]] = {}
        # The jobs that were added: the minute, the identifier, and whether it is a backfill.
        self.added: list[tuple[str, str, bool]] = []
        self.errors: dict[str, list[Exception]] = {}
        self.slept: list[float] = []
        # How long the next sleeps really take. Further sleeps take the requested time.
        self.sleep_durations: list[timedelta] = []
        # Called after the sleep of that number.
        self.after_sleep: dict[int, Callable[[], None]] = {}
        self.ends_after: int | None = None
        self.ends_at = datetime.max.replace(tzinfo=UTC)

    # Time

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, span: timedelta) -> None:
        self.now += span
        self.seconds += span.total_seconds()

    def put(self, by: timedelta) -> None:
        """Change the database's clock without a passage of time."""
        self.now += by

    async def sleep(self, seconds: float) -> None:
        if len(self.slept) == self.ends_after or self.now >= self.ends_at:
            raise asyncio.CancelledError
        self.slept.append(seconds)
        self.advance(
            self.sleep_durations.pop(0) if self.sleep_durations else timedelta(seconds=seconds)
        )
        self.after_sleep.pop(len(self.slept), lambda: None)()

    # The database

    async def run(self, query: Query[Any]) -> Any:
        self.statements.append(str(query.statement))
        if self.errors.get(str(query.statement)):
            raise self.errors[str(query.statement)].pop(0)
        answer = getattr(self, f"_{query.statement}")
        return query.read(answer(*query.args))

    def add_known(
        self, identifier: str, last: datetime | None = None, since: datetime = START - HOUR * 99
    ) -> None:
        self.rows[identifier] = (since, last)

    def fail(self, statement: str, *, times: int = 1) -> list[Exception]:
        """Let the next executions of a statement fail."""
        self.errors[statement] = [OSError(f"{statement} {n}") for n in range(times)]
        return list(self.errors[statement])

    def _get_server_time(self) -> list[Any]:
        return [[epoch(self.now)]]

    def _get_known_crontabs(self) -> list[Any]:
        return [
            [identifier, epoch(since), None if last is None else epoch(last)]
            for identifier, (since, last) in self.rows.items()
        ]

    def _register_crontabs(self, identifiers: list[str], since: str) -> list[Any]:
        for identifier in identifiers:
            self.rows.setdefault(identifier, (datetime.fromisoformat(since), None))
        return []

    def _schedule_jobs(self, listing: str, minute: str) -> list[Any]:
        at, jobs = datetime.fromisoformat(minute), json.loads(listing)
        counts = Counter(job["identifier"] for job in jobs)
        # PostgreSQL rejects a statement that changes a row twice.
        assert max(counts.values()) == 1, "21000"
        assert at <= self.now
        return [[job["identifier"], self._add(job, at)] for job in jobs if self._is_free(job, at)]

    def _is_free(self, job: Any, at: datetime) -> bool:
        _, last = self.rows.get(job["identifier"], (at, None))
        return last is None or last < at

    def _add(self, job: Any, at: datetime) -> int:
        identifier, mark = job["identifier"], json.loads(job["payload"])["_cron"]
        assert datetime.fromisoformat(mark["ts"]) == at
        since, _ = self.rows.get(identifier, (at, None))
        self.rows[identifier] = (since, at)
        self.added.append((f"{at:%H:%M}", identifier, mark["backfilled"]))
        return len(self.added)


class Scene:
    """A scheduler of some items in such a world, and its events."""

    def __init__(self, world: World, *items: ParsedCronItem) -> None:
        self.world = world
        self.items = list(items)
        self.recorder = Recorder()
        database: Any = world
        self.scheduler = CronScheduler(database, lambda: self.items, self.recorder.hooks)

    async def sleeps(self, count: int) -> None:
        """Run until the scheduler starts its sleep after that number of sleeps."""
        self.world.ends_after = len(self.world.slept) + count
        with pytest.raises(asyncio.CancelledError):
            await self.scheduler.run()

    async def runs_until(self, moment: datetime) -> None:
        """Run until that time, and until its work is done."""
        self.world.ends_at = moment
        with pytest.raises(asyncio.CancelledError):
            await self.scheduler.run()

    @property
    def added(self) -> list[tuple[str, str, bool]]:
        return self.world.added

    def minutes_of(self, identifier: str = "a") -> list[str]:
        return [minute for minute, of, _ in self.added if of == identifier]


def epoch(moment: datetime) -> str:
    microseconds = (moment - EPOCH) // timedelta(microseconds=1)
    return f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06}"


def item(task: str = "a", match: Any = "* * * * *", **options: Any) -> ParsedCronItem:
    [parsed] = parse_cron_items([CronItem(task=task, match=match, **options)])
    return parsed


def clock(first: str, last: str) -> list[str]:
    """Return the minutes of a day between two times, both included."""
    at, end = (datetime.strptime(each, "%H:%M") for each in (first, last))
    return [f"{at + n * MINUTE:%H:%M}" for n in range((end - at) // MINUTE + 1)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(scheduler_module, "time", world)
    monkeypatch.setattr(asyncio, "sleep", world.sleep)
    return world


@pytest.fixture
def even_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute backoffs without jitter."""
    monkeypatch.setattr(random, "random", lambda: 0.5)


# Start


async def test_items_that_are_new_are_made_known_since_the_start(world):
    world.add_known("old", since=START - HOUR)
    it = Scene(world, item("old"), item("new"), item("newer", backfill=HOUR))

    assert await it.scheduler.start() == NOON

    assert world.statements == [TIME, KNOWN, REGISTER]
    assert world.rows == {
        "old": (START - HOUR, None),
        "new": (START, None),
        "newer": (START, None),
    }


async def test_nothing_is_written_where_all_are_known(world):
    world.add_known("a", last=START - HOUR)

    await Scene(world, item()).scheduler.start()

    assert world.statements == [TIME, KNOWN]


@pytest.mark.feature("F277")
async def test_items_that_are_new_are_not_made_up_for(world):
    it = Scene(world, item(backfill=HOUR))

    await it.scheduler.start()

    assert it.added == []


@pytest.mark.feature("F276")
async def test_backfilled_jobs_are_added_in_order_and_marked(world):
    world.add_known("a", last=NOON - 4 * MINUTE)
    world.add_known("b", last=NOON - HOUR)
    world.add_known("c", last=NOON - HOUR)
    it = Scene(
        world,
        item("a", backfill=HOUR),
        item("b", match="*/2 * * * *", backfill=3 * MINUTE),
        item("c"),
    )

    assert await it.scheduler.start() == NOON

    assert it.added == [
        ("11:57", "a", True),
        ("11:58", "a", True),
        ("11:58", "b", True),
        ("11:59", "a", True),
    ]
    assert world.statements == [TIME, KNOWN, *[SCHEDULE] * 3]


async def test_a_start_on_the_minute_waits_for_no_other(world):
    world.now = NOON
    it = Scene(world, item(backfill=HOUR))
    world.add_known("a", last=NOON - 2 * MINUTE)

    assert await it.scheduler.start() == NOON

    # That minute does not count as past.
    assert it.added == [("11:59", "a", True)]


async def test_without_items_it_waits_all_the_same(world):
    it = Scene(world)

    await it.sleeps(2)

    assert it.recorder.names == ["cron:starting", "cron:started"]
    assert REGISTER not in world.statements
    assert SCHEDULE not in world.statements


# Minute by minute


@pytest.mark.feature("F273")
async def test_each_minute_what_is_due_is_added(world):
    it = Scene(world, item("a"), item("b", match="*/2 * * * *"))

    await it.sleeps(3)

    assert it.added == [
        ("12:00", "a", False),
        ("12:00", "b", False),
        ("12:01", "a", False),
        ("12:02", "a", False),
        ("12:02", "b", False),
    ]


async def test_metrics_contain_the_last_minute_whose_jobs_were_added(world):
    it = Scene(world, item(match="30 * * * *"))
    metrics = it.recorder.hooks._enable_metrics()

    def read() -> Any:
        return metrics.collect()[CRON_CHECKED][()]

    await it.scheduler.start()
    at_start = read()
    await it.runs_until(NOON + 5 * MINUTE)
    after_minutes = read()
    world.fail(TIME, times=1000)
    await it.runs_until(NOON + HOUR)

    assert at_start == (NOON - MINUTE).timestamp()
    assert after_minutes == (NOON + 5 * MINUTE).timestamp()
    assert read() == after_minutes


async def test_metrics_of_a_scheduler_without_items_contain_no_minute(world):
    it = Scene(world)
    metrics = it.recorder.hooks._enable_metrics()

    await it.sleeps(2)

    assert CRON_CHECKED not in metrics.collect()


async def test_it_sleeps_until_just_after_the_minute_begins(world):
    it = Scene(world, item())

    await it.sleeps(3)

    assert world.slept == pytest.approx([40.001, 60.0, 59.999 + 0.001], abs=0.002)
    assert not it.recorder.events_of(CronTimerEarly)
    assert not it.recorder.events_of(CronTimerLate)


async def test_the_duration_of_work_is_subtracted_from_the_sleep(world):
    it = Scene(world, item())
    it.recorder.hooks.on(CronScheduled)(lambda event: world.advance(15 * SECOND))

    await it.sleeps(2)

    assert world.slept[1] == pytest.approx(45.0, abs=0.002)
    assert it.minutes_of() == ["12:00", "12:01"]


async def test_a_minute_without_work_reads_only_the_time(world):
    world.add_known("a")
    it = Scene(world, item(match="30 * * * *"))

    await it.sleeps(3)

    assert world.statements == [TIME, KNOWN, TIME, TIME, TIME]
    assert await it.scheduler.tick(NOON) == {}
    assert it.recorder.names == ["cron:starting", "cron:started"]


@pytest.mark.feature("F274")
async def test_what_another_scheduler_added_is_not_added_again(world):
    it = Scene(world, item("a"), item("b"))
    other = Scene(world, item("a"))
    world.now = NOON

    assert await other.scheduler.tick(NOON) == {"a": 1}
    assert await it.scheduler.tick(NOON) == {"b": 2}
    assert await it.scheduler.tick(NOON) == {}

    assert it.added == [("12:00", "a", False), ("12:00", "b", False)]


# Events


async def test_events_come_in_the_order_of_the_reference(world):
    world.add_known("a", last=NOON - 3 * MINUTE)
    it = Scene(world, item(backfill=HOUR))

    await it.sleeps(2)

    assert it.recorder.names == [
        "cron:starting",
        "cron:backfill",
        "cron:backfill",
        "cron:started",
        "cron:schedule",
        "cron:scheduled",
        "cron:schedule",
        "cron:scheduled",
    ]


async def test_events_contain_the_added_jobs_and_their_minute(world):
    world.add_known("a", last=NOON - 2 * MINUTE, since=START - HOUR)
    each_minute, new = item("a", backfill=HOUR, payload={"x": 1}), item("b", identifier="new")
    it = Scene(world, each_minute, new)

    await it.sleeps(1)

    past = BackfillJob(
        identifier="a",
        spec=each_minute.spec_at(NOON - MINUTE, backfilled=True),
        known_since=START - HOUR,
        last_execution=NOON - 2 * MINUTE,
    )
    now = (
        CronJob(identifier="a", spec=each_minute.spec_at(NOON)),
        CronJob(identifier="new", spec=new.spec_at(NOON)),
    )
    assert it.recorder.events == [
        CronStarting(start=START),
        CronBackfillDue(timestamp=NOON - MINUTE, jobs=(past,)),
        CronStarted(start=START),
        CronDue(timestamp=NOON, jobs=now),
        CronScheduled(timestamp=NOON, jobs=now),
    ]


async def test_only_jobs_of_this_scheduler_are_reported_as_added(world):
    it = Scene(world, item("a"), item("b"))
    world.now = NOON
    world.add_known("a", last=NOON)

    await it.scheduler.tick(NOON)
    await it.scheduler.tick(NOON)

    due = [[job.identifier for job in each.jobs] for each in it.recorder.events_of(CronDue)]
    scheduled = [
        [job.identifier for job in each.jobs] for each in it.recorder.events_of(CronScheduled)
    ]
    assert due == [["a", "b"], ["a", "b"]]
    assert scheduled == [["b"], []]


# Timers


async def test_who_wakes_too_early_sleeps_again(world):
    world.sleep_durations = [10 * SECOND, 29 * SECOND]
    it = Scene(world, item())

    await it.sleeps(3)

    assert it.recorder.events_of(CronTimerEarly) == [
        CronTimerEarly(current_timestamp=START + 10 * SECOND, expected_timestamp=NOON),
        CronTimerEarly(current_timestamp=START + 39 * SECOND, expected_timestamp=NOON),
    ]
    assert world.slept == pytest.approx([40.001, 30.001, 1.001])
    assert it.added == [("12:00", "a", False)]


async def test_a_clock_that_was_far_ahead_and_is_put_right_costs_only_what_it_made(world):
    world.put(24 * HOUR)
    it = Scene(world, item("a"), item("b", match="3 12 * * *"))
    # Item a was added for noon of the next day, item b was not added.
    world.after_sleep[2] = lambda: world.put(-24 * HOUR)

    await it.sleeps(9)

    assert it.minutes_of("b") == ["12:03"]


async def test_a_clock_that_is_put_back_repeats_nothing(world):
    it = Scene(world, item())
    world.after_sleep[3] = lambda: world.put(-2 * MINUTE - 30 * SECOND)

    await it.runs_until(NOON + 3 * MINUTE)

    assert it.minutes_of() == clock("12:00", "12:03")
    assert {each.expected_timestamp for each in it.recorder.events_of(CronTimerEarly)} == {
        NOON + 2 * MINUTE
    }


async def test_a_scheduler_sleeps_at_most_a_minute(world):
    # The clock may be corrected again.
    it = Scene(world, item())
    world.after_sleep[2] = lambda: world.put(-timedelta(days=1))
    world.after_sleep[5] = lambda: world.put(timedelta(days=1))

    await it.runs_until(NOON + 6 * MINUTE)

    assert max(world.slept) == 60.0
    assert it.minutes_of() == clock("12:00", "12:06")


async def test_a_clock_that_is_put_forward_a_little_is_caught_up_with(world):
    it = Scene(world, item())
    world.after_sleep[2] = lambda: world.put(5 * MINUTE)

    await it.runs_until(NOON + 8 * MINUTE)

    assert it.minutes_of() == clock("12:00", "12:08")


async def test_a_few_seconds_are_not_late(world):
    world.sleep_durations = [40 * SECOND + 59 * SECOND]
    it = Scene(world, item())

    await it.sleeps(1)

    assert it.added == [("12:00", "a", False)]
    assert not it.recorder.events_of(CronTimerLate)


async def test_who_wakes_late_catches_up_minute_by_minute(world):
    world.sleep_durations = [40 * SECOND + 3 * MINUTE + 20 * SECOND]
    it = Scene(world, item("a"), item("b", match="*/2 * * * *"))

    await it.sleeps(5)

    # Minutes that a running scheduler missed are not marked as backfilled.
    assert it.added == [
        ("12:00", "a", False),
        ("12:00", "b", False),
        ("12:01", "a", False),
        ("12:02", "a", False),
        ("12:02", "b", False),
        ("12:03", "a", False),
        ("12:04", "a", False),
        ("12:04", "b", False),
    ]
    expected = [each.expected_timestamp for each in it.recorder.events_of(CronTimerLate)]
    assert expected == [NOON, NOON + MINUTE, NOON + 2 * MINUTE]
    first = it.recorder.events_of(CronTimerLate)[0]
    assert first.current_timestamp == NOON + 3 * MINUTE + 20 * SECOND


async def test_who_catches_up_does_not_sleep_in_between(world):
    world.sleep_durations = [40 * SECOND + 3 * MINUTE + 20 * SECOND]

    await Scene(world, item()).sleeps(5)

    assert world.slept == pytest.approx([40.001, 0.001, 0.001, 0.001, 40.0], abs=0.01)


async def test_a_scheduler_that_slept_for_hours_starts_again(world):
    """A machine that sleeps from 12:00 to 15:00."""
    world.sleep_durations = [40 * SECOND + 3 * HOUR + 20 * SECOND]
    it = Scene(world, item("a"), item("b", match="*/30 * * * *", backfill=HOUR))
    world.add_known("b", last=NOON - 30 * MINUTE)

    await it.runs_until(NOON + 3 * HOUR + MINUTE)

    assert [type(each) for each in it.recorder.events[:5]] == [
        CronStarting,
        CronStarted,
        CronTimerLate,
        CronStarting,
        CronBackfillDue,
    ]
    assert it.minutes_of("a") == clock("14:51", "15:01")
    assert [each for each in it.added if each[1] == "b"] == [
        ("14:30", "b", True),
        ("15:00", "b", False),
    ]


# Failures


@pytest.mark.parametrize("statement", [TIME, KNOWN, REGISTER, SCHEDULE])
async def test_an_error_is_reported_and_retried_after_a_backoff(world, statement):
    it = Scene(world, item())
    [error] = world.fail(statement)

    await it.runs_until(NOON + MINUTE)

    [failed] = it.recorder.events_of(CronFailed)
    assert (failed.error, failed.failures, failed.identifier) == (error, 1, None)
    assert failed.delay is not None
    assert failed.delay.total_seconds() in world.slept
    assert it.minutes_of() == ["12:00", "12:01"]


async def test_after_a_failure_the_scheduler_starts_again(world):
    it = Scene(world, item())
    world.fail(SCHEDULE)

    await it.sleeps(3)

    assert it.recorder.names == [
        "cron:starting",
        "cron:started",
        "cron:schedule",
        "cron:error",
        "cron:starting",
        "cron:started",
        "cron:schedule",
        "cron:scheduled",
    ]


async def test_a_minute_that_failed_is_added_afterwards(world):
    """A database that is unreachable from 12:00 on, for some minutes."""
    it = Scene(world, item())
    world.fail(SCHEDULE)
    world.sleep_durations = [40 * SECOND, 4 * MINUTE + 30 * SECOND]

    await it.runs_until(NOON + 5 * MINUTE)

    assert it.added == [(minute, "a", False) for minute in clock("12:00", "12:05")]


@pytest.mark.feature("F276")
async def test_after_a_failure_items_with_a_period_are_made_up_for(world):
    it = Scene(world, item(backfill=HOUR))
    world.fail(SCHEDULE)
    world.sleep_durations = [40 * SECOND, 30 * MINUTE + 30 * SECOND]

    await it.runs_until(NOON + 31 * MINUTE)

    # Minutes that it catches up with anyway are not marked as backfilled.
    assert it.added == [
        *((minute, "a", True) for minute in clock("12:00", "12:20")),
        *((minute, "a", False) for minute in clock("12:21", "12:31")),
    ]


@pytest.mark.parametrize("period", [timedelta(0), MINUTE, 3 * MINUTE, HOUR])
async def test_a_short_failure_loses_no_minute_with_any_period(world, period):
    it = Scene(world, item(backfill=period))
    world.fail(SCHEDULE)
    world.sleep_durations = [40 * SECOND, 8 * MINUTE + 30 * SECOND]

    await it.runs_until(NOON + 10 * MINUTE)

    assert it.minutes_of() == clock("12:00", "12:10")


async def test_a_first_start_that_fails_in_its_backfill_loses_no_minute_after_it(world):
    world.add_known("b", last=START - HOUR)
    it = Scene(world, item("a"), item("b", backfill=HOUR))
    world.fail(SCHEDULE)
    world.sleep_durations = [3 * MINUTE]

    await it.runs_until(NOON + 4 * MINUTE)

    assert it.minutes_of("a") == clock("12:00", "12:04")


async def test_without_a_period_a_long_failure_is_caught_up_with_in_part(world):
    it = Scene(world, item())
    world.fail(SCHEDULE)
    world.sleep_durations = [40 * SECOND, 30 * MINUTE + 30 * SECOND]

    await it.runs_until(NOON + 31 * MINUTE)

    assert timedelta(minutes=10) == MAX_CATCH_UP
    assert it.minutes_of() == clock("12:21", "12:31")


async def test_a_failure_before_the_first_minute_catches_up_with_nothing(world):
    it = Scene(world, item())
    world.fail(KNOWN)
    world.sleep_durations = [5 * MINUTE]

    await it.runs_until(NOON + 6 * MINUTE)

    # It is unknown whether this scheduler ran before.
    assert it.minutes_of() == clock("12:05", "12:06")


@pytest.mark.usefixtures("even_pauses")
async def test_pauses_grow_up_to_five_seconds_while_failures_go_on(world):
    it = Scene(world, item())
    errors = world.fail(TIME, times=25)

    await it.sleeps(25)

    failed = it.recorder.events_of(CronFailed)
    assert [each.error for each in failed] == errors
    assert [each.failures for each in failed] == list(range(1, 26))
    pauses = world.slept
    assert pauses == sorted(pauses)
    assert pauses[0] < 1
    assert pauses[1] == pytest.approx(pauses[0] * 1.5)
    assert pauses[-1] == MAX_RETRY_DELAY_SECONDS == 5.0
    assert [each.delay for each in failed] == [timedelta(seconds=each) for each in pauses]


async def test_pauses_of_several_workers_differ(world):
    it = Scene(world, item())
    world.fail(TIME, times=200)

    await it.sleeps(200)

    long = world.slept[50:]
    assert len(set(long)) == len(long)
    assert min(long) >= MAX_RETRY_DELAY_SECONDS / 2
    assert max(long) <= MAX_RETRY_DELAY_SECONDS * 1.5


@pytest.mark.usefixtures("even_pauses")
async def test_missed_runs_are_added_before_a_worker_that_starts_after_an_outage_adds_later_ones(
    world, monkeypatch
):
    it = Scene(world, item())
    run = world.run

    async def run_with_outage(query: Query[Any]) -> Any:
        if NOON + MINUTE <= world.now < NOON + 5 * MINUTE + 45 * SECOND:
            raise OSError("gone")
        if world.now >= NOON + 6 * MINUTE:
            # The other worker adds the first run after its start.
            world.add_known("a", last=NOON + 6 * MINUTE)
        return await run(query)

    monkeypatch.setattr(world, "run", run_with_outage)

    await it.runs_until(NOON + 6 * MINUTE)

    assert it.minutes_of() == clock("12:00", "12:05")


@pytest.mark.usefixtures("even_pauses")
async def test_after_a_minute_that_went_well_pauses_are_short_again(world):
    it = Scene(world, item())
    world.fail(TIME, times=5)
    await it.runs_until(NOON)
    assert it.minutes_of() == ["12:00"]
    world.fail(SCHEDULE, times=2)

    await it.runs_until(NOON + 2 * MINUTE)

    assert [each.failures for each in it.recorder.events_of(CronFailed)] == [1, 2, 3, 4, 5, 1, 2]
    delays = [each.delay for each in it.recorder.events_of(CronFailed)]
    assert delays[5:] == delays[:2]


@pytest.mark.usefixtures("even_pauses")
async def test_a_start_alone_does_not_make_pauses_short_again(world):
    it = Scene(world, item())
    world.fail(SCHEDULE, times=4)

    await it.runs_until(NOON + MINUTE)

    assert [each.failures for each in it.recorder.events_of(CronFailed)] == [1, 2, 3, 4]
    assert it.minutes_of() == ["12:00", "12:01"]


async def test_a_cancellation_is_not_a_failure(world):
    it = Scene(world, item())

    await it.sleeps(1)

    assert not it.recorder.events_of(CronFailed)


# Functions that raise


def broken(digest: TimestampDigest) -> bool:
    raise LookupError(digest.min)


async def test_a_function_that_raises_does_not_affect_other_items(world):
    it = Scene(world, item("a"), item("bad", match=broken), item("z"))

    await it.sleeps(2)

    assert it.added == [
        ("12:00", "a", False),
        ("12:00", "z", False),
        ("12:01", "a", False),
        ("12:01", "z", False),
    ]
    failed = it.recorder.events_of(CronFailed)
    assert [(each.identifier, str(each.error)) for each in failed] == [("bad", "0"), ("bad", "1")]
    # The scheduler does not restart because of it.
    assert [each.delay for each in failed] == [None, None]
    assert len(it.recorder.events_of(CronStarting)) == 1


async def test_so_it_does_where_the_past_is_made_up_for(world):
    world.add_known("a", last=NOON - 3 * MINUTE)
    world.add_known("bad", last=NOON - 3 * MINUTE)
    it = Scene(world, item("bad", match=broken, backfill=HOUR), item("a", backfill=HOUR))

    await it.scheduler.start()

    assert it.added == [("11:58", "a", True), ("11:59", "a", True)]
    assert {each.identifier for each in it.recorder.events_of(CronFailed)} == {"bad"}


async def test_a_function_that_raised_is_called_again(world):
    def fail_sometimes(digest: TimestampDigest) -> bool:
        return 1 / digest.min > 0

    it = Scene(world, item(match=fail_sometimes))

    await it.sleeps(3)

    assert it.minutes_of() == ["12:01", "12:02"]


# Items that change


@pytest.mark.feature("F284")
async def test_items_may_come_and_go_while_it_runs(world):
    it = Scene(world, item("a"))
    world.after_sleep[2] = lambda: it.items.append(item("b"))
    world.after_sleep[3] = lambda: it.items.remove(it.items[0])
    world.after_sleep[4] = it.items.clear

    await it.sleeps(4)

    assert it.added == [
        ("12:00", "a", False),
        ("12:01", "a", False),
        ("12:01", "b", False),
        ("12:02", "b", False),
    ]


@pytest.mark.feature("F284")
async def test_an_item_that_comes_between_two_minutes_needs_no_new_start(world):
    it = Scene(world, item("a"))
    world.after_sleep[2] = lambda: it.items.append(item("b"))

    await it.sleeps(3)

    assert it.minutes_of("b") == ["12:01", "12:02"]
    assert len(it.recorder.events_of(CronStarting)) == 1


async def test_an_identifier_that_is_there_twice_adds_one_job(world):
    it = Scene(world, item("a"), item("b"))
    world.after_sleep[2] = lambda: it.items.append(item("other", identifier="a"))

    await it.sleeps(2)

    assert it.added[2:] == [("12:01", "a", False), ("12:01", "b", False)]
    assert not it.recorder.events_of(CronFailed)


async def test_an_identifier_that_is_there_twice_is_made_up_for_once(world):
    world.add_known("a", last=NOON - 3 * MINUTE)
    it = Scene(world, item("a", backfill=HOUR), item("a", backfill=HOUR))

    await it.scheduler.start()

    assert it.added == [("11:58", "a", True), ("11:59", "a", True)]


async def test_an_identifier_that_is_there_twice_is_made_known_once(world):
    it = Scene(world, item("a"), item("a"))

    await it.scheduler.start()

    assert world.rows == {"a": (START, None)}

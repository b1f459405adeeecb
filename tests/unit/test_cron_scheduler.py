"""CronScheduler: what is added at which minute, what is said, and what follows a failure."""

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
# Forty seconds before the first minute that is waited for.
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
        self.asked: list[str] = []
        self.rows: dict[str, tuple[datetime, datetime | None]] = {}
        # What was added: the minute, the identifier, and whether it was flagged.
        self.added: list[tuple[str, str, bool]] = []
        self.errors: dict[str, list[Exception]] = {}
        self.slept: list[float] = []
        # How long the next sleeps really take; the others take as long as they should.
        self.naps: list[timedelta] = []
        # What happens after which sleep.
        self.then: dict[int, Callable[[], None]] = {}
        self.ends_after: int | None = None
        self.ends_at = datetime.max.replace(tzinfo=UTC)

    # Time

    def monotonic(self) -> float:
        return self.seconds

    def pass_by(self, span: timedelta) -> None:
        self.now += span
        self.seconds += span.total_seconds()

    def put(self, by: timedelta) -> None:
        """Put the database's clock forward or back; no time passes."""
        self.now += by

    async def sleep(self, seconds: float) -> None:
        if len(self.slept) == self.ends_after or self.now >= self.ends_at:
            raise asyncio.CancelledError
        self.slept.append(seconds)
        self.pass_by(self.naps.pop(0) if self.naps else timedelta(seconds=seconds))
        self.then.pop(len(self.slept), lambda: None)()

    # The database

    async def run(self, query: Query[Any]) -> Any:
        self.asked.append(query.name)
        if self.errors.get(query.name):
            raise self.errors[query.name].pop(0)
        answer = getattr(self, f"_{query.statement}")
        return query.read(answer(*query.args))

    def know(
        self, identifier: str, last: datetime | None = None, since: datetime = START - HOUR * 99
    ) -> None:
        self.rows[identifier] = (since, last)

    def fail(self, statement: str, *, times: int = 1) -> list[Exception]:
        """Let a statement fail from now on, so many times."""
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
        # PostgreSQL says so: a row cannot be changed twice by one statement.
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
    """A scheduler of some items in such a world, and what it says."""

    def __init__(self, world: World, *items: ParsedCronItem) -> None:
        self.world = world
        self.items = list(items)
        self.heard = Recorder()
        database: Any = world
        self.scheduler = CronScheduler(database, lambda: self.items, self.heard.hooks)

    async def sleeps(self, count: int) -> None:
        """Run until it has slept so many times and wants to again."""
        self.world.ends_after = len(self.world.slept) + count
        with pytest.raises(asyncio.CancelledError):
            await self.scheduler.run()

    async def runs_until(self, moment: datetime) -> None:
        """Run until that time has come and its work is done."""
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


def item(task: str = "a", match: Any = "* * * * *", **given: Any) -> ParsedCronItem:
    [parsed] = parse_cron_items([CronItem(task=task, match=match, **given)])
    return parsed


def clock(first: str, last: str) -> list[str]:
    """The minutes of a day from one to another, both too."""
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
    """Pauses without jitter."""
    monkeypatch.setattr(random, "random", lambda: 0.5)


# Starting


async def test_items_that_are_new_are_made_known_since_the_start(world):
    world.know("old", since=START - HOUR)
    it = Scene(world, item("old"), item("new"), item("newer", backfill=HOUR))

    assert await it.scheduler.start() == NOON

    assert world.asked == [TIME, KNOWN, REGISTER]
    assert world.rows == {
        "old": (START - HOUR, None),
        "new": (START, None),
        "newer": (START, None),
    }


async def test_nothing_is_written_where_all_are_known(world):
    world.know("a", last=START - HOUR)

    await Scene(world, item()).scheduler.start()

    assert world.asked == [TIME, KNOWN]


@pytest.mark.feature("F277")
async def test_items_that_are_new_are_not_made_up_for(world):
    it = Scene(world, item(backfill=HOUR))

    await it.scheduler.start()

    assert it.added == []


@pytest.mark.feature("F276")
async def test_backfilled_jobs_are_added_in_order_and_marked(world):
    world.know("a", last=NOON - 4 * MINUTE)
    world.know("b", last=NOON - HOUR)
    world.know("c", last=NOON - HOUR)
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
    assert world.asked == [TIME, KNOWN, *[SCHEDULE] * 3]


async def test_a_start_on_the_minute_waits_for_no_other(world):
    world.now = NOON
    it = Scene(world, item(backfill=HOUR))
    world.know("a", last=NOON - 2 * MINUTE)

    assert await it.scheduler.start() == NOON

    # And does not count it as past.
    assert it.added == [("11:59", "a", True)]


async def test_without_items_it_waits_all_the_same(world):
    it = Scene(world)

    await it.sleeps(2)

    assert it.heard.names == ["cron:starting", "cron:started"]
    assert REGISTER not in world.asked
    assert SCHEDULE not in world.asked


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


async def test_it_sleeps_until_just_after_the_minute_begins(world):
    it = Scene(world, item())

    await it.sleeps(3)

    assert world.slept == pytest.approx([40.001, 60.0, 59.999 + 0.001], abs=0.002)
    assert not it.heard.events_of(CronTimerEarly)
    assert not it.heard.events_of(CronTimerLate)


async def test_the_time_that_work_takes_is_not_slept(world):
    it = Scene(world, item())
    it.heard.hooks.on(CronScheduled)(lambda event: world.pass_by(15 * SECOND))

    await it.sleeps(2)

    assert world.slept[1] == pytest.approx(45.0, abs=0.002)
    assert it.minutes_of() == ["12:00", "12:01"]


async def test_a_minute_without_work_asks_nothing_but_the_time(world):
    world.know("a")
    it = Scene(world, item(match="30 * * * *"))

    await it.sleeps(3)

    assert world.asked == [TIME, KNOWN, TIME, TIME, TIME]
    assert await it.scheduler.tick(NOON) == {}
    assert it.heard.names == ["cron:starting", "cron:started"]


@pytest.mark.feature("F274")
async def test_what_another_scheduler_added_is_not_added_again(world):
    it = Scene(world, item("a"), item("b"))
    other = Scene(world, item("a"))
    world.now = NOON

    assert await other.scheduler.tick(NOON) == {"a": 1}
    assert await it.scheduler.tick(NOON) == {"b": 2}
    assert await it.scheduler.tick(NOON) == {}

    assert it.added == [("12:00", "a", False), ("12:00", "b", False)]


# What is said


async def test_events_come_in_the_order_of_the_reference(world):
    world.know("a", last=NOON - 3 * MINUTE)
    it = Scene(world, item(backfill=HOUR))

    await it.sleeps(2)

    assert it.heard.names == [
        "cron:starting",
        "cron:backfill",
        "cron:backfill",
        "cron:started",
        "cron:schedule",
        "cron:scheduled",
        "cron:schedule",
        "cron:scheduled",
    ]


async def test_events_say_what_is_added_and_when(world):
    world.know("a", last=NOON - 2 * MINUTE, since=START - HOUR)
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
    assert it.heard.events == [
        CronStarting(start=START),
        CronBackfillDue(timestamp=NOON - MINUTE, jobs=(past,)),
        CronStarted(start=START),
        CronDue(timestamp=NOON, jobs=now),
        CronScheduled(timestamp=NOON, jobs=now),
    ]


async def test_only_jobs_of_this_scheduler_are_reported_as_added(world):
    it = Scene(world, item("a"), item("b"))
    world.now = NOON
    world.know("a", last=NOON)

    await it.scheduler.tick(NOON)
    await it.scheduler.tick(NOON)

    due = [[job.identifier for job in each.jobs] for each in it.heard.events_of(CronDue)]
    scheduled = [
        [job.identifier for job in each.jobs] for each in it.heard.events_of(CronScheduled)
    ]
    assert due == [["a", "b"], ["a", "b"]]
    assert scheduled == [["b"], []]


# Timers


async def test_who_wakes_too_early_sleeps_again(world):
    world.naps = [10 * SECOND, 29 * SECOND]
    it = Scene(world, item())

    await it.sleeps(3)

    assert it.heard.events_of(CronTimerEarly) == [
        CronTimerEarly(current_timestamp=START + 10 * SECOND, expected_timestamp=NOON),
        CronTimerEarly(current_timestamp=START + 39 * SECOND, expected_timestamp=NOON),
    ]
    assert world.slept == pytest.approx([40.001, 30.001, 1.001])
    assert it.added == [("12:00", "a", False)]


async def test_a_clock_that_was_far_ahead_and_is_put_right_costs_only_what_it_made(world):
    world.put(24 * HOUR)
    it = Scene(world, item("a"), item("b", match="3 12 * * *"))
    # It has made the noon of tomorrow for the one, and nothing for the other.
    world.then[2] = lambda: world.put(-24 * HOUR)

    await it.sleeps(9)

    assert it.minutes_of("b") == ["12:03"]


async def test_a_clock_that_is_put_back_repeats_nothing(world):
    it = Scene(world, item())
    world.then[3] = lambda: world.put(-2 * MINUTE - 30 * SECOND)

    await it.runs_until(NOON + 3 * MINUTE)

    assert it.minutes_of() == clock("12:00", "12:03")
    assert {each.expected_timestamp for each in it.heard.events_of(CronTimerEarly)} == {
        NOON + 2 * MINUTE
    }


async def test_a_scheduler_sleeps_at_most_a_minute(world):
    # For the clock that was put back may be put right again.
    it = Scene(world, item())
    world.then[2] = lambda: world.put(-timedelta(days=1))
    world.then[5] = lambda: world.put(timedelta(days=1))

    await it.runs_until(NOON + 6 * MINUTE)

    assert max(world.slept) == 60.0
    assert it.minutes_of() == clock("12:00", "12:06")


async def test_a_clock_that_is_put_forward_a_little_is_caught_up_with(world):
    it = Scene(world, item())
    world.then[2] = lambda: world.put(5 * MINUTE)

    await it.runs_until(NOON + 8 * MINUTE)

    assert it.minutes_of() == clock("12:00", "12:08")


async def test_a_few_seconds_are_not_late(world):
    world.naps = [40 * SECOND + 59 * SECOND]
    it = Scene(world, item())

    await it.sleeps(1)

    assert it.added == [("12:00", "a", False)]
    assert not it.heard.events_of(CronTimerLate)


async def test_who_wakes_late_catches_up_minute_by_minute(world):
    world.naps = [40 * SECOND + 3 * MINUTE + 20 * SECOND]
    it = Scene(world, item("a"), item("b", match="*/2 * * * *"))

    await it.sleeps(5)

    # The clocks of workers that live owe nothing: it is not flagged.
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
    expected = [each.expected_timestamp for each in it.heard.events_of(CronTimerLate)]
    assert expected == [NOON, NOON + MINUTE, NOON + 2 * MINUTE]
    first = it.heard.events_of(CronTimerLate)[0]
    assert first.current_timestamp == NOON + 3 * MINUTE + 20 * SECOND


async def test_who_catches_up_does_not_sleep_in_between(world):
    world.naps = [40 * SECOND + 3 * MINUTE + 20 * SECOND]

    await Scene(world, item()).sleeps(5)

    assert world.slept == pytest.approx([40.001, 0.001, 0.001, 0.001, 40.0], abs=0.01)


async def test_a_scheduler_that_slept_for_hours_starts_again(world):
    """Asleep at 12:00, awake at 15:00: a machine that was closed."""
    world.naps = [40 * SECOND + 3 * HOUR + 20 * SECOND]
    it = Scene(world, item("a"), item("b", match="*/30 * * * *", backfill=HOUR))
    world.know("b", last=NOON - 30 * MINUTE)

    await it.runs_until(NOON + 3 * HOUR + MINUTE)

    assert [type(each) for each in it.heard.events[:5]] == [
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

    [failed] = it.heard.events_of(CronFailed)
    assert (failed.error, failed.failures, failed.identifier) == (error, 1, None)
    assert failed.delay is not None
    assert failed.delay.total_seconds() in world.slept
    assert it.minutes_of() == ["12:00", "12:01"]


async def test_after_a_failure_the_scheduler_starts_again(world):
    it = Scene(world, item())
    world.fail(SCHEDULE)

    await it.sleeps(3)

    assert it.heard.names == [
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
    """The database is away from 12:00 on, and back after some minutes."""
    it = Scene(world, item())
    world.fail(SCHEDULE)
    world.naps = [40 * SECOND, 4 * MINUTE + 30 * SECOND]

    await it.runs_until(NOON + 5 * MINUTE)

    assert it.added == [(minute, "a", False) for minute in clock("12:00", "12:05")]


@pytest.mark.feature("F276")
async def test_after_a_failure_items_with_a_period_are_made_up_for(world):
    it = Scene(world, item(backfill=HOUR))
    world.fail(SCHEDULE)
    world.naps = [40 * SECOND, 30 * MINUTE + 30 * SECOND]

    await it.runs_until(NOON + 31 * MINUTE)

    # What it would have caught up with anyway is not flagged.
    assert it.added == [
        *((minute, "a", True) for minute in clock("12:00", "12:20")),
        *((minute, "a", False) for minute in clock("12:21", "12:31")),
    ]


@pytest.mark.parametrize("period", [timedelta(0), MINUTE, 3 * MINUTE, HOUR])
async def test_a_short_failure_loses_no_minute_with_any_period(world, period):
    it = Scene(world, item(backfill=period))
    world.fail(SCHEDULE)
    world.naps = [40 * SECOND, 8 * MINUTE + 30 * SECOND]

    await it.runs_until(NOON + 10 * MINUTE)

    assert it.minutes_of() == clock("12:00", "12:10")


async def test_a_first_start_that_fails_in_its_backfill_loses_no_minute_after_it(world):
    world.know("b", last=START - HOUR)
    it = Scene(world, item("a"), item("b", backfill=HOUR))
    world.fail(SCHEDULE)
    world.naps = [3 * MINUTE]

    await it.runs_until(NOON + 4 * MINUTE)

    assert it.minutes_of("a") == clock("12:00", "12:04")


async def test_without_a_period_a_long_failure_is_caught_up_with_in_part(world):
    it = Scene(world, item())
    world.fail(SCHEDULE)
    world.naps = [40 * SECOND, 30 * MINUTE + 30 * SECOND]

    await it.runs_until(NOON + 31 * MINUTE)

    assert timedelta(minutes=10) == MAX_CATCH_UP
    assert it.minutes_of() == clock("12:21", "12:31")


async def test_a_failure_before_the_first_minute_catches_up_with_nothing(world):
    it = Scene(world, item())
    world.fail(KNOWN)
    world.naps = [5 * MINUTE]

    await it.runs_until(NOON + 6 * MINUTE)

    # Nobody knows whether it was alive before.
    assert it.minutes_of() == clock("12:05", "12:06")


@pytest.mark.usefixtures("even_pauses")
async def test_pauses_grow_up_to_a_minute_while_failures_go_on(world):
    it = Scene(world, item())
    errors = world.fail(TIME, times=25)

    await it.sleeps(25)

    failed = it.heard.events_of(CronFailed)
    assert [each.error for each in failed] == errors
    assert [each.failures for each in failed] == list(range(1, 26))
    pauses = world.slept
    assert pauses == sorted(pauses)
    assert pauses[0] < 1
    assert pauses[1] == pytest.approx(pauses[0] * 1.5)
    assert pauses[-1] == MAX_RETRY_DELAY_SECONDS == 60.0
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
async def test_after_a_minute_that_went_well_pauses_are_short_again(world):
    it = Scene(world, item())
    world.fail(TIME, times=5)
    await it.runs_until(NOON)
    assert it.minutes_of() == ["12:00"]
    world.fail(SCHEDULE, times=2)

    await it.runs_until(NOON + 2 * MINUTE)

    assert [each.failures for each in it.heard.events_of(CronFailed)] == [1, 2, 3, 4, 5, 1, 2]
    delays = [each.delay for each in it.heard.events_of(CronFailed)]
    assert delays[5:] == delays[:2]


@pytest.mark.usefixtures("even_pauses")
async def test_a_start_alone_does_not_make_pauses_short_again(world):
    it = Scene(world, item())
    world.fail(SCHEDULE, times=4)

    await it.runs_until(NOON + MINUTE)

    assert [each.failures for each in it.heard.events_of(CronFailed)] == [1, 2, 3, 4]
    assert it.minutes_of() == ["12:00", "12:01"]


async def test_a_cancellation_is_not_a_failure(world):
    it = Scene(world, item())

    await it.sleeps(1)

    assert not it.heard.events_of(CronFailed)


# Functions that fail


def broken(digest: TimestampDigest) -> bool:
    raise LookupError(digest.min)


async def test_a_function_that_fails_leaves_the_others_alone(world):
    it = Scene(world, item("a"), item("bad", match=broken), item("z"))

    await it.sleeps(2)

    assert it.added == [
        ("12:00", "a", False),
        ("12:00", "z", False),
        ("12:01", "a", False),
        ("12:01", "z", False),
    ]
    failed = it.heard.events_of(CronFailed)
    assert [(each.identifier, str(each.error)) for each in failed] == [("bad", "0"), ("bad", "1")]
    # Nothing begins anew for it.
    assert [each.delay for each in failed] == [None, None]
    assert len(it.heard.events_of(CronStarting)) == 1


async def test_so_it_does_where_the_past_is_made_up_for(world):
    world.know("a", last=NOON - 3 * MINUTE)
    world.know("bad", last=NOON - 3 * MINUTE)
    it = Scene(world, item("bad", match=broken, backfill=HOUR), item("a", backfill=HOUR))

    await it.scheduler.start()

    assert it.added == [("11:58", "a", True), ("11:59", "a", True)]
    assert {each.identifier for each in it.heard.events_of(CronFailed)} == {"bad"}


async def test_a_function_that_recovers_is_asked_again(world):
    def moody(digest: TimestampDigest) -> bool:
        return 1 / digest.min > 0

    it = Scene(world, item(match=moody))

    await it.sleeps(3)

    assert it.minutes_of() == ["12:01", "12:02"]


# Items that change


@pytest.mark.feature("F284")
async def test_items_may_come_and_go_while_it_runs(world):
    it = Scene(world, item("a"))
    world.then[2] = lambda: it.items.append(item("b"))
    world.then[3] = lambda: it.items.remove(it.items[0])
    world.then[4] = it.items.clear

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
    world.then[2] = lambda: it.items.append(item("b"))

    await it.sleeps(3)

    assert it.minutes_of("b") == ["12:01", "12:02"]
    assert len(it.heard.events_of(CronStarting)) == 1


async def test_an_identifier_that_is_there_twice_adds_one_job(world):
    it = Scene(world, item("a"), item("b"))
    world.then[2] = lambda: it.items.append(item("other", identifier="a"))

    await it.sleeps(2)

    assert it.added[2:] == [("12:01", "a", False), ("12:01", "b", False)]
    assert not it.heard.events_of(CronFailed)


async def test_an_identifier_that_is_there_twice_is_made_up_for_once(world):
    world.know("a", last=NOON - 3 * MINUTE)
    it = Scene(world, item("a", backfill=HOUR), item("a", backfill=HOUR))

    await it.scheduler.start()

    assert it.added == [("11:58", "a", True), ("11:59", "a", True)]


async def test_an_identifier_that_is_there_twice_is_made_known_once(world):
    it = Scene(world, item("a"), item("a"))

    await it.scheduler.start()

    assert world.rows == {"a": (START, None)}

"""Workers whose own clock is wrong: the database's clock decides what minute it is."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from graphile_worker._cron.backfill import MINUTE, ceil_minute
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.faketime import WrongClock
from tests.support.processes import Programs, eventually
from tests.support.sql import Sql

# Seconds: a minute, and what a busy machine may be late by.
WITHIN = 90.0

NOTE = """
    import time

    async def task(payload, ctx):
        await ctx.query(
            "insert into ran values (%s, to_timestamp(%s), clock_timestamp())",
            (payload["_cron"]["ts"], time.time()),
        )
"""

# What was added and noted, and when, by the only clock that is right.
WATCH = """
create table added (ts timestamptz, created_at timestamptz, at timestamptz);
create table noted (known_since timestamptz, last_execution timestamptz, at timestamptz);
create table ran (ts timestamptz, by_worker timestamptz, at timestamptz);
create function watch_jobs() returns trigger language plpgsql as $body$
begin
  insert into added
  values ((new.payload -> '_cron' ->> 'ts')::timestamptz, new.created_at, clock_timestamp());
  return null;
end
$body$;
create function watch_crontabs() returns trigger language plpgsql as $body$
begin
  insert into noted values (new.known_since, new.last_execution, clock_timestamp());
  return null;
end
$body$;
create trigger watch after insert on :schema._private_jobs
for each row execute function watch_jobs();
create trigger watch after insert or update on :schema._private_known_crontabs
for each row execute function watch_crontabs();
"""


@dataclass(frozen=True)
class Case:
    """A worker of its own database, and its clock."""

    name: str
    clock: WrongClock
    programs: Programs
    sql: Sql

    def start(self) -> None:
        self.programs.worker(**self.clock.variables)

    def first_minute(self) -> datetime:
        """The one that its scheduler, once it has begun, must not miss."""
        began = "select known_since from :schema._private_known_crontabs"
        rows = eventually(lambda: self.sql.run(began), f"cron begins, clock {self.name}")
        return ceil_minute(rows[0][0])

    def wait_for(self, minute: datetime) -> None:
        eventually(
            lambda: self.sql.value("select exists (select from ran where ts = $1)", minute),
            f"the job of {minute} has run, clock {self.name}",
            WITHIN,
        )

    def ticks(self) -> list[datetime]:
        return [ts for (ts,) in self.sql.run("select ts from added order by ts")]

    def errors_of_clock(self) -> set[timedelta]:
        """By how many minutes the worker's clock was wrong while it ran its jobs."""
        rows = self.sql.run("select by_worker, at from ran")
        return {round((wrong - right) / MINUTE) * MINUTE for wrong, right in rows}


@pytest.fixture
def cases(cluster: Cluster, schema: str, template: str, tmp_path: Path) -> Iterator[list[Case]]:
    """Three workers that can run at the same time, not started yet."""
    with ExitStack() as stack:

        def made(name: str, shift: str) -> Case:
            clock = WrongClock(tmp_path / f"clock_{name}", shift)
            cluster.create_database(f"clock_{name}", template)
            stack.callback(cluster.drop_database, f"clock_{name}")
            database = TestDatabase(f"clock_{name}", cluster, schema)
            sql = Sql(database.dsn, schema)
            stack.callback(sql.close)
            sql.run(WATCH)
            programs = stack.enter_context(Programs.for_database(database, tmp_path))
            return Case(name, clock, programs, sql)

        yield [made("ahead", "+1d"), made("behind", "-1h"), made("stepping", "+0")]


@pytest.mark.slow_io
@pytest.mark.feature("F274")
@pytest.mark.timeout(300)
def test_a_clock_ahead_behind_or_stepping_back_makes_no_tick_early_double_or_missing(cases, figure):
    ahead, behind, stepping = cases
    stepping.programs.write("tasks/note.py", NOTE)
    stepping.programs.write("crontab", "* * * * * note\n")
    for case in cases:
        case.start()
    firsts = {case.name: case.first_minute() for case in cases}
    minutes = [max(firsts.values()) + count * MINUTE for count in range(3)]

    for case in cases:
        case.wait_for(minutes[0])
    stepping.clock.set("-1h")
    for minute in minutes[1:]:
        for case in cases:
            case.wait_for(minute)

    for case in cases:
        assert_no_tick_is_early(case)
        assert_nothing_is_noted_for_the_future(case)
        # None repeated, none skipped, and none but these.
        owed = (minutes[-1] - firsts[case.name]) // MINUTE + 1
        assert case.ticks() == [firsts[case.name] + count * MINUTE for count in range(owed)]
    # And they were as wrong as they were meant to be.
    assert ahead.errors_of_clock() == {timedelta(days=1)}
    assert behind.errors_of_clock() == {timedelta(hours=-1)}
    assert stepping.errors_of_clock() == {timedelta(0), timedelta(hours=-1)}
    ticks = {case.name: len(case.ticks()) for case in cases}
    figure(f"cron by wrong clocks: ticks {ticks}, none early, double or missing")


def assert_no_tick_is_early(case: Case) -> None:
    """Nor a minute late."""
    early_or_late = """
    select * from added where created_at < ts or at < ts or at >= ts + interval '1 minute'
    """
    assert case.sql.run(early_or_late) == [], case.name


def assert_nothing_is_noted_for_the_future(case: Case) -> None:
    """It would keep every worker from all minutes before."""
    future = "select * from noted where last_execution > at or known_since > at"
    assert case.sql.run(future) == [], case.name

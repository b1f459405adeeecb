"""Cron on a real database: each minute of an item once, in order, and the past made up for."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from graphile_worker import (
    App,
    ConfigurationError,
    CronItem,
    Hooks,
    JobContext,
    JobSpec,
    ParsedCronItem,
    Runner,
    SchemaMissing,
    SyncJobContext,
    WorkerOptions,
    parse_cron_items,
    parse_crontab,
    run,
    run_once,
)
from graphile_worker._cron.scheduler import CronScheduler
from graphile_worker._db.database import SyncQueryRunner
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._discovery.discovery import resolve_cron_items
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.cron import (
    KnownCrontab,
    get_known_crontabs,
    get_server_time,
    register_crontabs,
    schedule_jobs,
)
from graphile_worker.events import (
    CronBackfillDue,
    CronDue,
    CronFailed,
    CronScheduled,
    CronStarted,
    CronStarting,
    JobSucceeded,
)
from graphile_worker.tasks import CronRun
from tests.support.clients import open_client
from tests.support.fetch_locks import commit_when_blocking, open_fetch
from tests.support.pools import open_session
from tests.support.recorder import Recorder, wait_until
from tests.support.rows import count_jobs
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

T = TypeVar("T")
Make = Callable[..., CronScheduler]

ONE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
THEN = datetime(2024, 2, 29, 4, 30, tzinfo=UTC)

JOBS = """
select tasks.identifier, job_queues.queue_name, jobs.payload::text, jobs.run_at,
  jobs.max_attempts, jobs.priority, jobs.key, jobs.locked_by
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id
"""
KNOWN = """
select identifier, known_since, last_execution from :schema._private_known_crontabs
order by identifier
"""
WAITING = """
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'
"""
KNOW = """
insert into :schema._private_known_crontabs (identifier, known_since, last_execution)
values ($1, now() - $2::interval, date_trunc('minute', now() - $3::interval))
returning known_since, last_execution
"""
MARKS = """
select jobs.run_at, payload -> '_cron' ->> 'ts', (payload -> '_cron' ->> 'backfilled')::bool
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
where tasks.identifier = $1
order by jobs.id
"""


@pytest.fixture
def behind(either_database) -> Iterator[Sql]:
    sql = Sql(either_database.dsn, either_database.schema)
    yield sql
    sql.close()


@pytest.fixture
def db(either_database) -> Iterator[SyncQueryRunner]:
    """Sends each statement once: what the database says is not retried."""
    with open_session(either_database) as connection:
        yield _Plain(connection)


class _Plain:
    def __init__(self, database: Any) -> None:
        self._database = database

    def run(self, query: Any) -> Any:
        with self._database.transaction() as connection:
            return connection.run(query)


@pytest.fixture
async def make(database, recorder) -> AsyncIterator[Make]:
    """Makes schedulers of a crontab, or of items, or of what says which items there are."""
    connections = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema))

    def make(items: Any, hooks: Hooks | None = None) -> CronScheduler:
        found = parse_crontab(items) if isinstance(items, str) else items
        ask = found if callable(found) else lambda: found
        return CronScheduler(connections, ask, hooks or recorder.hooks)

    yield make
    await connections.close()


def schedule(db: SyncQueryRunner, minute: datetime, *jobs: tuple[str, JobSpec]) -> list[str]:
    """The items whose jobs were added, in the order of the answer."""
    added = db.run(schedule_jobs(jobs, minute))
    return list(added)


def item(identifier: str, task: str | None = None, **options: Any) -> tuple[str, JobSpec]:
    return identifier, JobSpec(task or identifier, **options)


def know(
    sql: Sql, identifier: str, since: timedelta, last: timedelta | None = None
) -> KnownCrontab:
    """Let the database know an item for so long, and its last minute so long ago."""
    return KnownCrontab(identifier, *sql.run(KNOW, identifier, since, last)[0])


def minutes(first: datetime, before: datetime) -> list[datetime]:
    """Every minute that begins at the first moment or later, and before the other."""
    minute = first.replace(second=0, microsecond=0)
    found = []
    while minute < before:
        if minute >= first:
            found.append(minute)
        minute += ONE
    return found


def marks(sql: Sql, task: str = "report") -> list[tuple[Any, ...]]:
    """For which minutes jobs were added, in this order, and what they say of it."""
    return sql.run(MARKS, task)


def owed(*due: datetime) -> list[tuple[Any, ...]]:
    """The marks of minutes that were made up for."""
    return [(each, f"{each.astimezone(UTC):%Y-%m-%dT%H:%M}:00.000Z", True) for each in due]


def start_of(recorder: Recorder) -> datetime:
    """What time the database said that it was."""
    return recorder.events_of(CronStarting)[-1].start


# The statement


@pytest.mark.feature("F245", "F273")
def test_an_item_that_is_due_becomes_a_job_of_that_minute(behind, db):
    due = item(
        "weekly",
        "report",
        payload={"n": 1},
        queue_name="reports",
        max_attempts=3,
        priority=-2,
        job_key="the report",
        job_key_mode="preserve_run_at",
    )

    ids = db.run(schedule_jobs([due], THEN))

    assert behind.run(JOBS) == [("report", "reports", '{"n":1}', THEN, 3, -2, "the report", None)]
    assert ids == {"weekly": behind.value("select id from :schema._private_jobs")}
    assert behind.run(KNOWN) == [("weekly", THEN, THEN)]


@pytest.mark.feature("F273")
def test_what_an_item_does_not_say_is_as_for_any_job(behind, db):
    schedule(db, THEN, item("report"))

    assert behind.run(JOBS) == [("report", None, "{}", THEN, 25, 0, None, None)]


@pytest.mark.feature("F274")
@pytest.mark.parametrize(
    ("later", "is_added"),
    [(timedelta(0), False), (-ONE, False), (-DAY, False), (ONE, True), (DAY, True)],
    ids=str,
)
def test_only_a_newer_minute_is_added(behind, db, later, is_added):
    schedule(db, THEN, item("report"))

    added = schedule(db, THEN + later, item("report"))

    assert added == (["report"] if is_added else [])
    assert behind.run(KNOWN) == [("report", THEN, THEN + later if is_added else THEN)]
    assert count_jobs(behind) == 1 + is_added


@pytest.mark.feature("F274")
def test_an_item_that_is_known_and_never_ran_is_added(behind, db):
    known = know(behind, "report", since=HOUR)

    assert schedule(db, THEN, item("report")) == ["report"]

    assert behind.run(KNOWN) == [("report", known.known_since, THEN)]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_minute_that_has_not_begun_leaves_everything_as_it_was(behind, db, is_known):
    if is_known:
        know(behind, "report", since=DAY, last=HOUR)
    before = behind.run(KNOWN)
    soon = db.run(get_server_time()) + timedelta(seconds=30)

    assert schedule(db, soon, item("report")) == []

    assert behind.run(KNOWN) == before
    assert count_jobs(behind) == 0
    assert schedule(db, db.run(get_server_time()), item("report")) == ["report"]


@pytest.mark.feature("F273")
@pytest.mark.parametrize(
    "plan", [{}, {"enable_hashjoin": "off", "enable_nestloop": "off"}], ids=["usual", "merging"]
)
def test_items_are_added_in_the_order_given_however_it_is_planned(either_database, behind, plan):
    names = ["zebra", "ape", "mole", "bee"]

    with open_session(either_database, **plan) as db:
        ids = db.run(schedule_jobs([item(name) for name in names], THEN))

    assert [row[0] for row in behind.run(JOBS)] == names
    assert sorted(ids, key=lambda name: ids[name]) == names


@pytest.mark.feature("F274")
def test_of_several_items_only_missing_ones_are_added(behind, db):
    schedule(db, THEN, item("ape"))

    added = schedule(db, THEN, item("zebra"), item("ape"), item("bee"))

    assert sorted(added) == ["bee", "zebra"]
    assert [row[0] for row in behind.run(JOBS)] == ["ape", "zebra", "bee"]


# Two sessions stand before an item that a third one holds. If one had taken what comes before it
# and the other what comes after, they would now wait for each other: an error, as nothing is sent
# again here.

HOLD = """
insert into :schema._private_known_crontabs (identifier, known_since)
values ('b', '2024-01-01'::timestamptz)
on conflict (identifier) do update set known_since = excluded.known_since
"""
ABC, CBA = ["a", "b", "c"], ["c", "b", "a"]


@pytest.mark.feature("F274")
@pytest.mark.parametrize("order", [ABC, CBA])
@pytest.mark.parametrize("is_known", [False, True])
async def test_items_of_one_crontab_are_added_without_a_deadlock(behind, db, is_known, order):
    if is_known:
        schedule(db, THEN, *map(item, ABC))

    def offer(order: list[str]) -> list[str]:
        return schedule(db, THEN + ONE, *map(item, order))

    added = await while_one_is_held(behind, offer, order, order)

    assert sorted(map(len, added)) == [0, 3]
    assert count_jobs(behind) == (6 if is_known else 3)


@pytest.mark.feature("F277")
async def test_items_are_registered_in_opposite_orders_without_a_deadlock(behind, db):
    await while_one_is_held(behind, lambda order: db.run(register_crontabs(order, THEN)), ABC, CBA)

    assert [row[0] for row in behind.run(KNOWN)] == ABC


async def while_one_is_held(sql: Sql, act: Callable[[list[str]], T], *orders: list[str]) -> list[T]:
    """Let two act, each in its order, and let go of the item in the middle once both wait."""
    holder = sql.another()
    holder.run("begin")
    holder.run(HOLD)
    acting = asyncio.gather(*(asyncio.to_thread(act, order) for order in orders))
    await wait_until(lambda: sql.value(WAITING) == 2)
    holder.run("commit")
    holder.close()
    return list(await acting)


# Keys


@pytest.mark.feature("F273")
@pytest.mark.parametrize(
    ("mode", "run_at"), [("replace", THEN + ONE), (None, THEN + ONE), ("preserve_run_at", THEN)]
)
def test_a_job_that_still_waits_under_the_key_is_replaced(behind, db, mode, run_at):
    schedule(db, THEN, item("report", payload={"n": 1}, job_key="k", job_key_mode=mode))
    spec = item("report", payload={"n": 2}, job_key="k", job_key_mode=mode)

    assert schedule(db, THEN + ONE, spec) == ["report"]

    assert behind.run(JOBS) == [("report", None, '{"n":2}', run_at, 25, 0, "k", None)]


@pytest.mark.feature("F273")
def test_a_job_that_runs_under_the_key_gets_a_successor(behind, db):
    spec = item("report", job_key="k", job_key_mode="replace")
    schedule(db, THEN, spec)
    behind.run(
        "update :schema._private_jobs set locked_at = now(), locked_by = 'pool', attempts = 1"
    )

    assert schedule(db, THEN + ONE, spec) == ["report"]

    assert behind.run(JOBS) == [
        ("report", None, "{}", THEN, 25, 0, None, "pool"),
        ("report", None, "{}", THEN + ONE, 25, 0, "k", None),
    ]


@pytest.mark.feature("F273", "F274")
async def test_a_key_that_is_lost_to_a_fetch_is_nothing_done_and_works_when_sent_again(behind, db):
    keyed = item("keyed", job_key="k", job_key_mode="replace")
    due = (item("ape"), keyed, item("zebra"))
    ids = db.run(schedule_jobs([keyed], THEN))
    known = behind.run(KNOWN)
    fetcher = open_fetch(behind, ids["keyed"])

    sending = asyncio.to_thread(schedule, db, THEN + ONE, *due)
    lost, _ = await asyncio.gather(
        sending, commit_when_blocking(fetcher, behind), return_exceptions=True
    )

    assert isinstance(lost, psycopg.Error)
    assert behind.run(KNOWN) == known
    assert count_jobs(behind) == 1
    assert sorted(schedule(db, THEN + ONE, *due)) == ["ape", "keyed", "zebra"]
    assert [(row[0], row[6]) for row in behind.run(JOBS)] == [
        ("keyed", None),
        ("ape", None),
        ("keyed", "k"),
        ("zebra", None),
    ]


# What is known


def test_known_crontabs_are_returned_by_item(behind, db):
    assert db.run(get_known_crontabs()) == {}
    ran = know(behind, "ran", since=DAY, last=HOUR)
    never = know(behind, "never ran", since=HOUR)

    assert db.run(get_known_crontabs()) == {"ran": ran, "never ran": never}


@pytest.mark.feature("F277")
def test_registering_does_not_change_what_is_known(behind, db):
    old = know(behind, "old", since=DAY, last=HOUR)

    db.run(register_crontabs(["new", "old"], THEN))

    known = db.run(get_known_crontabs())
    assert known == {"old": old, "new": KnownCrontab("new", THEN, None)}


async def test_a_client_lists_known_crontabs(client, sql):
    assert await client.list_known_crontabs() == {}
    ran = know(sql, "ran", since=DAY, last=HOUR)

    assert await client.list_known_crontabs() == {"ran": ran}


async def test_without_a_schema_the_client_raises(kind, empty_database):
    async with open_client(kind, empty_database) as client:
        with pytest.raises(SchemaMissing):
            await client.list_known_crontabs()


# A scheduler


@pytest.mark.feature("F277")
async def test_at_start_items_become_known_since_the_time_of_the_database(make, sql, recorder):
    before = sql.value("select clock_timestamp()")

    first = await make("* * * * * report").start()

    since = start_of(recorder)
    assert before <= since <= sql.value("select clock_timestamp()")
    assert sql.run(KNOWN) == [("report", since, None)]
    assert first in minutes(since, since + ONE)
    assert recorder.names == ["cron:starting", "cron:started"]
    assert recorder.events_of(CronStarted)[0].start == since


@pytest.mark.feature("F277")
async def test_at_start_what_was_known_stays_as_it_was(make, sql):
    old = know(sql, "report", since=DAY, last=HOUR)

    await make("* * * * * report").start()

    assert sql.run(KNOWN) == [("report", old.known_since, old.last_execution)]


@pytest.mark.feature("F269", "F270", "F271", "F272", "F273")
async def test_a_tick_adds_due_jobs_and_reports_them(make, sql, recorder):
    scheduler = make("""
      30 4 * * * report ?id=daily&queue=q&max=3&priority=-2&jobKey=k {n: 1, _cron: "mine"}
      * * * * * plain
      31 4 * * * not_yet
    """)

    ids = await scheduler.tick(THEN)

    mark = '"_cron":{"ts":"2024-02-29T04:30:00.000Z","backfilled":false}'
    assert sql.run(JOBS) == [
        ("report", "q", '{"n":1,' + mark + "}", THEN, 3, -2, "k", None),
        ("plain", None, "{" + mark + "}", THEN, 25, 0, None, None),
    ]
    assert list(ids) == ["daily", "plain"]
    (due,), (scheduled,) = recorder.events_of(CronDue), recorder.events_of(CronScheduled)
    assert recorder.names == ["cron:schedule", "cron:scheduled"]
    assert due.timestamp == scheduled.timestamp == THEN
    assert [job.identifier for job in due.jobs] == ["daily", "plain"]
    assert due.jobs == scheduled.jobs
    assert due.jobs[0].spec.run_at == THEN


async def test_a_tick_at_which_nothing_is_due_is_nothing(make, sql, recorder, statements):
    assert await make("31 4 * * * report").tick(THEN) == {}

    assert (recorder.names, statements, count_jobs(sql)) == ([], [], 0)


@pytest.mark.feature("F274")
async def test_of_two_schedulers_one_adds_and_reports(make, sql):
    recorders = [Recorder(), Recorder()]
    pair = [make("* * * * * report", each.hooks) for each in recorders]

    for number in range(20):
        answers = await asyncio.gather(*(each.tick(THEN + number * ONE) for each in pair))
        assert sorted(map(len, answers)) == [0, 1]

    said = [event.jobs for each in recorders for event in each.events_of(CronScheduled)]
    assert sorted(map(len, said)) == [0] * 20 + [1] * 20
    assert [row[0] for row in marks(sql)] == [THEN + number * ONE for number in range(20)]


@pytest.mark.feature("F275")
async def test_of_two_crontabs_with_one_id_only_one_runs_at_a_common_minute(make, sql, recorder):
    first, second = make("* * * * * ours ?id=same"), make("*/2 * * * * theirs ?id=same")

    for number in range(4):
        await first.tick(THEN + number * ONE)
        await second.tick(THEN + number * ONE)
    await second.tick(THEN + 4 * ONE)

    assert [row[0] for row in sql.run(JOBS)] == ["ours"] * 4 + ["theirs"]


@pytest.mark.feature("F266")
async def test_under_another_id_an_item_runs_again_in_the_same_minute(make, sql):
    await make("* * * * * report ?id=old").tick(THEN)
    await make("* * * * * report ?id=old").tick(THEN)
    await make("* * * * * report ?id=new").tick(THEN)

    assert [row[0] for row in marks(sql)] == [THEN, THEN]


async def test_an_early_tick_adds_nothing_and_reports_it(make, sql, recorder):
    soon = sql.value("select date_trunc('minute', now()) + interval '2 minutes'")

    assert await make("* * * * * report").tick(soon) == {}

    assert recorder.events_of(CronScheduled)[0].jobs == ()
    assert sql.run(KNOWN) == []


@pytest.mark.feature("F284")
async def test_a_list_of_items_may_change_while_it_is_used(make):
    items = parse_crontab("* * * * * first")
    scheduler = make(resolve_cron_items({}, cron_items=items))

    assert list(await scheduler.tick(THEN)) == ["first"]
    items += parse_cron_items([CronItem(task="second", match="* * * * *")])
    assert list(await scheduler.tick(THEN + ONE)) == ["first", "second"]
    items[:] = items[1:]
    assert list(await scheduler.tick(THEN + 2 * ONE)) == ["second"]
    items.clear()
    assert await scheduler.tick(THEN + 3 * ONE) == {}


async def test_an_identifier_that_a_changed_list_has_twice_runs_once(make, sql):
    items = parse_crontab("* * * * * report")

    await make(lambda: items + items).tick(THEN)

    assert count_jobs(sql) == 1


DISCARDED = "a trigger of table _private_jobs discards it or divides by zero"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise 'not this one'", "not this one"),
        ("return null", DISCARDED),
        ("perform 1 / 0; return new", DISCARDED),
    ],
)
async def test_an_item_whose_job_is_rejected_delays_no_other(make, sql, recorder, body, reason):
    sql.run(
        "create function refuse() returns trigger language plpgsql as "
        f"$body$ begin {body}; end $body$"
    )
    sql.run(
        "create trigger refuse before insert on :schema._private_jobs for each row "
        "when (new.priority = 13) execute function refuse()"
    )
    texts = ["* * * * * a", "* * * * * b ?priority=13", "* * * * * c"]
    scheduler = make(parse_crontab("\n".join(texts)))

    added = await scheduler.tick(THEN)

    assert set(added) == {"a", "c"}
    (failed,) = recorder.events_of(CronFailed)
    assert failed.identifier == "b"
    assert reason in str(failed.error)


async def test_an_item_that_cannot_say_whether_it_is_due_holds_up_no_other(make, sql, recorder):
    items = [
        CronItem(task="broken", match=lambda digest: bool(1 / 0)),
        CronItem(task="report", match=lambda digest: digest.min == 30),
    ]

    assert list(await make(parse_cron_items(items)).tick(THEN)) == ["report"]

    (failed,) = recorder.events_of(CronFailed)
    assert (failed.identifier, type(failed.error)) == ("broken", ZeroDivisionError)


# Backfill


@pytest.mark.feature("F270", "F271", "F276")
async def test_after_3_hours_with_a_fill_of_1_hour_60_minutes_are_backfilled(make, sql, recorder):
    known = know(sql, "report", since=DAY, last=3 * HOUR)

    await make("* * * * * report ?fill=1h {n: 1}").start()

    start = start_of(recorder)
    due = minutes(start - HOUR, start)
    assert len(due) == 60
    assert marks(sql) == owed(*due)
    assert sql.run(KNOWN) == [("report", known.known_since, due[-1])]
    events = recorder.events_of(CronBackfillDue)
    assert [event.timestamp for event in events] == due
    (job,) = events[0].jobs
    assert (job.known_since, job.last_execution) == (known.known_since, known.last_execution)
    assert job.spec.payload == {"n": 1, "_cron": {"ts": marks(sql)[0][1], "backfilled": True}}


@pytest.mark.feature("F279")
@pytest.mark.parametrize("fill", [1, 2])
async def test_each_backfilled_minute_is_one_statement_before_the_start_ends(
    make, sql, statements, fill
):
    know(sql, "report", since=DAY, last=3 * HOUR)

    await make(f"* * * * * report ?fill={fill}h").start()

    assert statements.count("schedule_jobs") == count_jobs(sql) == 60 * fill


@pytest.mark.feature("F276")
async def test_a_fill_reaches_back_to_the_last_minute_that_ran(make, sql, recorder):
    known = know(sql, "report", since=DAY, last=10 * ONE)
    assert known.last_execution is not None

    await make("* * * * * report ?fill=1h").start()

    assert marks(sql) == owed(*minutes(known.last_execution + ONE, start_of(recorder)))


@pytest.mark.feature("F276", "F277")
async def test_a_fill_reaches_back_to_when_the_item_became_known(make, sql, recorder):
    known = know(sql, "report", since=10 * ONE)

    await make("* * * * * report ?fill=1h").start()

    assert marks(sql) == owed(*minutes(known.known_since, start_of(recorder)))


@pytest.mark.feature("F277")
async def test_a_new_item_is_not_backfilled(make, sql):
    know(sql, "report", since=DAY, last=2 * ONE)

    await make("* * * * * report ?fill=1h\n* * * * * other ?fill=1h").start()

    assert marks(sql, "other") == []
    assert marks(sql) != []


@pytest.mark.feature("F276")
async def test_an_item_without_a_fill_is_not_backfilled(make, sql, recorder):
    know(sql, "report", since=DAY, last=3 * HOUR)

    await make("* * * * * report").start()

    assert count_jobs(sql) == 0
    assert recorder.events_of(CronBackfillDue) == []


@pytest.mark.feature("F277")
async def test_a_changed_item_is_backfilled_in_its_new_form(make, sql, recorder):
    known = know(sql, "mine", since=DAY, last=HOUR)
    before = make("0 0 1 1 * report ?id=mine&fill=2h")
    changed = make("*/5 * * * * other ?id=mine&fill=2h {n: 2}")

    await before.start()
    await changed.start()

    assert known.last_execution is not None
    due = minutes(known.last_execution + ONE, start_of(recorder))
    assert marks(sql, "other") == owed(*(each for each in due if each.minute % 5 == 0))
    # Unless the test runs just then.
    assert marks(sql) == owed(*(each for each in due if f"{each:%m%d%H%M}" == "01010000"))


@pytest.mark.feature("F276")
async def test_items_are_backfilled_by_minute_in_the_order_of_the_crontab(make, sql, recorder):
    for name in ("zebra", "ape"):
        know(sql, name, since=DAY, last=3 * HOUR)

    await make("* * * * * zebra ?fill=20m\n* * * * * ape ?fill=10m").start()

    start = start_of(recorder)
    both = [(each, "zebra") for each in minutes(start - 20 * ONE, start)]
    both += [(each, "ape") for each in minutes(start - 10 * ONE, start)]
    expected = sorted(both, key=lambda pair: (pair[0], pair[1] == "ape"))
    assert [(row[3], row[0]) for row in sql.run(JOBS)] == expected


@pytest.mark.feature("F278")
async def test_a_fill_has_no_other_limit(make, sql, recorder):
    know(sql, "report", since=60 * DAY, last=50 * DAY)

    await make("0 */6 * * * report ?fill=4w").start()

    start = start_of(recorder)
    due = [
        each
        for each in minutes(start - 28 * DAY, start)
        if each.astimezone(UTC).minute == 0 and each.astimezone(UTC).hour % 6 == 0
    ]
    assert len(due) == 4 * 28
    assert marks(sql) == owed(*due)


@pytest.mark.feature("F274", "F276")
async def test_two_schedulers_that_start_together_backfill_each_minute_once(make, sql, recorder):
    known = know(sql, "report", since=DAY, last=40 * ONE)
    pair = [make("* * * * * report ?fill=1h") for _ in range(2)]

    await asyncio.gather(*(each.start() for each in pair))

    assert known.last_execution is not None
    assert marks(sql) == owed(*minutes(known.last_execution + ONE, start_of(recorder)))


@pytest.mark.feature("F276")
async def test_a_backfilled_minute_is_not_backfilled_again(make, sql):
    know(sql, "report", since=DAY, last=5 * ONE)
    await make("* * * * * report ?fill=1h").start()
    ran = sql.value("select last_execution from :schema._private_known_crontabs")
    sql.run("delete from :schema._private_jobs")

    await make("* * * * * report ?fill=1h").start()

    # Unless a minute has begun meanwhile.
    assert [row for row in marks(sql) if row[0] <= ran] == []


# Whatever fails is tried again


async def test_a_scheduler_goes_on_once_the_database_answers_again(make, sql, recorder):
    known = know(sql, "report", since=DAY, last=5 * ONE)
    sql.run("alter table :schema._private_known_crontabs rename last_execution to away")
    running = asyncio.create_task(make("* * * * * report ?fill=1h").run())

    first, second, *_ = await recorder.wait_for(CronFailed, count=2)
    sql.run("alter table :schema._private_known_crontabs rename away to last_execution")
    await recorder.wait_for(CronStarted)
    await end(running)

    assert (first.failures, second.failures, first.identifier) == (1, 2, None)
    assert isinstance(first.error, psycopg.Error)
    assert known.last_execution is not None
    due = minutes(known.last_execution + ONE, start_of(recorder))
    assert marks(sql)[: len(due)] == owed(*due)


@pytest.mark.feature("F273", "F276")
async def test_a_scheduler_that_loses_a_key_to_a_fetch_adds_the_job_all_the_same(
    make, sql, recorder
):
    know(sql, "report", since=DAY, last=2 * HOUR)
    taken = sql.value("select id from :schema.add_job('report', job_key => 'k')")
    fetcher = open_fetch(sql, taken)
    running = asyncio.create_task(make("* * * * * report ?fill=1m&jobKey=k").run())

    await commit_when_blocking(fetcher, sql)
    await recorder.wait_for(CronStarted)
    await end(running)

    last = sql.value("select last_execution from :schema._private_known_crontabs")
    assert marks(sql)[1:] == owed(last)


async def end(running: "asyncio.Task[None]") -> None:
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


# In a worker


def write_crontab(folder: Path, text: str) -> Path:
    path = folder / "crontab"
    path.write_text(text)
    return path


SOURCES: dict[str, Callable[[str, Path], Any]] = {
    "crontab": lambda text, folder: text,
    "crontab_file": lambda text, folder: write_crontab(folder, text),
    "cron_items": lambda text, folder: parse_crontab(text),
}


@pytest.fixture
def options(database) -> WorkerOptions:
    return WorkerOptions(schema=database.schema)


@pytest.mark.feature("F245", "F269", "F270", "F271", "F282", "F283", "F284")
@pytest.mark.parametrize("source", SOURCES)
async def test_a_worker_runs_a_crontab_and_its_tasks_know_for_which_minute(
    database, sql, options, recorder, tmp_path, source
):
    know(sql, "mine", since=DAY, last=3 * HOUR)
    ran: list[tuple[Any, CronRun | None]] = []
    text = "* * * * * report ?id=mine&fill=1m {n: 1}"

    def report(payload: Any, ctx: SyncJobContext) -> None:
        ran.append((payload, ctx.cron))

    given = {source: SOURCES[source](text, tmp_path)}
    tasks = {"report": report}
    async with await run(database.dsn, tasks, options=options, hooks=recorder.hooks, **given):
        await recorder.wait_for(JobSucceeded)

    due = recorder.events_of(CronBackfillDue)[0].timestamp
    ((_, ts, _),) = owed(due)
    assert ran[0] == (
        {"n": 1, "_cron": {"ts": ts, "backfilled": True}},
        CronRun(due, backfilled=True),
    )
    cron = ran[0][1]
    assert cron is not None
    assert cron.ts == due


@pytest.mark.feature("F245", "F269", "F270", "F271", "F278")
async def test_an_app_brings_its_items_and_its_tasks_decide_what_is_too_old(
    database, sql, options, recorder
):
    app = App(database.dsn, schema=database.schema)
    kept: list[tuple[int, CronRun]] = []

    @app.cron("* * * * *", id="often", backfill=5 * ONE, payload={"n": 1})
    @app.task
    async def report(ctx: JobContext, n: int) -> None:
        assert ctx.cron is not None
        if ctx.cron.ts > recorder.events_of(CronStarting)[0].start - 2 * ONE:
            kept.append((n, ctx.cron))

    know(sql, "often", since=DAY, last=HOUR)
    async with app, await run(database.dsn, app, options=options, hooks=recorder.hooks):
        await recorder.wait_for(JobSucceeded, count=5)

    start = start_of(recorder)
    due = minutes(start - 2 * ONE, start)
    assert len(recorder.events_of(CronBackfillDue)) == 5
    expected = [(1, CronRun(each, backfilled=True)) for each in due]
    made_up_for = [each for each in kept if each[1].backfilled]
    assert sorted(made_up_for, key=lambda each: each[1].ts) == expected


@pytest.mark.feature("F271")
async def test_a_task_knows_a_minute_that_was_not_made_up_for_and_a_job_of_no_minute(
    database, options, recorder, make
):
    ran: list[CronRun | None] = []

    def report(payload: Any, ctx: SyncJobContext) -> None:
        ran.append(ctx.cron)

    tasks = {"report": report}
    async with await run(database.dsn, tasks, options=options, hooks=recorder.hooks) as runner:
        await make("30 4 * * * report").tick(THEN)
        await recorder.wait_for(JobSucceeded)
        await runner.add_job("report", {"_cron": "not ours"})
        await recorder.wait_for(JobSucceeded, count=2)

    assert ran == [CronRun(THEN, backfilled=False), None]


async def test_a_worker_makes_its_items_known(database, sql, options, recorder):
    tasks = {"report": print}

    async with await run(
        database.dsn, tasks, crontab="0 0 1 1 * report", options=options, hooks=recorder.hooks
    ):
        await recorder.wait_for(CronStarted)

    assert [(row[0], row[2]) for row in sql.run(KNOWN)] == [("report", None)]


async def test_a_cron_item_of_an_unknown_task_is_a_warning_at_start(
    database, options, recorder, caplog
):
    caplog.set_level(logging.WARNING, logger="graphile_worker")
    crontab = "0 0 1 1 * report\n0 0 1 1 * missing ?id=odd"

    async with await run(
        database.dsn, {"report": print}, crontab=crontab, options=options, hooks=recorder.hooks
    ):
        await recorder.wait_for(CronStarted)

    said = [record.getMessage() for record in caplog.records if "cron" in record.getMessage()]
    assert len(said) == 1
    assert "'odd'" in said[0]
    assert "'missing'" in said[0]


@pytest.mark.parametrize("by", ["run_once", "Runner.run_once"])
async def test_a_worker_that_runs_once_schedules_nothing(database, sql, options, recorder, by):
    app = App(database.dsn, schema=database.schema)
    app.cron("* * * * *", backfill=HOUR)(app.task(name="report")(lambda: None))
    know(sql, "report", since=DAY, last=3 * HOUR)
    before = sql.run(KNOWN)
    given = partial(Runner, database.dsn, app, options=options, hooks=recorder.hooks)

    async with app:
        if by == "run_once":
            count = await run_once(database.dsn, app, options=options, hooks=recorder.hooks)
        else:
            count = await given(crontab="* * * * * report ?id=other").run_once()

    assert (count, count_jobs(sql), sql.run(KNOWN)) == (0, 0, before)
    assert [name for name in recorder.names if name.startswith("cron:")] == []


@pytest.mark.feature("F282", "F283", "F284")
@pytest.mark.parametrize(
    "given",
    [
        {"crontab": "", "cron_items": []},
        {"crontab": "", "crontab_file": "crontab"},
        {"crontab_file": "crontab", "cron_items": []},
    ],
    ids=" and ".join,
)
async def test_items_come_from_one_place(database, options, given):
    with pytest.raises(ConfigurationError, match="one of crontab, crontab_file and cron_items"):
        await run(database.dsn, {"report": print}, options=options, **given)


@pytest.mark.feature("F284")
async def test_an_item_that_was_not_parsed_is_rejected(database, options):
    items: Any = [CronItem(task="report", match="* * * * *")]

    with pytest.raises(ConfigurationError, match="parse_cron_items"):
        await run(database.dsn, {"report": print}, cron_items=items, options=options)


@pytest.mark.feature("F283")
async def test_a_missing_crontab_file_is_rejected(database, options, tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        await run(
            database.dsn, {"report": print}, crontab_file=tmp_path / "nowhere", options=options
        )


@pytest.mark.feature("F284")
async def test_a_worker_reads_its_items_each_time_that_cron_starts(
    database, sql, options, recorder
):
    items: list[ParsedCronItem] = []
    sql.run("alter table :schema._private_known_crontabs rename last_execution to away")

    async with await run(
        database.dsn, {"report": print}, cron_items=items, options=options, hooks=recorder.hooks
    ):
        await recorder.wait_for(CronFailed)
        items += parse_crontab("0 0 1 1 * report")
        sql.run("alter table :schema._private_known_crontabs rename away to last_execution")
        await wait_until(lambda: [row[0] for row in sql.run(KNOWN)] == ["report"])

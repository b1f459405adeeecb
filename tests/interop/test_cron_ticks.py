"""The same crontab in Python and Node: each tick happens once, and each backfills for the other."""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

import psycopg
import pytest

from graphile_worker import Hooks, ParsedCronItem, parse_crontab
from graphile_worker._cron.scheduler import CronScheduler
from graphile_worker._db.psycopg import PsycopgConnection, PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas, quote_identifier
from tests.conftest import TestDatabase
from tests.support.node import node_command
from tests.support.processes import Programs, eventually
from tests.support.recorder import wait_until
from tests.support.sql import Sql
from tests.support.tiers import size
from tests.support.tools import MODULES

T = TypeVar("T")

ONE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
THEN = datetime(2024, 2, 28, 22, 0, tzinfo=UTC)

ITEMS = ("ape", "bee", "mole", "zebra")
MINUTES = size(gate=50, nightly=500)
TICKS = len(ITEMS) * MINUTES
PYTHON, NODE = 17, 8

TICKS_FOUND = """
select tasks.identifier, jobs.run_at, payload -> '_cron' ->> 'ts',
  payload -> '_cron' ->> 'backfilled'
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
order by jobs.id
"""
JOBS = """
select tasks.identifier, job_queues.queue_name, jobs.payload::text, jobs.run_at,
  jobs.max_attempts, jobs.priority, jobs.key, jobs.revision, jobs.attempts, jobs.flags::text
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id
"""
WAITING = """
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'
"""
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"
KNOWN = """
select identifier, known_since, last_execution from :schema._private_known_crontabs
order by identifier
"""


# Schedulers with their own connection, that may die


class Scheduler(Protocol):
    async def offer(self, connection: psycopg.AsyncConnection, minute: datetime) -> int:
        """Add what is due at this minute; how many jobs that gave."""
        ...


class PythonScheduler:
    def __init__(self, schema: str, items: Sequence[str]) -> None:
        self._schemas = Schemas.from_names(schema)
        self._items = crontab_of(items)

    async def offer(self, connection: psycopg.AsyncConnection, minute: datetime) -> int:
        answering = PsycopgConnection(connection, self._schemas)
        return len(await CronScheduler(answering, lambda: self._items, Hooks()).tick(minute))


class NodeScheduler:
    """The statement that the package issues, with what it gives it."""

    def __init__(self, schema: str, items: Sequence[str]) -> None:
        self._text = node_statement(schema).encode()
        self._items = items

    async def offer(self, connection: psycopg.AsyncConnection, minute: datetime) -> int:
        ts = f"{minute:%Y-%m-%dT%H:%M}:00.000Z"
        jobs = [{"identifier": each, "job": node_job(each, ts)} for each in self._items]
        listing = json.dumps(jobs, separators=(",", ":"))
        async with psycopg.AsyncRawCursor(connection) as cursor:
            await cursor.execute(self._text, (listing, ts, None))
            return cursor.rowcount


def node_statement(schema: str) -> str:
    """How the reference schedules, word for word."""
    source = (MODULES / "gw018" / "dist" / "cron.js").read_text()
    (text,) = re.findall(r"text: `([^`]*)`", source)
    filled: str = text.replace("${escapedWorkerSchema}", quote_identifier(schema))
    assert "_private_known_crontabs" in filled
    assert "${" not in filled
    return filled


def node_job(task: str, ts: str) -> dict[str, Any]:
    """As its `makeJobForItem` does for an item without options."""
    return {"task": task, "payload": {"_cron": {"ts": ts, "backfilled": False}}, "runAt": ts}


def crontab_of(items: Sequence[str]) -> list[ParsedCronItem]:
    return parse_crontab("\n".join(f"* * * * * {each}" for each in items))


class Mortal:
    """A scheduler and its connection, and how it fared."""

    def __init__(self, dsn: str, scheduler: Scheduler, connection: psycopg.AsyncConnection) -> None:
        self.added = 0
        self.deaths = 0
        self.deaths_with_jobs = 0
        self._dsn = dsn
        self._scheduler = scheduler
        self._connection = connection

    async def get_ready(self) -> None:
        if self._connection.closed:
            self._connection = await psycopg.AsyncConnection.connect(self._dsn)

    async def live(self, minute: datetime) -> None:
        added = await self._scheduler.offer(self._connection, minute)
        await self._connection.commit()
        self.added += added

    async def live_or_lose(self, minute: datetime) -> None:
        """The same, where a deadlock may end it."""
        try:
            await self.live(minute)
        except psycopg.errors.DeadlockDetected:
            await self._connection.rollback()

    async def die(self, minute: datetime, *, by: str) -> None:
        """Send the statement and die before the commit."""
        added = await self._scheduler.offer(self._connection, minute)
        self.deaths += 1
        self.deaths_with_jobs += added > 0
        if by == "rollback":
            await self._connection.rollback()
            return
        with suppress(psycopg.errors.AdminShutdown):
            await self._connection.execute("select pg_terminate_backend(pg_backend_pid())")

    async def close(self) -> None:
        await self._connection.close()


@asynccontextmanager
async def fleet(dsn: str, *schedulers: Scheduler) -> AsyncIterator[list[Mortal]]:
    connect = psycopg.AsyncConnection.connect
    fleet = [Mortal(dsn, each, await connect(dsn)) for each in schedulers]
    yield fleet
    for each in fleet:
        await each.close()


@pytest.fixture
def behind(either_database) -> Iterator[Sql]:
    with closing(Sql(either_database.dsn, either_database.schema)) as sql:
        yield sql


@pytest.mark.feature("F274")
@pytest.mark.single_version
@pytest.mark.timeout(400)
async def test_each_tick_of_25_schedulers_happens_once(database, sql, figure):
    dsn, schema = database.dsn, database.schema
    dice = random.Random(2000)
    languages = [PythonScheduler(schema, ITEMS)] * PYTHON, [NodeScheduler(schema, ITEMS)] * NODE

    async with fleet(dsn, *languages[0], *languages[1]) as everybody:
        for number in range(MINUTES):
            # Minute after minute, as time goes; within a minute anybody may come first, or die.
            order = dice.sample(everybody, len(everybody))
            await asyncio.gather(*(each.get_ready() for each in order))
            dying = set(dice.sample(range(PYTHON + NODE), dice.randrange(10)))
            await asyncio.gather(
                *(
                    each.die(THEN + number * ONE, by=dice.choice(("rollback", "termination")))
                    if index in dying
                    else each.live(THEN + number * ONE)
                    for index, each in enumerate(order)
                )
            )
        added = [sum(each.added for each in some) for some in halves(everybody)]
        deaths = sum(each.deaths for each in everybody)
        deaths_with_jobs = sum(each.deaths_with_jobs for each in everybody)

    found = Counter((task, at) for task, at, _, _ in sql.run(TICKS_FOUND))
    wanted = {(item, THEN + number * ONE) for item in ITEMS for number in range(MINUTES)}
    missing, double = wanted - found.keys(), found.total() - len(found)
    figure(
        f"{TICKS} ticks over {PYTHON} schedulers of Python and {NODE} of Node: {len(missing)} "
        f"missing, {double} double; Python added {added[0]}, Node {added[1]}; {deaths} died before "
        f"their commit, {deaths_with_jobs} of them with jobs in hand"
    )
    assert (set(found), double) == (wanted, 0)
    assert sum(added) == TICKS
    # Else it was not about them.
    assert min(*added, deaths_with_jobs) > 0
    assert_marked(sql)


def halves(everybody: list[Mortal]) -> tuple[list[Mortal], list[Mortal]]:
    return everybody[:PYTHON], everybody[PYTHON:]


def assert_marked(sql: Sql) -> None:
    for _, at, ts, backfilled in sql.run(TICKS_FOUND):
        assert (ts, backfilled) == (f"{at:%Y-%m-%dT%H:%M}:00.000Z", "false")


@pytest.mark.feature("F274")
async def test_a_deadlock_with_node_costs_an_error_and_no_tick(either_database, behind):
    """Both take the items in the order of their crontab, and these are of opposite orders."""
    dsn, schema = either_database.dsn, either_database.schema
    behind.run(f"alter database {either_database.name} set deadlock_timeout = '20ms'")
    ours = PsycopgDatabase(dsn, Schemas.from_names(schema))
    python = CronScheduler(ours, lambda: crontab_of(ITEMS), Hooks())
    minutes = [THEN + number * ONE for number in range(10)]

    async with fleet(dsn, NodeScheduler(schema, ITEMS[::-1])) as (node,):
        for minute in minutes:
            # Both take what comes before it and then wait for each other.
            holder = hold(behind, "bee")
            acting = asyncio.gather(python.tick(minute), node.live_or_lose(minute))
            await wait_until(lambda: behind.value(WAITING) == 2)
            holder.run("commit")
            holder.close()
            await acting
    await ours.close()

    # Printed once their connections are closed.
    await wait_until(lambda: behind.value(DEADLOCKS) >= len(minutes))
    found = Counter((task, at) for task, at, _, _ in behind.run(TICKS_FOUND))
    assert found == {(item, minute): 1 for item in ITEMS for minute in minutes}


@pytest.mark.feature("F274")
async def test_one_crontab_never_deadlocks_with_node(either_database, behind):
    dsn, schema = either_database.dsn, either_database.schema
    ours = PsycopgDatabase(dsn, Schemas.from_names(schema))
    order = ITEMS[::-1]
    python = CronScheduler(ours, lambda: crontab_of(order), Hooks())

    async with fleet(dsn, NodeScheduler(schema, order)) as (node,):
        for number in range(10):
            holder = hold(behind, "bee")
            acting = asyncio.gather(
                python.tick(THEN + number * ONE), node.live(THEN + number * ONE)
            )
            await wait_until(lambda: behind.value(WAITING) == 2)
            holder.run("commit")
            holder.close()
            # Neither gets an error.
            await acting
    await ours.close()


def hold(sql: Sql, identifier: str) -> Sql:
    """A session that has taken an item and not committed yet."""
    holder = sql.another()
    holder.run("begin")
    holder.run(
        "insert into :schema._private_known_crontabs as known (identifier, known_since) "
        "values ($1, now()) on conflict (identifier) do update set known_since = now()",
        identifier,
    )
    return holder


# Backfill of what the other made known


class Node:
    """Worker processes of the reference; their tasks are not those of the crontab."""

    def __init__(self, programs: Programs, database: TestDatabase) -> None:
        self._programs = programs
        self._database = database
        # So that what it adds stays to be seen.
        programs.write("tasks/something_else.js", "module.exports = async () => {};\n")

    def run(self, crontab: str, is_enough: Callable[[], object], what: str) -> None:
        """Let a worker run until something is so, and no longer."""
        path = self._programs.write("the.crontab", crontab)
        command = node_command(
            "0.18", self._database.url, "--crontab", str(path), schema=self._database.schema
        )
        program = self._programs.start(command, {})

        def look() -> object:
            found = is_enough()
            assert found or program.is_running, program.out + program.err
            return found

        try:
            eventually(look, what)
        finally:
            program.kill()


@pytest.fixture
def node(either_database, tmp_path) -> Iterator[Node]:
    with Programs(tmp_path) as programs:
        yield Node(programs, either_database)


async def start_ours(database: TestDatabase, crontab: str) -> None:
    ours = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema))
    items = parse_crontab(crontab)
    await CronScheduler(ours, lambda: items, Hooks()).start()
    await ours.close()


def in_one_minute(sql: Sql, act: Callable[[], T]) -> tuple[datetime, T]:
    """Return the result of an act and its minute; repeat it if the minute ended meanwhile."""
    while True:
        minute = this_minute(sql)
        found = act()
        if this_minute(sql) == minute:
            return minute, found


def this_minute(sql: Sql) -> datetime:
    minute: datetime = sql.value("select date_trunc('minute', clock_timestamp())")
    return minute


def begin_anew(sql: Sql) -> None:
    sql.run("delete from :schema._private_jobs")
    sql.run("delete from :schema._private_known_crontabs")


def three_hours_later(sql: Sql) -> None:
    """Move the last execution into the past, as if no worker had run."""
    sql.run("""
      update :schema._private_known_crontabs
      set known_since = known_since - interval '3 hours',
        last_execution = last_execution - interval '3 hours'
    """)
    sql.run("delete from :schema._private_jobs")


def count_of(sql: Sql, task: str) -> int:
    count: int = sql.value("select count(*) from :schema.jobs where task_identifier = $1", task)
    return count


def known(sql: Sql) -> list[str]:
    return [identifier for identifier, _, _ in sql.run(KNOWN)]


def owed(task: str, minutes: int, now: datetime) -> list[tuple[str, datetime, str, str]]:
    """The last minutes up to now, as jobs that were added late say it."""
    due = [now - number * ONE for number in reversed(range(minutes))]
    return [(task, each, f"{each:%Y-%m-%dT%H:%M}:00.000Z", "true") for each in due]


BACKFILLED = "* * * * * report ?fill=1h\n"


@pytest.mark.feature("F276", "F277")
@pytest.mark.timeout(200)
def test_python_backfills_crontabs_that_node_registered(either_database, behind: Sql, node: Node):
    def act() -> list[tuple[Any, ...]]:
        begin_anew(behind)
        node.run(BACKFILLED, lambda: known(behind) == ["report"], "the item made known")
        three_hours_later(behind)
        asyncio.run(start_ours(either_database, BACKFILLED))
        return behind.run(TICKS_FOUND)

    now, found = in_one_minute(behind, act)

    assert found == owed("report", 60, now)


@pytest.mark.feature("F276", "F277")
@pytest.mark.timeout(200)
def test_node_backfills_crontabs_that_python_registered(either_database, behind: Sql, node: Node):
    def act() -> list[tuple[Any, ...]]:
        begin_anew(behind)
        asyncio.run(start_ours(either_database, BACKFILLED))
        assert (known(behind), count_of(behind, "report")) == (["report"], 0)
        three_hours_later(behind)
        node.run(BACKFILLED, lambda: count_of(behind, "report") >= 60, "sixty jobs added")
        return behind.run(TICKS_FOUND)

    now, found = in_one_minute(behind, act)

    assert found == owed("report", 60, now)


# The same past, made up for by each

SAME = r"""
* * * * * each_minute ?fill=1h {"text": "ünï \"quoted\"", "_cron": 1, "n": [1, 2.5, null]}
*/7 * * * * sevens ?fill=1h&queue=in:turn&max=3&priority=-2
*/5 * * * * kept_in_place ?fill=1h&jobKey=a&jobKeyMode=preserve_run_at
*/5 * * * * replaced ?fill=1h&jobKey=b {of: "b"}
* * * * * ran_of_late ?fill=1h
* * * * * never_ran ?fill=1h
*/2 * * * * changed ?id=another_task_before&fill=1h
* * * * * short_fill ?fill=2m60s
* * * * * of_a_minute ?fill=60s
* * * * * on_the_minute ?fill=1h
* * * * * without_fill
* * * * * new ?fill=1h
"""

PREPARE = """
insert into :schema._private_known_crontabs (identifier, known_since, last_execution)
select identifier, $1 - since, date_trunc('minute', $1 - last)
from (
  values
    ('each_minute', interval '1 day', interval '3 hours'),
    ('sevens', interval '1 day', interval '3 hours'),
    ('kept_in_place', interval '1 day', interval '3 hours'),
    ('replaced', interval '1 day', interval '3 hours'),
    ('ran_of_late', interval '1 day', interval '10 minutes'),
    ('never_ran', interval '20 minutes 30 seconds', null),
    ('another_task_before', interval '1 day', interval '30 minutes'),
    ('short_fill', interval '1 day', interval '3 hours'),
    ('of_a_minute', interval '1 day', interval '3 hours'),
    ('on_the_minute', interval '15 minutes', null),
    ('without_fill', interval '1 day', interval '3 hours'),
    ('no longer in the crontab', interval '1 day', interval '3 hours')
) as prepared (identifier, since, last)
"""


@pytest.mark.feature("F276", "F277")
@pytest.mark.timeout(200)
def test_node_and_python_backfill_the_same_jobs(database, node_database, tmp_path):
    def act() -> list[list[tuple[Any, ...]]]:
        minute = this_minute(ours)
        for sql in (ours, theirs):
            begin_anew(sql)
            sql.run(PREPARE, minute)
        node.run(SAME, lambda: count_of(theirs, "each_minute") >= 60, "sixty jobs added")
        asyncio.run(start_ours(database, SAME))
        return [sql.run(query) for query in (JOBS, KNOWN) for sql in (ours, theirs)]

    with (
        closing(Sql(database.dsn, database.schema)) as ours,
        closing(Sql(node_database.dsn, node_database.schema)) as theirs,
        Programs(tmp_path) as programs,
    ):
        node = Node(programs, node_database)
        now, found = in_one_minute(ours, act)

    jobs, node_jobs, rows, node_rows = found
    assert jobs == node_jobs
    assert without_moments(rows, "new") == without_moments(node_rows, "new")
    counts = Counter(job[0] for job in jobs)
    assert (counts["each_minute"], counts["ran_of_late"], counts["never_ran"]) == (60, 10, 21)
    assert (counts["short_fill"], counts["of_a_minute"], counts["on_the_minute"]) == (3, 1, 16)
    assert (counts["new"], counts["without_fill"]) == (0, 0)
    assert max(job[3] for job in jobs if job[0] == "each_minute") == now


def without_moments(rows: list[tuple[Any, ...]], identifier: str) -> list[tuple[Any, ...]]:
    """What is known, but for the moment at which this item became so."""
    return [(each[0], *each[2:]) if each[0] == identifier else each for each in rows]

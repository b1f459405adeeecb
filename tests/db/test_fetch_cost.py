"""A fetch costs what it takes, whatever else lies in the tables, and finds the best jobs there.

Each obstacle is of a kind that one way to find candidates cannot see past; behind it lie the same
few jobs, which have to come out in their order.
"""

import asyncio
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import (
    NO_BYTE_LIMIT,
    JobPosition,
    claim_jobs,
    claim_jobs_around,
    claim_plain_jobs,
    claim_soonest_jobs,
    complete_claimed_jobs,
    get_task_ids,
    register_tasks,
)
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes
from graphile_worker._worker.fetch_strategy import JobFetcher
from tests.support.pools import Pool, open_pool, open_session, payloads
from tests.support.sql import Sql
from tests.support.tiers import size

# Heavy: the nightly tier runs it on the other versions.
pytestmark = pytest.mark.single_version

FLAG = "no"

# How many rows the statement reads in one go before it tries another way: see claim_jobs.sql.
FAR = 8000


@pytest.fixture(params=["indexed", "unindexed"])
def pool(request, pool: Pool) -> Pool:
    """It takes jobs by the one statement or the other."""
    pool.has_indexes = request.param == "indexed"
    return pool


@pytest.fixture
def indexed_pool(database) -> Iterator[Pool]:
    with open_pool(database) as pool:
        assert pool.has_indexes
        yield pool


class Filler:
    """Fills the tables with jobs of the pool's task, or of another."""

    def __init__(self, sql: Sql) -> None:
        self.sql = sql
        self.sql.run("insert into :schema._private_tasks (identifier) values ('other')")

    def queues(self, prefix: str, count: int, *, locked: bool = False) -> None:
        self.sql.run(
            "insert into :schema._private_job_queues (queue_name, locked_at, locked_by) "
            "select $1 || n, case when $3 then now() end, case when $3 then 'another' end "
            "from generate_series(0, $2::int - 1) as n",
            prefix,
            count,
            locked,
        )

    def jobs(
        self,
        count: int,
        *,
        task: str = "task",
        queues: str | None = None,
        of: int = 1,
        priority: int = 0,
        due: str = "-1 hour",
        attempts: int = 0,
        flag: str | None = None,
    ) -> None:
        """So many jobs, in turn in `of` queues of that prefix; their payloads count from 0."""
        self.sql.run(
            "insert into :schema._private_jobs "
            "(task_id, job_queue_id, payload, priority, run_at, attempts, flags) "
            "select tasks.id, job_queues.id, to_json(n), $5::int, now() + $6::text::interval, "
            "$7::int, jsonb_build_object($8::text, true) "
            "from generate_series(0, $1::int - 1) as n "
            "join :schema._private_tasks as tasks on tasks.identifier = $2 "
            "left join :schema._private_job_queues as job_queues "
            "on job_queues.queue_name = $3 || (n % $4::int) "
            "order by n",
            *(count, task, queues, of, priority, due, attempts, flag or "yes"),
        )

    def vacuum(self) -> None:
        self.sql.run("vacuum analyze :schema._private_jobs")
        self.sql.run("vacuum analyze :schema._private_job_queues")


@pytest.fixture
def fill(sql, database) -> Filler:
    return Filler(sql)


def nothing(fill: Filler) -> None: ...


def foreign_jobs(fill: Filler) -> None:
    fill.jobs(300, task="other", priority=-3)


def two_stuck_queues(fill: Filler) -> None:
    fill.queues("stuck", 2, locked=True)
    fill.jobs(300, queues="stuck", of=2, priority=-3)


def future_jobs(fill: Filler) -> None:
    fill.jobs(300, priority=-3, due="1 day")


def failed_jobs(fill: Filler) -> None:
    fill.jobs(300, priority=-3, attempts=25)


def flagged_jobs(fill: Filler) -> None:
    fill.jobs(300, priority=-3, flag=FLAG)


def stuck_queues(fill: Filler) -> None:
    fill.queues("stuck", 300, locked=True)
    fill.jobs(300, queues="stuck", of=300, priority=-3)


def stuck_and_flagged_queues(fill: Filler) -> None:
    stuck_queues(fill)
    fill.queues("flagged", 300)
    fill.jobs(300, queues="flagged", of=300, priority=-3, flag=FLAG)


def foreign_jobs_and_many_queues(fill: Filler) -> None:
    fill.jobs(FAR + 10, task="other", priority=-3)
    fill.queues("later", 300)
    fill.jobs(300, queues="later", of=300, priority=9)


def many_jobs_of_stuck_queues(fill: Filler) -> None:
    fill.queues("stuck", 300, locked=True)
    fill.jobs(FAR + 10, queues="stuck", of=300, priority=-3)


# By which way candidates are found for one job.
NEAR, FAR_AWAY, LANES, ALL_QUEUES = range(4)
OBSTACLES: dict[Callable[[Filler], None], int] = {
    nothing: NEAR,
    failed_jobs: NEAR,
    foreign_jobs: ALL_QUEUES,
    two_stuck_queues: ALL_QUEUES,
    future_jobs: ALL_QUEUES,
    flagged_jobs: ALL_QUEUES,
    stuck_queues: FAR_AWAY,
    stuck_and_flagged_queues: ALL_QUEUES,
    foreign_jobs_and_many_queues: LANES,
    many_jobs_of_stuck_queues: ALL_QUEUES,
}
each_obstacle = pytest.mark.parametrize("obstacle", OBSTACLES, ids=lambda each: each.__name__)
each_barren_obstacle = pytest.mark.parametrize(
    "obstacle",
    [each for each in OBSTACLES if each is not foreign_jobs_and_many_queues],
    ids=lambda each: each.__name__,
)

# (payload, queue, priority, seconds ago): in the order of payloads, but added in another.
READY = [
    (3, "b", 0, 30),
    (0, None, -2, 10),
    (5, None, 0, 20),
    (1, "a", -1, 40),
    (7, "c", 1, 90),
    (4, None, 0, 30),
    (2, None, -1, 10),
    (6, "d", 0, 10),
]


def add_ready(sql: Sql) -> None:
    for payload, queue, priority, ago in READY:
        sql.run(
            "select :schema.add_job('task', to_json($1::int), $2, "
            "now() - make_interval(secs => $4::int), priority := $3)",
            payload,
            queue,
            priority,
            ago,
        )
    # Those of one moment go by their ids, and number 3 was added before number 4.
    sql.run(
        "update :schema._private_jobs as jobs set run_at = other.run_at "
        "from :schema._private_jobs as other where other.payload::text = '3' "
        "and jobs.payload::text = '4' and jobs.task_id = other.task_id and jobs.priority = 0 "
        "and other.priority = 0 and jobs.run_at > now() - interval '1 minute' "
        "and other.run_at > now() - interval '1 minute'"
    )


# What is taken


@pytest.mark.feature("F89", "F90", "F91", "F95")
@pytest.mark.parametrize("limit", size(gate=[1, 100], nightly=[1, 3, 100]))
@each_obstacle
def test_the_best_jobs_come_first_behind_any_other_rows(pool, sql, fill, obstacle, limit):
    obstacle(fill)
    add_ready(sql)

    taken: list[Any] = []
    while len(taken) < len(READY):
        batch = payloads(pool.claim(limit, skip_flags=[FLAG]))
        assert batch, f"nothing after {taken}"
        assert len(batch) <= limit
        taken += batch

    assert taken[: len(READY)] == list(range(len(READY)))


@each_barren_obstacle
def test_with_nothing_behind_an_obstacle_nothing_is_taken(pool, fill, obstacle):
    obstacle(fill)

    assert pool.claim(1, skip_flags=[FLAG]) == []
    assert pool.claim(100, skip_flags=[FLAG]) == []


@each_obstacle
def test_every_way_to_find_candidates_is_gone_by_some(indexed_pool, sql, fill, obstacle):
    obstacle(fill)
    add_ready(sql)

    way = way_of(explained(sql, indexed_pool, 1))

    assert way == OBSTACLES[obstacle]


@pytest.mark.feature("F91")
@each_barren_obstacle
def test_a_queue_gives_one_job_at_a_time_behind_any_obstacle(pool, fill, obstacle):
    obstacle(fill)
    fill.queues("mine", 3)
    fill.jobs(30, queues="mine", of=3)

    assert payloads(pool.claim(25, skip_flags=[FLAG])) == [0, 1, 2]
    assert pool.claim(25, skip_flags=[FLAG]) == []


def test_five_hundred_jobs_of_many_queues_are_taken_in_one_go(pool, fill):
    fill.queues("mine", 500)
    fill.jobs(5000, queues="mine", of=500)

    assert payloads(pool.claim(500)) == list(range(500))


# While others take jobs too


@pytest.mark.feature("F95")
@each_barren_obstacle
def test_a_job_behind_one_whose_row_is_locked_is_found(pool, sql, fill, obstacle):
    obstacle(fill)
    fill.queues("mine", 1)
    fill.jobs(2, queues="mine")

    with sql.connection.transaction():
        sql.run(
            "select from :schema._private_jobs as jobs "
            "join :schema._private_job_queues as queues on queues.id = jobs.job_queue_id "
            "where queue_name = 'mine0' and payload::text = '0' for update of jobs"
        )
        taken = payloads(pool.claim(1, skip_flags=[FLAG]))

    assert taken == [1]


@pytest.mark.feature("F95")
@pytest.mark.parametrize("queues", size(gate=[400], nightly=[0, 400]))
@each_obstacle
def test_a_fetch_that_is_not_over_hides_nothing_behind_an_obstacle(
    pool, database, fill, obstacle, queues
):
    obstacle(fill)
    if queues:
        fill.queues("mine", queues)
    fill.jobs(400, queues="mine" if queues else None, of=queues or 1)

    with open_session(database) as other, other.transaction() as unfinished:
        first = payloads(pool.with_id("first", unfinished).claim(1, skip_flags=[FLAG]))
        second = payloads(pool.with_id("second").claim(1, skip_flags=[FLAG]))

    assert (first, second) == ([0], [1])


@pytest.mark.feature("F5", "F95")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fetchers", "limit"), size(gate=[(8, 10)], nightly=[(2, 1), (2, 10), (8, 1), (8, 10)])
)
def test_a_fetch_is_never_empty_while_a_job_can_run(pool, database, fill, fetchers, limit):
    jobs, queues = size(gate=(1500, 500), nightly=(3000, 1000))
    fill.queues("mine", queues)
    fill.jobs(jobs, queues="mine", of=queues)
    left = Left(jobs)

    def work(number: int) -> int:
        with open_session(database) as connection:
            mine = pool.with_id(f"pool-{number}", connection)
            # No more are held at once than this: while so many are left, one of them can be run.
            while left.jobs > fetchers * limit * 4:
                held = mine.claim(limit)
                assert held, f"an empty answer while {left.jobs} jobs are left"
                left.take(len(held))
                mine.finish(*held)
        return number

    with ThreadPoolExecutor(fetchers) as threads:
        assert list(threads.map(work, range(fetchers))) == list(range(fetchers))


class Left:
    """How many jobs nobody has been given yet."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        with self._lock:
            self.jobs -= count


# What it costs


def beside(fill: Filler) -> dict[str, Callable[[], None]]:
    """Small versions of the tables that are measured in benchmarks/tables.py."""

    def in_queues(count: int, *, locked: bool, **more: Any) -> None:
        fill.queues("locked" if locked else "free", count, locked=locked)
        fill.jobs(count, queues="locked" if locked else "free", of=count, **more)

    def two_queues() -> None:
        fill.queues("locked", 2, locked=True)
        fill.jobs(10_000, queues="locked", of=2)

    return {
        "foreign": lambda: fill.jobs(20_000, task="other"),
        "stuck": two_queues,
        "future": lambda: fill.jobs(20_000, priority=-1, due="1 day"),
        "failed": lambda: fill.jobs(20_000, attempts=25),
        "own": lambda: fill.jobs(20_000),
        "idle queues": lambda: fill.queues("idle", 20_000),
        "own queues": lambda: in_queues(5_000, locked=False),
        "stuck queues": lambda: in_queues(2_000, locked=True, priority=-3),
    }


TABLES = list(beside(Filler.__new__(Filler)))

STATEMENTS = ("claim_first_job", "claim_plain_jobs", "claim_soonest_jobs", "claim_jobs")
MODES = ("force_generic_plan", "force_custom_plan")
NO_PLACE = f"null, null, null, {NO_BYTE_LIMIT}"


@pytest.mark.parametrize("table", size(gate=TABLES[1::2], nightly=TABLES))
def test_a_fetch_reads_no_more_pages_for_what_lies_beside(indexed_pool, sql, fill, table):
    def pages(statement: str, mode: str) -> tuple[int, ...]:
        sql.run("select set_config('plan_cache_mode', $1, false)", mode)
        # One that was made for another table is the concern of another test.
        sql.run("discard plans")
        how = "analyze, buffers"
        plans = (explained_again(sql, indexed_pool, limit, statement, how) for limit in (1, 100))
        return tuple(map(pages_of, plans))

    # All on one table, as it is the making that takes long.
    ways = [(statement, mode) for statement in STATEMENTS for mode in MODES]
    prepare_all(sql)
    sql.run("analyze")
    fill.jobs(2_000, due="-1 minute")
    clean = {way: pages(*way) for way in ways}

    # First with the statistics of the empty table, then with those of the full one.
    beside(fill)[table]()
    for prepare in (lambda: None, fill.vacuum):
        prepare()
        found = {way: pages(*way) for way in ways}

        # Of a table of thousands of pages: a few more for each way that is tried.
        assert {way: found[way] for way in ways if found[way][0] > clean[way][0] + 600} == {}
        assert {way: found[way] for way in ways if found[way][1] > 3 * clean[way][1] + 600} == {}


@pytest.mark.parametrize("table", size(gate=["own", "stuck queues"], nightly=TABLES))
def test_the_server_keeps_one_plan_and_takes_it_for_a_cheap_one(sql, fill, indexed_pool, table):
    fill.jobs(2_000, due="-1 minute")
    beside(fill)[table]()
    fill.vacuum()
    prepare_all(sql)

    costs = {
        (statement, limit): explained_again(sql, indexed_pool, limit, statement)["Total Cost"]
        for statement in STATEMENTS
        for limit in (1, 500, 1, 100, 1, 500, 1, 500) * 2
    }

    # From 100,000 on, a server that can would compile it, each time.
    assert {way: cost for way, cost in costs.items() if cost >= 50_000} == {}
    kept = sql.run("select generic_plans > custom_plans from pg_prepared_statements where from_sql")
    assert kept == [(True,)] * len(STATEMENTS)


def prepare_all(sql: Sql, statements: Iterable[str] = STATEMENTS) -> None:
    """Every statement under its own name, as only what was prepared has a plan that is kept."""
    for statement in statements:
        text = render_bytes(statement, Schemas.from_names(sql.schema))
        types = b"(text, int[], text[], int, text, int, text, int)"
        sql.connection.execute(f"prepare {statement} ".encode() + types + b" as " + text)


def explained_again(
    sql: Sql,
    pool: Pool,
    limit: int,
    statement: str,
    how: str = "analyze",
    *,
    since: JobPosition | None = None,
) -> dict[str, Any]:
    """What a fetch by a prepared statement does, without its doing it."""
    tasks = ",".join(map(str, pool.tasks))
    place = f"null, {since[0]}, '{since[1]}', {NO_BYTE_LIMIT}" if since else NO_PLACE
    taking = f"execute {statement} ('{pool.id}', '{{{tasks}}}', '{{{FLAG}}}', {limit}, {place})"
    with sql.connection.transaction(force_rollback=True):
        plan: dict[str, Any] = sql.value(f"explain ({how}, format json) {taking}")[0]["Plan"]
    return plan


async def test_a_plan_that_was_made_for_an_empty_table_is_not_kept(database, sql, fill):
    slow_query_seconds = 0.02
    sql.run("vacuum analyze")

    def connect() -> PsycopgDatabase:
        return PsycopgDatabase(
            database.dsn,
            Schemas.from_names(database.schema),
            max_size=1,
            slow_query_seconds=slow_query_seconds,
            # On a busy machine it may have been slow before, for another reason.
            first_discard_delay_seconds=0.0,
        )

    db, planned_later = connect(), connect()
    await db.run(register_tasks(["task"]))
    tasks = await db.run(get_task_ids(["task"]))

    async def seconds(db: PsycopgDatabase) -> float:
        began = time.monotonic()
        await db.run(claim_jobs("pool", tasks))
        return time.monotonic() - began

    # From the sixth on, the server keeps its plan.
    for _ in range(12):
        await seconds(db)
    fill.jobs(100_000)
    # The quickest of many, in turn: the machine may be busy.
    times = [(await seconds(db), await seconds(planned_later)) for _ in range(31)]
    await db.close()
    await planned_later.close()

    # If it was slow at all, it is not any more: no slower than by a plan for the full table.
    quick = 3 * min(other for _, other in times)
    assert min(own for own, _ in times[1:]) < max(quick, slow_query_seconds)


def test_taking_one_of_ten_thousand_queues_writes_less_than_a_kilobyte(
    indexed_pool, sql, fill, figure
):
    fill.queues("mine", 10_000)
    fill.jobs(10_000, queues="mine", of=10_000)
    fill.vacuum()

    written = []
    for _ in range(20):
        before = sql.value("select pg_current_wal_insert_lsn()")
        indexed_pool.claim_one()
        written.append(sql.value("select pg_current_wal_insert_lsn() - $1::pg_lsn", before))

    figure(f"write-ahead log of a claim of one job at 10,000 queues: {statistics.median(written)}")
    assert statistics.median(written) <= 1000


# From a place on


each_way_from_a_place = pytest.mark.parametrize("way", [claim_plain_jobs, claim_soonest_jobs])


@each_way_from_a_place
def test_from_a_place_on_none_is_taken_that_would_go_before_it(indexed_pool, sql, fill, way):
    fill.jobs(3, priority=-1, due="-1 hour")
    fill.jobs(3, due="-2 hours")
    fill.jobs(3, due="-1 hour")
    fill.jobs(3, priority=1, due="-3 hours")
    hour_ago = sql.value("select max(run_at) from :schema._private_jobs where priority = 0")

    taken = indexed_pool.claim_by(way, 20, since=(0, hour_ago))

    places = [(each.job.priority, each.job.run_at == hour_ago) for each in taken]
    assert places == [(0, True)] * 3 + [(1, False)] * 3


@each_way_from_a_place
def test_what_is_gone_but_cannot_be_forgotten_is_not_read_from_a_place_on(
    indexed_pool, sql, fill, way
):
    fill.jobs(20_000, due="-1 hour")
    fill.jobs(100, due="-1 minute")
    place = (0, sql.value("select max(run_at) from :schema._private_jobs"))
    somebody = sql.another()
    somebody.run("begin isolation level repeatable read")
    somebody.run("select 1")
    sql.run("delete from :schema._private_jobs where run_at < $1", place[1])

    read = {
        since: pages_of(explained(sql, indexed_pool, 1, way.args[0], since=since))
        for since in (None, place)
    }
    somebody.close()

    assert read[place] < read[None] / 10


def test_from_a_place_on_no_job_overtakes_an_earlier_one_of_its_named_queue(
    indexed_pool, sql, fill
):
    fill.queues("mine", 2)
    fill.jobs(1, queues="mine", due="-3 hours")
    fill.jobs(4, queues="mine", of=2, due="-1 minute")
    place = (0, sql.value("select max(run_at) from :schema._private_jobs"))

    def take(**more: Any) -> list[tuple[object, object]]:
        taken = indexed_pool.claim_by(claim_soonest_jobs, 10, **more)
        return [(each.job.queue_name, each.job.payload) for each in taken]

    assert take(since=place) == [("mine1", 1)]
    assert take() == [("mine0", 0)]


# Around a position, behind jobs that cannot be claimed


def blocked_jobs(fill: Filler, count: int) -> None:
    """Jobs with a forbidden flag, jobs of few locked queues, and many locked queues."""
    fill.jobs(count, flag=FLAG, due="-4 hours")
    fill.queues("busy", 4, locked=True)
    fill.jobs(count, queues="busy", of=4, due="-3 hours")
    fill.queues("stuck", count // 10, locked=True)
    fill.jobs(count // 10, queues="stuck", of=count // 10, due="-2 hours")


def test_a_search_around_a_position_reads_no_more_pages_for_blocked_jobs(indexed_pool, sql, fill):
    def pages(mode: str, since: JobPosition) -> tuple[int, ...]:
        sql.run("select set_config('plan_cache_mode', $1, false)", mode)
        sql.run("discard plans")
        statement, how = "claim_jobs_around", "analyze, buffers"
        return tuple(
            pages_of(explained_again(sql, indexed_pool, limit, statement, how, since=since))
            for limit in (1, 100)
        )

    prepare_all(sql, ["claim_jobs_around"])
    sql.run("analyze")
    fill.queues("mine", 1_000)
    fill.jobs(2_000, queues="mine", of=1_000, due="-1 minute")
    position = (0, sql.value("select max(run_at) from :schema._private_jobs"))
    clean = {mode: pages(mode, position) for mode in MODES}

    # First with the statistics of the empty table, then with those of the full one.
    blocked_jobs(fill, 10_000)
    for prepare in (lambda: None, fill.vacuum):
        prepare()
        found = {mode: pages(mode, position) for mode in MODES}

        assert {mode: found[mode] for mode in MODES if found[mode][0] > clean[mode][0] + 600} == {}
        assert {mode: each for mode, each in found.items() if each[1] > 3 * clean[mode][1]} == {}


def test_the_soonest_jobs_and_those_on_both_sides_of_a_position_are_taken_in_order(
    indexed_pool, sql, fill
):
    blocked_jobs(fill, 1_000)
    add_ready(sql)
    # Between numbers 5 and 6: the blocked jobs have the same priority and are older.
    place = (0, sql.value("select now() - interval '15 seconds'"))

    taken = indexed_pool.claim_by(claim_jobs_around, 100, since=place, skip_flags=[FLAG])

    assert payloads(taken) == list(range(len(READY)))


def test_around_a_position_a_queue_with_an_earlier_job_elsewhere_is_skipped(
    indexed_pool, sql, fill
):
    fill.jobs(500, flag=FLAG, due="-4 hours")
    fill.queues("mine", 2)
    fill.jobs(1, queues="mine", due="-3 hours")
    fill.jobs(500, flag=FLAG, due="-2 hours")
    fill.jobs(4, queues="mine", of=2, due="-1 minute")
    place = (0, sql.value("select max(run_at) from :schema._private_jobs"))

    def take(way: Callable[..., Any], **more: Any) -> list[tuple[object, object]]:
        taken = indexed_pool.claim_by(way, 10, skip_flags=[FLAG], **more)
        return [(each.job.queue_name, each.job.payload) for each in taken]

    assert take(claim_jobs_around, since=place) == [("mine1", 1)]
    assert take(claim_jobs) == [("mine0", 0)]


async def test_a_fetcher_finds_all_jobs_behind_blocked_ones_in_order(indexed_pool, database, fill):
    blocked_jobs(fill, 3_000)
    fill.queues("mine", 5)
    fill.jobs(60, queues="mine", of=5, due="-1 minute")
    fill.jobs(60, due="-1 second")
    db = CountingDatabase(database.dsn, Schemas.from_names(database.schema), max_size=1)
    fetcher = JobFetcher(db, {})
    fetcher.has_indexes = True

    taken: list[Any] = []
    while True:
        held = await fetcher.fetch("pool", indexed_pool.tasks, limit=5, skip_flags=[FLAG])
        if held:
            taken += payloads(held)
            queues = [each.queue_id for each in held if each.queue_id is not None]
            ids = [each.job.id for each in held]
            await db.run(complete_claimed_jobs("pool", ids, queues))
        elif fetcher.next_fetch_at is None:
            break
        else:
            await asyncio.sleep(max(0.0, fetcher.next_fetch_at - time.monotonic()))
    await db.close()

    assert taken == [*range(60)] * 2
    assert db.counts["claim_jobs_around"] > db.counts["claim_jobs"]


class CountingDatabase(PsycopgDatabase):
    """Counts the statements that it runs."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.counts: Counter[str] = Counter()

    async def run(self, query: Query[Any]) -> Any:
        self.counts[str(query.statement)] += 1
        return await super().run(query)


def explained(
    sql: Sql,
    pool: Pool,
    limit: int,
    statement: str = "claim_jobs",
    *,
    since: JobPosition | None = None,
) -> dict[str, Any]:
    """What a fetch does, without its doing it."""
    text = render_bytes(statement, Schemas.from_names(sql.schema))
    with sql.connection.transaction(force_rollback=True):
        found = sql.connection.execute(
            b"explain (analyze, buffers, format json) " + text,
            (
                pool.id,
                list(pool.tasks),
                [FLAG],
                limit,
                None,
                *(since or (None, None)),
                NO_BYTE_LIMIT,
            ),
        ).fetchone()
    assert found is not None
    plan: dict[str, Any] = found[0][0]["Plan"]
    return plan


def pages_of(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def way_of(plan: dict[str, Any]) -> int:
    """Which part of the candidates had any."""
    (candidates,) = [
        node for node in nodes_of(plan) if node.get("Subplan Name") == "CTE candidates"
    ]
    (way,) = [at for at, each in enumerate(candidates["Plans"]) if each["Actual Rows"]]
    return way


def nodes_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from nodes_of(below)

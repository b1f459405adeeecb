"""The ring of history slots on a real server: nothing young is lost, nothing old remains."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace

import psycopg
import pytest

from graphile_worker import App, JobSpec, Retention, Runner, WorkerOptions
from graphile_worker._db.database import run_plan_sync
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.slow_queries import SlowQueryDatabase
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._db.worker_connections import ConnectionTimings
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.history import (
    Rotation,
    plan_prune_history,
    plan_rotate_history,
)
from graphile_worker._sql.queries.history import (
    NEVER,
    SLOT_COUNT,
    HistoryRing,
    get_history,
    set_history,
)
from graphile_worker._support.logs import resolve_logger
from graphile_worker._worker.history_rotator import HistoryRotator
from graphile_worker._worker_config import WorkerTimings
from tests.conftest import TestDatabase
from tests.support.pools import open_session
from tests.support.recorder import open_runners, wait_until
from tests.support.roles import as_role
from tests.support.sql import Sql
from tests.support.tiers import random_seed, size

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
START = datetime(2024, 2, 29, tzinfo=UTC)

STEPS = size(gate=60, nightly=600)
SEEDS = size(gate=[7], nightly=[7, *(random_seed() + n for n in range(4))])

RESET = """
update :ext_schema.history
set slot = 0, keep = $1, max_rows = $2,
    started_at = array_cat(array[$3::timestamptz], array_fill('-infinity'::timestamptz, array[8]))
"""
INSERT = """
insert into :ext_schema.outcomes (
  slot, job_id, task_identifier, succeeded, attempts, created_at, run_at, started_at, finished_at,
  expires_at, pool_id
)
select coalesce($4, history.slot), $1, 'task', true, 1, $2, $2, $2, $2, $3, 'pool'
from :ext_schema.history
"""
INSERT_ATTEMPT = """
insert into :ext_schema.attempts (slot, job_id, attempt, started_at, duration, expires_at, pool_id)
select coalesce($4, history.slot), $1, 1, $2, 0, $3, 'pool' from :ext_schema.history
"""
SLOW_DOWN = """
create function public.slow_down() returns trigger language plpgsql as
'begin perform pg_catalog.pg_sleep(2); return new; end'
"""
SLOW_ROTATION = """
create trigger slow_rotation before update on :ext_schema.history
for each row when (old.slot <> new.slot) execute function public.slow_down()
"""
VISIBLE = "select job_id from :ext_schema.{} where expires_at is null or expires_at > $1"


@dataclass
class Row:
    """A row as it was written: the time of its end, and for how long its task keeps it."""

    finished_at: datetime
    keep: timedelta | None
    lateness: timedelta
    """How long after the end of its slot it was written."""


@dataclass
class Ring:
    """Two processes that rotate one ring, with the clock of the test."""

    sql: Sql
    processes: list[SyncPsycopgDatabase]
    threads: ThreadPoolExecutor
    now: datetime = START
    rows: dict[int, Row] = field(default_factory=dict)
    job_id: int = 0
    ends: dict[tuple[int, datetime], datetime] = field(default_factory=dict)
    """The ends of slots, by their number and start."""

    def reset(self, keep: timedelta | None = None, max_rows: int | None = None) -> None:
        self.sql.run(RESET, keep, max_rows, self.now)

    @property
    def state(self) -> HistoryRing:
        ring = self.processes[0].run(get_history(self.now))
        assert ring is not None
        return ring

    def write(self, keep: timedelta | None = None, slot: int | None = None) -> None:
        """Write an outcome and an attempt that end now, as the statements do."""
        self.job_id += 1
        expires_at = None if keep is None else self.now + keep
        lateness = timedelta(0)
        if slot is not None and slot != (ring := self.state).slot:
            lateness = self.now - self.find_end(ring, slot)
        for statement in (INSERT, INSERT_ATTEMPT):
            self.sql.run(statement, self.job_id, self.now, expires_at, slot)
        self.rows[self.job_id] = Row(self.now, keep, lateness)

    def find_end(self, ring: HistoryRing, slot: int) -> datetime:
        """Return when a slot ended. While it has late rows, the next slot may be emptied first."""
        end = ring.now if slot == ring.slot else ring.get_end(slot)
        period = (slot, ring.started_at[slot])
        if end != NEVER:
            self.ends[period] = end
        return self.ends.get(period, end)

    def rotate(self, *numbers: int) -> list[Rotation | None]:
        """Let these processes rotate at the same time."""
        return list(self.threads.map(self._rotate_in, numbers))

    def _rotate_in(self, number: int) -> Rotation | None:
        return run_plan_sync(self.processes[number], plan_rotate_history(self.now))

    def check(self) -> None:
        """Check each row after a rotation, and forget those that it was allowed to delete."""
        ring = self.state
        stored = {job_id for (job_id,) in self.sql.run("select job_id from :ext_schema.outcomes")}
        assert stored == {
            job_id for (job_id,) in self.sql.run("select job_id from :ext_schema.attempts")
        }
        visible = {job_id for (job_id,) in self.sql.run(VISIBLE.format("outcomes"), self.now)}
        longest = max(
            self.find_end(ring, slot) - start
            for slot, start in enumerate(ring.started_at)
            if start != NEVER
        )
        lateness = max((row.lateness for row in self.rows.values()), default=timedelta(0))
        for job_id, row in list(self.rows.items()):
            age = self.now - row.finished_at
            if age < ring.effective_keep:
                assert job_id in stored, f"{row} is deleted at the age of {age}"
                if row.keep is None or age < row.keep:
                    assert job_id in visible, f"{row} is hidden at the age of {age}"
            if age > ring.effective_keep + longest + lateness:
                assert job_id not in stored, f"{row} remains at the age of {age}"
            if job_id not in stored:
                del self.rows[job_id]


@pytest.fixture
def ring(database: TestDatabase, sql: Sql) -> Iterator[Ring]:
    with ExitStack() as stack:
        processes = [stack.enter_context(open_session(database)) for _ in range(2)]
        threads = stack.enter_context(ThreadPoolExecutor(2))
        yield Ring(sql, processes, threads)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_young_is_lost_and_nothing_old_remains(ring: Ring, seed: int):
    """Writes, changes of the time to keep, pauses and rotations in any order."""
    rng = random.Random(seed)
    keep = HOUR * rng.choice([1, 8, 24])
    ring.reset(keep)
    seen_slot = 0
    for _ in range(STEPS):
        slot_duration = ring.state.slot_duration
        ring.now += slot_duration * rng.choice([0, 0.1, 0.1, 0.3, 0.5, 1.1, 3, 20])
        for _ in range(rng.randrange(4)):
            ring.now += SECOND
            ring.write(rng.choice([None, keep / 3, 2 * keep]))
        if rng.random() < 0.2 and ring.state.started_at[seen_slot] != NEVER:
            # A statement that began before a rotation, and takes less time than outcomes are kept.
            ring.write(slot=seen_slot)
        if rng.random() < 0.1:
            keep = HOUR * rng.choice([1, 2, 8, 24, 100])
            ring.processes[0].run(set_history(keep, None))
        seen_slot = ring.state.slot
        if rng.random() < 0.8:
            ring.rotate(*rng.choice([(0,), (1,), (0, 1), (0, 1)]))
            ring.check()
            assert ring.rotate(0) == [None], "one call was not enough"


def test_two_processes_rotate_once(ring: Ring):
    ring.reset(8 * HOUR)
    for number in range(1, 30):
        ring.write()
        ring.now += HOUR
        done = [each for each in ring.rotate(0, 1) if each is not None]
        assert len(done) == 1
        assert ring.state.slot == number % SLOT_COUNT
        ring.check()


def test_a_ring_that_is_rotated_in_time_keeps_nothing_for_longer_than_one_slot_more(ring: Ring):
    """With the interval at which workers check it."""
    keep, interval = 8 * HOUR, HOUR / 8
    ring.reset(keep)
    for _ in range(30 * 8):
        ring.write()
        ring.now += interval
        ring.rotate(0)
        oldest = ring.sql.value("select min(finished_at) from :ext_schema.outcomes")
        assert ring.now - oldest <= keep + HOUR + interval
    ring.check()


def test_rows_are_deleted_after_a_long_pause(ring: Ring):
    ring.reset(8 * HOUR)
    for _ in range(12):
        ring.write()
        ring.now += HOUR
        ring.rotate(0)
    ring.now += timedelta(days=30)

    ring.rotate(0)

    assert ring.sql.value("select count(*) from :ext_schema.outcomes") == 0


def test_a_row_that_is_written_while_a_ring_is_overdue_is_kept(ring: Ring):
    """Workers start after a pause: one of them rotates while another one writes."""
    ring.reset(8 * HOUR)
    ring.write()
    ring.now += 6 * HOUR
    ring.rotate(0)
    assert ring.state.slot == 2
    # Its statement had read the slot before.
    ring.write(slot=0)
    for _ in range(7):
        ring.now += HOUR
        ring.rotate(0)
        ring.check()

    assert len(ring.rows) == 2
    ring.now += 2 * HOUR
    ring.rotate(0)
    assert ring.sql.value("select count(*) from :ext_schema.outcomes") == 0


def test_a_row_that_is_written_to_an_empty_slot_is_deleted_in_time(ring: Ring):
    ring.reset(8 * HOUR)
    ring.write(slot=5)
    for _ in range(5 * 8 + 1):
        ring.now += HOUR / 4
        ring.rotate(0)
    ring.now += 8 * HOUR

    ring.rotate(0)

    assert ring.sql.value("select count(*) from :ext_schema.outcomes") == 0


def test_many_rows_rotate_the_ring_early(ring: Ring):
    ring.reset(8 * HOUR, max_rows=80)
    for _ in range(40):
        for _ in range(10):
            ring.write()
        ring.now += SECOND
        [rotation] = ring.rotate(0)
        assert rotation is not None
        assert ring.sql.value("select count(*) from :ext_schema.outcomes") <= 80
    assert ring.sql.value("select count(*) from :ext_schema.outcomes") == 80

    ring.write()

    assert ring.rotate(0) == [None]


def test_prune_deletes_what_tasks_no_longer_keep(ring: Ring):
    ring.reset(8 * HOUR)
    ring.write(keep=HOUR)
    ring.write(keep=2 * HOUR)
    ring.write()
    ring.now += HOUR

    assert run_plan_sync(ring.processes[0], plan_prune_history(ring.now)).deleted_rows == 2
    assert ring.sql.run("select job_id from :ext_schema.outcomes order by job_id") == [(2,), (3,)]
    assert ring.sql.run("select job_id from :ext_schema.attempts order by job_id") == [(2,), (3,)]
    assert run_plan_sync(ring.processes[0], plan_prune_history(ring.now)).deleted_rows == 0


def test_a_role_rotates_with_permissions_on_the_tables_and_to_truncate_slots(
    ring: Ring, database, role
):
    fill(ring)
    ring.sql.run(f"grant usage on schema :ext_schema to {role}")
    ring.sql.run(f"grant select, update on :ext_schema.history to {role}")
    ring.sql.run(f"grant select on :ext_schema.outcomes, :ext_schema.attempts to {role}")
    with open_session(
        SimpleNamespace(dsn=as_role(database, role), schema=database.schema)
    ) as session:
        plan = partial(plan_rotate_history, ring.now)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run_plan_sync(session, plan())
        for slot in range(SLOT_COUNT):
            tables = f":ext_schema.outcomes_{slot}, :ext_schema.attempts_{slot}"
            ring.sql.run(f"grant truncate on {tables} to {role}")

        rotation = run_plan_sync(session, plan())

    assert rotation is not None
    assert rotation.emptied_slots == (0,)
    ring.check()


# Readers


def fill(ring: Ring) -> None:
    """Make a ring whose next rotation empties a slot."""
    ring.reset(8 * HOUR)
    for _ in range(8):
        ring.write()
        ring.now += HOUR
        ring.rotate(0)
    ring.write()
    ring.now += HOUR


async def finish_jobs(database: TestDatabase, count: int) -> int:
    """Run jobs that keep their results, and return how many there were."""
    app = App(database.dsn, schema=database.schema)

    @app.task(retention=Retention(results=True, attempts=True))
    async def work(n: int) -> int:
        return n

    await app.aadd_jobs([JobSpec("work", {"n": n}) for n in range(count)])
    options = WorkerOptions(schema=database.schema)
    try:
        return await Runner(database.dsn, app, options=options).run_once()
    finally:
        await app.close()


async def test_a_snapshot_delays_no_rotation_and_no_worker(ring: Ring, database):
    fill(ring)
    with closing(ring.sql.another()) as other:
        other.run("begin isolation level repeatable read")
        other.run("select count(*) from :schema._private_jobs")

        [rotation] = ring.rotate(0)

        assert rotation is not None
        assert rotation.emptied_slots == (0,)
        assert await finish_jobs(database, 20) == 20
        other.run("rollback")
    assert ring.sql.value("select count(*) from :ext_schema.outcomes where pool_id <> 'pool'") == 20


async def test_a_reader_delays_the_rotation_and_no_worker(ring: Ring, database):
    fill(ring)
    before = ring.state
    with closing(ring.sql.another()) as other:
        other.run("begin")
        other.run("select count(*) from :ext_schema.outcomes")

        with pytest.raises(psycopg.errors.LockNotAvailable):
            ring.rotate(0)

        assert ring.state == before
        assert await finish_jobs(database, 20) == 20
        other.run("rollback")
    [rotation] = ring.rotate(0)
    assert rotation is not None
    assert rotation.emptied_slots == (0,)
    assert ring.sql.value("select count(*) from :ext_schema.outcomes where pool_id <> 'pool'") == 20


async def test_workers_write_while_a_rotation_waits_for_a_reader(ring: Ring, database):
    fill(ring)
    with closing(ring.sql.another()) as reader, closing(ring.sql.another()) as waiting:
        reader.run("begin")
        reader.run("select count(*) from :ext_schema.outcomes_0")
        waiting.run("begin")
        waiting.run("select slot from :ext_schema.history for update")
        blocked = ring.threads.submit(
            waiting.run, "lock table :ext_schema.outcomes_0 in access exclusive mode"
        )
        await wait_until(
            lambda: ring.sql.value("select count(*) from pg_locks where not granted") == 1
        )

        assert await finish_jobs(database, 20) == 20

        assert not blocked.done()
        reader.run("rollback")
        blocked.result()
        waiting.run("rollback")


async def test_a_rotator_retries_silently_while_a_reader_blocks_it(ring: Ring, database, caplog):
    """By the clock of the database."""
    ring.sql.run(
        "update :ext_schema.history set slot = 1, keep = '8 hours', started_at = array_cat("
        "array[now() - interval '20 hours', now() - interval '10 hours'],"
        " array_fill('-infinity'::timestamptz, array[7]))"
    )
    ring.now = datetime.now(UTC) - timedelta(hours=11)
    ring.write(slot=0)
    opened = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema), max_size=1)
    rotator = HistoryRotator(SlowQueryDatabase(opened), resolve_logger(None))
    with closing(ring.sql.another()) as reader:
        reader.run("begin")
        reader.run("select count(*) from :ext_schema.outcomes")
        assert await rotator.rotate_once() == timedelta(seconds=30)
        assert ring.sql.value("select count(*) from :ext_schema.outcomes") == 1
        reader.run("rollback")

    assert await rotator.rotate_once() == timedelta(seconds=30)

    assert ring.sql.value("select count(*) from :ext_schema.outcomes") == 0
    assert caplog.text == ""
    ring.sql.run("alter table :ext_schema.history rename to elsewhere")
    for _ in range(2):
        assert await rotator.rotate_once() == timedelta(seconds=30)
    assert caplog.text.count("rotating the history failed, retrying: UndefinedTable: ") == 1
    await opened.close()


async def test_a_worker_rotates_the_ring(ring: Ring, database):
    ring.now = datetime.now(UTC) - timedelta(days=30)
    ring.reset()
    ring.write()
    app = App(database.dsn, schema=database.schema)

    @app.task(retention=Retention())
    async def work() -> None: ...

    async with app.worker():
        await wait_until(lambda: ring.sql.value("select count(*) from :ext_schema.outcomes") == 0)
    await app.close()


async def test_a_rotation_may_take_longer_than_the_query_timeout_of_a_worker(
    ring: Ring, database, recorder
):
    ring.now = datetime.now(UTC) - timedelta(days=30)
    ring.reset(keep=timedelta(days=7))
    ring.write()
    ring.sql.run(SLOW_DOWN)
    ring.sql.run(SLOW_ROTATION)
    app = App(database.dsn, schema=database.schema)

    @app.task(retention=Retention())
    async def work() -> None: ...

    connections = ConnectionTimings(query_timeout=timedelta(seconds=1))
    async with open_runners(
        database, recorder.hooks, WorkerTimings(connections=connections)
    ) as start:
        await start(app)
        await wait_until(lambda: ring.sql.value("select count(*) from :ext_schema.outcomes") == 0)
    await app.close()

"""Workers of three languages on one schema: none recovers the jobs of a live worker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from graphile_worker import JobContext, RecoveryOptions, sync
from graphile_worker.events import (
    JobInterrupted,
    JobLockLost,
    JobRecovered,
    JobStarted,
    JobSucceeded,
    LeaseLost,
)
from tests.conftest import TestDatabase
from tests.support.clients import record_statements
from tests.support.processes import Program, Programs, eventually
from tests.support.recorder import Start, open_runners, wait_until
from tests.support.rust import LEVEL_20, rust_install
from tests.support.sql import Sql
from tests.support.tasks import endless, nothing
from tests.support.timings import make_heartbeat_timings
from tests.support.tools import MODULES, NODE

# Long enough for a busy machine, with heartbeats that come soon.
OFTEN = RecoveryOptions(
    lease_duration=timedelta(seconds=30),
    heartbeat_interval=timedelta(milliseconds=50),
    rescue_interval=timedelta(milliseconds=50),
)
EARLY_RENEWAL = make_heartbeat_timings(lock_renewal_interval_seconds=0.1)

# Its tasks go on until a file appears.
NODE_WORKER = """
const [, , reference, connectionString, schema] = process.argv;
const fs = require("fs");
const { run } = require(reference);

const linger = async () => {
  while (!fs.existsSync("release")) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};

run({ connectionString, schema, concurrency: 3, taskList: { linger } });
"""

LOCKS = """
select id, locked_by, locked_at, attempts from :schema._private_jobs
where locked_by is not null order by id
"""
RUST_WORKERS = "select id from :schema._private_workers order by id"
AGED = "update :schema._private_jobs set locked_at = now() - $2::text::interval where id = $1"


# Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator["NodeWorkers"]:
    with Programs(tmp_path) as programs:
        yield NodeWorkers(programs)


class NodeWorkers:
    """Live workers of the reference, whose tasks end when they are let."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def start(self, database: TestDatabase) -> Program:
        script = self._programs.write("worker.js", NODE_WORKER)
        reference = str(MODULES / "gw018")
        command = [str(NODE), str(script), reference, database.url, database.schema]
        return self._programs.start(command, {})

    def release(self) -> None:
        self._programs.write("release", "")


def add_for_node(database: TestDatabase, sql: Sql) -> list[int]:
    """Three jobs that a worker of the reference holds."""
    with sync.Client(database.dsn, schema=database.schema) as client:
        jobs = [client.add_job("linger", queue_name=name).id for name in ("queue", None, None)]
    eventually(lambda: len(sql.run(LOCKS)) == 3, "it takes them")
    return jobs


@pytest.mark.feature("F217", "F222")
@pytest.mark.timeout(120)
async def test_jobs_of_a_live_node_worker_are_unlocked_only_after_four_hours(
    either_database, node, recorder, monkeypatch
):
    sql = Sql(either_database.dsn, either_database.schema)
    node.start(either_database)
    jobs = add_for_node(either_database, sql)
    for job, age in zip(jobs, ("3 hours 50 minutes", "10 minutes", "0 s"), strict=True):
        sql.run(AGED, job, age)
    before = sql.run(LOCKS)
    statements = record_statements(monkeypatch)

    async with open_runners(either_database, recorder.hooks) as start:
        often = timedelta(milliseconds=50)
        resets = {"min_reset_locked_interval": often, "max_reset_locked_interval": often}
        tight = RecoveryOptions(lease_duration=timedelta(seconds=30), rescue_interval=often)
        await start({"linger": nothing}, recovery=tight, concurrency=5, **resets)
        await wait_until(lambda: statements.count("get_dead_pools") > 30)
        await wait_until(lambda: statements.count("unlock_stale_jobs") > 30)

        assert sql.run(LOCKS) == before
        assert (recorder.events_of(JobRecovered), recorder.events_of(JobStarted)) == ([], [])
        sql.run(AGED, jobs[0], "4 hours 1 second")
        sql.run("update :schema._private_job_queues set locked_at = now() - interval '5 hours'")
        await recorder.wait_for(JobSucceeded, job_id=jobs[0])
        assert sql.run(LOCKS) == before[1:]

    node.release()
    eventually(lambda: sql.value("select count(*) from :schema._private_jobs") == 0, "all end")
    assert [event.job.id for event in recorder.events_of(JobStarted)] == jobs[:1]
    sql.close()


# Rust


@pytest.fixture
def rust_database(empty_database: TestDatabase) -> TestDatabase:
    """Installed by a Rust worker, with our companion schema beside it."""
    rust_install(empty_database.url, empty_database.dsn, empty_database.schema)
    with sync.Client(empty_database.dsn, schema=empty_database.schema) as client:
        client.migrate()
    return empty_database


@pytest.fixture
def rust(rust_database) -> Iterator[Sql]:
    connection = Sql(rust_database.dsn, rust_database.schema)
    yield connection
    connection.close()


@pytest.fixture
async def start(rust_database, recorder) -> AsyncIterator[Start]:
    async with open_runners(rust_database, recorder.hooks) as start:
        yield start


class RustSweeper:
    """Sweeps as a Rust worker does by default, but all the time."""

    def __init__(self, sql: Sql) -> None:
        self.sweeps = 0
        self.taken: list[str] = []
        self._sql = sql
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def sweep_once(self) -> None:
        with self._sql.connection.transaction():
            if not self._sql.value("select pg_try_advisory_xact_lock(1196905043, 1398228304)"):
                return
            self.sweeps += 1
            dead = [worker for (worker,) in self._sql.run(DEAD)]
            if dead:
                self.taken += dead
                self._sql.run("select :schema.recover_dead_worker_jobs($1, '30 s')", dead)
                self._sql.run("select :schema.delete_stale_workers($1)", dead)

    def __enter__(self) -> "RustSweeper":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._sql.close()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            self.sweep_once()


DEAD = """
select worker_id from :schema.list_stale_workers('5 minutes')
union
select worker_id from :schema.list_orphan_locked_workers('5 minutes')
"""


def test_rust_workers_leave_a_paused_queue_alone(rust_database, rust):
    with sync.Client(rust_database.dsn, schema=rust_database.schema, actor="ada") as client:
        client.pause_queue("imports")
        sweeper = RustSweeper(rust)

        sweeper.sweep_once()

        assert (sweeper.sweeps, sweeper.taken) == (1, [])
        [pause] = client.list_pauses()
        assert (pause.name, pause.by) == ("imports", "ada")
        assert client.resume_queue("imports")


@pytest.mark.feature("F220", "F222")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("recovery", [OFTEN, None], ids=["with recovery", "without"])
async def test_rust_workers_recover_no_job_of_a_live_python_worker(
    rust_database, rust, node, start, recorder, recovery
):
    release = asyncio.Event()

    async def hold(payload: object) -> None:
        await release.wait()

    with sync.Client(rust_database.dsn, schema=rust_database.schema) as client:
        node.start(rust_database)
        of_node = add_for_node(rust_database, rust)
        ours = [client.add_job("hold", queue_name=name).id for name in ("ours", None, None)]
        await start({"hold": hold, "note": nothing}, concurrency=4, recovery=recovery)
        await recorder.wait_for(JobStarted, count=3)
        before = {job: holder for job, holder, *_ in rust.run(LOCKS)}

        with RustSweeper(rust.another()) as sweeper:
            for n in range(30):
                # A pool with heartbeats keeps its locks, however old they are.
                for job in ours:
                    rust.run(AGED, job, "6 minutes")
                client.add_job("note")
                await recorder.wait_for(JobSucceeded, count=n + 1)
            await wait_until(lambda: sweeper.sweeps > 50)

    assert sweeper.taken == []
    assert {job: holder for job, holder, *_ in rust.run(LOCKS)} == before
    assert set(before) == {*ours, *of_node}
    release.set()
    done = await recorder.wait_for(JobSucceeded, count=33)
    assert {event.job.attempts for event in done} == {1}
    assert (recorder.events_of(JobLockLost), recorder.events_of(JobInterrupted)) == ([], [])


@pytest.mark.feature("F220")
@pytest.mark.parametrize("recovery", [RecoveryOptions(), None], ids=["with recovery", "without"])
async def test_a_python_worker_is_in_the_rust_registry_before_its_first_lock_and_after_its_last(
    rust, start, recorder, recovery
):
    rust.run("create table public.locks (job bigint, known boolean, locked boolean)")
    rust.run("""
      create function public.note_lock() returns trigger language plpgsql as $body$
      begin
        insert into public.locks values (
          old.id,
          exists (select from :schema._private_workers where id = coalesce(
            case when tg_op = 'UPDATE' then new.locked_by end, old.locked_by
          )),
          tg_op = 'UPDATE'
        );
        return null;
      end
      $body$
    """)
    rust.run("""
      create trigger note_lock after update or delete on :schema._private_jobs
      for each row execute function public.note_lock()
    """)
    rust.run("select :schema.add_job('linger')")

    async def linger(payload: object, ctx: JobContext) -> None:
        await ctx.wait_cancelled()

    patience = timedelta(milliseconds=50)
    runner = await start({"linger": linger}, recovery=recovery, cancel_after=patience)
    (event,) = await recorder.wait_for(JobStarted)
    assert rust.run(RUST_WORKERS) == [(event.pool_id,)]
    details = rust.value("select metadata from :schema._private_workers")
    assert (details["runtime"], details["tasks"]) == ("python", ["linger"])
    await runner.stop()

    job = event.job.id
    assert rust.run("select * from public.locks") == [(job, True, True), (job, True, False)]
    assert rust.run(RUST_WORKERS) == []


async def test_a_python_worker_sends_heartbeats_to_the_rust_registry(rust, start, recorder):
    timings = make_heartbeat_timings(rust_heartbeat_interval_seconds=0.05)
    await start({"work": nothing}, recovery=OFTEN, timings=timings)
    seen = "select last_heartbeat_at from :schema._private_workers"
    before = rust.value(seen)

    await wait_until(lambda: rust.value(seen) > before)
    # One that was swept by them in spite of it enters itself again.
    rust.run("delete from :schema._private_workers")
    await wait_until(lambda: len(rust.run(RUST_WORKERS)) == 1)


@pytest.mark.feature("F222")
async def test_python_workers_recover_no_job_of_a_dead_rust_worker(
    rust, start, recorder, monkeypatch
):
    """What it had begun, and whether its own kind spares it, only they know."""
    rust.run("select :schema.add_job('work')")
    rust.run("""
      update :schema._private_jobs
      set locked_by = 'graphile_worker_0123456789abcdef01',
          locked_at = now() - interval '3 hours 50 minutes',
          attempts = 1
    """)
    rust.run("select :schema.worker_heartbeat('graphile_worker_0123456789abcdef01')")
    rust.run("update :schema._private_workers set last_heartbeat_at = now() - interval '1 hour'")
    before = rust.run(LOCKS)
    statements = record_statements(monkeypatch)

    await start({"work": nothing}, recovery=OFTEN)
    await wait_until(lambda: statements.count("get_dead_pools") > 10)

    assert rust.run(LOCKS) == before
    assert recorder.events_of(JobRecovered) == []


async def test_a_job_that_a_rust_worker_recovered_is_abandoned(rust, start, recorder):
    """Rust workers may see a heartbeat too late, and do not announce a recovery."""
    runner = await start({"endless": endless}, recovery=OFTEN, timings=EARLY_RENEWAL)
    job = await runner.add_job("endless")
    (event,) = await recorder.wait_for(JobStarted)

    rust.run("select :schema.recover_dead_worker_jobs($1, '1 hour')", [event.pool_id])

    await recorder.wait_for(JobLockLost, job_id=job.id)
    await wait_until(lambda: rust.run(RUST_WORKERS) != [(event.pool_id,)])
    assert rust.run("select attempts, locked_by from :schema._private_jobs") == [(0, None)]


async def test_a_pool_id_that_was_rotated_leaves_the_rust_registry(rust, start, recorder):
    runner = await start({"endless": endless}, recovery=OFTEN, timings=EARLY_RENEWAL)
    job = await runner.add_job("endless")
    (event,) = await recorder.wait_for(JobStarted)

    rust.run("update :schema._private_jobs set locked_by = 'another worker'")
    await recorder.wait_for(JobLockLost, job_id=job.id)
    # Perhaps both are there for a moment.
    await wait_until(lambda: rust.run(RUST_WORKERS) != [(event.pool_id,)])
    await runner.stop()

    assert rust.run(RUST_WORKERS) == []


# A Rust registry that comes later, or goes


def install_rust_registry(sql: Sql) -> None:
    """What a Rust worker adds to a schema of Node or Python that has the level."""
    for statement in LEVEL_20[1:]:
        sql.run(statement)


@pytest.fixture
async def start_on_ours(database, recorder) -> AsyncIterator[Start]:
    async with open_runners(database, recorder.hooks) as start:
        yield start


@pytest.mark.feature("F220")
@pytest.mark.parametrize("recovery", [OFTEN, None], ids=["with recovery", "without"])
async def test_a_rust_registry_that_is_installed_later_is_found(
    sql, start_on_ours, recorder, recovery
):
    timings = make_heartbeat_timings(
        registry_check_interval_seconds=0.1,
        rust_heartbeat_interval_seconds=0.1,
        max_interval=timedelta(milliseconds=50),
    )
    runner = await start_on_ours({"endless": endless}, recovery=recovery, timings=timings)
    await runner.add_job("endless")
    (event,) = await recorder.wait_for(JobStarted)

    await asyncio.to_thread(install_rust_registry, sql)

    await wait_until(lambda: sql.run(RUST_WORKERS) == [(event.pool_id,)])
    await runner.kill()
    assert sql.run(RUST_WORKERS) == []


async def test_heartbeats_continue_after_the_rust_registry_is_dropped(
    sql, start_on_ours, recorder, monkeypatch
):
    install_rust_registry(sql)
    timings = make_heartbeat_timings(rust_heartbeat_interval_seconds=0.1)
    runner = await start_on_ours({"work": nothing}, recovery=OFTEN, timings=timings)
    statements = record_statements(monkeypatch)
    seen = "select seen_at from :ext_schema.pools"

    drop = "drop function :schema.worker_heartbeat(text, json)"
    await asyncio.to_thread(sql.run, drop)
    await wait_until(lambda: "rust_heartbeat" in statements)
    # The heartbeat that found it gone may be on its way.
    statements.clear()
    await wait_until(lambda: statements.count("heartbeat") > 1)
    before = sql.value(seen)
    await wait_until(lambda: sql.value(seen) > before)
    await runner.add_job("work")
    await recorder.wait_for(JobSucceeded)
    assert recorder.events_of(LeaseLost) == []


@pytest.mark.feature("F217")
async def test_locks_are_renewed_before_rust_workers_count_them_as_stale(
    sql, start_on_ours, recorder
):
    """Even where the pool never was in their registry."""
    runner = await start_on_ours({"endless": endless}, recovery=OFTEN, timings=EARLY_RENEWAL)
    job = await runner.add_job("endless", queue_name="queue")
    (event,) = await recorder.wait_for(JobStarted)
    await asyncio.to_thread(install_rust_registry, sql)
    orphans = "select worker_id from :schema.list_orphan_locked_workers('5 minutes')"

    with sql.connection.transaction():
        sql.run(AGED, job.id, "6 minutes")
        sql.run("update :schema._private_job_queues set locked_at = now() - interval '6 minutes'")
        assert sql.run(orphans) == [(event.pool_id,)]
    await wait_until(lambda: sql.run(orphans) == [])

    assert sql.run(RUST_WORKERS) == []
    assert recorder.events_of(JobLockLost) == []

"""Blocked tasks, on the event loop or in a thread: their worker stays alive and names them."""

import re
import time
from collections.abc import Iterator

import pytest

from graphile_worker import Job, JobSpec, sync
from tests.support.processes import TIMEOUT_SECONDS, Program, Programs, eventually
from tests.support.proxy import Mode
from tests.support.sql import Sql
from tests.support.tiers import is_nightly, size

# The same tasks in each worker, but only the worker "blocked" blocks, when the test lets it.
APP = """
import asyncio
import ctypes
import os
import time

from graphile_worker import App, JobContext, SyncJobContext

BLOCKED = os.environ["ME"] == "blocked"

app = App()


def say(what: str, ctx: SyncJobContext) -> None:
    os.write(1, f"{what} {ctx.job.id} {ctx.job.attempts} {ctx.pool_id}\\n".encode())


async def begin(ctx: JobContext) -> None:
    say("began", ctx)
    while not os.path.exists("block" if BLOCKED else "go"):
        await asyncio.sleep(0.02)


@app.task
async def sleep_on_loop(ctx: JobContext, seconds: float) -> None:
    await begin(ctx)
    if BLOCKED:
        say("blocks", ctx)
        time.sleep(seconds)
    say("ended", ctx)


@app.task
async def compute_on_loop(ctx: JobContext, seconds: float) -> None:
    await begin(ctx)
    until = time.monotonic() + seconds
    while BLOCKED and time.monotonic() < until and not os.path.exists("enough"):
        # To look for a file releases the GIL, so it must be rare.
        for _ in range(10_000):
            sum(range(1000))
    say("ended", ctx)


# A function of a PyDLL keeps the GIL, as a careless extension module does.
keep_gil = ctypes.PyDLL(None).sleep


@app.task
async def keep_gil_on_loop(ctx: JobContext, seconds: int) -> None:
    await begin(ctx)
    if BLOCKED:
        keep_gil(seconds)
    say("ended", ctx)


@app.task
def keep_gil_in_thread(ctx: SyncJobContext, seconds: int) -> None:
    asyncio.run(begin(ctx))
    if BLOCKED:
        keep_gil(seconds)
    say("ended", ctx)


@app.task
async def note(ctx: JobContext) -> None:
    say("ended", ctx)


async def note_in_blocked(ctx: JobContext) -> None:
    say("ended", ctx)


if BLOCKED:
    app.task(note_in_blocked)


@app.task
def stand(ctx: SyncJobContext) -> None:
    time.sleep(8)
    say("ended", ctx)


@app.task
def walk(ctx: SyncJobContext) -> None:
WALK
    say("ended", ctx)


@app.task
def call(ctx: SyncJobContext) -> None:
    for _ in range(16):
        pause()
    say("ended", ctx)


def pause() -> None:
    time.sleep(0.5)
""".replace("WALK\n", "    time.sleep(0.5)\n" * 16)

REFUSED = "while it ran, result discarded"

LEFT = """
select (select count(*) from :schema._private_jobs)
  + (select count(*) from :schema._private_job_queues where locked_by is not null)
"""

RECOVERED = "select count(*) from :ext_schema.recoveries"


def said(worker: Program, what: str) -> list[tuple[int, int, str]]:
    """Return the job, the attempt and the pool of each line with this word."""
    found = re.findall(rf"^{what} (\d+) (\d+) (\S+)$", worker.out, re.M)
    return [(int(job), int(attempt), pool_id) for job, attempt, pool_id in found]


class Field:
    """Workers with a chosen lease, and jobs for them."""

    def __init__(self, programs: Programs, client: sync.Client, sql: Sql) -> None:
        self._programs = programs
        self._client = client
        self._sql = sql

    def start(self, name: str, threshold: float | None = None, **variables: str) -> Program:
        lease = []
        if threshold is not None:
            lease = ["--lease-duration", str(round(threshold * 1000))]
        return self._programs.worker("--app", "app:app", "-j", "4", *lease, ME=name, **variables)

    def add(self, task: str, **payload: float) -> Job:
        return self._client.add_job(task, payload)

    def add_all(self, specs: list[JobSpec]) -> list[Job]:
        return self._client.add_jobs(specs)

    def run(self, task: str, worker: Program, **payload: float) -> tuple[int, str]:
        """Start a job, wait until a heartbeat has recorded it, and return its id and its pool."""
        job = self.add(task, **payload)
        known = "select id from :ext_schema.pools where $1::bigint = any (started_jobs)"
        ((pool_id,),) = eventually(lambda: self._sql.run(known, job.id), "it is known to run")
        assert said(worker, "began") == [(job.id, 1, pool_id)]
        return job.id, pool_id

    def block(self) -> None:
        (self._programs.folder / "block").touch()

    def end_computation(self) -> None:
        (self._programs.folder / "enough").touch()

    def let_end(self) -> None:
        (self._programs.folder / "go").touch()

    def wait_until_empty(self) -> None:
        eventually(lambda: self._sql.value(LEFT) == 0, "nothing is left, and nothing locked")

    def enter_dead_pool(self) -> None:
        """Register a pool that the next rescuer must find dead."""
        self._sql.run(
            "insert into :ext_schema.pools (id, seen_at, lease, details) "
            "values ('dead', now() - interval '1 hour', '1 second', '{}')"
        )

    def wait_for_sweep(self) -> None:
        eventually(lambda: not self.lives("dead"), "a worker sweeps")

    def lives(self, pool_id: str) -> bool:
        """Return whether the registry has the pool as alive."""
        living = "select id from :ext_schema.pools where id = $1 and swept_at is null"
        return bool(self._sql.run(living, pool_id))

    def check_goes_on_as_new(self, worker: Program, old_id: str) -> None:
        job = self.add("note_in_blocked")
        eventually(lambda: job.id in jobs(worker, "ended"), f"it goes on: {worker.err}")
        (new_id,) = (each for number, _, each in said(worker, "ended") if number == job.id)
        assert new_id != old_id
        assert f"continuing as {new_id}" in worker.err
        assert worker.stop() == 0


def jobs(worker: Program, what: str) -> list[int]:
    return [job for job, *_ in said(worker, what)]


def ended(*workers: Program, count: int) -> list[tuple[int, int]]:
    """Return the jobs that ended in any worker, with their attempt, once all have."""

    def look() -> list[tuple[int, int]] | None:
        found = [each[:2] for worker in workers for each in said(worker, "ended")]
        return sorted(found) if len(found) >= count else None

    found = eventually(look, f"{count} jobs end")
    assert found is not None
    return found


@pytest.fixture
def programs(programs: Programs) -> Programs:
    programs.write("app.py", APP)
    return programs


@pytest.fixture
def field(database, programs, sql) -> Iterator[Field]:
    with sync.Client(database.dsn, schema=database.schema) as client:
        yield Field(programs, client, sql)


# On the loop


# A lease that a busy machine does not break, and a call that lasts longer than it takes to find
# a dead worker.
LEASE = size(gate=8.0, nightly=3.0)
BLOCKED_FOR = size(gate=24, nightly=12)

SCALED = pytest.param(LEASE, float(BLOCKED_FOR), id="scaled", marks=pytest.mark.timeout(120))
IN_FULL = pytest.param(
    None, 120.0, id="in full", marks=[pytest.mark.nightly, pytest.mark.timeout(300)]
)

# The line that it must be seen at.
PLACES = {
    "sleep_on_loop": r"line \d+, in sleep_on_loop\n[ |]+time\.sleep\(seconds\)",
    "compute_on_loop": r"line \d+, in compute_on_loop\n[ |]+(while BLOCKED|for _|sum\(range)",
}


@pytest.mark.single_version
@pytest.mark.feature("F217", "F220", "F221")
@pytest.mark.parametrize(("threshold", "seconds"), [SCALED, IN_FULL])
@pytest.mark.parametrize("task", ["sleep_on_loop", "compute_on_loop"])
def test_a_worker_with_a_blocked_event_loop_stays_alive_and_names_the_task(
    field, sql, figure, task, threshold, seconds
):
    blocked = field.start("blocked", threshold)
    job, pool_id = field.run(task, blocked, seconds=seconds)
    other = field.start("other", threshold)

    # So that a fetch is under way when the loop stops; what it brings is to run once too.
    added = field.add_all([JobSpec("note")] * 50)
    field.block()
    began_at = time.monotonic()
    line = blocked.wait_for_line("has been blocking the event loop")
    field.enter_dead_pool()
    field.wait_for_sweep()
    was_blocked = job not in jobs(blocked, "ended")
    # Longer than the lease. A computation for the whole time takes much of a core.
    if not is_nightly():
        eventually(lambda: time.monotonic() > began_at + 1.3 * threshold, "its lease is over")
        field.end_computation()
    blocked.wait_for_line("the event loop was blocked", within=2 * seconds + TIMEOUT_SECONDS)
    field.wait_until_empty()

    assert was_blocked, "the dead pool must be found while the other one is blocked"
    assert f"task '{task}' (job {job}) has been blocking the event loop" in line
    assert blocked.err.count("has been blocking the event loop") == 1
    assert re.search(PLACES[task], blocked.err)
    assert "recovered job" not in blocked.err + other.err
    assert "lease expired" not in blocked.err
    assert sql.value(RECOVERED) == 0
    assert field.lives(pool_id)
    all_ended = ended(blocked, other, count=1 + len(added))
    assert all_ended == [(job, 1), *((each.id, 1) for each in added)]
    figure(f"{task} for {seconds:.0f} s, lease of {threshold or 30:.0f} s: not taken for dead")
    assert blocked.stop() == 0


# Everywhere at once


@pytest.mark.feature("F217", "F220", "F221")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "task",
    ["keep_gil_on_loop", pytest.param("keep_gil_in_thread", marks=pytest.mark.single_version)],
)
def test_a_worker_that_one_call_blocks_entirely_loses_its_job_and_continues(field, sql, task):
    threshold = LEASE
    blocked = field.start("blocked", threshold)
    job, old_id = field.run(task, blocked, seconds=BLOCKED_FOR)
    other = field.start("other", threshold)

    field.block()
    eventually(lambda: said(other, "began"), "another worker runs it")
    was_blocked = said(blocked, "ended") == []
    refusal = blocked.wait_for_line(REFUSED)
    blocked.wait_for_line("lease lost")

    assert was_blocked, "it must be taken while that call lasts"
    assert f"{task}{{{job}}}" in refusal
    assert "completed job" not in blocked.err
    ((_, _, new_id),) = said(other, "began")
    assert sql.run("select locked_by from :schema._private_jobs") == [(new_id,)]
    field.let_end()
    field.wait_until_empty()
    assert ended(other, count=1) == [(job, 2)]
    field.check_goes_on_as_new(blocked, old_id)


@pytest.mark.single_version
@pytest.mark.feature("F220", "F221")
@pytest.mark.timeout(120)
def test_a_worker_whose_loop_is_blocked_during_a_database_outage_continues(field, database, proxy):
    threshold = LEASE
    through = f"postgres://postgres@127.0.0.1:{proxy.port}/{database.name}"
    blocked = field.start("blocked", threshold, DATABASE_URL=through)
    job, old_id = field.run("sleep_on_loop", blocked, seconds=BLOCKED_FOR)
    other = field.start("other", threshold)

    field.block()
    # Connections are cut, and new ones hang.
    proxy.mode = Mode.STALL
    proxy.reset()
    eventually(lambda: said(other, "began"), "another worker runs it")
    was_blocked = said(blocked, "ended") == []
    # The loop runs again, and finds that its lease has expired.
    blocked.wait_for_line("lease expired")
    eventually(lambda: said(blocked, "ended"), "the task ends")
    proxy.mode = Mode.PASS
    blocked.wait_for_line("lease lost")
    blocked.wait_for_line(REFUSED)

    assert was_blocked, "it must be recovered while the loop is blocked"
    assert f"task 'sleep_on_loop' (job {job}) has been blocking the event loop" in blocked.err
    field.let_end()
    field.wait_until_empty()
    assert ended(other, count=1) == [(job, 2)]
    field.check_goes_on_as_new(blocked, old_id)


# In a thread


@pytest.mark.single_version
@pytest.mark.feature("F220")
@pytest.mark.timeout(120)
def test_a_blocked_plain_function_is_logged_once_and_others_are_not(field):
    worker = field.start("worker")
    standing = field.add("stand")
    going_on = [field.add("walk"), field.add("call")]

    all_ended = ended(worker, count=3)
    field.wait_until_empty()

    named = [line for line in worker.err.splitlines() if "has been blocking its thread" in line]
    assert len(named) == 1, worker.err
    assert f"task 'stand' (job {standing.id}) has been blocking its thread for" in named[0]
    assert float(re.findall(r"for ([\d.]+) s$", named[0])[0]) >= 5
    assert re.search(r"line \d+, in stand\n[ |]+time\.sleep\(8\)", worker.err)
    assert all_ended == [(each.id, 1) for each in (standing, *going_on)]
    # One blocked thread delays no other job.
    assert "event loop" not in worker.err
    assert worker.stop() == 0


@pytest.mark.feature("F221")
@pytest.mark.timeout(120)
def test_a_worker_that_is_stopped_during_recovery_does_not_block_other_workers(field, sql):
    threshold, seconds = LEASE, float(BLOCKED_FOR)
    blocked = field.start("blocked", threshold)
    job, _ = field.run("sleep_on_loop", blocked, seconds=seconds)
    in_the_way = sql.another()
    in_the_way.run("begin")
    in_the_way.run("lock table :ext_schema.recoveries in access exclusive mode")

    field.enter_dead_pool()
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    eventually(lambda: sql.value(waiting), "its sweep waits")
    field.block()
    eventually(lambda: said(blocked, "blocks"), "its loop is blocked")
    in_the_way.close()
    field.start("other", threshold)
    field.wait_for_sweep()

    assert job not in jobs(blocked, "ended")

"""`graphile-worker jobs` on a million jobs, beside a worker whose slots are always full."""

import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.job_table import NODE
from tests.support.processes import Program, Programs, eventually
from tests.support.shell import Shell
from tests.support.sql import Sql
from tests.support.terminal import Terminal

RETRIED = 100_000
LOCKED = 1_000
OTHERS = 899_000
FOR_THE_WORKER = 300_000

# Long enough to measure a rate.
WINDOW_SECONDS = 0.5
ROUNDS = 20

BUSY = """
    import asyncio
    import time
    from contextlib import asynccontextmanager

    from graphile_worker import App

    started = 0

    async def report():
        while True:
            print(time.monotonic(), started, flush=True)
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def lifespan():
        reporting = asyncio.create_task(report())
        yield
        reporting.cancel()

    app = App(lifespan=lifespan)

    @app.task
    async def work():
        global started
        started += 1
        await asyncio.sleep(0.005)
"""

TASKS = """
insert into :schema._private_tasks (identifier)
select unnest(array['work', 'broken', 'send_email', 'render_pdf', 'charge'])
"""

QUEUES = """
insert into :schema._private_job_queues (queue_name, locked_at, locked_by)
select 'queue ' || n, now(), 'worker' from generate_series(1, 100) as n
"""

# Insert $1 jobs of the kind $3: failed, failed and locked by $2, for the worker, or other.
JOBS = """
insert into :schema._private_jobs
  (task_id, job_queue_id, payload, run_at, attempts, last_error, key, locked_at, locked_by, flags)
select
  case kind when 'failed' then 2 when 'locked' then 2 when 'work' then 1 else 3 + n % 3 end,
  case when kind = 'other' and n % 10 = 0 then n / 10 % 100 + 1 end,
  case kind when 'work' then '{}' else json_build_object('user', json_build_object('id', n)) end,
  now() + case kind when 'other' then n % 1000 * interval '1 minute' else interval '0' end,
  case kind when 'failed' then 25 when 'locked' then 25 when 'other' then n % 3 else 0 end,
  case kind when 'failed' then 'TimeoutError: upstream took ' || n || ' ms' end,
  case when n % 4 = 0 and kind = 'other' then 'key:' || n end,
  case kind when 'locked' then now() end,
  case kind when 'locked' then $2::text end,
  case when n % 100 = 0 and kind = 'other' then '{"vip": true}'::jsonb end
from generate_series(1, $1::int) as n, (select $3::text as kind) as kinds
"""

INDEXES = """
select indexname, indexdef
from pg_indexes
where schemaname = $1 and tablename = '_private_jobs' and indexdef not like 'CREATE UNIQUE%'
"""

LOCKED_ROWS = """
select md5(string_agg(to_jsonb(jobs)::text, '' order by id)), count(*)
from :schema._private_jobs as jobs
where locked_by = $1
"""

FILTERS = [
    "",
    "state:failed",
    "state:stale",
    "state:waiting",
    "task:render_pdf -state:failed",
    "task:unknown",
    'queue:"queue 7"',
    "key:key:400000",
    "key:nothing*",
    "worker:unknown",
    'error:"upstream took 99999 ms"',
    "attempts:>=25 priority:<0",
    "age:>1d",
    "created:<2020-01-01",
    "flag:nothing",
    "payload.user.id:-1",
    "nothing",
]


@pytest.fixture
def million(database: TestDatabase, sql: Sql) -> None:
    """A million jobs and some more for a worker."""
    if database.cluster.major != 18:
        pytest.skip("one measurement is enough: on 18")
    sql.run(TASKS)
    sql.run(QUEUES)
    # Creating the indexes afterwards is faster than updating them.
    indexes = sql.run(INDEXES, database.schema)
    for name, _ in indexes:
        sql.run(f"drop index :schema.{name}")
    kinds = {"failed": RETRIED, "locked": LOCKED, "other": OTHERS, "work": FOR_THE_WORKER}
    for kind, count in kinds.items():
        sql.run(JOBS, count, NODE, kind)
    for _, definition in indexes:
        sql.run(definition)
    sql.run("vacuum analyze :schema._private_jobs")


@pytest.fixture
def worker(programs: Programs, million: None) -> Program:
    programs.write("busy.py", BUSY)
    worker = programs.command("--app", "busy", "-j", "10", NO_LOG_SUCCESS="1")
    eventually(lambda: progress(worker)[-1][1] > 500, "the worker runs jobs")
    return worker


def progress(worker: Program) -> list[tuple[float, int]]:
    """Return the times at which the worker reported, with its number of started jobs."""
    lines = [line.split() for line in worker.out.splitlines() if line.endswith(tuple("0123456789"))]
    return [(float(time), int(count)) for time, count in lines] or [(0.0, 0)]


def rate(worker: Program, since: float, until: float) -> float:
    """Compute the jobs per second between two times."""
    points = [each for each in progress(worker) if since <= each[0] <= until]
    if len(points) < 2:
        return 0.0
    (first, before), (last, after) = points[0], points[-1]
    return (after - before) / (last - first)


@pytest.mark.nightly
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_a_million_jobs_are_listed_and_a_tenth_retried_beside_a_running_worker(
    database: TestDatabase,
    sql: Sql,
    programs: Programs,
    worker: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    figure: Callable[[str], None],
):
    shell = Shell(database, tmp_path, monkeypatch, capsys)
    locked_rows = sql.run(LOCKED_ROWS, NODE)

    durations = {text: measure_list_seconds(shell, text) for text in FILTERS}
    bulk = Terminal(programs, "jobs", "retry", "--where", "task:broken")
    bulk.wait_for_text(f"0/{RETRIED}")
    alone, beside = measure_alternately(worker, bulk)
    while bulk.program.is_running:
        bulk.watch(WINDOW_SECONDS)
    code = bulk.end()

    slowest = max(durations, key=lambda text: durations[text])
    figure(
        f"a list of {OTHERS + LOCKED + RETRIED:,} jobs by {len(FILTERS)} filters: at most "
        f"{durations[slowest]:.2f} s ({slowest!r})"
    )
    figure(
        f"a worker while {RETRIED:,} jobs are retried: {beside:,.0f} jobs/s, "
        f"otherwise {alone:,.0f} ({beside / alone - 1:+.1%})"
    )
    assert max(durations.values()) < 2.0
    assert code == 0
    output = f"retried {RETRIED:,} jobs; skipped {LOCKED:,} that a worker holds\n"
    assert bulk.program.out == output
    assert f"{RETRIED}/{RETRIED}" in bulk.seen
    assert sql.run(LOCKED_ROWS, NODE) == locked_rows
    assert beside > 0.9 * alone
    assert worker.stop() == 0
    assert "error" not in worker.err.lower()


def measure_alternately(worker: Program, bulk: Terminal) -> tuple[float, float]:
    """Return the median rates of the worker while `bulk` is stopped, and while it runs."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for is_running in [False, True] * ROUNDS:
        bulk.program.signal(signal.SIGCONT if is_running else signal.SIGSTOP)
        since = time.monotonic()
        bulk.watch(WINDOW_SECONDS)
        if bulk.program.is_running:
            rates[is_running].append(rate(worker, since, time.monotonic()))
    assert len(rates[True]) > ROUNDS / 2
    return statistics.median(rates[False]), statistics.median(rates[True])


def measure_list_seconds(shell: Shell, text: str) -> float:
    started = time.monotonic()
    assert shell("jobs", "list", text).code == 0
    return time.monotonic() - started

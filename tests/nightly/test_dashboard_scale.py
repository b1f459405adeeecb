"""The dashboard on a large queue: the first data, its cost for the database, and bulk changes."""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphile_worker.contrib.dashboard._poller import DEFAULT_TIMINGS
from tests.conftest import TestDatabase
from tests.support.dashboard import Caller, open_dashboard
from tests.support.processes import Programs, eventually
from tests.support.sql import Sql

JOBS = 1_000_000
QUEUES = 5_000
TASKS = 300

FIRST_DATA_SECONDS = 1.0
MAX_LOAD = 0.02


def fill(sql: Sql) -> None:
    """Fill the table: 40 % in named queues, 30 % scheduled, 2 % failed, and 300 locked."""
    sql.run(
        "insert into :schema._private_tasks (identifier) "
        "select 't' || n from generate_series(1, $1) n",
        TASKS,
    )
    sql.run(
        "insert into :schema._private_job_queues (queue_name, locked_at) "
        "select 'q' || n, case when n <= 100 then now() end from generate_series(1, $1) n",
        QUEUES,
    )
    sql.run(
        """
        insert into :schema._private_jobs
          (task_id, job_queue_id, payload, priority, run_at, attempts, max_attempts, last_error)
        select
          (select min(id) from :schema._private_tasks) + n % $2::int,
          case when n % 5 < 2
            then (select min(id) from :schema._private_job_queues) + n % $3::int
          end,
          '{"a": 1}', n % 3,
          now() + case when n % 10 < 3 then interval '1 day' else interval '-1 hour' end,
          case when n % 50 = 0 then 25 else 0 end, 25, case when n % 50 = 0 then 'Error: x' end
        from generate_series(1, $1::int) n
        """,
        JOBS,
        TASKS,
        QUEUES,
    )
    sql.run(
        "update :schema._private_jobs set locked_at = now(), locked_by = 'pool-000000000000000000' "
        "where id in (select id from :schema._private_jobs order by id limit 300)"
    )
    sql.run("vacuum analyze :schema._private_jobs")


def read_processor_seconds(pid: int) -> float:
    """Return the processor time of a process, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def time_diagnosis(caller: Caller) -> tuple[dict[str, Any], float]:
    """Return the diagnosis, and the seconds until it was there."""
    started_at = time.monotonic()
    diagnosis: dict[str, Any] = caller.get("diagnosis")
    return diagnosis, time.monotonic() - started_at


@pytest.mark.nightly
@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(900)
def test_the_poller_is_quick_and_cheap_with_a_million_jobs(
    fresh_database: TestDatabase, sql: Sql, figure: Callable[[str], None]
) -> None:
    fill(sql)
    with open_dashboard(fresh_database, timings=DEFAULT_TIMINGS) as board:
        caller = board.sign_in()
        started_at = time.monotonic()
        first = caller.get("overview")
        first_seconds = time.monotonic() - started_at
        # The jobs are still being counted, unless this machine is fast, and later they are counted.
        counting, counting_seconds = time_diagnosis(caller)
        is_counting = caller.get("overview")["is_partial"]

        def get_taken() -> str | None:
            overview = caller.get("overview")
            return None if overview["is_partial"] else overview["taken_at"]

        taken = eventually(get_taken, "the first counts", within=60)
        poller = board.service.poller
        [connection] = poller._db._pool._idle
        pid = connection.info.backend_pid

        def get_next() -> str | None:
            now = get_taken()
            return now if now != taken else None

        before, since = read_processor_seconds(pid), time.monotonic()
        eventually(get_next, "the next counts", within=300)
        seconds = time.monotonic() - since
        load = (read_processor_seconds(pid) - before) / seconds
        overview = caller.get("overview")
        diagnosis, diagnosis_seconds = time_diagnosis(caller)
    figure(
        f"dashboard with {JOBS:,} jobs, {QUEUES:,} queues, {TASKS} tasks: first data after "
        f"{first_seconds:.2f} s, diagnosis after {counting_seconds:.2f} s while jobs are being "
        f"counted and {diagnosis_seconds:.2f} s later, snapshot "
        f"{overview['snapshot_seconds']:.2f} s each {seconds:.0f} s, {load:.1%} of one backend"
    )
    assert first["oldest_ready_seconds"] > 3000
    assert overview["totals"]["ready"] + overview["totals"]["waiting"] > JOBS / 2
    assert len(overview["tasks"]) == 60
    assert overview["task_count"] == TASKS
    assert counting["verdict"] == "unknown" or not is_counting
    assert diagnosis["verdict"] == "degraded"
    assert {"late", "permanently-failed"} <= {each["id"] for each in diagnosis["findings"]}
    assert first_seconds < FIRST_DATA_SECONDS
    assert counting_seconds < FIRST_DATA_SECONDS
    assert diagnosis_seconds < FIRST_DATA_SECONDS
    assert load < MAX_LOAD


WORKER = """
import asyncio

from graphile_worker import App

app = App()


@app.task
async def work() -> None:
    await asyncio.sleep(0.02)
"""
FAILED_JOBS = 100_000
ROUNDS = 5
WORK_PER_ROUND = 60_000
WINDOW_SECONDS = 10.0
MIN_RATE_RATIO = 0.9


@pytest.mark.nightly
@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(1200)
def test_a_bulk_retry_leaves_a_busy_worker_its_rate(
    fresh_database: TestDatabase,
    sql: Sql,
    programs: Programs,
    figure: Callable[[str], None],
) -> None:
    add_plain_jobs(sql, "broken", FAILED_JOBS, attempts=25)
    add_plain_jobs(sql, "work", ROUNDS * WORK_PER_ROUND, attempts=0)
    sql.run("vacuum analyze :schema._private_jobs")
    programs.write("busy.py", WORKER)
    programs.worker("--app", "busy:app", "-j", "20", "-s", fresh_database.schema)
    ratios: list[float] = []
    progress: list[int] = []
    with open_dashboard(fresh_database, timings=DEFAULT_TIMINGS) as board:
        caller = board.sign_in()
        eventually(lambda: count_work(sql) < ROUNDS * WORK_PER_ROUND, "the worker works")
        for _ in range(ROUNDS):
            alone = measure_rate(sql, lambda: False)
            preview = {"action": "retry", "q": "task:broken state:failed"}
            token = caller.post("bulk/preview", preview)["token"]
            run = caller.post("bulk", {"token": token, "limit": FAILED_JOBS // ROUNDS})

            def has_ended(id: str = run["id"]) -> bool:
                found = caller.get(f"bulk/{id}")
                progress.append(found["changed"])
                return bool(found["state"] != "running")

            ratios.append(measure_rate(sql, has_ended) / alone)
            eventually(has_ended, "the bulk run ends", within=120)
    changed = sql.value(
        "select count(*) from :schema._private_jobs where attempts = 0 and last_error is not null"
    )
    ratio = statistics.median(ratios)
    figure(
        f"bulk retry of {FAILED_JOBS:,} jobs in {ROUNDS} runs beside a busy worker: its rate is "
        f"{ratio:.2f} of that alone ({', '.join(f'{each:.2f}' for each in ratios)})"
    )
    assert changed == FAILED_JOBS
    assert len(set(progress)) > 2 * ROUNDS
    assert ratio >= MIN_RATE_RATIO


def add_plain_jobs(sql: Sql, task: str, count: int, *, attempts: int) -> None:
    """Add due jobs of a task without named queues."""
    sql.run("insert into :schema._private_tasks (identifier) values ($1)", task)
    sql.run(
        """
        insert into :schema._private_jobs (task_id, attempts, max_attempts, last_error)
        select
          (select id from :schema._private_tasks where identifier = $1), $3::int, 25,
          case when $3::int > 0 then 'Error: x' end
        from generate_series(1, $2::int)
        """,
        task,
        count,
        attempts,
    )


def count_work(sql: Sql) -> int:
    """Return the number of jobs of the worker that are left."""
    count: int = sql.value(
        "select count(*) from :schema._private_jobs where task_id = "
        "(select id from :schema._private_tasks where identifier = 'work')"
    )
    return count


def measure_rate(sql: Sql, has_ended: Callable[[], bool]) -> float:
    """Return the jobs per second that the worker ends, in a window or until something ends."""
    before, since = count_work(sql), time.monotonic()
    while time.monotonic() - since < WINDOW_SECONDS and not has_ended():
        time.sleep(0.5)
    return (before - count_work(sql)) / (time.monotonic() - since)

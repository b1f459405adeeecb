"""Python and Node workers on one schema, at the same time: every job once, every queue in turn."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import JobSpec, lane, sync
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tiers import size
from tests.support.tools import MODULES, NODE

PROGRAMS = Path(__file__).parent / "programs"
CONCURRENCY = 10
JOBS = size(gate=1_000, nightly=20_000)
FEWER_JOBS = size(gate=200, nightly=2_000)
TENANTS = 12
LANES = 4

# Who held which job when, seen from inside the database: no worker's word is taken for it.
WATCH = """
create table ran (job bigint, attempt int, language text);
create table held (
  job bigint, queue int, holder text, attempts int, began timestamptz, ended timestamptz
);
create index on held (job) where ended is null;
create table gone (job bigint, attempts int);
create function watch() returns trigger language plpgsql as $body$
begin
  if tg_op = 'DELETE' then
    update held set ended = clock_timestamp() where job = old.id and ended is null;
    insert into gone values (old.id, old.attempts);
  elsif old.locked_at is null and new.locked_at is not null then
    insert into held
    values (new.id, new.job_queue_id, new.locked_by, new.attempts, clock_timestamp(), null);
  elsif old.locked_at is not null and new.locked_at is null then
    update held set ended = clock_timestamp() where job = new.id and ended is null;
  end if;
  return null;
end
$body$;
create trigger watch after update or delete on :schema._private_jobs
for each row execute function watch();
"""

OVERLAPS = """
select count(*) from (
  select began < max(ended) over (
    partition by queue order by began rows between unbounded preceding and 1 preceding
  ) as too_early
  from held where queue is not null
) as holds where too_early
"""

# The largest number of jobs of one tenant that were held at the same time.
MOST_PER_TENANT = """
select max(held_at_once) from (
  select sum(change) over (
    partition by tenant order by changed_at, change
    rows between unbounded preceding and current row
  ) as held_at_once
  from held
  join :schema._private_job_queues as job_queues on job_queues.id = held.queue,
  lateral split_part(job_queues.queue_name, '#', 1) as tenant,
  lateral (values (began, 1), (ended, -1)) as changes (changed_at, change)
) as changes
"""


class Fleet:
    """Two workers of each language, and the jobs between them."""

    def __init__(self, database: Any, programs: Programs, mode: str) -> None:
        node = [str(NODE), str(PROGRAMS / "fleet.js"), str(MODULES / "gw018"), database.url]
        python = [sys.executable, str(PROGRAMS / "fleet.py"), database.dsn]
        options = [database.schema, str(CONCURRENCY), mode]
        self._nodes, self._pythons = (
            [programs.start([*command, *options], {"NO_LOG_SUCCESS": "1"}) for _ in range(2)]
            for command in (node, python)
        )
        for worker in self._nodes + self._pythons:
            eventually(partial(is_ready, worker), "the worker is ready")

    def stop(self) -> list[int]:
        """Return their exit codes: first both of Node, then both of Python."""
        workers = self._nodes + self._pythons
        for worker in workers:
            worker.signal(signal.SIGTERM)
        return [worker.end() for worker in workers]


def is_ready(worker: Program) -> bool:
    assert worker.is_running, worker.err
    return "ready\n" in worker.out


@contextmanager
def fleet(database: Any, folder: Path, mode: str) -> Iterator[Fleet]:
    with Programs(folder) as programs:
        yield Fleet(database, programs, mode)


@pytest.fixture
def watched(either_database) -> Iterator[Sql]:
    sql = Sql(either_database.dsn, either_database.schema)
    sql.run(WATCH)
    yield sql
    sql.close()


def add_jobs(database: Any, count: int) -> None:
    """Half of them in lanes of tenants; a tenth fails once; some tasks only one language knows."""
    names = ("both", "both", "both", "python_only", "node_only")
    specs = [
        JobSpec(
            names[number % 5],
            {"fail_first": number % 10 == 7},
            queue_name=lane("tenant", number % TENANTS, of=LANES) if number // 50 % 2 else None,
        )
        for number in range(count)
    ]
    with sync.Client(database.dsn, schema=database.schema) as client:
        for start in range(0, count, 1000):
            client.add_jobs(specs[start : start + 1000])


def wait_until_empty(sql: Sql, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := sql.value("select count(*) from :schema._private_jobs"):
        assert time.monotonic() < deadline, f"{left} jobs are left"
        time.sleep(0.2)


def check(sql: Sql, count: int) -> dict[str, int]:
    """What must hold once all is done; how many jobs each language finished."""
    assert sql.value("select count(*) from gone") == count
    assert sql.value("select count(distinct job) from gone") == count
    # The task of each job ended once, at its first or second attempt as its payload sets.
    assert sql.value("select count(*) from ran") == count
    assert sql.value("select count(distinct job) from ran") == count
    attempts = dict(sql.run("select attempts, count(*) from gone group by attempts"))
    assert attempts == {1: count * 9 // 10, 2: count // 10}
    # Jobs that were prefetched and waited for too long were released and claimed again.
    assert sql.value("select count(*) from held") >= count + count // 10
    assert sql.value("select count(*) from held where ended is null") == 0
    assert sql.value(OVERLAPS) == 0
    assert sql.value(MOST_PER_TENANT) <= LANES
    locked = "select count(*) from :schema._private_job_queues where locked_by is not null"
    assert sql.value(locked) == 0
    return dict(sql.run("select language, count(*) from ran group by language"))


@pytest.mark.feature("F5", "F92", "F95")
@pytest.mark.single_version
@pytest.mark.timeout(300)
def test_two_python_and_two_node_workers_run_every_job_once_and_every_queue_in_turn(
    either_database, watched, tmp_path, figure
):
    with fleet(either_database, tmp_path, "batched") as workers:
        began = time.monotonic()
        add_jobs(either_database, JOBS)
        wait_until_empty(watched, 240)
        seconds = time.monotonic() - began
        codes = workers.stop()

    done = check(watched, JOBS)
    # Node re-raises the signal that ended it.
    assert codes[2:] == [0, 0]
    # Each language has a fifth to itself, so neither could have done it all.
    assert min(done.values()) >= JOBS // 5, done
    most = watched.value(MOST_PER_TENANT)
    figure(
        f"mixed fleet: {JOBS:,} jobs in {seconds:.0f} s, finished by {done}, overlaps 0, "
        f"at most {most} of a tenant with {LANES} lanes at once"
    )


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_mixed_fleet_runs_each_job_once_with_default_node_workers(
    either_database, watched, tmp_path, figure
):
    with fleet(either_database, tmp_path, "defaults") as workers:
        add_jobs(either_database, FEWER_JOBS)
        wait_until_empty(watched, 90)
        workers.stop()

    done = check(watched, FEWER_JOBS)
    figure(f"mixed fleet, Node's own defaults: {FEWER_JOBS:,} jobs, finished by {done}, overlaps 0")

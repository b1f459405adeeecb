"""A worker dies without a word: its jobs run elsewhere, soon, and none of them is lost."""

import re
import signal
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import JobSpec, sync
from tests.conftest import TestDatabase
from tests.support.processes import READY, Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tiers import size

MORTAL = Path(__file__).parent / "programs" / "mortal.py"

TIGHT = ("--lease-duration", size(gate="8s", nightly="2s"))
# Where the test is not about seconds: a long lease, so that a live worker on a busy machine keeps
# it. The test ages the rows of workers that it killed.
LONG = (
    *("--lease-duration", "30s"),
    *("--heartbeat-interval", "500ms"),
    *("--rescue-interval", "1s"),
)

# Seconds from the death of a worker until all of its jobs can be taken.
SOON = size(gate=60.0, nightly=45.0)
SOON_IF_TIGHT = size(gate=30.0, nightly=4.0)

# Seconds. Only a bug takes longer.
PATIENCE = 90.0

CLAIMABLE = """
select jobs.id
from :schema._private_jobs as jobs
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
where jobs.is_available
  and jobs.run_at <= now()
  and coalesce(job_queues.is_available, true)
"""

# A short lease, as no worker counts as silent before the server itself has run for one.
AGE = """
update :ext_schema.pools
set seen_at = seen_at - interval '1 hour', lease = '1 second'
where details ->> 'pid' = $1
"""

# Of jobs, and of named queues.
LOCKS = """
select
  (select count(*) from :schema._private_jobs where locked_by is not null),
  (select count(*) from :schema._private_job_queues where locked_by is not null)
"""

# Jobs that run, or may run.
UNFINISHED = """
select count(*) from :schema._private_jobs where is_available or locked_by is not null
"""

ROWS = """
select (jobs.payload ->> 'n')::int, jobs.attempts, jobs.last_error, recoveries.count
from :schema._private_jobs as jobs
left join :ext_schema.recoveries as recoveries on recoveries.job_id = jobs.id
order by jobs.id
"""

RECOVERED = "Job recovered after worker interruption"


class Field:
    """Workers that may be killed, and what becomes of their jobs."""

    def __init__(self, database: TestDatabase, programs: Programs, sql: Sql) -> None:
        self._database = database
        self._programs = programs
        self._sql = sql
        programs.write("mortal.py", MORTAL.read_text(encoding="utf-8"))

    def add(self, specs: Iterable[JobSpec]) -> None:
        with sync.Client(self._database.dsn, schema=self._database.schema) as client:
            client.add_jobs(list(specs))

    def launch(self, *flags: str, ahead: int = 0) -> Program:
        return self._programs.command("--app", "mortal:app", *flags, AHEAD=str(ahead))

    def start(self, *flags: str, ahead: int = 0) -> Program:
        """Start a worker, and wait until it fetches jobs."""
        return self.start_many(1, *flags, ahead=ahead)[0]

    def start_many(self, count: int, *flags: str, ahead: int = 0) -> list[Program]:
        workers = [self.launch(*flags, ahead=ahead) for _ in range(count)]
        for worker in workers:
            worker.wait_for_line(READY, PATIENCE)
        return workers

    def start_sweeper(self, *flags: str) -> Program:
        """Start a worker that runs no job, so that recovered jobs stay as they are."""
        return self._programs.worker("--app", "mortal:idle", *flags)

    def go(self) -> None:
        """Let the waiting tasks end."""
        self._programs.write("go", "")

    def age(self, *workers: Program) -> None:
        """Age the heartbeats of these dead workers beyond their lease."""
        for worker in workers:
            worker.end()
            self._sql.run(AGE, str(worker.pid))

    def pool_id(self, worker: Program) -> str:
        query = "select id from :ext_schema.pools where details ->> 'pid' = $1"
        found: str = self._sql.value(query, str(worker.pid))
        return found

    def jobs_of(self, worker: Program) -> set[int]:
        query = "select id from :schema._private_jobs where locked_by = $1"
        return {job_id for (job_id,) in self._sql.run(query, self.pool_id(worker))}

    def wait_until_told(self, worker: Program, count: int) -> None:
        """Wait until a heartbeat has recorded `count` started jobs of this worker."""
        told = "select cardinality(started_jobs) from :ext_schema.pools where id = $1"
        pool_id = self.pool_id(worker)
        eventually(lambda: self._sql.run(told, pool_id) == [(count,)], "a heartbeat has them")

    def wait_until_free(self) -> None:
        eventually(lambda: self._sql.run(LOCKS) == [(0, 0)], "nothing is locked", PATIENCE)

    def wait_until_finished(self) -> None:
        eventually(lambda: self._sql.value(UNFINISHED) == 0, "all jobs have run", PATIENCE)

    def seconds_until_claimable(
        self, held: dict[Program, set[int]], killed_at: dict[Program, float]
    ) -> dict[Program, float]:
        """Return for each worker the seconds from its death until all its jobs could be claimed."""
        seconds: dict[Program, float] = {}

        def look() -> bool:
            claimable = {job_id for (job_id,) in self._sql.run(CLAIMABLE)}
            now = time.monotonic()
            for worker in killed_at.keys() - seconds.keys():
                if held[worker] <= claimable:
                    seconds[worker] = now - killed_at[worker]
            return seconds.keys() == killed_at.keys()

        eventually(look, "all of them can be taken", PATIENCE)
        return seconds


@pytest.fixture
def field(database, programs, sql) -> Field:
    return Field(database, programs, sql)


def lingering(count: int, **options: Any) -> list[JobSpec]:
    """Jobs of which every second one has a named queue to itself."""
    return [
        JobSpec("linger", {"n": n}, queue_name=f"queue {n}" if n % 2 else None, **options)
        for n in range(count)
    ]


def numbers(word: str, *workers: Program) -> list[int]:
    """Return the jobs in the lines of these workers with this word."""
    said = "".join(worker.out for worker in workers)
    return sorted(int(number) for number in re.findall(rf"^{word} (\d+)$", said, re.M))


def begin_all(field: Field, workers: list[Program], each: int) -> dict[Program, set[int]]:
    """Give every worker as many jobs as it can run; what each of them holds."""
    count = len(workers) * each
    field.add(lingering(count))
    eventually(lambda: len(numbers("began", *workers)) == count, "all run")
    held = {worker: field.jobs_of(worker) for worker in workers}
    assert {len(ids) for ids in held.values()} == {each}
    return held


def kill(workers: list[Program]) -> dict[Program, float]:
    """All at the same moment; when that was."""
    now = time.monotonic()
    for worker in workers:
        worker.signal(signal.SIGKILL)
    return dict.fromkeys(workers, now)


def check_they_run(field: Field, count: int, *flags: str) -> None:
    """That another worker runs all that is left, each job once."""
    field.go()
    heir = field.start("-j", "20", *flags)
    field.wait_until_finished()
    assert heir.stop() == 0
    assert numbers("ran", heir) == list(range(count))


def shown(seconds: Iterable[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in sorted(seconds)) + " s"


@pytest.mark.slow_io
@pytest.mark.single_version
@pytest.mark.feature("F217", "F219", "F221", "F224")
@pytest.mark.timeout(240)
def test_jobs_of_four_killed_workers_can_be_claimed_within_45_seconds(field, sql, figure):
    sweeper = field.start_sweeper()
    workers = field.start_many(4, "-j", "5")
    held = begin_all(field, workers, 5)

    seconds = field.seconds_until_claimable(held, kill(workers))

    figure(f"4 workers killed at once: jobs claimable after {shown(seconds.values())}")
    assert max(seconds.values()) <= SOON
    assert sql.run(LOCKS) == [(0, 0)]
    eventually(lambda: sweeper.err.count("recovered job") == 20, "it logs each")
    check_they_run(field, 20)


@pytest.mark.single_version
@pytest.mark.feature("F217")
@pytest.mark.timeout(120)
def test_with_a_lease_of_two_seconds_jobs_can_be_claimed_within_four(field, sql, figure):
    field.start_sweeper(*TIGHT)
    workers = field.start_many(4, "-j", "5", *TIGHT)
    held = begin_all(field, workers, 5)

    seconds = field.seconds_until_claimable(held, kill(workers))

    figure(f"4 workers killed at once, tight: jobs claimable after {shown(seconds.values())}")
    assert max(seconds.values()) <= SOON_IF_TIGHT
    assert sql.run(LOCKS) == [(0, 0)]
    check_they_run(field, 20, *TIGHT)


@pytest.mark.nightly
@pytest.mark.feature("F217")
@pytest.mark.timeout(600)
def test_jobs_of_twenty_workers_killed_in_four_groups_can_be_claimed_within_45_seconds(
    field, sql, figure
):
    field.start_sweeper()
    workers = field.start_many(20, "-j", "4")
    held = begin_all(field, workers, 4)
    groups = [workers[first : first + 5] for first in range(0, 20, 5)]

    killed_at = kill(groups[0])
    for group in groups[1:]:
        # So that heartbeats and sweeps are elsewhere in their round: they come every 5 and 10 s.
        time.sleep(3.7)
        killed_at |= kill(group)
    seconds = field.seconds_until_claimable(held, killed_at)

    for number, group in enumerate(groups, 1):
        theirs = shown(seconds[worker] for worker in group)
        figure(f"group {number}, 5 workers killed at once: jobs claimable after {theirs}")
    assert max(seconds.values()) <= SOON
    assert sql.run(LOCKS) == [(0, 0)]
    check_they_run(field, 80)


@pytest.mark.single_version
@pytest.mark.feature("F219")
@pytest.mark.timeout(120)
def test_jobs_of_a_dead_worker_without_recovery_are_not_recovered(field, sql):
    field.start_sweeper(*LONG)
    alone = field.start("--no-recovery")
    field.add(lingering(1))
    eventually(lambda: numbers("began", alone) == [0], "it runs")
    watched = field.start(*LONG)
    field.add([JobSpec("linger", {"n": 1})])
    eventually(lambda: numbers("began", watched) == [1], "it runs")

    kill([alone, watched])
    field.age(alone, watched)
    available = "select (payload ->> 'n')::int from :schema._private_jobs where is_available"
    eventually(lambda: sql.run(available), "one of them can be taken")

    assert sql.run(available) == [(1,)]


@pytest.mark.single_version
@pytest.mark.feature("F223", "F224")
@pytest.mark.timeout(120)
def test_500_jobs_of_one_attempt_all_run_after_the_death_of_their_worker(field, sql):
    field.add(lingering(500, max_attempts=1))
    doomed = field.start("-j", "10", *LONG, ahead=500)
    eventually(lambda: len(numbers("began", doomed)) == 10, "ten run")
    field.wait_until_told(doomed, 10)
    assert sql.run(LOCKS) == [(500, 250)]

    kill([doomed])
    field.age(doomed)
    field.start_sweeper(*LONG)
    field.wait_until_free()

    rows = sql.run(ROWS)
    assert {attempts for _, attempts, _, _ in rows} == {0}
    assert [n for n, _, _, count in rows if count == 1] == numbers("began", doomed)
    assert len([n for n, _, _, count in rows if count == 0]) == 490
    check_they_run(field, 500, *LONG)


@pytest.mark.feature("F188", "F223", "F224")
@pytest.mark.timeout(120)
def test_recovery_counts_the_attempt_of_a_started_job_and_not_of_a_prefetched_one(field, sql):
    field.add(lingering(6))
    doomed = field.start("-j", "2", *LONG, ahead=6)
    field.wait_until_told(doomed, 2)
    pool_id = field.pool_id(doomed)

    kill([doomed])
    field.age(doomed)
    sweeper = field.start_sweeper(*LONG)
    field.wait_until_free()

    started = f"{RECOVERED}: it was held by pool {pool_id}"
    fetched = f"{RECOVERED}: it was fetched, not started, by pool {pool_id}"
    assert sql.run(ROWS) == [
        *((n, 1, started, 1) for n in (0, 1)),
        *((n, 0, fetched, 0) for n in (2, 3, 4, 5)),
    ]
    eventually(lambda: sweeper.err.count("recovered job") == 6, "it logs each")
    whose = f"of dead pool {pool_id}"
    assert sweeper.err.count(f"{whose} (started, crashes: 1)") == 2
    assert sweeper.err.count(f"{whose} (not started, crashes: 0)") == 4


@pytest.mark.single_version
@pytest.mark.feature("F223")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("heartbeats", "slow_neighbours", "most_deaths"),
    [
        # No heartbeat knew of it when it killed for the first time, so that this does not count.
        pytest.param(0, 0, 4, id="at once"),
        pytest.param(2, 0, 3, id="after two heartbeats"),
        pytest.param(2, 4, 3, id="beside the same jobs each time"),
    ],
)
def test_a_job_that_kills_its_worker_is_quarantined_and_none_of_its_neighbors(
    field, sql, heartbeats, slow_neighbours, most_deaths
):
    specs = [work(n, slow=n < slow_neighbours) for n in range(499)]
    middle = slow_neighbours // 2 or 250
    specs.insert(middle, JobSpec("kill", {"heartbeats": heartbeats}))
    field.add(specs)

    *died, last = restarted_until_finished(field, sql)

    assert {worker.end() for worker in died} == {-signal.SIGKILL}
    assert len(died) <= most_deaths
    told = partial(recoveries_of, middle + 1, *died, last)
    eventually(lambda: told()[-3:] == [1, 2, 3], "each of three recoveries is logged")
    assert last.stop() == 0
    assert set(numbers("ran", *died, last)) == set(range(499))
    ((_, attempts, error, _),) = sql.run(ROWS)
    assert attempts == 25
    assert error.startswith(f"{RECOVERED}: quarantined, as it was running at 3 recoveries")
    assert sql.run(LOCKS) == [(0, 0)]


def work(n: int, *, slow: bool) -> JobSpec:
    return JobSpec("work", {"n": n, "seconds": 2 if slow else 0.01}, max_attempts=1)


def restarted_until_finished(field: Field, sql: Sql) -> list[Program]:
    """All workers that it took, each started when the one before had died."""
    workers: list[Program] = []

    def look() -> bool:
        if not workers or not workers[-1].is_running:
            field.age(*workers[-1:])
            workers.append(field.launch("-j", "10", *LONG, ahead=500))
        return bool(sql.value(UNFINISHED) == 0)

    eventually(look, "all has run that can", PATIENCE)
    return workers


def recoveries_of(job_id: int, *workers: Program) -> list[int]:
    """Return the count of crashes in each log line about this job."""
    lines = re.compile(rf"(?:recovered|quarantined) job {job_id} .*crashes: (\d+)")
    return [int(count) for worker in workers for count in lines.findall(worker.err)]


@pytest.mark.feature("F224")
@pytest.mark.timeout(120)
def test_all_jobs_of_a_worker_killed_during_shutdown_are_released_or_recovered(field, sql):
    field.add(JobSpec("linger", {"n": n, "resists": n == 5}) for n in range(6))
    doomed = field.start("-j", "6", *LONG)
    field.wait_until_told(doomed, 6)
    pool_id = field.pool_id(doomed)
    field.start_sweeper(*LONG)

    doomed.signal(signal.SIGTERM)
    doomed.wait_for_line("stopping:")
    doomed.signal(signal.SIGTERM)
    eventually(lambda: numbers("blocks", doomed) == [5], "it can do no more")
    kill([doomed])
    field.age(doomed)
    field.wait_until_free()

    handed_back = (0, None, None)
    recovered = (1, f"{RECOVERED}: it was held by pool {pool_id}", 1)
    *others, last = (row[1:] for row in sql.run(ROWS))
    assert last == recovered
    assert set(others) <= {handed_back, recovered}
    check_they_run(field, 6, *LONG)


@pytest.mark.single_version
@pytest.mark.feature("F221")
@pytest.mark.timeout(120)
def test_recovery_by_a_killed_rescuer_is_done_once_by_the_next(field, sql):
    field.add(lingering(4))
    doomed = field.start("-j", "4", *LONG)
    field.wait_until_told(doomed, 4)
    pool_id = field.pool_id(doomed)
    in_the_way = sql.another()
    in_the_way.run("begin")
    # The process that recovers this job inserts it there, and must wait for this row.
    in_the_way.run("insert into :ext_schema.recoveries (job_id, count) values (4, 0)")

    kill([doomed])
    field.age(doomed)
    killed = field.start_sweeper(*LONG)
    eventually(lambda: sql.value(WAITING) == 1, "it is in the middle of its sweep")
    kill([killed])
    sweeper = field.start_sweeper(*LONG)
    in_the_way.close()
    field.wait_until_free()

    recovered = f"{RECOVERED}: it was held by pool {pool_id}"
    assert sql.run(ROWS) == [(n, 1, recovered, 1) for n in range(4)]
    assert killed.err.count("recovered job") == 0
    eventually(lambda: sweeper.err.count("recovered job") == 4, "it logs each")
    check_they_run(field, 4, *LONG)


WAITING = """
select count(*)
from pg_stat_activity
where datname = current_database()
  and application_name = 'graphile-worker'
  and wait_event_type = 'Lock'
"""


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_the_worker_that_recovers_a_job_deletes_its_progress(field, sql):
    progress = "select message from :ext_schema.progress"
    field.add([JobSpec("report")])
    worker = field.start(*LONG)
    eventually(lambda: sql.run(progress) == [("page 4 of 10",)], "a heartbeat has it", PATIENCE)

    kill([worker])
    field.age(worker)
    assert sql.run(progress)
    field.start_sweeper(*LONG)

    field.wait_until_free()
    eventually(lambda: sql.run(progress) == [], "it is deleted", PATIENCE)

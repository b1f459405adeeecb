"""A worker that kills itself at each place where that could matter, and another that takes over."""

import itertools
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from graphile_worker import JobSpec, sync
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.failpoints import FAILPOINTS, FAILPOINTS_VARIABLE, LOG_VARIABLE
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tiers import size

_numbers = itertools.count(1)

PROGRAM = Path(__file__).parent / "programs" / "kill_points.py"

AT_ONCE = 8
JOBS = 8
QUEUES = 4

# Seconds. Only a bug takes longer.
PATIENCE = 90.0

# Makes the dead worker look silent for longer than its lease. A short lease, as no worker counts
# as silent before the server itself has run for one.
AGE = "update :ext_schema.pools set seen_at = seen_at - interval '1 hour', lease = '1 second'"

RECOVERED = "Job recovered after worker interruption"


@dataclass(frozen=True)
class Scene:
    """What must be going on for a failpoint to be passed, and at which passage the worker dies."""

    at: int = 1
    leaves: str = ""
    """A job in this state: only fetched, or started."""
    waits: str = ""
    fails: bool = False
    is_stopped: bool = False
    after_a_ghost: bool = False
    has_crontab: bool = False
    is_empty: bool = False


# Where the start of a job must be recorded, the job waits for a heartbeat.
TOLD = Scene(waits="for a heartbeat", leaves="started")

SCENES = {
    # Later than the first: then it holds jobs.
    "before_claim": Scene(at=2),
    "claim_sent": Scene(leaves="fetched"),
    "job_prefetched": Scene(leaves="fetched"),
    "before_start": Scene(after_a_ghost=True, leaves="fetched"),
    "task_started": Scene(at=2, leaves="fetched"),
    "task_ended": TOLD,
    "batch_waiting": TOLD,
    "completing": TOLD,
    "completed": Scene(),
    "failing": replace(TOLD, fails=True),
    "failed": Scene(fails=True),
    # The first is of jobs that had not begun; those that run come after.
    "releasing": Scene(at=2, waits="for ever", is_stopped=True, leaves="started"),
    "rescuing": Scene(after_a_ghost=True, leaves="started"),
    # Late enough for a slow machine to have claimed jobs.
    "heartbeat": Scene(at=8, waits="for ever", leaves="fetched"),
    "cron_ticking": Scene(at=2, has_crontab=True),
    "migrating": Scene(is_empty=True),
}

# Those where a lost connection could be noticed instead: beside a statement.
STATEMENTS = [
    "before_claim",
    "claim_sent",
    "before_start",
    "completing",
    "completed",
    "failing",
    "failed",
    "releasing",
    "rescuing",
    "heartbeat",
    "cron_ticking",
]


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    point: str
    is_queued: bool
    is_batched: bool
    scene: Scene

    def __str__(self) -> str:
        queue = "queue" if self.is_queued else "no queue"
        return f"{self.point}, {queue}, {'batched' if self.is_batched else 'one by one'}"

    @property
    def at(self) -> int:
        # A migration has many steps: each of its runs dies in another one.
        step = 2 * self.is_queued + self.is_batched if self.scene.is_empty else 0
        return self.scene.at + step

    @property
    def waits_as_failure(self) -> bool:
        """Completions are written one by one: then what waits for others is a failure."""
        return self.point == "batch_waiting" and not self.is_batched

    @property
    def batches(self) -> str:
        if self.is_batched:
            return "complete fail"
        return "fail" if self.waits_as_failure else ""

    @property
    def crontab(self) -> str | None:
        if not self.scene.has_crontab:
            return None
        queue = "&queue=ticks" if self.is_queued else ""
        return f"0 * * * * work ?id=hourly&fill=5h{queue} {{n:-1}}"

    def jobs(self) -> list[JobSpec]:
        fails = self.scene.fails or self.waits_as_failure
        payload = {"waits": self.scene.waits, "fails": fails}
        return [
            # Every other job keeps its result and its attempts.
            JobSpec(
                "keep" if n % 2 else "work",
                {"n": n, **payload},
                queue_name=f"queue {n % QUEUES}" if self.is_queued else None,
            )
            for n in range(JOBS)
        ]


# With and without a named queue, with and without batched completions. In the gate each failpoint
# has one of these kinds of jobs, in turn.
KINDS_OF_JOBS = [(True, True), (False, False), (True, False), (False, True)]

CELLS = [
    Cell(point, is_queued, is_batched, scene)
    for number, (point, scene) in enumerate(SCENES.items())
    for is_queued, is_batched in size(
        gate=[KINDS_OF_JOBS[number % len(KINDS_OF_JOBS)]], nightly=KINDS_OF_JOBS
    )
]

RUNS = """
create table runs (
  id bigint generated always as identity,
  job_id bigint not null,
  n int not null,
  queue_name text,
  role text not null,
  attempt int not null,
  run_at timestamptz not null,
  last_error text,
  tick timestamptz,
  began_at timestamptz not null default clock_timestamp(),
  ended_at timestamptz
)
"""

# A pool that died long ago, with two jobs: only one of them had begun.
GHOST = [
    """
    insert into :ext_schema.pools (id, seen_at, lease, started_jobs, details)
    select 'ghost', now() - interval '1 hour', '1 second', array[min(id)], '{}'
    from :schema._private_jobs
    """,
    """
    update :schema._private_jobs
    set locked_by = 'ghost', locked_at = now() - interval '1 hour', attempts = 1
    where (payload ->> 'n')::int < 2
    """,
    """
    update :schema._private_job_queues
    set locked_by = 'ghost', locked_at = now() - interval '1 hour'
    where id in (select job_queue_id from :schema._private_jobs where locked_by = 'ghost')
    """,
]

# An item of the crontab with minutes to backfill.
KNOWN = """
insert into :schema._private_known_crontabs (identifier, known_since)
values ('hourly', now() - interval '4 hours')
"""
OWED = """
select generate_series(
  date_trunc('hour', now() - interval '4 hours') + interval '1 hour', now(), '1 hour'
)
"""

OTHERS = """
select count(*)
from pg_stat_activity
where datname = current_database()
  and backend_type = 'client backend'
  and pid <> pg_backend_pid()
"""

TOLD_OF = "select cardinality(started_jobs) from :ext_schema.pools"

LEFT = """
select
  jobs.id,
  jobs.attempts,
  jobs.last_error,
  jobs.locked_by,
  coalesce(
    jobs.id = any (pools.started_jobs)
    or (recoveries.started_by = jobs.locked_by and recoveries.started_attempt = jobs.attempts),
    false
  )
from :schema._private_jobs as jobs
left join :ext_schema.pools as pools on pools.id = jobs.locked_by
left join :ext_schema.recoveries as recoveries on recoveries.job_id = jobs.id
"""

# Of jobs that are still there, and of ticks whose job has ended.
PROGRESS = """
select
  (select count(*) from :schema._private_jobs),
  (select count(distinct tick) from runs where ended_at is not null)
"""

LOCKS = """
select
  (select count(*) from :schema._private_jobs where locked_by is not null),
  (select count(*) from :schema._private_job_queues where locked_by is not null)
"""

OUTCOMES = """
select job_id, attempts, succeeded, result #>> '{}'
from :ext_schema.outcomes
where task_identifier = 'keep'
"""
OTHER_OUTCOMES = "select job_id from :ext_schema.outcomes where task_identifier <> 'keep'"
ATTEMPTS = "select job_id, attempt from :ext_schema.attempts"

ALL_RUNS = """
select id, job_id, n, queue_name, role, attempt, run_at, last_error, tick, began_at, ended_at
from runs
order by id
"""


class LeftJob(NamedTuple):
    """A job as it was after the death."""

    id: int
    attempts: int
    last_error: str | None
    locked_by: str | None
    was_started: bool

    @property
    def state(self) -> str:
        if self.locked_by is None:
            return "free"
        return "started" if self.was_started else "fetched"

    @property
    def next_attempt(self) -> int:
        """That of its next run: one that was fetched and had not begun gets its own back."""
        return self.attempts if self.state == "fetched" else self.attempts + 1

    @property
    def next_error(self) -> str | None:
        """What its next run finds in `last_error`."""
        if self.state == "free":
            return self.last_error
        how = "held by" if self.state == "started" else "fetched, not started, by"
        return f"{RECOVERED}: it was {how} pool {self.locked_by}"


class Run(NamedTuple):
    """A run of a task, as it wrote it down itself."""

    id: int
    job_id: int
    n: int
    queue_name: str | None
    role: str
    attempt: int
    run_at: datetime
    last_error: str | None
    tick: datetime | None
    began_at: datetime
    ended_at: datetime | None


def test_every_failpoint_has_a_scene():
    assert SCENES.keys() == FAILPOINTS.keys()
    assert len(CELLS) == size(gate=16, nightly=64)


@pytest.mark.single_version
@pytest.mark.timeout(400)
def test_another_worker_finishes_the_jobs_of_one_killed_at_a_failpoint(
    cluster, schema, template, tmp_path, figure
):
    def failure_of(cell: Cell) -> str | None:
        try:
            with theatre(cell, cluster, schema, template, tmp_path / str(cell)) as stage:
                stage.play()
        except Exception as error:
            return "\n".join([f"{cell}: {error!r}", *getattr(error, "__notes__", [])])
        return None

    with ThreadPoolExecutor(AT_ONCE) as threads:
        failures = [failure for failure in threads.map(failure_of, CELLS) if failure]

    figure(f"kill points: {len(CELLS) - len(failures)}/{len(CELLS)}")
    assert not failures, "\n\n".join(failures)


@pytest.mark.single_version
@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_batched", [False, True], ids=["one by one", "batched"])
@pytest.mark.parametrize("is_queued", [False, True], ids=["no queue", "queue"])
def test_a_connection_that_is_lost_beside_any_statement_costs_no_job_an_attempt(
    is_queued, is_batched, cluster, schema, template, tmp_path
):
    scene = Scene(fails=True, after_a_ghost=True, has_crontab=True)
    cell = Cell("every statement", is_queued, is_batched, scene)

    with theatre(cell, cluster, schema, template, tmp_path / "stage") as stage:
        stage.play_without_death(STATEMENTS)


@contextmanager
def theatre(
    cell: Cell, cluster: Cluster, schema: str, template: str, folder: Path
) -> Iterator["Stage"]:
    """A database for one cell, with or without our schema in it."""
    folder.mkdir()
    name = f"kill_point_{next(_numbers)}"
    cluster.create_database(name, "template0" if cell.scene.is_empty else template)
    database = TestDatabase(name, cluster, schema)
    sql = Sql(database.dsn, schema)
    try:
        with Programs.for_database(database, folder) as programs:
            yield Stage(cell, database, programs, sql)
    finally:
        sql.close()
        cluster.drop_database(name)


class Stage:
    """Where one worker dies and another takes over."""

    def __init__(self, cell: Cell, database: TestDatabase, programs: Programs, sql: Sql) -> None:
        self._cell = cell
        self._scene = cell.scene
        self._database = database
        self._programs = programs
        self._sql = sql
        self._log = programs.folder / "failpoints"

    def play(self) -> None:
        owed = self._set()
        doomed = self._start(
            "doomed", **{FAILPOINTS_VARIABLE: f"{self._cell.point}=kill@{self._cell.at}"}
        )
        heir: Program | None = None
        try:
            self._see_die(doomed)
            left = self._look_at_what_is_left()
            heir = self._start("heir")
            # Before that it does not handle signals, and there may be nothing left to do.
            heir.wait_for_line("ready", PATIENCE)
            if self._scene.is_empty:
                self._add_jobs()
            self._wait_until_done(owed)
            assert heir.is_running, "the heir ended by itself"
            assert heir.stop() == 0, "the heir did not end well"
            check(self._sql, left, owed)
        except Exception as error:
            error.add_note(f"log of the killed worker:\n{doomed.err}")
            error.add_note(f"log of its successor:\n{'' if heir is None else heir.err}")
            raise

    def play_without_death(self, points: list[str]) -> None:
        """At each of these places an error is raised, once."""
        owed = self._set()
        armed = ",".join(f"{point}=raise" for point in points)
        worker = self._start("doomed", **{FAILPOINTS_VARIABLE: armed})
        self._wait_until_done(owed)
        assert worker.is_running, worker.err
        assert worker.stop() == 0, worker.err
        assert set(points) <= set(self._log.read_text(encoding="utf-8").split())
        check_without_death(self._sql, owed)

    def _wait_until_done(self, owed: list[datetime]) -> None:
        def look() -> bool:
            ((jobs, ticks),) = self._sql.run(PROGRESS)
            return bool(jobs == 0 and ticks >= len(owed))

        eventually(look, "all jobs are done", PATIENCE)

    def _set(self) -> list[datetime]:
        """Add the jobs of the scene; return the ticks to backfill."""
        self._sql.run(RUNS)
        if not self._scene.is_empty:
            self._add_jobs()
        if self._scene.after_a_ghost:
            for statement in GHOST:
                self._sql.run(statement)
        if not self._scene.has_crontab:
            return []
        self._sql.run(KNOWN)
        return [tick for (tick,) in self._sql.run(OWED)]

    def _add_jobs(self) -> None:
        with sync.Client(self._database.dsn, schema=self._database.schema) as client:
            client.add_jobs(self._cell.jobs())

    def _start(self, role: str, **variables: str) -> Program:
        given = {
            "ROLE": role,
            "BATCHES": self._cell.batches,
            "CRONTAB": self._cell.crontab,
            LOG_VARIABLE: str(self._log),
        }
        return self._programs.start([sys.executable, str(PROGRAM)], {**given, **variables})

    def _see_die(self, doomed: Program) -> None:
        if self._scene.is_stopped:
            eventually(lambda: self._sql.run(TOLD_OF) == [(2,)], "two jobs run", PATIENCE)
            doomed.signal(signal.SIGTERM)
        assert doomed.end(PATIENCE) == -signal.SIGKILL, "it did not die as it should"
        last = self._log.read_text(encoding="utf-8").splitlines()[-1]
        assert last == f"{self._cell.point} {self._cell.at} {doomed.pid}"

    def _look_at_what_is_left(self) -> list[LeftJob]:
        # What it had sent last may still be carried out.
        eventually(lambda: self._sql.value(OTHERS) == 0, "the server has noticed", PATIENCE)
        if self._scene.is_empty:
            return []
        self._sql.run(AGE)
        left = [LeftJob(*row) for row in self._sql.run(LEFT)]
        outcomes = {job_id for job_id, *_ in self._sql.run(OUTCOMES)}
        assert outcomes.isdisjoint(job.id for job in left), "a job that is there has an outcome"
        wanted = {self._scene.leaves} - {""}
        assert wanted <= {job.state for job in left}, "the scene is not what it should be"
        return left


def check(sql: Sql, left: list[LeftJob], owed: list[datetime]) -> None:
    """That nothing is lost, nothing is done more often than allowed, and nothing stays locked."""
    assert sql.run(LOCKS) == [(0, 0)], "something is still locked"
    runs = [Run(*row) for row in sql.run(ALL_RUNS)]
    check_runs(runs, left)
    check_attempts(runs, left)
    check_queues(runs)
    check_ticks(runs, owed)
    check_outcomes(sql, runs)


def check_without_death(sql: Sql, owed: list[datetime]) -> None:
    """That each job ended once, at the attempt at which it should."""
    assert sql.run(LOCKS) == [(0, 0)], "something is still locked"
    runs = [Run(*row) for row in sql.run(ALL_RUNS)]
    ended = [run for run in runs if run.ended_at]
    assert max(Counter(run.job_id for run in ended).values()) == 1, "too many runs"
    assert {run.n for run in ended} == {-1, *range(JOBS)}, "a job is lost"
    # The first attempt of each fails; that of one of them was the ghost's. Those of ticks do not.
    assert {run.attempt for run in ended if run.tick is None} == {2}
    assert {run.attempt for run in ended if run.tick is not None} == {1}
    check_ticks(runs, owed)
    check_outcomes(sql, runs)


def check_runs(runs: list[Run], left: list[LeftJob]) -> None:
    """Each job ends at least once, and twice only if the dead worker held it."""
    ended = Counter(run.job_id for run in runs if run.ended_at)
    assert {run.n for run in runs if run.ended_at} >= set(range(JOBS)), "a job is lost"
    assert {run.job_id for run in runs} == ended.keys(), "a job never ended"
    held = {job.id for job in left if job.locked_by is not None}
    assert {job_id for job_id, count in ended.items() if count > 1} <= held, "too many runs"
    assert max(Counter((run.job_id, run.role) for run in runs).values()) == 1, "too many runs"
    there = {job.id for job in left}
    by_heir = {run.job_id for run in runs if run.role == "heir"}
    by_doomed = {run.job_id for run in runs if run.role == "doomed"}
    assert there <= by_heir, "the heir left something out"
    assert by_heir.isdisjoint(by_doomed - there), "the heir ran what was done"


def check_attempts(runs: list[Run], left: list[LeftJob]) -> None:
    """A job that had begun has spent its attempt; one that was only fetched has it back."""
    known = {job.id: job for job in left}
    for run in runs:
        job = known.get(run.job_id)
        if run.role == "doomed":
            # What it found of a dead pool was recovered in the same way.
            had_begun = f"{RECOVERED}: it was held by" in (run.last_error or "")
            assert run.attempt == 1 + had_begun
        elif job is None:
            assert (run.attempt, run.last_error) == (1, None)
        else:
            assert (run.attempt, run.last_error) == (job.next_attempt, job.next_error)


def check_outcomes(sql: Sql, runs: list[Run]) -> None:
    """Each job that keeps something has one outcome: that of the run that ended it."""
    last = {run.job_id: run for run in runs if run.ended_at and run.n % 2 and run.n > 0}
    assert sorted(sql.run(OUTCOMES)) == sorted(
        (run.job_id, run.attempt, True, str(run.id)) for run in last.values()
    ), "outcomes"
    assert sql.run(OTHER_OUTCOMES) == [], "a job that keeps nothing has an outcome"
    attempts = Counter(sql.run(ATTEMPTS))
    assert max(attempts.values(), default=1) == 1, "an attempt is stored twice"
    assert {(run.job_id, run.attempt) for run in last.values()} <= attempts.keys(), "attempts"
    assert attempts.keys() <= {(run.job_id, run.attempt) for run in runs}, "attempts"


def check_queues(runs: list[Run]) -> None:
    """In a named queue one job runs after the other, in their order."""
    by_heir = [run for run in runs if run.role == "heir"]
    for queue_name in {run.queue_name for run in by_heir} - {None}:
        inside = [run for run in by_heir if run.queue_name == queue_name]
        assert inside == sorted(inside, key=lambda run: (run.run_at, run.job_id)), "out of order"
        for run, following in itertools.pairwise(inside):
            assert run.ended_at is not None
            assert run.ended_at <= following.began_at, "two jobs of a queue ran at once"


def check_ticks(runs: list[Run], owed: list[datetime]) -> None:
    """Each tick added one job; an hour that began meanwhile may have one too."""
    jobs = {run.job_id: run.tick for run in runs if run.tick is not None}
    ticks = sorted(jobs.values())
    assert ticks[: len(owed)] == owed, "ticks are missing, or were made twice"
    assert len(set(ticks)) == len(ticks), "a tick was made twice"
    assert not owed or len(ticks) <= len(owed) + 1, "too many ticks"

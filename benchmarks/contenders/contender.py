"""What every queue that is measured can do."""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

import psycopg

from benchmarks.processes import environment, running
from benchmarks.server import Database

CONCURRENCY = 24
BATCH = 500


@dataclass(frozen=True, slots=True)
class Drained:
    """Jobs that were run, how long that took, and the CPU time of the worker's process."""

    jobs: int
    seconds: float
    cpu_seconds: float | None = None
    start_seconds: float | None = None

    def figures(self) -> dict[str, float | None]:
        per_job = None if self.cpu_seconds is None else self.cpu_seconds / self.jobs * 1e6
        return {
            "jobs_per_second": self.jobs / self.seconds,
            "cpu_us_per_job": per_job,
            "start_seconds": self.start_seconds,
        }


class Contender(ABC):
    """A queue: installed into a database, filled with jobs, and run until it is empty."""

    name: str
    label: str
    settings: str
    kind: str
    """Which template it shares with others."""

    @abstractmethod
    def install(self, database: Database) -> None: ...

    @abstractmethod
    def drain(self, database: Database, jobs: int) -> Drained: ...

    def missing(self) -> str | None:
        """What to do so that it can be measured; None if it can."""
        return None


class WorkerContender(Contender):
    """A queue with a worker program.

    The same way for all: the jobs are inserted in one statement of SQL, the table vacuumed and
    analyzed, the worker started on it. The time runs from the moment its first task begins (the
    worker's own start is told apart) until the table holds no job, asked from outside and only once
    the worker has said that its last task began, so that asking disturbs nobody. CPU time is what
    the worker's process used in that time, from getrusage.
    """

    filling: str
    """Inserts so many jobs of the task noop, each with its number as payload."""
    left: str
    """Says whether jobs are left."""
    pinging: str
    """Adds one job of the task ping with this payload."""
    sample: int | None = None
    """Run only so many of the jobs, as all take too long; then the start of the last is the end."""

    @abstractmethod
    def working(self) -> list[str]:
        """The command that runs a worker."""

    @abstractmethod
    def adding(self) -> list[str]:
        """The command that adds jobs as fast as it can."""

    def pinger(self) -> list[str]:
        """The command that adds single jobs of the task ping, with pauses."""
        raise NotImplementedError

    def pinged(self) -> list[str]:
        """The command that runs a worker for single jobs."""
        return self.working()

    def drain(self, database: Database, jobs: int) -> Drained:
        count = min(jobs, self.sample or jobs)
        told = environment(database, jobs=count, concurrency=CONCURRENCY, batch=BATCH)
        self.fill(database, jobs)
        with database.connected() as watcher, running(self.working(), told) as program:
            began = program.wait_for_line("first")
            last = program.wait_for_line("last")
            ended = last["last"] / 1e9 if self.sample else self.emptied(watcher)
            cpu = program.kill() - began["cpu"]
        first = began["first"] / 1e9
        return Drained(count, ended - first, cpu, first - program.started)

    def fill(self, database: Database, jobs: int) -> None:
        with database.connected() as connection:
            connection.execute(self.filling.encode(), (jobs,))
            connection.execute("vacuum analyze")
            connection.execute("checkpoint")

    def emptied(self, watcher: psycopg.Connection) -> float:
        """The moment at which no job was left."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            row = watcher.execute(self.left.encode()).fetchone()
            if row == (False,):
                return time.monotonic()
            time.sleep(0.002)
        raise TimeoutError(f"{self.name}: jobs are left a minute after the last began")

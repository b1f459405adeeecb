"""A field of work for one fault at a time: workers, jobs for them, and what became of those."""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg

from graphile_worker import JobSpec, sync
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql

APP = """
import asyncio
import os
import time

from graphile_worker import App, JobContext

app = App()


@app.task
async def note(n: int, text: str = "") -> None:
    os.write(1, b"ran %d\\n" % n)


@app.task
async def linger(ctx: JobContext, n: int) -> None:
    os.write(1, b"began %d\\n" % n)
    await asyncio.sleep(2)
    os.write(1, b"ran %d\\n" % n)


@app.task
async def stay(n: int) -> None:
    os.write(1, b"began %d at %f\\n" % (n, time.monotonic()))
    try:
        while not os.path.exists("go on"):
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        os.write(1, b"cancelled %d at %f\\n" % (n, time.monotonic()))
        raise
    os.write(1, b"ran %d\\n" % n)
"""

# Seconds from the database's return to the first job. Each module passes this to `size` itself,
# as the nightly tier finds the modules that do.
FIRST_JOB_WITHIN = {"gate": 30.0, "nightly": 2.0}

# In the text of each statement that takes jobs, once.
CLAIM = "set attempts = jobs.attempts + 1"


class Field:
    """A worker, and jobs for it that are added over another connection."""

    def __init__(self, database: TestDatabase, programs: Programs) -> None:
        self.database = database
        self._programs = programs
        self._programs.write("app.py", APP)
        self._numbers = 0

    def command(self, *arguments: str, **variables: str) -> Program:
        """Start a worker that may not reach the point where it fetches jobs."""
        return self._programs.command("--app", "app:app", *arguments, **variables)

    def let_go_on(self) -> None:
        """Let the tasks end that wait."""
        self._programs.write("go on", "")

    def start(self, *arguments: str, **variables: str) -> Program:
        return self._programs.worker("--app", "app:app", *arguments, **variables)

    def add(
        self, count: int, task: str = "note", queues: int = 0, *, text: str = "", **more: Any
    ) -> None:
        numbers = range(self._numbers, self._numbers + count)
        payload = {"text": text} if text else {}
        specs = [
            JobSpec(
                task,
                {"n": n, **payload},
                queue_name=f"queue {n % queues}" if queues else None,
                **more,
            )
            for n in numbers
        ]
        with sync.Client(self.database.dsn, schema=self.database.schema) as client:
            client.add_jobs(specs)
        self._numbers = numbers.stop

    def try_to_add(self) -> None:
        """Add a job that no test waits for; raise the error of the client."""
        with sync.Client(self.database.dsn, schema=self.database.schema) as client:
            client.add_job("note", {"n": 0})

    def seconds_to_the_next_job(self, *workers: Program) -> float:
        began = time.monotonic()
        # Before the jobs that wait already.
        self.add(1, priority=-1)
        self.wait_for(self._numbers - 1, *workers)
        return time.monotonic() - began

    def wait_for(self, number: int, *workers: Program) -> None:
        said = "\n".join(worker.err for worker in workers)
        eventually(lambda: number in ran(*workers), f"job {number} runs: {said}")

    def wait_for_all(self, *workers: Program) -> None:
        """Wait until each added job has run and is deleted; no job is lost or left locked."""
        self.wait_for_these(set(range(self._numbers)), *workers)

    def wait_for_these(self, numbers: set[int], *workers: Program) -> None:
        """Wait until each of these jobs has run, and no job is left."""
        eventually(lambda: numbers <= set(ran(*workers)), "every job runs")
        said = "\n".join(worker.err for worker in workers)
        with self.sql() as sql:
            eventually(lambda: sql.value(LEFT) == 0, f"nothing is left: {said}")

    @contextmanager
    def sql(self) -> Iterator[Sql]:
        """Open a connection to the tables."""
        opened = Sql(self.database.dsn, self.database.schema)
        try:
            yield opened
        finally:
            opened.close()

    def value(self, statement: str) -> Any:
        """Return the result of a query over another connection."""
        with self.sql() as sql:
            return sql.value(statement)

    def check_alive(self, *workers: Program) -> None:
        for worker in workers:
            assert worker.is_running
            assert worker.stop() == 0


LEFT = """
select (select count(*) from :schema._private_jobs)
  + (select count(*) from :schema._private_job_queues where locked_by is not null)
"""


def ran(*workers: Program) -> Counter[int]:
    said = "\n".join(worker.out for worker in workers)
    return Counter(int(number) for number in re.findall(r"^ran (\d+)$", said, re.M))


class Log:
    """What a server writes from now on."""

    def __init__(self, cluster: Cluster) -> None:
        self._path = cluster.log
        self._begin = len(self._path.read_bytes())

    def count(self, words: str) -> int:
        return self._path.read_bytes()[self._begin :].count(words.encode())


def database_on(servers: Any, schema: str) -> TestDatabase:
    """A database with our schema, on a server or a pair of them that a test may break."""
    servers.create_database("faulty")
    database = TestDatabase("faulty", servers, schema)
    with sync.Client(database.dsn, schema=schema) as client:
        client.migrate()
    return database


@contextmanager
def field_on(servers: Any, schema: str, folder: Path) -> Iterator[Field]:
    """A field in a new database of a server, or of a pair of them, that a test may break."""
    database = database_on(servers, schema)
    with Programs.for_database(database, folder) as programs:
        yield Field(database, programs)


@contextmanager
def field_with(cluster: Cluster, schema: str, folder: Path) -> Iterator[Field]:
    """A field on a server that starts and ends with it."""
    cluster.start()
    try:
        with field_on(cluster, schema, folder) as field:
            yield field
    finally:
        cluster.stop()


def through(port: int, database: TestDatabase) -> str:
    """The address of that database behind a proxy."""
    return f"postgres://postgres@127.0.0.1:{port}/{database.name}"


class Adder:
    """Adds one job after another beside the test, over any fault, and knows what is sure."""

    def __init__(self, database: TestDatabase, task: str = "note", queues: int = 5) -> None:
        self.acked: set[int] = set()
        self.unsure: set[int] = set()
        self._database = database
        self._task = task
        self._queues = queues
        # Far from those that the field itself gives.
        self._number = 1_000_000
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._add)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_stopping.set()
        self._thread.join(40)
        assert not self._thread.is_alive()

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.acked) + count
        eventually(lambda: len(self.acked) >= wanted, f"{count} more jobs are acknowledged")

    def _add(self) -> None:
        with sync.Client(self._database.dsn, schema=self._database.schema) as client:
            while not self._is_stopping.is_set():
                self._add_one(client)

    def _add_one(self, client: sync.Client) -> None:
        self._number += 1
        queue = f"queue {self._number % self._queues}" if self._number % 2 else None
        try:
            client.add_job(self._task, {"n": self._number}, queue_name=queue)
        except psycopg.OperationalError:
            # Until the server is back, or another has taken over.
            self.unsure.add(self._number)
            time.sleep(0.02)
        else:
            self.acked.add(self._number)

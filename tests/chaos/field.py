"""A worker whose database fails on purpose, and jobs for it that take another way there."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from graphile_worker import JobSpec, sync
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql

APP = """
import asyncio
import os

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
"""

# Seconds from the database's return to the first job.
SOON = 2.0

# In the text of each statement that takes jobs, once.
CLAIM = "set attempts = jobs.attempts + 1"

LEFT = """
select (select count(*) from :schema._private_jobs)
  + (select count(*) from :schema._private_job_queues where locked_by is not null)
"""


class Field:
    """A worker, and jobs for it that take another way to the database."""

    def __init__(self, database: TestDatabase, programs: Programs) -> None:
        self.database = database
        self._programs = programs
        self._programs.write("app.py", APP)
        self._numbers = 0

    def start(self, *arguments: str, **variables: str) -> Program:
        return self._programs.worker("--app", "app:app", *arguments, **variables)

    def add(
        self, count: int, task: str = "note", queues: int = 0, *, text: str = "", **more: Any
    ) -> None:
        first, self._numbers = self._numbers, self._numbers + count
        payload = {"text": text} if text else {}
        specs = [
            JobSpec(
                task,
                {"n": n, **payload},
                queue_name=f"queue {n % queues}" if queues else None,
                **more,
            )
            for n in range(first, self._numbers)
        ]
        with sync.Client(self.database.dsn, schema=self.database.schema) as client:
            client.add_jobs(specs)

    def try_to_add(self) -> None:
        """A job that nobody waits for; raises what its caller is told."""
        with sync.Client(self.database.dsn, schema=self.database.schema) as client:
            client.add_job("note", {"n": 0})

    def seconds_to_the_next_job(self, worker: Program) -> float:
        began = time.monotonic()
        # Before whatever has piled up.
        self.add(1, priority=-1)
        self.wait_for(worker, self._numbers - 1)
        return time.monotonic() - began

    def wait_for(self, worker: Program, number: int) -> None:
        eventually(lambda: number in ran(worker), f"job {number} runs: {worker.err}")

    def wait_for_all(self, worker: Program) -> None:
        """Until every job that was added has run and is gone; nothing is lost or left locked."""
        numbers = set(range(self._numbers))
        eventually(lambda: numbers <= set(ran(worker)), "every job runs")
        eventually(lambda: self.value(LEFT) == 0, f"nothing is left: {worker.err}")

    def value(self, statement: str) -> Any:
        """What the database says, asked by another way."""
        with closing(Sql(self.database.dsn, self.database.schema)) as sql:
            return sql.value(statement)

    def check_alive(self, worker: Program) -> None:
        assert worker.is_running
        assert worker.stop() == 0


def ran(worker: Program) -> Counter[int]:
    return Counter(int(number) for number in re.findall(r"^ran (\d+)$", worker.out, re.M))


class Log:
    """What a server writes from now on."""

    def __init__(self, cluster: Cluster) -> None:
        self._path = cluster.log
        self._begin = len(self._path.read_bytes())

    def count(self, words: str) -> int:
        return self._path.read_bytes()[self._begin :].count(words.encode())


def database_on(cluster: Cluster, schema: str) -> TestDatabase:
    """A database with our schema, on a server that a test may break."""
    cluster.create_database("faulty")
    database = TestDatabase("faulty", cluster, schema)
    with sync.Client(database.dsn, schema=schema) as client:
        client.migrate()
    return database


@contextmanager
def field_on(cluster: Cluster, schema: str, folder: Path) -> Iterator[Field]:
    """A worker and its jobs on a server of their own, which ends with them."""
    cluster.start()
    try:
        database = database_on(cluster, schema)
        with Programs.beside(database, folder) as programs:
            yield Field(database, programs)
    finally:
        cluster.stop()


def through(port: int, database: TestDatabase) -> str:
    """The address of that database behind a proxy."""
    return f"postgres://postgres@127.0.0.1:{port}/{database.name}"

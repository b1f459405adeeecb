"""Ours, with its defaults: nothing is set but how many jobs run at once."""

import sys
from pathlib import Path

from benchmarks.contenders.contender import CONCURRENCY, WorkerContender
from benchmarks.server import Database
from graphile_worker import sync

COMMAND = str(Path(sys.executable).parent / "graphile-worker")
APP = ["--app", "benchmarks.programs.ours"]
SCHEMA = "graphile_worker"


class SharedSchema(WorkerContender):
    """What ours and the reference have in common: one schema, so one way to fill it."""

    filling = """
        with task as (
          insert into graphile_worker._private_tasks (identifier) values ('noop') returning id
        )
        insert into graphile_worker._private_jobs (task_id, payload)
        select task.id, json_build_object('id', number)
        from task, generate_series(1, %s) as number
    """
    left = "select exists (select from graphile_worker._private_jobs)"
    pinging = "select graphile_worker.add_job('ping', %s::json)"


class Ours(SharedSchema):
    """The installed command until it is stopped."""

    name = "ours"
    label = "Graphile Worker for Python"
    settings = f"defaults, {CONCURRENCY} jobs at once"
    kind = "ours"

    def install(self, database: Database) -> None:
        with sync.Client(database.url, schema=SCHEMA) as client:
            client.migrate()

    def working(self) -> list[str]:
        return [COMMAND, *APP, "--jobs", str(CONCURRENCY)]

    def adding(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.programs.ours_adding"]

    def pinger(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.programs.ours_pinging"]


class OursOnce(Ours):
    """The installed command with `--once`."""

    name = "ours_once"
    label = "Graphile Worker for Python, --once"

    def working(self) -> list[str]:
        return [*super().working(), "--once"]


class OursDirect(Ours):
    """Without a local queue: one fetch for each job."""

    name = "ours_direct"
    label = "Graphile Worker for Python, no local queue"

    def working(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.programs.ours_direct"]

"""Procrastinate from PyPI; its program says which settings, and why."""

from benchmarks.contenders.anchors import missing_anchors, program
from benchmarks.contenders.contender import CONCURRENCY, WorkerContender
from benchmarks.processes import environment, run
from benchmarks.server import Database


class Procrastinate(WorkerContender):
    name = "procrastinate"
    label = "Procrastinate 3.10"
    settings = f"psycopg, concurrency {CONCURRENCY}, finished jobs deleted, uvloop"
    kind = "procrastinate"
    sample = 2000
    filling = """
        insert into procrastinate_jobs (queue_name, task_name, args)
        select 'default', 'noop', jsonb_build_object('id', number)
        from generate_series(1, %s) as number
    """
    left = "select exists (select from procrastinate_jobs)"
    pinging = """
        insert into procrastinate_jobs (queue_name, task_name, args)
        values ('default', 'ping', %s::jsonb)
    """

    def missing(self) -> str | None:
        return missing_anchors()

    def install(self, database: Database) -> None:
        run(program("of_procrastinate", "install"), environment(database))

    def working(self) -> list[str]:
        return program("of_procrastinate", "work")

    def adding(self) -> list[str]:
        return program("of_procrastinate", "add")

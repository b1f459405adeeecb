"""PgQueuer from PyPI; its program says which settings, and why."""

from benchmarks.contenders.anchors import PYTHON, missing_anchors, program
from benchmarks.contenders.contender import BATCH, WorkerContender
from benchmarks.processes import environment, run
from benchmarks.server import Database


class PgQueuer(WorkerContender):
    name = "pgqueuer"
    label = "PgQueuer 1.6"
    settings = f"asyncpg, batch size {BATCH}, durability balanced, its autovacuum settings, uvloop"
    kind = "pgqueuer"
    filling = """
        insert into pgqueuer (priority, entrypoint, payload, status)
        select 0, 'noop', convert_to(json_build_object('id', number)::text, 'UTF8'), 'queued'
        from generate_series(1, %s) as number
    """
    left = "select exists (select from pgqueuer)"
    pinging = """
        insert into pgqueuer (priority, entrypoint, payload, status)
        values (0, 'ping', convert_to(%s, 'UTF8'), 'queued')
    """

    def missing(self) -> str | None:
        return missing_anchors()

    def install(self, database: Database) -> None:
        command = [str(PYTHON), "-m", "pgqueuer", "--pg-dsn", database.url]
        run([*command, "install", "--durability", "balanced"], environment(database))
        run([*command, "autovac"], environment(database))

    def working(self) -> list[str]:
        return program("of_pgqueuer", "work")

    def adding(self) -> list[str]:
        return program("of_pgqueuer", "add")

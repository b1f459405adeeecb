"""A pause takes effect within 6 s, and so does resume, across restarts of worker and server."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from graphile_worker import sync
from tests.chaos.field import database_on
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql

PROMISED_SECONDS = 6
ROUNDS = 3

# A worker in Python reads the pauses every 5 s if it does not listen, and polls every 2 s.
WORKER = """
    from graphile_worker import App, JobContext

    app = App()

    @app.task
    async def work(ctx: JobContext) -> None:
        await ctx.query("insert into starts (task) values ('work')")

    @app.task
    async def other(ctx: JobContext) -> None:
        await ctx.query("insert into starts (task) values ('other')")
"""
STARTS = "create table starts (task text, at timestamptz default clock_timestamp())"
NOW = "select clock_timestamp()"
FIRST, LAST = (
    f"select extract(epoch from {each}(at) - $1::timestamptz)::float8 from starts "
    "where task = 'work' and at > $1::timestamptz"
    for each in ("min", "max")
)


class Fleet:
    """A worker, and a client that adds jobs of both tasks all the time."""

    def __init__(self, programs: Programs, client: sync.Client, sql: Sql, flag: str) -> None:
        self.sql = sql
        self._programs, self._client, self._flag = programs, client, flag
        self.worker = self.start()

    def start(self) -> Program:
        return self._programs.worker("--app", "worker:app", "--jobs", "5", self._flag)

    def restart(self) -> None:
        self.worker.kill()
        self.worker = self.start()

    def add_jobs(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for task in ("work", "other"):
                # A queue, as a paused one must be left alone too.
                self._client.add_job(task, queue_name=task)
            time.sleep(0.1)

    def finish_jobs(self) -> None:
        """Wait until no job runs. A queue whose job was running at a crash is locked for long."""
        is_idle = "select not exists (select from :schema._private_jobs where locked_at <= now())"
        eventually(lambda: self.sql.value(is_idle), "no job runs")

    def wait_for_start(self, task: str, number: int) -> None:
        eventually(lambda: self.count_starts(task) >= number, f"{task} runs")

    def count_starts(self, task: str) -> int:
        return int(self.sql.value(f"select count(*) from starts where task = '{task}'"))


@pytest.fixture
def programs(own_cluster, schema, tmp_path) -> Iterator[Programs]:
    database = database_on(own_cluster, schema)
    with Programs.for_database(database, tmp_path) as programs:
        programs.write("worker.py", WORKER)
        yield programs


@pytest.mark.nightly
@pytest.mark.serial
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flag", ["--no-listen", "--listen"])
@pytest.mark.parametrize("kind", ["task", "queue"])
def test_a_pause_and_resume_take_effect_in_time_across_restarts(
    own_cluster, programs, schema, figure, flag, kind
):
    dsn = own_cluster.dsn("faulty")
    paused_after, resumed_after = [], []
    with closing(Sql(dsn, schema)) as sql:
        sql.run(STARTS)
    with sync.Client(dsn, schema=schema) as client:
        pause = client.pause_task if kind == "task" else client.pause_queue
        resume = client.resume_task if kind == "task" else client.resume_queue
        for _ in range(ROUNDS):
            with closing(Sql(dsn, schema)) as sql:
                fleet = Fleet(programs, client, sql, flag)
                fleet.add_jobs(1)
                pause("work")
                paused_at = sql.value(NOW)
                fleet.add_jobs(PROMISED_SECONDS + 1)
                paused_after.append(sql.value(LAST, paused_at) or 0.0)
                fleet.finish_jobs()
                counts = {task: fleet.count_starts(task) for task in ("work", "other")}

            own_cluster.halt(signal.SIGQUIT)
            own_cluster.launch()
            with closing(Sql(dsn, schema)) as sql:
                fleet.sql = sql
                fleet.restart()
                fleet.add_jobs(2)
                fleet.wait_for_start("other", counts["other"] + 1)
                assert fleet.count_starts("work") == counts["work"]

                assert resume("work")
                resumed_at = sql.value(NOW)
                fleet.add_jobs(PROMISED_SECONDS + 1)
                resumed_after.append(sql.value(FIRST, resumed_at))
            assert fleet.worker.stop() == 0

    assert max(paused_after) < PROMISED_SECONDS
    assert max(resumed_after) < PROMISED_SECONDS
    figure(
        f"{kind} paused with {flag}: the last job started {max(paused_after):.2f} s after the "
        f"pause at most, the first one {max(resumed_after):.2f} s after resume at most, "
        f"over {ROUNDS} crashes of the server and the worker"
    )

"""The checker on Node workers: it counts what they leave after lost connections."""

import random
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import JobSpec, sync
from tests.laboratory.fleet import node_worker
from tests.laboratory.history_checker import Expectations, Report, check, install_audit, read_audit
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql

# A session that deletes a job loses its connection. Its writes are rolled back, except for values
# that it took from a sequence.
CUT_AT_COMPLETION = """
create sequence gw_audit.cuts;
create function gw_audit.cut() returns trigger language plpgsql as $body$
begin
  perform nextval('gw_audit.cuts');
  perform pg_terminate_backend(pg_backend_pid());
  perform pg_sleep(1);
  return old;
end
$body$;
create trigger cut before delete on :schema._private_jobs
for each row execute function gw_audit.cut();
"""

CUT_NO_MORE = """
drop function gw_audit.cut() cascade;
drop sequence gw_audit.cuts;
"""

CONNECTIONS = """
select pid from pg_stat_activity
where datname = current_database()
  and application_name like $1
order by pid
"""


class Fleet:
    """Two Node workers; one that ends by itself is replaced by one with another name."""

    def __init__(self, database: Any, sql: Sql, programs: Programs, mode: str) -> None:
        self._database = database
        self._sql = sql
        self._programs = programs
        self._mode = mode
        self._started = 0
        self._living: dict[str, Program] = {}
        # The workers that ended by themselves, and how.
        self.exits: dict[str, str] = {}

    def start(self) -> None:
        while len(self._living) < 2:
            self._started += 1
            name = f"node-{self._started}"
            self._living[name] = self._launch(name)
        for program in self._living.values():
            _wait_until_ready(program)

    def _launch(self, name: str) -> Program:
        journal = self._programs.folder / f"{name}.jsonl"
        command = node_worker(self._database.url, self._database.schema, self._mode, journal)
        return self._programs.start(command, {"PGAPPNAME": name, "NO_LOG_SUCCESS": "1"})

    def settle(self) -> None:
        """Wait until a worker has ended by itself, or has had the time to."""
        with suppress(AssertionError):
            eventually(self._bury, "one ends", within=12)

    def give_up(self) -> None:
        """Return whether jobs wait while no worker runs any, and none has ended."""
        self._bury()
        for name in list(self._living):
            self._living.pop(name).kill()
            self.exits[name] = "hanging"

    def _bury(self) -> int:
        """Return how many have ended since the last call."""
        ended = [name for name, program in self._living.items() if not program.is_running]
        for name in ended:
            self.exits[name] = f"exit code {self._living.pop(name).end()}"
        return len(ended)

    def stop(self) -> None:
        self._bury()
        for name, program in self._living.items():
            program.signal(signal.SIGTERM)
            try:
                program.end(within=15)
            except subprocess.TimeoutExpired:
                self.exits[name] = "hanging"


def _wait_until_ready(program: Program) -> None:
    eventually(lambda: "ready" in program.out, "it runs")


def add_jobs(database: Any, count: int) -> None:
    """Half of them in eight named queues."""
    specs = [
        JobSpec("work", {"ms": 5 + n % 20}, queue_name=f"queue {n % 8}" if n % 2 else None)
        for n in range(count)
    ]
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.add_jobs(specs)


def count_completed(sql: Sql) -> int:
    done: int = sql.value("select count(*) from gw_audit.changes where kind = 'j' and op = 'd'")
    return done


def can_work(database: Any, sql: Sql) -> bool:
    """Add more jobs than they can complete before this returns; False if they start none."""
    before = count_completed(sql)
    add_jobs(database, 100)
    with suppress(AssertionError):
        return eventually(lambda: count_completed(sql) > before + 10, "they work", within=20)
    return False


def cut_at_completion(sql: Sql) -> None:
    sql.run(CUT_AT_COMPLETION)
    eventually(lambda: sql.value("select is_called from gw_audit.cuts"), "a connection was cut")
    sql.run(CUT_NO_MORE)


def cut_half(sql: Sql, dice: random.Random) -> None:
    pids = [pid for (pid,) in sql.run(CONNECTIONS, "node-%")]
    for pid in dice.sample(pids, len(pids) // 2):
        sql.run("select pg_terminate_backend($1)", pid)


def judged(database: Any, fleet: Fleet, folder: Path) -> Report:
    history = read_audit(database.dsn, database.schema)
    history.read_journals(folder)
    return check(history, Expectations(exits=list(fleet.exits)))


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", ["defaults", "batched"])
def test_locks_that_node_workers_leave_after_cut_connections_are_counted(
    database, sql, tmp_path, mode, figure
):
    install_audit(database.dsn, database.schema)
    dice = random.Random(8)
    with Programs.for_database(database, tmp_path) as programs:
        fleet = Fleet(database, sql, programs, mode)
        for cut in (cut_at_completion, lambda sql: cut_half(sql, dice)) * 2:
            fleet.start()
            if can_work(database, sql):
                cut(sql)
                fleet.settle()
            else:
                fleet.give_up()
        fleet.stop()

    report = judged(database, fleet, tmp_path)

    assert report.counts["orphan_locks"] > 0, "\n".join(report.lines())
    assert report.counts["exits"] > 0
    # The worker keeps no record of the locked job, and no job is lost.
    assert not report.broken & {"I0", "I1", "I2"}, "\n".join(report.lines())
    ends = ", ".join(f"{count} {how}" for how, count in Counter(fleet.exits.values()).items())
    figure(
        f"Node 0.18 ({mode}), connections cut up to four times in {report.figures['jobs']} jobs: "
        f"{report.counts['orphan_locks']} locks left, workers that ended: {ends}"
    )

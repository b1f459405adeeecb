"""The trigger of deploy/sql/audit-trigger.sql costs workers little time and no WAL."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from tests.conftest import TestDatabase
from tests.support.pools import Pool
from tests.support.roles import as_role, open_secured_database, run_script
from tests.support.sql import Sql

JOBS = 10_000
BATCH_SIZE = 50
ROUNDS = 5

# The trigger takes 2 to 5 % of the time of the two statements, and this machine is not quiet.
MIN_RATIO = 0.9

ADD_JOBS = """
insert into :schema._private_jobs (task_id, payload)
select 1, json_build_object('text', repeat('x', 200))
from generate_series(1, $1::int)
"""


@dataclass
class Side:
    """A database with or without the trigger, and a session of a worker role."""

    owner: Sql
    pool: Pool
    server_process: int

    def add_jobs(self) -> None:
        self.owner.run(ADD_JOBS, JOBS)
        self.owner.run("vacuum analyze :schema._private_jobs")

    def run_batch(self) -> float:
        """Claim and complete a batch, and return the seconds that this took."""
        began = time.perf_counter()
        held = self.pool.claim(BATCH_SIZE)
        self.pool.finish(*held)
        assert len(held) == BATCH_SIZE
        return time.perf_counter() - began

    def get_cpu_seconds(self) -> float:
        """Return the CPU time of the server process of this session."""
        statistics = Path(f"/proc/{self.server_process}/schedstat").read_text(encoding="ascii")
        return int(statistics.split()[0]) / 1e9

    def get_wal_position(self) -> int:
        position: int = self.owner.value("select pg_current_wal_insert_lsn() - '0/0'")
        return int(position)


@pytest.fixture
def sides(cluster, schema) -> Iterator[dict[bool, Side]]:
    """A database with the trigger, and one without it, from the same template."""
    with open_secured_database(cluster, schema, "audit_template"), ExitStack() as stack:
        found = {}
        for has_trigger in (True, False):
            name = f"audit_trigger_{has_trigger}".lower()
            cluster.create_database(name, "audit_template")
            stack.callback(cluster.drop_database, name)
            database = TestDatabase(name, cluster, schema)
            if has_trigger:
                run_script(database, "audit-trigger.sql", user="queue_migrator")
            owner = stack.enter_context(closing(Sql(database.dsn, schema)))
            session = SyncPsycopgDatabase(
                as_role(database, "queue_worker"), Schemas.from_names(schema)
            )
            stack.callback(session.close)
            with session.transaction() as connection:
                process = connection.raw.info.backend_pid
            pool = Pool(session).register_tasks("task")
            found[has_trigger] = Side(owner, pool, process)
        yield found


@dataclass
class Costs:
    seconds: float
    cpu_seconds: float


def measure_round(sides: dict[bool, Side]) -> dict[bool, Costs]:
    """Run all jobs of both sides, batch by batch in turn, so that noise hits both."""
    for side in sides.values():
        side.add_jobs()
    before = {key: side.get_cpu_seconds() for key, side in sides.items()}
    seconds = dict.fromkeys(sides, 0.0)
    for number in range(JOBS // BATCH_SIZE):
        for key in sorted(sides, reverse=number % 2 == 0):
            seconds[key] += sides[key].run_batch()
    return {
        key: Costs(seconds[key], side.get_cpu_seconds() - before[key])
        for key, side in sides.items()
    }


def measure_wal_per_job(side: Side) -> float:
    side.add_jobs()
    before = side.get_wal_position()
    for _ in range(JOBS // BATCH_SIZE):
        side.run_batch()
    return (side.get_wal_position() - before) / JOBS


@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(600)
def test_the_audit_trigger_costs_workers_little_time_and_no_wal(sides, figure):
    measure_round(sides)
    rounds = [measure_round(sides) for _ in range(ROUNDS)]
    ratio = median(each[False].seconds / each[True].seconds for each in rounds)
    cpu_ratio = median(each[True].cpu_seconds / each[False].cpu_seconds for each in rounds)
    micros = [median(each[key].cpu_seconds for each in rounds) / JOBS * 1e6 for key in sides]
    wal = [measure_wal_per_job(side) for side in sides.values()]
    figure(
        f"claims and completions of a worker role with the audit trigger: {ratio:.3f} of the rate "
        f"without, {cpu_ratio:.3f} of the server's CPU time ({micros[0]:.1f} against "
        f"{micros[1]:.1f} us per job), {wal[0]:.0f} against {wal[1]:.0f} bytes of WAL per job "
        f"(medians of {ROUNDS} rounds, alternated batch by batch, {JOBS:,} jobs each)"
    )
    assert ratio >= MIN_RATIO
    assert abs(wal[0] - wal[1]) < 0.05 * wal[1]
    assert sides[True].owner.run("select from :ext_schema.audit") == []

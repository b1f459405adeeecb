"""How fast `add_jobs` is, against the same SQL through psql in the same run."""

import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from graphile_worker import JobSpec, sync
from graphile_worker._db.database import run_plan_sync
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._payloads import encode
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import encode_specs, plan_add_jobs
from graphile_worker._sql.plans.insert import DirectInserts
from graphile_worker._sql.render import ParameterStyle, render
from tests.conftest import TestDatabase
from tests.support.sql import Sql
from tests.support.tools import client_program

JOBS = 100_000
ROUNDS = 5

BATCH = 1_000
MAX_CPU_MICROSECONDS = 8


@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(600)
@pytest.mark.feature("F57")
def test_a_hundred_thousand_jobs_are_added_at_half_the_rate_of_psql_or_better(
    database: TestDatabase, sql: Sql, tmp_path: Path, figure: Callable[[str], None]
):
    if database.cluster.major != 18 or not database.schema.isidentifier():
        pytest.skip("a ratio of one run is enough: measured on 18, in a schema with a plain name")
    specs = [JobSpec("resize", {"image": number, "width": 640}) for number in range(JOBS)]
    script = _script(specs, database.schema, tmp_path)
    ours, theirs = [], []

    with sync.Client(database.dsn, schema=database.schema) as client:
        client.add_job("resize")
        for _ in range(ROUNDS):
            theirs.append(_seconds(lambda: _psql(script, database.dsn), sql))
            ours.append(_seconds(lambda: client.add_jobs(specs), sql))

    ratio = statistics.median(theirs) / statistics.median(ours)
    figure(f"add_jobs of {JOBS} specs: {ratio:.2f} of psql's rate")
    assert ratio >= 0.5


@pytest.mark.serial
@pytest.mark.feature("F57")
def test_a_batch_takes_at_most_8_microseconds_of_cpu_per_job_in_python(
    database: TestDatabase, figure: Callable[[str], None]
):
    schemas, inserts = Schemas.from_names(database.schema), DirectInserts()
    specs = [JobSpec("resize", {"image": number}) for number in range(BATCH)]
    rows = [(True, "{" + ",".join(map(str, range(BATCH))) + "}", "1700000000.000000")]

    def plan():
        return plan_add_jobs(specs, schemas, max_bytes=None, all_or_nothing=True, inserts=inserts)

    with closing(SyncPsycopgDatabase(database.dsn, schemas)) as connections:
        for _ in range(2):
            run_plan_sync(connections, plan())
    taken = []
    for _ in range(100):
        start = time.process_time()
        adding = plan()
        query = next(adding)
        with pytest.raises(StopIteration):
            adding.send(query.read(rows))
        taken.append(time.process_time() - start)

    microseconds = min(taken) / BATCH * 1e6
    figure(f"add_jobs of {BATCH} specs: {microseconds:.1f} µs of CPU per job in Python")
    assert microseconds <= MAX_CPU_MICROSECONDS


def _seconds(action, sql: Sql) -> float:
    sql.run("truncate :schema._private_jobs")
    start = time.perf_counter()
    action()
    taken = time.perf_counter() - start
    assert sql.value("select count(*) from :schema._private_jobs") == JOBS
    return taken


def _script(specs: list[JobSpec], schema: str, folder: Path) -> Path:
    statement = render("add_jobs", Schemas.from_names(schema), ParameterStyle.NATIVE)
    literal = encode_specs(specs, [encode(spec.payload) for spec in specs], range(JOBS))
    script = folder / "add_jobs.sql"
    text = statement.replace("$1", f"$specs${literal}$specs$").replace("$2", str(JOBS))
    script.write_text(text + ";")
    return script


def _psql(script: Path, dsn: str) -> None:
    command = [str(client_program("psql")), "-X", "-q", "-At", "-o", "/dev/null"]
    subprocess.run([*command, "-v", "ON_ERROR_STOP=1", "-f", str(script), dsn], check=True)

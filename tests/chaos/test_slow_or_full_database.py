"""A database that is slow, far away, full or read-only: the worker waits, and does not press."""

import asyncio
import re
import time
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

from graphile_worker import JobSpec, sync
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.worker_connections import ConnectionTimings
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.cron import get_server_time
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import GetJobEmpty, GetJobErrored, JobSucceeded
from tests.chaos.field import CLAIM, FIRST_JOB_WITHIN, LEFT, Field, Log, field_with, ran, through
from tests.support.cluster import Cluster
from tests.support.processes import Program, eventually
from tests.support.proxy import Bandwidth, Delay, Mode, Proxy
from tests.support.recorder import Recorder, open_runners
from tests.support.sql import Sql
from tests.support.tiers import is_nightly, size

SILENCE = "select extract(epoch from clock_timestamp() - min(seen_at)) from :ext_schema.pools"

HELD = "select count(*) from :schema._private_jobs where locked_by is not null"

# Seconds for which a worker is watched, and how often in each of them it may try: to take jobs, to
# listen, and to write how two of them have ended.
WATCHED = 3.0
TRIES = 15

# Seconds from the database's return to the first job.
SOON = size(**FIRST_JOB_WITHIN)

# Statements that take jobs, and seconds without a heartbeat, while answers take 5 s. In the gate
# the worker only has to keep its lease of 30 s.
MOST_CLAIMS = size(gate=20, nightly=8)
LONGEST_SILENCE = size(gate=25.0, nightly=11.0)

# How long a far database may take to answer, and seconds until a silent connection is given up.
ANSWER_WITHIN = size(gate=timedelta(seconds=8), nightly=timedelta(seconds=1))
GIVEN_UP_WITHIN = size(gate=40, nightly=10)

# Seconds to the first job after a thin line, which still holds some bytes.
AFTER_A_THIN_LINE = size(gate=35.0, nightly=12.0)


@pytest.fixture
def field(database, programs) -> Field:
    return Field(database, programs)


# Slow


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_worker_whose_answers_take_5_s_has_one_fetch_under_way_and_sends_heartbeats(
    pytestconfig, schema, tmp_path, figure
):
    cluster = Cluster(pytestconfig.getoption("--pg"), ["log_statement=all"])
    with field_with(cluster, schema, tmp_path) as field, Proxy(cluster.port) as proxy:
        # Without what costs one more question: encryption, and statements that are prepared.
        address = f"{through(proxy.port, field.database)}?sslmode=disable"
        variables = {"DATABASE_URL": address, "GRAPHILE_LOGGER_DEBUG": "1"}
        worker = field.start("-j", "5", "--no-prepared-statements", **variables)
        field.add(20)
        field.wait_for_all(worker)

        log = Log(cluster)
        # There and back.
        proxy.mode = Delay(2.5)
        field.add(5)
        fetches, silences = look_until_done(field, proxy)
        claims = log.count(CLAIM)
        proxy.mode = Mode.PASS
        seconds = field.seconds_to_the_next_job(worker)

        figure(
            f"answers took 5 s: {claims} claims, at most {max(silences):.1f} s without a heartbeat"
        )
        assert max(fetches) == 1
        assert claims <= MOST_CLAIMS
        # Every five seconds, and some for the way.
        assert max(silences) < LONGEST_SILENCE
        assert "lease expired" not in worker.err
        if is_nightly():
            assert "heartbeat failed" not in worker.err
        assert seconds < SOON
        field.wait_for_all(worker)
        assert max(ran(worker).values()) == 1
        field.check_alive(worker)


def look_until_done(field: Field, proxy: Proxy) -> tuple[list[int], list[float]]:
    """Return the fetches in progress and the seconds without a heartbeat, until no job is left."""
    fetches: list[int] = []
    silences: list[float] = []

    def look() -> bool:
        asked = [each.asked for each in proxy.connections if each.is_waiting]
        fetches.append(sum(CLAIM.encode() in words for words in asked))
        silences.append(float(sql.value(SILENCE)))
        return bool(sql.value(LEFT) == 0)

    with closing(Sql(field.database.dsn, field.database.schema)) as sql:
        eventually(look, "all jobs are done")
    return fetches, silences


async def test_a_slow_connection_without_answers_is_discarded(database, proxy):
    db = far_database(database, proxy, query_timeout=ANSWER_WITHIN)
    proxy.mode = Delay(0.1)
    await db.run(get_server_time())
    proxy.mode = Mode.PASS

    proxy.forget()
    async with asyncio.timeout(GIVEN_UP_WITHIN):
        await db.run(get_server_time())

    await db.close()


async def test_each_statement_is_one_round_trip_over_a_slow_line(database, cluster, proxy):
    db = far_database(
        database,
        proxy,
        options="-c log_statement=all",
        # A busy machine may take longer than it does for the second time.
        first_discard_delay_seconds=60.0,
    )
    log = Log(cluster)
    proxy.mode = Delay(0.06)

    for _ in range(6):
        await db.run(get_server_time())

    await db.close()
    # Once, as a plan may have been the reason.
    assert log.count("discard plans") == 1


def far_database(database: Any, proxy: Proxy, *, options: str = "", **more: Any) -> PsycopgDatabase:
    dsn = make_conninfo(through(proxy.port, database), options=options)
    return PsycopgDatabase(dsn, Schemas.from_names(database.schema), prepare_after=0, **more)


# A thin line


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_worker_behind_a_thin_line_holds_no_more_than_it_can_run(field, database, proxy, figure):
    worker = field.start("-j", "10", DATABASE_URL=through(proxy.port, database))
    field.add(100)
    field.wait_for_all(worker)

    before = memory(worker)
    proxy.mode = Bandwidth(32_000)
    # Five megabytes, of which it gets a few in a hundred.
    field.add(500, text="x" * 10_000)
    eventually(lambda: len(ran(worker)) >= 110, f"some run: {worker.err}")
    time.sleep(WATCHED)
    # The first fetch may have been for hundreds of tiny jobs: it is given up without an answer.
    eventually(lambda: field.value(HELD) < 200, "it holds few jobs")
    grown = memory(worker) - before
    held = field.value(HELD)
    proxy.mode = Mode.PASS

    seconds = field.seconds_to_the_next_job(worker)
    field.wait_for_all(worker)
    figure(f"behind a thin line: grown by {grown:.1f} MB, {held} of 500 jobs held")
    assert grown < 20
    assert held < 200
    # What is in the line by then comes first.
    assert seconds < AFTER_A_THIN_LINE
    assert max(ran(worker).values()) == 1
    field.check_alive(worker)


def memory(worker: Program) -> float:
    """The most that it ever had, in megabytes."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.single_version
async def test_jobs_too_large_for_the_line_are_fetched_in_smaller_parts(database, proxy):
    timings = WorkerTimings(connections=ConnectionTimings(query_timeout=timedelta(seconds=1)))
    recorder = Recorder()

    async def note(payload: object) -> None: ...

    async with open_runners(database, recorder.hooks, timings) as start:
        runner = await start({"note": note}, on=through(proxy.port, database), concurrency=8)
        await recorder.wait_for(GetJobEmpty)
        proxy.mode = Bandwidth(80_000)
        with sync.Client(database.dsn, schema=database.schema) as client:
            client.add_jobs([JobSpec("note", {"text": "x" * 20_000}) for _ in range(8)])
        succeeded = await recorder.wait_for(JobSucceeded, count=8, timeout=40)
        proxy.mode = Mode.PASS
        await runner.stop()

    # All eight at once take two seconds, and one is the limit.
    assert recorder.events_of(GetJobErrored)
    assert len({each.job.id for each in succeeded}) == 8
    assert {each.job.attempts for each in succeeded} == {1}


# Full


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_worker_without_a_connection_waits_for_one(pytestconfig, schema, tmp_path, figure):
    cluster = Cluster(pytestconfig.getoption("--pg"), ["max_connections=20"])
    with field_with(cluster, schema, tmp_path) as field:
        worker = field.start("-j", "2", GRAPHILE_LOGGER_DEBUG="1")
        field.add(2, "linger")
        eventually(lambda: worker.out.count("began") == 2, "both began")

        with Others(cluster) as others:
            others.take_all(worker)
            began, log = time.monotonic(), Log(cluster)
            # Their tasks end meanwhile, and the writes wait.
            field.wait_for(1, worker)
            time.sleep(WATCHED)
            refused = log.count("too many clients")
            watched = time.monotonic() - began
            with pytest.raises(psycopg.OperationalError, match="too many clients"):
                field.try_to_add()
        seconds = field.seconds_to_the_next_job(worker)

        field.wait_for_all(worker)
        figure(f"no connection left: refused {refused} times, then a job after {seconds:.2f} s")
        assert 0 < refused < watched * TRIES
        assert seconds < SOON
        assert max(ran(worker).values()) == 1
        field.check_alive(worker)


class Others:
    """Sessions that use up all that a server has."""

    def __init__(self, cluster: Cluster) -> None:
        self._dsn = cluster.dsn()
        self._sessions: list[psycopg.Connection] = []

    def __enter__(self) -> "Others":
        return self

    def __exit__(self, *error: object) -> None:
        for session in self._sessions:
            session.close()

    def take_all(self, worker: Program) -> None:
        """All there are, and those of the worker too."""
        self._take_free()
        while self._end_those_of_workers():
            self._take_free()
        worker.wait_for_line("too many clients")

    def _take_free(self) -> None:
        with suppress(psycopg.OperationalError):
            while True:
                self._sessions.append(psycopg.connect(self._dsn, autocommit=True))

    def _end_those_of_workers(self) -> int:
        ended = self._sessions[0].execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'graphile-worker'"
        )
        return len(ended.fetchall())


# Read-only


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_worker_waits_until_its_database_can_be_written_to(
    pytestconfig, schema, tmp_path, figure
):
    cluster = Cluster(pytestconfig.getoption("--pg"), ["synchronous_commit=on"])
    with field_with(cluster, schema, tmp_path) as field:
        worker = field.start("-j", "2")
        field.add(2, "linger")
        eventually(lambda: worker.out.count("began") == 2, "both began")

        began, log = time.monotonic(), Log(cluster)
        set_everywhere(cluster, "default_transaction_read_only = on")
        worker.wait_for_line("in a read-only transaction")
        field.wait_for(1, worker)
        time.sleep(WATCHED)
        refused = log.count("in a read-only transaction")
        watched = time.monotonic() - began
        with pytest.raises(errors.ReadOnlySqlTransaction, match="in a read-only transaction"):
            field.try_to_add()
        set_everywhere(cluster, "default_transaction_read_only = off")
        seconds = field.seconds_to_the_next_job(worker)

        field.wait_for_all(worker)
        figure(f"read-only: refused {refused} times, then a job after {seconds:.2f} s")
        assert 0 < refused < watched * TRIES
        assert seconds < SOON
        assert max(ran(worker).values()) == 1
        field.check_alive(worker)


def set_everywhere(cluster: Cluster, setting: str) -> None:
    """In force in all sessions, new ones and those that are there, soon after."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(f"alter system set {setting}".encode())
        admin.execute("select pg_reload_conf()")
    name, value = setting.split(" = ")
    eventually(lambda: shown(cluster, name) == value, f"{setting} is in force")


def shown(cluster: Cluster, name: str) -> str:
    with psycopg.connect(cluster.dsn()) as session:
        found = session.execute(f"show {name}".encode()).fetchone()
        assert found is not None
        return str(found[0])

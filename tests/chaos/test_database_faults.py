"""The database goes away in every way it can: the process stays, the jobs too, and work goes on."""

import json
import signal
import time
from collections.abc import Iterator

import pytest

from tests.chaos.field import CLAIM, FIRST_JOB_WITHIN, LEFT, Field, database_on, ran, through
from tests.conftest import TestDatabase
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Programs, eventually
from tests.support.proxy import Mode
from tests.support.sql import Sql
from tests.support.tiers import size

# Seconds from the database's return to the first job.
SOON = size(**FIRST_JOB_WITHIN)


@pytest.fixture
def own_database(own_cluster, schema) -> TestDatabase:
    return database_on(own_cluster, schema)


@pytest.fixture
def field(database, programs) -> Field:
    return Field(database, programs)


@pytest.fixture
def own_field(own_database, tmp_path) -> Iterator[Field]:
    with Programs.for_database(own_database, tmp_path) as programs:
        yield Field(own_database, programs)


def terminate_backends(sql: Sql) -> int:
    """Of the worker alone."""
    return len(
        sql.run(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name = 'graphile-worker'"
        )
    )


@pytest.mark.timeout(180)
def test_a_worker_continues_after_its_backends_are_terminated(field, sql, figure):
    worker = field.start("-j", "10")
    seconds = []

    for _ in range(10):
        field.add(50, queues=5)
        assert terminate_backends(sql) > 0
        seconds.append(field.seconds_to_the_next_job(worker))

    field.wait_for_all(worker)
    figure(f"backends terminated 10 times: first job after {max(seconds):.2f} s at most")
    assert max(seconds) < SOON
    field.check_alive(worker)


@pytest.mark.timeout(180)
def test_a_worker_survives_a_server_crash(own_field, own_cluster, figure):
    worker = own_field.start("-j", "10")
    seconds = []

    for _ in range(3):
        own_field.add(200, queues=20)
        own_field.add(5, "linger")
        own_cluster.halt(signal.SIGQUIT)
        worker.wait_for_line("database unreachable")
        own_cluster.launch()
        seconds.append(own_field.seconds_to_the_next_job(worker))

    own_field.wait_for_all(worker)
    figure(f"server crashed 3 times: first job {max(seconds):.2f} s after its return at most")
    assert max(seconds) < SOON
    own_field.check_alive(worker)


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_worker_waits_through_a_long_database_outage(own_field, own_cluster, figure):
    worker = own_field.start("-j", "2")
    own_field.add(2, "linger")
    eventually(lambda: worker.out.count("began") == 2, "both began")

    own_cluster.halt()
    # Their tasks end meanwhile, and the writes wait for the server.
    own_field.wait_for(1, worker)
    time.sleep(5)
    own_cluster.launch()

    seconds = own_field.seconds_to_the_next_job(worker)
    own_field.wait_for_all(worker)
    figure(f"server away for 7 s: first job {seconds:.2f} s after its return")
    assert seconds < SOON
    assert max(ran(worker).values()) == 1
    own_field.check_alive(worker)


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_worker_continues_after_a_blocked_network(field, database, proxy, figure):
    worker = field.start("-j", "5", DATABASE_URL=through(proxy.port, database))
    field.add(50, queues=5)
    proxy.mode = Mode.STALL
    field.add(50, queues=5)

    # Longer than the worker waits for an answer.
    worker.wait_for_line("database unreachable")
    proxy.mode = Mode.PASS
    seconds = field.seconds_to_the_next_job(worker)

    field.wait_for_all(worker)
    figure(f"network stall: first job {seconds:.2f} s after it ended")
    assert seconds < SOON
    field.check_alive(worker)


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_half_open_connections_are_closed(field, database, proxy, figure):
    worker = field.start(
        "-j", "5", DATABASE_URL=through(proxy.port, database), GRAPHILE_LOGGER_DEBUG="1"
    )
    field.add(20)
    field.wait_for_all(worker)

    proxy.forget()
    seconds = field.seconds_to_the_next_job(worker)

    figure(f"connections half-open: first job {seconds:.1f} s later")
    # A poll that gets no answer for ten seconds, and then a new connection.
    assert seconds < 2 + 10 + SOON
    # The listener notices by its own silence, and wakes the worker again.
    eventually(lambda: worker.err.count("cannot listen") >= 1, "the listener notices")
    field.wait_for_all(worker)
    field.check_alive(worker)


@pytest.mark.timeout(120)
def test_a_job_whose_fetch_was_never_answered_runs_at_its_first_attempt(
    field, database, proxy, sql
):
    # Preparing a statement is a separate request, which would be the one without an answer.
    worker = field.start("--no-prepared-statements", DATABASE_URL=through(proxy.port, database))
    field.add(1)
    field.wait_for_all(worker)

    proxy.about = b"set attempts = jobs.attempts + 1"
    proxy.mode = Mode.SWALLOW_REPLIES
    field.add(1)
    held = "select attempts from :schema._private_jobs where locked_by is not null"
    eventually(lambda: sql.run(held) == [(1,)], "the job is locked")
    proxy.mode = Mode.PASS

    field.wait_for_all(worker)
    assert ran(worker) == {0: 1, 1: 1}
    field.check_alive(worker)


@pytest.mark.timeout(120)
def test_a_completion_without_an_answer_is_written_once(field, database, proxy, sql):
    worker = field.start("--no-prepared-statements", DATABASE_URL=through(proxy.port, database))
    field.add(1, "linger")
    eventually(lambda: "began 0" in worker.out, "it runs")

    proxy.about = b"delete from"
    proxy.mode = Mode.SWALLOW_REPLIES
    eventually(lambda: sql.value(LEFT) == 0, "its end is written")
    proxy.mode = Mode.PASS

    worker.wait_for_line("completed job")
    field.seconds_to_the_next_job(worker)
    field.wait_for_all(worker)
    assert ran(worker) == {0: 1, 1: 1}
    assert "lost the lock of job" not in worker.err
    field.check_alive(worker)


@pytest.mark.timeout(120)
def test_a_worker_that_stops_after_an_outage_leaves_the_registry(field, database, proxy, sql):
    # Short, so that what it locks late is soon released.
    lease = ["--lease-duration", "2000"]
    address = through(proxy.port, database)
    worker = field.start("--no-prepared-statements", *lease, DATABASE_URL=address)
    field.add(1)
    field.wait_for_all(worker)
    pool_id = sql.value("select id from :ext_schema.pools")

    proxy.about = CLAIM.encode()
    proxy.mode = Mode.SWALLOW_REPLIES
    worker.wait_for_line("database unreachable")
    proxy.mode = Mode.PASS
    worker.wait_for_line("database reachable again")
    field.check_alive(worker)

    assert workers(field) == []
    # A fetch of it that comes late after all.
    field.add(1)
    sql.run("update :schema._private_jobs set locked_by = $1, locked_at = now()", pool_id)
    other = field.start(*lease)
    field.wait_for_all(worker, other)
    other.wait_for_line(f"of dead pool {pool_id} (not started")
    field.check_alive(other)


def workers(field: Field) -> list[str]:
    """The ids that `workers list` shows."""
    done = field.command("workers", "list", "--json")
    assert done.end() == 0
    return [each["id"] for each in json.loads(done.out)["workers"]]


@pytest.mark.feature("F157", "F202")
@pytest.mark.timeout(120)
def test_a_worker_polls_through_pgbouncer_in_transaction_mode(field, database, cluster, figure):
    poll = ["--no-listen", "--no-prepared-statements", "--poll-interval", "500"]
    with PgBouncer(cluster) as pooler:
        worker = field.start("-j", "10", *poll, DATABASE_URL=through(pooler.port, database))
        field.add(300, queues=30)
        field.wait_for_all(worker)

        field.add(100, queues=10)
        pooler.stop()
        pooler.start()
        seconds = field.seconds_to_the_next_job(worker)

        field.wait_for_all(worker)
        figure(f"PgBouncer restarted: first job {seconds:.2f} s after its return")
        assert seconds < SOON
        field.check_alive(worker)


@pytest.mark.timeout(120)
def test_low_timeouts_of_the_server_only_delay_jobs(field, database, sql, figure):
    # For the role of the worker alone, so that no statement of the test is canceled.
    role = f"limited_{database.name}"
    sql.run(f"create role {role} superuser login")
    address = f"postgres://{role}@127.0.0.1:{database.cluster.port}/{database.name}"
    worker = field.start("-j", "10", DATABASE_URL=address)
    for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
        sql.run(f"alter role {role} set {setting} = '150ms'")
    # Its next sessions have the limits.
    assert terminate_backends(sql) > 0
    field.add(100, queues=10)
    # A worker that completes a job sets no limits and fetches no other job.
    field.wait_for_all(worker)

    blocker = sql.another()
    blocker.run("begin")
    blocker.run("lock table :schema._private_jobs in access exclusive mode")
    worker.wait_for_line("canceling statement due to statement timeout")
    blocker.run("commit")
    blocker.close()
    seconds = field.seconds_to_the_next_job(worker)

    field.wait_for_all(worker)
    figure(f"statements cancelled by the server: first job {seconds:.2f} s after the last")
    assert seconds < SOON
    field.check_alive(worker)


WAITING = """
select count(*)::int from pg_stat_activity
where datname = current_database()
  and application_name = 'graphile-worker'
  and wait_event_type = 'Lock'
"""


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_statement_that_times_out_keeps_no_session_of_the_server(field, sql):
    worker = field.start("-j", "1", GRAPHILE_LOGGER_DEBUG="1")
    with field.sql() as locker:
        locker.run("begin")
        locker.run("lock table :schema._private_jobs in access exclusive mode")

        given_up = "fetch failed, retrying"
        eventually(lambda: worker.err.count(given_up) >= 2, "two fetches are given up", 60)

        # But for the fetch that may be under way by now.
        eventually(lambda: sql.value(WAITING) <= 1, "the server has stopped them")
        locker.run("rollback")

    field.add(1)
    field.wait_for_all(worker)
    field.check_alive(worker)

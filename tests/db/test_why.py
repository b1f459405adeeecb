"""Why does a job not run? Each reason where it holds, and the one that counts first."""

from datetime import timedelta
from typing import Any

import pytest

from graphile_worker.administration.finding import patiently
from graphile_worker.administration.pools import Health, getting_holders
from graphile_worker.administration.why import Explanation, Why, explaining
from graphile_worker.sql.workers import leave_registry, register_pool
from tests.support.administering import NODE, Table
from tests.support.pools import session

HOUR = timedelta(hours=1)
OURS = "pypool-0123456789abcdef01"

RUST_REGISTRY = """
create table :schema._private_workers (
  id text primary key,
  last_heartbeat_at timestamptz not null,
  started_at timestamptz not null default now(),
  metadata jsonb
)
"""


@pytest.fixture
def enter(database):
    """Enters a pool of ours that is heard of."""

    def enter(pool_id: str = OURS, **details: Any) -> None:
        said = {"runtime": "python", "concurrency": 10, "tasks": ["task"], **details}
        with session(database) as connection:
            connection.run(register_pool(pool_id, HOUR, said))

    return enter


def explained(table: Table, job: int) -> Explanation:
    found = table.perform(explaining(job, table.schemas))
    assert found is not None
    return found


def first(table: Table, job: int) -> Any:
    return explained(table, job).reasons[0]


def all_of(table: Table, job: int) -> list[str]:
    return [reason.why for reason in explained(table, job).reasons]


# 1, 2: locked


def test_it_runs(table, enter):
    enter()
    job = table.job(locked_at="now() - interval '2 hours'", locked_by=f"'{OURS}'", attempts="3")

    reason = first(table, job)

    assert reason.why is Why.RUNNING
    assert reason.sentence.startswith(
        f"worker {OURS} holds it for 2h, attempt 3 of 25; that worker"
    )
    assert reason.evidence["worker"] == OURS
    assert reason.evidence["worker_health"] is Health.ALIVE
    assert reason.evidence["worker_silence_seconds"] < 60


def test_it_runs_on_a_worker_that_no_registry_knows(table):
    reason = first(table, table.in_state("running"))

    assert reason.why is Why.RUNNING
    assert reason.sentence.endswith("no registry knows that worker")


def test_its_lock_is_stale_by_the_clock(table):
    reason = first(table, table.in_state("stale"))

    assert reason.why is Why.STALE
    assert f"worker {NODE} holds it for 5h" in reason.sentence
    assert reason.evidence["frees_at"] - reason.evidence["since"] == timedelta(hours=4)


def test_its_lock_is_stale_as_its_worker_is_dead(table, enter, sql):
    enter()
    sql.run("update :ext_schema.pools set seen_at = now() - interval '61 minutes'")
    job = table.job(locked_at="now()", locked_by=f"'{OURS}'")

    reason = first(table, job)

    assert reason.why is Why.STALE
    assert "that worker is dead, heard of 1h1m ago; workers that live take it" in reason.sentence


# 3, 4: attempts and time


def test_no_attempts_are_left(table, enter):
    enter()
    job = table.in_state("failed", last_error="e'KeyError: x\\nmore'")

    reason = first(table, job)

    assert reason.why is Why.FAILED
    assert reason.sentence == (
        "no attempts are left: 25 of 25 were made; retry it; its last error: KeyError: x"
    )
    assert all_of(table, job) == [Why.FAILED]


def test_its_time_has_not_come(table, enter):
    enter()

    reason = first(table, table.in_state("scheduled"))

    assert reason.why is Why.SCHEDULED
    assert 3500 < reason.evidence["in_seconds"] <= 3600


def test_it_backs_off_after_an_attempt(table, enter):
    enter()
    job = table.job(attempts="5", run_at="now() + interval '100 s'")

    reason = first(table, job)

    assert reason.why is Why.BACKING_OFF
    assert "attempt 5 of 25 failed, and it waits before the next, 2m28s" in reason.sentence
    assert reason.evidence["backoff_seconds"] == pytest.approx(148.4, abs=0.1)


# 5, 6: named queues


def test_its_queue_is_held_by_another_job(table, enter):
    enter()
    queue = table.queue("billing", locked_at="now() - interval '1 minute'", locked_by=f"'{OURS}'")
    holder = table.job(job_queue_id=queue, locked_at="now()", locked_by=f"'{OURS}'")
    table.job(job_queue_id=queue)
    job = table.job(job_queue_id=queue)

    reason = first(table, job)

    assert reason.why is Why.QUEUE_HELD
    assert f"'billing' is held by job {holder} (task) on worker {OURS} for 1m" in reason.sentence
    assert (reason.evidence["held_by_job"], reason.evidence["ahead"]) == (holder, 1)


def test_its_queue_is_held_without_a_job(table, enter):
    enter()
    queue = table.queue("q", locked_at="now()", locked_by=f"'{NODE}'")

    reason = first(table, table.job(job_queue_id=queue))

    assert reason.why is Why.QUEUE_HELD
    assert (reason.evidence["held_by_job"], reason.evidence["worker"]) == (None, NODE)


def test_its_queue_is_paused(table, enter):
    enter()
    queue = table.queue("q", locked_at="'9999-01-01'", locked_by="'paused:ana'")

    reason = first(table, table.job(job_queue_id=queue))

    assert reason.why is Why.QUEUE_PAUSED
    assert reason.sentence == "its queue 'q' is paused by ana"


# 7, 8: who would run it


def test_no_worker_runs_its_task(table, enter):
    enter(tasks=["send_email", "other"])

    reason = first(table, table.job("sendemail"))

    assert reason.why is Why.NO_WORKER
    assert reason.sentence == (
        "no worker runs task 'sendemail': of 1 that live, none does; is 'send_email' meant?"
    )
    assert reason.evidence["workers"] == [OURS]


def test_no_worker_lives(table):
    reason = first(table, table.job())

    assert reason.why is Why.NO_WORKER
    assert reason.sentence == "no worker runs task 'task': none is known to live"


@pytest.mark.parametrize("tasks", [None, ["name"] * 100])
def test_a_worker_that_does_not_say_all_its_tasks_may_run_it(table, enter, tasks):
    enter(tasks=tasks)

    assert first(table, table.job()).why is Why.ELIGIBLE


def test_so_may_a_stranger_that_holds_something(table):
    table.in_state("running")

    assert first(table, table.job()).why is Why.ELIGIBLE


def test_without_a_registry_nobody_knows_who_lives(table, sql):
    sql.run("drop schema :ext_schema cascade")

    assert first(table, table.job()).why is Why.ELIGIBLE


def test_it_carries_flags(table, enter):
    enter()

    reason = first(table, table.job(flags="'{\"vip\": true}'"))

    assert reason.why is Why.FLAGS
    assert reason.evidence["flags"] == ["vip"]


# 10, 11, 12: its turn


def test_others_go_before_it(table, enter):
    enter()
    table.job(priority="-1")
    table.job(run_at="now() - interval '1 hour'")
    table.job("unknown task", priority="-1")
    table.job(priority="-1", run_at="now() + interval '1 hour'")
    job = table.job()
    table.job()

    reason = first(table, job)

    assert (reason.why, reason.evidence["ahead"]) == (Why.BEHIND, 2)
    assert reason.sentence == "2 jobs go before it"


def test_what_waits_for_a_queue_does_not_stand_in_the_way(table, enter):
    enter()
    table.in_state("waiting", priority="-1")

    assert first(table, table.job()).why is Why.ELIGIBLE


def test_all_workers_are_busy(table, enter):
    enter(concurrency=2)
    for _ in range(2):
        table.job(locked_at="now()", locked_by=f"'{OURS}'")

    reason = first(table, table.job())

    assert reason.why is Why.BUSY
    assert (reason.evidence["held"], reason.evidence["slots"]) == (2, 2)


def test_it_can_run_now(table, enter):
    enter()

    assert first(table, table.job()).why is Why.ELIGIBLE


# Several, none


def test_further_reasons_come_after_the_first(table):
    queue = table.queue("q", locked_at="'9999-01-01'", locked_by="'paused:ana'")
    flags = "'{\"vip\": true}'"
    job = table.in_state("scheduled", job_queue_id=queue, flags=flags)

    assert all_of(table, job) == [Why.SCHEDULED, Why.QUEUE_PAUSED, Why.NO_WORKER, Why.FLAGS]


def test_where_nobody_could_run_it_nobody_goes_before_it(table):
    table.job(priority="-1")

    assert all_of(table, table.job()) == [Why.NO_WORKER]


def test_a_job_that_waits_for_a_queue_that_was_freed_meanwhile_can_run(table, enter, sql):
    enter()
    job = table.in_state("waiting")
    sql.run("update :schema._private_job_queues set locked_at = null, locked_by = null")

    assert all_of(table, job) == [Why.ELIGIBLE]


def test_of_a_job_that_is_not_there_nothing_is_said(table):
    assert table.perform(explaining(1, table.schemas)) is None


# Who lives


def pools(table: Table) -> dict[str, Any]:
    plan = getting_holders(table.schemas, lambda query: patiently(query, table.schemas))
    return {pool.id: pool for pool in table.perform(plan)}


def test_pools_are_known_from_registries_and_from_what_they_hold(table, enter, sql):
    enter(host="web-1", pid=412, version="1.3.0")
    sql.run(RUST_REGISTRY)
    for name, age in (("rust alive", "4 minutes"), ("rust dead", "6 minutes"), (OURS, "9 h")):
        sql.run(
            "insert into :schema._private_workers values ($1, now() - $2::text::interval)",
            name,
            age,
        )
    table.in_state("running")
    table.queue("q", locked_at="now()", locked_by=f"'{OURS}'")
    table.queue("paused", locked_at="'9999-01-01'", locked_by="'paused:ana'")

    found = pools(table)

    assert {name: pool.health for name, pool in found.items()} == {
        OURS: Health.ALIVE,
        "rust alive": Health.ALIVE,
        "rust dead": Health.DEAD,
        NODE: Health.UNKNOWN,
    }
    ours = found[OURS]
    assert (ours.host, ours.pid, ours.version, ours.concurrency) == ("web-1", 412, "1.3.0", 10)
    assert (ours.runtime, ours.tasks, ours.jobs, ours.queues) == ("python", ("task",), 0, 1)
    assert (found[NODE].runtime, found[NODE].jobs, found[NODE].queues) == ("node", 1, 0)
    assert found[NODE].oldest_lock is not None


def test_a_pool_that_has_stopped_is_not_listed_unless_it_holds_something(
    table, enter, sql, database
):
    enter()
    sql.run(RUST_REGISTRY)
    sql.run("insert into :schema._private_workers values ($1, now())", OURS)

    with session(database) as connection:
        connection.run(leave_registry([OURS]))

    assert pools(table) == {}
    table.queue("q", locked_at="now()", locked_by=f"'{OURS}'")
    assert pools(table)[OURS].health is Health.UNKNOWN


@pytest.mark.parametrize("details", ["null", "[1]", '{"tasks": 7, "pid": "x", "host": [1]}'])
def test_details_may_be_anything(table, enter, sql, details):
    enter()
    sql.run("update :ext_schema.pools set details = $1::text::json", details)

    assert pools(table)[OURS].tasks is None

"""`jobs why`: each reason where it applies, and the decisive one first."""

from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import ConcurrencyLimit, RateLimit
from graphile_worker._sql.queries.limits import (
    create_limit_rows,
    describe_task_limits,
    register_limits,
    rent_slots,
    take_tokens,
)
from graphile_worker._sql.queries.workers import mark_pools_stopped, register_pool
from graphile_worker.limits import Limit
from graphile_worker.ops.explain import Explanation, ReasonCode, plan_explain
from graphile_worker.ops.pauses import plan_pause_queue, plan_pause_task
from graphile_worker.ops.pools import PoolHealth, plan_get_lock_holders
from graphile_worker.ops.search import with_limits
from tests.support.job_table import NODE, JobTable
from tests.support.pools import open_session

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

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
    """Register a Python pool that is alive."""

    def enter(pool_id: str = OURS, **details: Any) -> None:
        registered = {"runtime": "python", "concurrency": 10, "tasks": ["task"], **details}
        with open_session(database) as connection:
            connection.run(register_pool(pool_id, HOUR, registered))

    return enter


def explained(table: JobTable, job: int) -> Explanation:
    found = table.run_plan(plan_explain(job, table.schemas))
    assert found is not None
    return found


def first(table: JobTable, job: int) -> Any:
    return explained(table, job).reasons[0]


def all_of(table: JobTable, job: int) -> list[str]:
    return [reason.why for reason in explained(table, job).reasons]


# 1, 2: locked


def test_it_runs(table, enter):
    enter()
    job = table.add_job(locked_at="now() - interval '2 hours'", locked_by=f"'{OURS}'", attempts="3")

    reason = first(table, job)

    assert reason.why is ReasonCode.RUNNING
    assert reason.sentence.startswith(
        f"worker {OURS} has it locked for 2h, attempt 3 of 25; that worker is alive, last heartbeat"
    )
    assert reason.evidence["worker"] == OURS
    assert reason.evidence["worker_health"] is PoolHealth.ALIVE
    assert reason.evidence["worker_silence_seconds"] < 60


def test_it_runs_on_a_worker_that_is_not_registered(table):
    reason = first(table, table.add_job_in_state("running"))

    assert reason.why is ReasonCode.RUNNING
    assert reason.sentence.endswith("that worker is not registered")


def test_its_lock_is_older_than_four_hours(table):
    reason = first(table, table.add_job_in_state("stale"))

    assert reason.why is ReasonCode.STALE
    assert f"worker {NODE} has it locked for 5h" in reason.sentence
    assert reason.evidence["frees_at"] - reason.evidence["since"] == timedelta(hours=4)


def test_its_worker_is_dead(table, enter, sql):
    enter()
    sql.run("update :ext_schema.pools set seen_at = now() - interval '61 minutes'")
    job = table.add_job(locked_at="now()", locked_by=f"'{OURS}'")

    reason = first(table, job)

    assert reason.why is ReasonCode.STALE
    assert (
        "that worker is dead, last heartbeat 1h1m ago; a running worker recovers it"
        in reason.sentence
    )


# 3, 4: attempts and time


def test_it_failed_permanently(table, enter):
    enter()
    job = table.add_job_in_state("failed", last_error="e'KeyError: x\\nmore'")

    reason = first(table, job)

    assert reason.why is ReasonCode.FAILED
    assert reason.sentence == (
        "it failed permanently: 25 of 25 attempts; retry it; last error: KeyError: x"
    )
    assert all_of(table, job) == [ReasonCode.FAILED]


def test_it_is_scheduled(table, enter):
    enter()

    reason = first(table, table.add_job_in_state("scheduled"))

    assert reason.why is ReasonCode.SCHEDULED
    assert 3500 < reason.evidence["in_seconds"] <= 3600


def test_it_waits_for_its_next_attempt(table, enter):
    enter()
    job = table.add_job(attempts="5", run_at="now() + interval '100 s'")

    reason = first(table, job)

    assert reason.why is ReasonCode.BACKING_OFF
    assert reason.sentence.startswith("attempt 5 of 25 failed; the next is due in 1m")
    assert reason.sentence.endswith("(default backoff: 2m28s)")
    assert reason.evidence["backoff_seconds"] == pytest.approx(148.4, abs=0.1)


# 5, 6: named queues


def test_another_job_has_locked_its_queue(table, enter):
    enter()
    queue = table.add_queue(
        "billing", locked_at="now() - interval '1 minute'", locked_by=f"'{OURS}'"
    )
    holder = table.add_job(job_queue_id=queue, locked_at="now()", locked_by=f"'{OURS}'")
    table.add_job(job_queue_id=queue)
    job = table.add_job(job_queue_id=queue)

    reason = first(table, job)

    assert reason.why is ReasonCode.QUEUE_LOCKED
    assert f"'billing' is locked by job {holder} (task) on worker {OURS} for 1m" in reason.sentence
    assert (reason.evidence["held_by_job"], reason.evidence["ahead"]) == (holder, 1)


def test_a_worker_has_locked_its_queue_without_a_job(table, enter):
    enter()
    queue = table.add_queue("q", locked_at="now()", locked_by=f"'{NODE}'")

    reason = first(table, table.add_job(job_queue_id=queue))

    assert reason.why is ReasonCode.QUEUE_LOCKED
    assert (reason.evidence["held_by_job"], reason.evidence["worker"]) == (None, NODE)


def test_its_queue_is_paused(table, enter):
    enter()
    queue = table.add_queue("q", locked_at="'9999-01-01'", locked_by="'paused:ana'")

    reason = first(table, table.add_job(job_queue_id=queue))

    assert reason.why is ReasonCode.QUEUE_PAUSED
    assert reason.sentence == "its queue 'q' is paused by ana"


def test_who_paused_its_queue_why_and_until_when(table, enter, sql):
    enter()
    table.run_plan(
        plan_pause_queue(
            "q", table.schemas, duration=timedelta(hours=1), reason="vendor is down", actor="ada"
        )
    )
    job = table.add_job(job_queue_id="(select id from :schema._private_job_queues)")

    reason = first(table, job)

    assert reason.sentence.startswith("its queue 'q' is paused by ada for 0.")
    assert reason.sentence.endswith("; reason: vendor is down")
    assert ", ends in " in reason.sentence
    assert (reason.evidence["paused_by"], reason.evidence["reason"]) == ("ada", "vendor is down")
    assert reason.evidence["until"] - reason.evidence["since"] == timedelta(hours=1)

    # Without a Python worker, the queue stays paused.
    sql.run("update :ext_schema.pauses set until = now() - interval '1 minute'")
    assert "ended 1m ago; reason: vendor is down; a running Python worker resumes it" in (
        first(table, job).sentence
    )


def test_its_task_is_paused(table, enter):
    enter()
    table.add_job(priority="-1")
    job = table.add_job()
    table.run_plan(plan_pause_task("task", table.schemas, reason="bounces", actor="ada"))

    assert all_of(table, job) == [ReasonCode.TASK_PAUSED]
    reason = first(table, job)
    assert reason.sentence.startswith("its task 'task' is paused by ada for 0.")
    assert reason.sentence.endswith("; reason: bounces; Python workers do not start it")
    assert (reason.evidence["task"], reason.evidence["until"]) == ("task", None)


def test_without_the_table_of_pauses_no_task_is_paused(table, enter, sql):
    enter()
    sql.run("drop table :ext_schema.pauses")

    assert first(table, table.add_job()).why is ReasonCode.ELIGIBLE


# Limits of its task


def test_its_task_has_no_free_slot_and_no_token(database, table, enter):
    limits: list[Limit] = [
        ConcurrencyLimit(2, name="resize"),
        RateLimit(1, per=HOUR, name="stripe"),
    ]
    enter(limits=describe_task_limits({"task": limits}))
    job = table.add_job()
    with open_session(database) as connection:
        connection.run(register_limits(limits))
        connection.run(create_limit_rows(["resize", "stripe"]))
        connection.run(rent_slots("resize", OURS, 1))
        assert first(table, job).why is ReasonCode.ELIGIBLE

        connection.run(rent_slots("resize", OURS, 1))
        connection.run(take_tokens("stripe", 1))

    assert all_of(table, job) == [ReasonCode.LIMIT, ReasonCode.LIMIT]
    slot, token = explained(table, job).reasons
    in_seconds: Any = token.evidence["in_seconds"]
    assert slot.sentence == f"it waits for a slot of 'resize' (2 of 2 rented by {OURS})"
    assert slot.evidence == {"limit": "resize", "slots": 2, "rented_by": {OURS: 2}}
    assert token.sentence.startswith("it waits for a token of 'stripe' (1 per 1h, next in ")
    assert 0 < in_seconds <= 3600


# 7, 8: workers without the task, flags


def test_no_worker_runs_its_task(table, enter):
    enter(tasks=["send_email", "other"])

    reason = first(table, table.add_job("sendemail"))

    assert reason.why is ReasonCode.NO_WORKER
    assert reason.sentence == (
        "no live worker handles task 'sendemail' (1 running, none has it); did you mean "
        "'send_email'?"
    )
    assert reason.evidence["workers"] == [OURS]


def test_no_worker_is_alive(table):
    reason = first(table, table.add_job())

    assert reason.why is ReasonCode.NO_WORKER
    assert reason.sentence == "no live worker handles task 'task' (no workers are running)"


@pytest.mark.parametrize("tasks", [None, ["name"] * 100])
def test_a_worker_that_does_not_report_all_its_tasks_may_run_it(table, enter, tasks):
    enter(tasks=tasks)

    assert first(table, table.add_job()).why is ReasonCode.ELIGIBLE


def test_an_unregistered_worker_that_holds_a_lock_may_run_it(table):
    table.add_job_in_state("running")

    assert first(table, table.add_job()).why is ReasonCode.ELIGIBLE


def test_without_a_registry_workers_are_unknown(table, sql):
    sql.run("drop schema :ext_schema cascade")

    assert first(table, table.add_job()).why is ReasonCode.ELIGIBLE


def test_it_has_flags(table, enter):
    enter()

    reason = first(table, table.add_job(flags="'{\"vip\": true}'"))

    assert reason.why is ReasonCode.FLAGS
    assert reason.evidence["flags"] == ["vip"]


# 10, 11, 12: jobs before it, busy workers, eligible


def test_other_jobs_run_before_it(table, enter):
    enter()
    table.add_job(priority="-1")
    table.add_job(run_at="now() - interval '1 hour'")
    table.add_job("unknown task", priority="-1")
    table.add_job(priority="-1", run_at="now() + interval '1 hour'")
    job = table.add_job()
    table.add_job()

    reason = first(table, job)

    assert (reason.why, reason.evidence["ahead"]) == (ReasonCode.BEHIND, 2)
    assert reason.sentence == "2 jobs run before it"


def test_jobs_that_wait_for_a_queue_do_not_run_before_it(table, enter):
    enter()
    table.add_job_in_state("waiting", priority="-1")

    assert first(table, table.add_job()).why is ReasonCode.ELIGIBLE


def test_all_workers_are_busy(table, enter):
    enter(concurrency=2)
    for _ in range(2):
        table.add_job(locked_at="now()", locked_by=f"'{OURS}'")

    reason = first(table, table.add_job())

    assert reason.why is ReasonCode.BUSY
    assert (reason.evidence["held"], reason.evidence["slots"]) == (2, 2)


def test_it_can_run_now(table, enter):
    enter()

    assert first(table, table.add_job()).why is ReasonCode.ELIGIBLE


# Several reasons, no job


def test_further_reasons_come_after_the_first(table):
    queue = table.add_queue("q", locked_at="'9999-01-01'", locked_by="'paused:ana'")
    flags = "'{\"vip\": true}'"
    job = table.add_job_in_state("scheduled", job_queue_id=queue, flags=flags)

    assert all_of(table, job) == [
        ReasonCode.SCHEDULED,
        ReasonCode.QUEUE_PAUSED,
        ReasonCode.NO_WORKER,
        ReasonCode.FLAGS,
    ]


def test_a_task_that_no_worker_runs_has_no_further_reasons(table):
    table.add_job(priority="-1")

    assert all_of(table, table.add_job()) == [ReasonCode.NO_WORKER]


def test_a_job_that_waits_for_a_queue_that_was_freed_meanwhile_can_run(table, enter, sql):
    enter()
    job = table.add_job_in_state("waiting")
    sql.run("update :schema._private_job_queues set locked_at = null, locked_by = null")

    assert all_of(table, job) == [ReasonCode.ELIGIBLE]


def test_a_missing_job_has_no_explanation(table):
    assert table.run_plan(plan_explain(1, table.schemas)) is None


# Pools


def pools(table: JobTable) -> dict[str, Any]:
    plan = plan_get_lock_holders(table.schemas, lambda query: with_limits(query, table.schemas))
    return {pool.id: pool for pool in table.run_plan(plan)}


def test_pools_are_known_from_registries_and_from_what_they_hold(table, enter, sql):
    enter(host="web-1", pid=412, version="1.3.0")
    sql.run(RUST_REGISTRY)
    for name, age in (("rust alive", "4 minutes"), ("rust dead", "6 minutes"), (OURS, "9 h")):
        sql.run(
            "insert into :schema._private_workers values ($1, now() - $2::text::interval)",
            name,
            age,
        )
    table.add_job_in_state("running")
    table.add_queue("q", locked_at="now()", locked_by=f"'{OURS}'")
    table.add_queue("paused", locked_at="'9999-01-01'", locked_by="'paused:ana'")

    found = pools(table)

    assert {name: pool.health for name, pool in found.items()} == {
        OURS: PoolHealth.ALIVE,
        "rust alive": PoolHealth.ALIVE,
        "rust dead": PoolHealth.DEAD,
        NODE: PoolHealth.UNKNOWN,
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

    with open_session(database) as connection:
        connection.run(mark_pools_stopped([OURS]))

    assert pools(table) == {}
    table.add_queue("q", locked_at="now()", locked_by=f"'{OURS}'")
    assert pools(table)[OURS].health is PoolHealth.UNKNOWN


@pytest.mark.parametrize("details", ["null", "[1]", '{"tasks": 7, "pid": "x", "host": [1]}'])
def test_details_may_be_anything(table, enter, sql, details):
    enter()
    sql.run("update :ext_schema.pools set details = $1::text::json", details)

    assert pools(table)[OURS].tasks is None

"""What calls for attention: each rule fires when it should, and only then, with what to type."""

from datetime import timedelta

import pytest

from graphile_worker._sql.identifiers import Schemas
from graphile_worker.ops.alerts import (
    MAX_ALERTS_PER_RULE,
    Alert,
    AlertRule,
    QueueHealth,
    Severity,
    assess_health,
    find_alerts,
)
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.snapshot import LockedQueue, Snapshot
from graphile_worker.ops.trends import SnapshotHistory
from tests.support.snapshots import NOON, make_locked, make_pool, make_snapshot, make_task

SCHEMAS = Schemas.from_names("graphile_worker")
NODE = "pool-3fa94c1d77e0aa19b2"


def found_in(*snapshots: Snapshot, schemas: Schemas = SCHEMAS) -> list[Alert]:
    watch = SnapshotHistory(snapshots[0])
    for each in snapshots[1:]:
        watch.add(each)
    return find_alerts(watch, schemas)


def only(found: list[Alert]) -> Alert:
    assert [each.rule for each in found] == [found[0].rule]
    return found[0]


def test_a_queue_that_flows_calls_for_nothing():
    seen = make_snapshot(
        make_task(ready=12, running=3, scheduled=900, retrying=2, failed=40),
        pools=(make_pool(jobs=3),),
        locked=(make_locked(),),
    )

    assert found_in(seen) == []
    assert assess_health([]) is QueueHealth.HEALTHY


# A1


def test_jobs_that_are_ready_and_no_worker_anywhere():
    late = make_task(ready=3, oldest_ready=400.0)

    found = only(found_in(make_snapshot(late), make_snapshot(late, after=5)))

    assert (found.rule, found.severity) == (AlertRule.NO_WORKERS, Severity.CRITICAL)
    assert found.title == "No worker runs: 3 jobs ready, the oldest for 6m40s"
    assert found.command == "graphile-worker --app your_module:app"
    assert assess_health([found]) is QueueHealth.STALLED


@pytest.mark.parametrize(
    "sign",
    [
        {"pools": (make_pool(),)},
        {"locked": (make_locked(age=30.0, pool_id=NODE),)},
        {"rows_deleted": 1},
        {"oldest": 5.0},
    ],
    ids=["a heartbeat", "a new lock", "a job that is done", "a job that just came"],
)
def test_any_sign_of_life_is_a_worker(sign):
    task = make_task(ready=3, oldest_ready=sign.pop("oldest", 20.0))

    assert found_in(make_snapshot(task), make_snapshot(task, after=5, **sign)) == []


# A2


@pytest.mark.parametrize(
    ("waited", "severity"),
    [(59.0, None), (61.0, Severity.WARNING), (301.0, Severity.CRITICAL)],
)
def test_a_job_that_has_been_ready_for_long(waited, severity):
    task = make_task(ready=529, running=10, oldest_ready=waited, first_ready=88_123)

    found = found_in(make_snapshot(task, pools=(make_pool(jobs=14),)))

    if severity is None:
        assert found == []
        return
    assert only(found).severity is severity
    assert found[0].rule is AlertRule.LATE
    assert found[0].evidence == ("529 ready, 10 running", "10 of 10 slots busy")
    assert found[0].command == "graphile-worker jobs why 88123"
    assert assess_health(found) is QueueHealth.DEGRADED


def test_many_late_tasks_are_the_worst_few_and_a_number():
    tasks = [make_task(f"t{n}", ready=1, running=1, oldest_ready=100.0 + n) for n in range(9)]

    found = found_in(make_snapshot(*tasks, pools=(make_pool(tasks=None),)))

    assert len(found) == MAX_ALERTS_PER_RULE + 1
    assert found[0].title.startswith("t8 is late")
    assert found[-1].title == "The same of 4 more"


# A3


def held(**given) -> LockedQueue:
    return LockedQueue(
        **{"name": "billing", "pool_id": NODE, "age": 2820.0, "waiting": 214, **given}
    )


def test_a_queue_that_a_stranger_holds_for_long():
    queue = held(job_id=88_123, first_waiting=88_124, oldest_waiting=2760.0)
    stranger = make_pool(
        NODE, health=PoolHealth.UNKNOWN, seconds_since_heartbeat=None, tasks=None, queues=1
    )

    found = only(found_in(make_snapshot(queues=(queue,), pools=(stranger,))))

    assert (found.rule, found.severity) == (AlertRule.QUEUE_BLOCKED, Severity.WARNING)
    assert found.title == 'Queue "billing" is held for 47m by job 88123, 214 jobs waiting'
    assert found.evidence == (
        f"held by {NODE}, no registry knows it",
        "if it is dead, any worker releases it in 3h13m",
        "the oldest waits for 46m",
    )
    assert (found.affected, found.command) == (214, "graphile-worker jobs why 88124")


def test_a_queue_that_the_dead_hold_is_critical_at_once():
    queue, pool = (
        held(age=31.0),
        make_pool(NODE, health=PoolHealth.DEAD, seconds_since_heartbeat=31.0, queues=1),
    )

    found = found_in(make_snapshot(queues=(queue,), pools=(pool,)))

    assert [each.rule for each in found] == [AlertRule.QUEUE_BLOCKED, AlertRule.STALE_WORKER]
    assert {each.severity for each in found} == {Severity.CRITICAL}
    assert {each.command for each in found} == {f"graphile-worker workers recover {NODE}"}


@pytest.mark.parametrize("given", [{"waiting": 0}, {"age": 299.0}], ids=["nobody waits", "short"])
def test_a_queue_is_held_while_its_job_runs(given):
    assert found_in(make_snapshot(queues=(held(**given),))) == []


# A4


def test_a_dead_pool_that_holds_jobs():
    pool = make_pool(
        health=PoolHealth.DEAD,
        seconds_since_heartbeat=480.0,
        jobs=3,
        oldest_lock=NOON - timedelta(hours=1),
    )

    found = only(found_in(make_snapshot(pools=(pool,))))

    assert found.rule is AlertRule.STALE_WORKER
    assert found.title == f"Python worker {pool.id} on web-1 is dead and holds 3 jobs"
    assert found.evidence == ("silent for 8m, its lease is 30s", "held for 1h")
    assert found.command == f"graphile-worker workers recover {pool.id}"


def test_a_stranger_that_holds_a_job_for_more_than_four_hours_seems_dead():
    hours = [NOON - timedelta(hours=n) for n in (3, 5)]
    young, old = [
        make_pool(
            NODE, health=PoolHealth.UNKNOWN, runtime="node", host=None, jobs=1, oldest_lock=since
        )
        for since in hours
    ]

    assert found_in(make_snapshot(pools=(young,))) == []
    assert "seems dead" in only(found_in(make_snapshot(pools=(old,)))).title


def test_a_dead_pool_that_holds_nothing_is_nobody_s_concern():
    assert found_in(make_snapshot(pools=(make_pool(health=PoolHealth.DEAD),))) == []


# A5


def test_a_task_that_no_worker_runs_is_most_likely_misspelt():
    task = make_task("sent_email", ready=4, oldest_ready=31.0, first_ready=12)
    pool = make_pool(tasks=("resize", "send_email"))

    found = only(found_in(make_snapshot(task, pools=(pool,))))

    assert (found.rule, found.severity) == (AlertRule.UNHANDLED_TASK, Severity.CRITICAL)
    assert found.title == "No worker runs sent_email: 4 jobs ready for up to 31s"
    assert found.evidence == ("did somebody mean send_email?", "workers run resize, send_email")
    assert found.command == "graphile-worker jobs why 12"


def test_where_a_worker_does_not_say_its_tasks_they_are_watched_first():
    task = make_task("sent_email", ready=4, oldest_ready=50.0)
    stranger = make_pool(NODE, health=PoolHealth.UNKNOWN, tasks=None, jobs=1)
    looks = [
        make_snapshot(task, after=n, pools=(stranger,), rows_deleted=n) for n in range(0, 400, 2)
    ]

    assert found_in(*looks[:20]) == []
    assert only(found_in(*looks)).rule is AlertRule.UNHANDLED_TASK


# A6, A7


def test_many_jobs_that_fail_and_ever_more():
    before = make_task(retrying=298, failed=27)
    now = make_task(retrying=310, failed=27, newest_failing=9, error="TimeoutError: 30s\n\nTrace")

    found = only(found_in(make_snapshot(before), make_snapshot(now, after=5)))

    assert (found.rule, found.severity) == (AlertRule.FAILING, Severity.WARNING)
    assert found.evidence == ("job 9: TimeoutError: 30s",)
    assert found.command == "graphile-worker jobs list 'task:resize state:retrying,failed'"


@pytest.mark.parametrize("error", [None, "", " \n"])
def test_an_error_that_says_nothing_is_no_evidence(error):
    now = make_task(retrying=310, newest_failing=9, error=error)

    found = only(found_in(make_snapshot(make_task(retrying=1)), make_snapshot(now, after=5)))

    assert (found.rule, found.evidence) == (AlertRule.FAILING, ())


@pytest.mark.parametrize(("before", "now"), [(325, 325), (325, 310), (0, 19)])
def test_what_has_failed_before_or_is_little_is_not_news(before, now):
    first = make_snapshot(make_task(retrying=before))

    assert found_in(first, make_snapshot(make_task(retrying=now), after=5)) == []


def test_jobs_that_had_their_last_attempt():
    looks = [make_snapshot(make_task("a b", failed=n), after=n) for n in (1, 4)]

    found = only(found_in(*looks))

    assert found.rule is AlertRule.PERMANENTLY_FAILED
    assert found.title == "3 jobs of a b had the last attempt within 15 min"
    assert found.command == "graphile-worker jobs list 'task:\"a b\" state:failed'"


# A9 to A12


def test_a_paused_queue_is_only_a_note():
    queue = held(pool_id="paused:ana", age=-1e9)

    found = only(found_in(make_snapshot(queues=(queue,))))

    assert (found.rule, found.severity) == (AlertRule.QUEUE_PAUSED, Severity.NOTE)
    assert found.title == 'Queue "billing" is paused by ana, 214 jobs waiting'
    assert found.command == "graphile-worker workers recover paused:ana"
    assert assess_health([found]) is QueueHealth.HEALTHY


@pytest.mark.parametrize(
    ("given", "title"),
    [
        (
            {"oldest_transaction_seconds": 1200.0, "oldest_transaction": "77, bi, report"},
            "A transaction is open for 20m: no dead row can go",
        ),
        (
            {"dead_rows": 200_000, "live_rows": 100},
            "200,000 dead rows lie among 100 jobs",
        ),
        (
            {"dead_rows": 200_000, "live_rows": 300_000, "seconds_since_vacuum": 90_000.0},
            "The table of jobs was not vacuumed for 1d1h",
        ),
        ({"clock_offset": 30.0}, "The database's clock is 30s ahead of this machine's"),
        ({"clock_offset": -30.0}, "The database's clock is 30s behind this machine's"),
    ],
)
def test_what_in_the_database_is_in_the_way(given, title):
    found = only(found_in(make_snapshot(**given)))

    assert (found.rule, found.title) == (AlertRule.DATABASE, title)


@pytest.mark.parametrize(
    "given",
    [
        {"oldest_transaction_seconds": 60.0},
        {"dead_rows": 90_000},
        {"clock_offset": 2.0},
        {"seconds_since_vacuum": 1e6},
    ],
)
def test_what_a_busy_database_looks_like_is_no_concern(given):
    assert found_in(make_snapshot(**given)) == []


def test_a_schema_that_is_newer_than_we_know():
    assert only(found_in(make_snapshot(level=23))).rule is AlertRule.COMPATIBILITY


def test_rust_workers_beside_one_that_their_registry_does_not_know():
    rust = make_pool("graphile_worker_ab12", runtime="rust")
    node = make_pool(NODE, health=PoolHealth.UNKNOWN, runtime="node", host=None, jobs=2)

    found = only(found_in(make_snapshot(pools=(rust, node))))

    assert found.rule is AlertRule.COMPATIBILITY
    assert found.evidence == (f"Node worker {NODE} holds 2 jobs",)


def test_a_role_that_may_not_see_the_rows():
    found = only(found_in(make_snapshot(has_hidden_rows=True, role="reader")))

    assert (found.rule, found.severity) == (AlertRule.ACCESS, Severity.CRITICAL)
    assert found.command == "graphile-worker doctor"


def test_the_worst_comes_first():
    queue = held(pool_id="paused:ana", age=-1e9)
    task = make_task(ready=1, running=1, oldest_ready=100.0)
    dead = make_pool(health=PoolHealth.DEAD, jobs=1)

    found = found_in(make_snapshot(task, queues=(queue,), pools=(dead, make_pool("b"))))

    assert [each.severity for each in found] == list(Severity)


def test_commands_say_which_schema_and_cannot_do_anything_else():
    odd = Schemas.from_names("it's; rm -rf /")
    task = make_task("a'b\n; reboot", ready=1, oldest_ready=61.0, running=1, first_ready=5)
    dead = make_pool("$(reboot)", health=PoolHealth.DEAD, jobs=1)

    commands = [
        each.command
        for each in found_in(make_snapshot(task, pools=(dead, make_pool("b"))), schemas=odd)
    ]

    schema = "--schema 'it'\"'\"'s; rm -rf /'"
    assert commands == [
        f"graphile-worker workers recover {schema} '$(reboot)'",
        f"graphile-worker jobs why {schema} 5",
    ]

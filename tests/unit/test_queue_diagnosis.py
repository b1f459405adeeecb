"""The diagnosis of a queue: each rule over snapshots, and the command that it prints."""

import difflib
from datetime import timedelta

import pytest

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.diagnostics import DeadRows
from graphile_worker._sql.queries.storage import VacuumBlocker
from graphile_worker.ops.diagnostics.findings import (
    QUEUE_FINDINGS,
    Finding,
    FindingId,
    QueueHealth,
    Severity,
    Subject,
    SubjectKind,
    assess_health,
)
from graphile_worker.ops.diagnostics.queue import diagnose_queue
from graphile_worker.ops.pauses import Pause, PauseKind
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.snapshot import LockedQueue, Snapshot
from graphile_worker.ops.text import MAX_LINES
from tests.support.snapshots import make_history, make_locked, make_pool, make_snapshot, make_task

SCHEMAS = Schemas.from_names("graphile_worker")
NODE = "pool-3fa94c1d77e0aa19b2"
RUST = "graphile_worker_0123456789abcdef01"


def diagnose(
    *snapshots: Snapshot, schemas: Schemas = SCHEMAS, external_tasks: frozenset[str] = frozenset()
) -> list[Finding]:
    findings = diagnose_queue(make_history(*snapshots), schemas, external_tasks=external_tasks)
    assert {each.id for each in findings} <= QUEUE_FINDINGS
    return findings


def get_only(findings: list[Finding]) -> Finding:
    assert [each.id for each in findings] == [findings[0].id]
    return findings[0]


def test_a_healthy_queue_has_no_findings():
    snapshot = make_snapshot(
        make_task(ready=12, running=3, scheduled=900, retrying=2),
        pools=(make_pool(jobs=3),),
        locked=(make_locked(),),
    )

    assert diagnose(snapshot) == []
    assert assess_health([]) is QueueHealth.HEALTHY


# Workers


def test_ready_jobs_without_a_worker_are_critical():
    late = make_task(ready=3, oldest_ready=400.0)

    finding = get_only(diagnose(make_snapshot(late), make_snapshot(late, after=5)))

    assert (finding.id, finding.severity) == (FindingId.NO_WORKERS, Severity.CRITICAL)
    assert finding.title == "no worker is alive: 3 jobs ready, the oldest for 6m40s"
    assert finding.evidence == (
        "no heartbeat within the lease; dead workers: 0",
        "no lock is younger than 1m, and none of an unregistered worker younger than 4h",
    )
    assert finding.command == "graphile-worker --app your_module:app"
    assert assess_health([finding]) is QueueHealth.STALLED


@pytest.mark.parametrize(
    "sign",
    [
        {"pools": (make_pool(),)},
        {"locked": (make_locked(age=30.0, pool_id=NODE),)},
        {"rows_deleted": 1},
        {"oldest": 5.0},
    ],
    ids=["heartbeat", "new lock", "completed job", "new job"],
)
def test_a_heartbeat_a_lock_or_a_completed_job_is_the_sign_of_a_worker(sign):
    task = make_task(ready=3, oldest_ready=sign.pop("oldest", 20.0))

    assert diagnose(make_snapshot(task), make_snapshot(task, after=5, **sign)) == []


@pytest.mark.parametrize(
    ("age", "health", "is_alive"),
    [
        (300.0, PoolHealth.UNKNOWN, True),
        (3.9 * 3600, PoolHealth.UNKNOWN, True),
        (4.1 * 3600, PoolHealth.UNKNOWN, False),
        (300.0, PoolHealth.DEAD, False),
    ],
)
def test_a_lock_of_an_unregistered_worker_is_a_sign_of_life_for_four_hours(age, health, is_alive):
    pool = make_pool(NODE, health=health, seconds_since_heartbeat=None, tasks=None, jobs=1)
    snapshot = make_snapshot(
        make_task(ready=1, running=1, oldest_ready=20.0),
        pools=(pool,),
        locked=(make_locked(age=age, pool_id=NODE),),
    )

    ids = {each.id for each in diagnose(snapshot)}

    assert (FindingId.NO_WORKERS not in ids) is is_alive


# Late tasks


@pytest.mark.parametrize(
    ("waited", "severity"),
    [(59.0, None), (61.0, Severity.WARNING), (301.0, Severity.CRITICAL)],
)
def test_a_job_that_is_ready_for_longer_than_a_minute_is_late(waited, severity):
    task = make_task(ready=529, running=10, oldest_ready=waited, first_ready=88_123)

    findings = diagnose(make_snapshot(task, pools=(make_pool(jobs=14),)))

    if severity is None:
        assert findings == []
        return
    assert get_only(findings).severity is severity
    assert findings[0].id is FindingId.LATE
    assert findings[0].evidence == ("529 ready, 10 running", "10 of 10 slots busy")
    assert findings[0].command == "graphile-worker jobs why 88123"
    assert assess_health(findings) is QueueHealth.DEGRADED


def test_many_late_tasks_are_cut_to_the_worst():
    tasks = [make_task(f"t{n}", ready=1, running=1, oldest_ready=100.0 + n) for n in range(9)]

    findings = diagnose(make_snapshot(*tasks, pools=(make_pool(tasks=None),)))

    assert len(findings) == MAX_LINES + 1
    assert findings[0].title.startswith("t8 is late")
    assert findings[-1].title == "4 more findings of this kind"


# Named queues


def locked_queue(**values) -> LockedQueue:
    return LockedQueue(
        **{"name": "billing", "pool_id": NODE, "age": 2820.0, "waiting": 214, **values}
    )


def test_a_queue_that_an_unregistered_worker_locks_for_long_is_blocked():
    queue = locked_queue(job_id=88_123, first_waiting=88_124, oldest_waiting=2760.0)
    unknown = make_pool(
        NODE,
        health=PoolHealth.UNKNOWN,
        seconds_since_heartbeat=None,
        tasks=None,
        queues=1,
        runtime="node",
        host=None,
        pid=None,
    )

    finding = get_only(diagnose(make_snapshot(queues=(queue,), pools=(unknown,))))

    assert (finding.id, finding.severity) == (FindingId.QUEUE_BLOCKED, Severity.WARNING)
    assert finding.title == 'queue "billing" is locked for 47m by job 88123, 214 jobs waiting'
    assert finding.evidence == (
        f"locked by node worker {NODE}, not registered",
        "if it is dead, any worker releases the lock in 3h13m",
        "the oldest has waited for 46m",
    )
    assert (finding.affected, finding.command) == (214, "graphile-worker jobs why 88124")


def test_a_queue_that_a_dead_worker_locks_is_critical_after_two_leases():
    queue = locked_queue(age=61.0)
    young, pool = [
        make_pool(NODE, health=PoolHealth.DEAD, seconds_since_heartbeat=silence, queues=1)
        for silence in (59.0, 61.0)
    ]
    assert diagnose(make_snapshot(queues=(queue,), pools=(young,))) == []

    findings = diagnose(make_snapshot(queues=(queue,), pools=(pool,)))

    assert [each.id for each in findings] == [FindingId.QUEUE_BLOCKED, FindingId.DEAD_POOL_LOCKS]
    assert {each.severity for each in findings} == {Severity.CRITICAL}
    assert {each.command for each in findings} == {f"graphile-worker workers recover {NODE}"}


@pytest.mark.parametrize("values", [{"waiting": 0}, {"age": 299.0}], ids=["no job waits", "short"])
def test_a_queue_is_locked_while_its_job_runs(values):
    assert diagnose(make_snapshot(queues=(locked_queue(**values),))) == []


# Locks


def test_the_locks_of_a_dead_pool_are_reported_after_two_leases():
    young, pool = [
        make_pool(health=PoolHealth.DEAD, seconds_since_heartbeat=silence, jobs=1)
        for silence in (59.0, 480.0)
    ]
    job = make_locked(age=3600.0)

    finding = get_only(diagnose(make_snapshot(pools=(pool,), locked=(job,))))

    assert diagnose(make_snapshot(pools=(young,), locked=(job,))) == []
    assert (finding.id, finding.severity) == (FindingId.DEAD_POOL_LOCKS, Severity.CRITICAL)
    assert finding.title == "1 job is locked by dead workers"
    assert finding.evidence == (
        f"python worker {pool.id} on web-1, process 412, last heartbeat 8m ago: 1 job, locked for "
        "up to 1h, the first is job 7",
    )
    assert finding.command == f"graphile-worker workers recover {pool.id}"


def test_after_a_restart_of_the_server_no_pool_counts_as_dead_for_two_leases():
    pool = make_pool(health=PoolHealth.DEAD, seconds_since_heartbeat=480.0, jobs=1)

    assert diagnose(make_snapshot(pools=(pool,), locked=(make_locked(),), uptime_seconds=59)) == []


def test_a_lock_of_an_unregistered_worker_is_stale_after_four_hours():
    pool = make_pool(NODE, health=PoolHealth.UNKNOWN, runtime="node", host=None, jobs=1)
    young, old = [make_locked(age=hours * 3600.0, pool_id=NODE) for hours in (3, 5)]

    finding = get_only(diagnose(make_snapshot(pools=(pool,), locked=(old,))))

    assert diagnose(make_snapshot(pools=(pool,), locked=(young,))) == []
    assert (finding.id, finding.severity) == (FindingId.STALE_LOCKS, Severity.CRITICAL)
    assert finding.title == "1 job is locked for more than four hours"
    assert finding.evidence == (f"{NODE}: 1 job, locked for up to 5h, the first is job 7",)


def test_a_dead_pool_without_locks_is_a_warning_until_a_worker_has_recovered_it():
    dead, rescued = [
        make_pool(health=PoolHealth.DEAD, seconds_since_heartbeat=480.0, is_rescued=is_rescued)
        for is_rescued in (False, True)
    ]

    finding = get_only(diagnose(make_snapshot(pools=(dead,))))

    assert (finding.id, finding.severity) == (FindingId.DEAD_POOLS, Severity.WARNING)
    assert diagnose(make_snapshot(pools=(rescued,))) == []


def test_a_job_of_a_limited_task_in_another_runtime_is_a_warning():
    ours = make_pool(limits={"resize": ("api",)})
    node = make_pool(NODE, health=PoolHealth.UNKNOWN, runtime="node", host=None, jobs=1)
    job = make_locked(task_identifier="resize", pool_id=NODE)

    finding = get_only(diagnose(make_snapshot(pools=(ours, node), locked=(job,))))

    assert (finding.id, finding.severity) == (FindingId.LIMIT_NOT_SHARED, Severity.WARNING)
    assert finding.title == "1 job of resize beside the limit of the task"
    assert finding.evidence == (f"{NODE} has locked job 7, and ignores limit 'api'",)
    assert diagnose(make_snapshot(pools=(make_pool(), node), locked=(job,))) == []


def test_several_locked_jobs_of_a_named_queue_are_a_warning():
    rust = make_pool(RUST, health=PoolHealth.UNKNOWN, runtime="rust", host=None, jobs=3)
    of_queue = [make_locked(id=id, pool_id=RUST, queue_name="in turn") for id in (7, 8)]
    other = make_locked(id=9, pool_id=RUST, queue_name="other")

    finding = get_only(diagnose(make_snapshot(pools=(rust,), locked=(*of_queue, other))))

    assert (finding.id, finding.severity) == (FindingId.QUEUE_PARALLEL, Severity.WARNING)
    assert finding.title == '2 jobs of queue "in turn" are locked at the same time'
    assert finding.evidence == (f"{RUST} has locked job 7", f"{RUST} has locked job 8")
    assert diagnose(make_snapshot(pools=(rust,), locked=(of_queue[0], other))) == []


# Tasks that no worker runs


def test_a_task_that_no_worker_runs_is_reported_with_the_nearest_name():
    task = make_task("sent_email", ready=4, oldest_ready=31.0, first_ready=12)
    pool = make_pool(tasks=("resize", "send_email"))

    finding = get_only(diagnose(make_snapshot(task, pools=(pool,))))

    assert (finding.id, finding.severity) == (FindingId.UNHANDLED_TASK, Severity.CRITICAL)
    assert finding.title == "no worker runs sent_email: 4 jobs ready for up to 31s"
    assert finding.evidence == ("did you mean 'send_email'?", "workers run resize, send_email")
    assert finding.command == "graphile-worker jobs why 12"


def test_only_the_tasks_that_are_shown_are_compared_with_the_names_of_workers(monkeypatch):
    compared = []

    def record(word, names, **options):
        compared.append(word)
        return [*names][:1]

    monkeypatch.setattr(difflib, "get_close_matches", record)
    tasks = [make_task(f"unknown_{n}", ready=2, oldest_ready=31.0) for n in range(1000)]

    findings = diagnose(make_snapshot(*tasks, pools=(make_pool(),)))

    # The first of the others is compared too, for the severity.
    assert compared == [f"unknown_{n}" for n in range(MAX_LINES + 1)]
    assert len(findings) == MAX_LINES + 1
    assert findings[-1].title == "995 more findings of this kind"
    assert (findings[-1].evidence, findings[-1].command) == ((), None)
    assert sum(each.affected for each in findings) == 2000


def test_where_a_worker_does_not_report_its_tasks_the_history_decides():
    task = make_task("sent_email", ready=4, oldest_ready=50.0)
    unknown = make_pool(NODE, health=PoolHealth.UNKNOWN, tasks=None, jobs=1)
    snapshots = [
        make_snapshot(task, after=n, pools=(unknown,), rows_deleted=n) for n in range(0, 400, 2)
    ]

    assert diagnose(*snapshots[:20]) == []
    assert get_only(diagnose(*snapshots)).id is FindingId.UNHANDLED_TASK


def test_an_external_task_is_unhandled_only_if_none_of_its_jobs_runs_for_minutes():
    task = make_task("render_in_node", ready=4, oldest_ready=50.0)
    snapshots = [make_snapshot(task, after=n, pools=(make_pool(),)) for n in range(0, 400, 2)]
    external = frozenset({"render_in_node"})

    assert get_only(diagnose(snapshots[0])).id is FindingId.UNHANDLED_TASK
    assert diagnose(*snapshots[:20], external_tasks=external) == []
    finding = get_only(diagnose(*snapshots, external_tasks=external))
    assert finding.id is FindingId.UNHANDLED_TASK
    assert finding.advice == "Start the program that runs this external task."


# Failures


def failing(findings: list[Finding]) -> list[Finding]:
    return [each for each in findings if each.id is FindingId.FAILING]


def test_a_growing_number_of_failing_jobs_is_reported():
    before = make_task(retrying=298, failed=27)
    now = make_task(retrying=310, failed=27, newest_failing=9, error="TimeoutError: 30s\n\nTrace")

    finding = get_only(failing(diagnose(make_snapshot(before), make_snapshot(now, after=5))))

    assert finding.severity is Severity.WARNING
    assert finding.evidence == ("job 9: TimeoutError: 30s",)
    assert finding.command == "graphile-worker jobs list 'task:resize state:retrying,failed'"


@pytest.mark.parametrize("error", [None, "", " \n"])
def test_an_empty_error_is_not_evidence(error):
    now = make_task(retrying=310, newest_failing=9, error=error)

    finding = get_only(diagnose(make_snapshot(make_task(retrying=1)), make_snapshot(now, after=5)))

    assert (finding.id, finding.evidence) == (FindingId.FAILING, ())


@pytest.mark.parametrize(("before", "now"), [(325, 325), (325, 310), (0, 19)])
def test_a_stable_or_small_number_of_failing_jobs_is_not_reported(before, now):
    first = make_snapshot(make_task(retrying=before))

    assert diagnose(first, make_snapshot(make_task(retrying=now), after=5)) == []


def test_permanently_failed_jobs_are_reported_from_one_snapshot_by_task():
    tasks = [
        make_task("a", failed=20, oldest_failure=7200.0, newest_failure=60.0),
        make_task(
            "b",
            failed=6,
            oldest_failure=90.0,
            newest_failure=30.0,
            newest_failing=9,
            error="Boom\nTrace",
        ),
    ]

    finding = get_only(diagnose(make_snapshot(*tasks)))

    assert (finding.id, finding.severity) == (FindingId.PERMANENTLY_FAILED, Severity.WARNING)
    assert finding.title == "26 jobs failed permanently, the oldest 2h ago, the newest 30s ago"
    assert finding.evidence == (
        "a: 20, the oldest 2h ago, the newest 1m ago",
        "b: 6, the oldest 1m30s ago, the newest 30s ago; job 9: Boom",
    )
    assert (finding.affected, finding.command) == (26, "graphile-worker jobs list state:failed")
    assert assess_health([finding]) is QueueHealth.DEGRADED


def test_jobs_of_deleted_tasks_and_queues_are_critical():
    findings = diagnose(make_snapshot(missing_tasks={7: 3}, missing_queues={9: 1}))

    assert [each.id for each in findings] == [FindingId.DANGLING_TASKS, FindingId.DANGLING_QUEUES]
    assert [each.affected for each in findings] == [3, 1]
    assert findings[0].evidence == ("3 jobs with id 7, which is not in _private_tasks",)


# The database


def test_a_paused_queue_is_a_note():
    queue = locked_queue(pool_id="paused:ana", age=-1e9)

    finding = get_only(diagnose(make_snapshot(queues=(queue,))))

    assert (finding.id, finding.severity) == (FindingId.QUEUE_PAUSED, Severity.NOTE)
    # Unauthenticated HTTP clients get the title.
    assert finding.title == 'queue "billing" is paused, 214 jobs waiting'
    assert finding.evidence == ("paused by ana",)
    assert finding.command == "graphile-worker resume queue billing"
    assert finding.subject == Subject(SubjectKind.QUEUE, "billing")
    assert assess_health([finding]) is QueueHealth.HEALTHY


def make_pause(kind: PauseKind, name: str, *, ends_in: float | None = None) -> Pause:
    """A pause by ana for an hour so far."""
    now = make_snapshot().now
    until = None if ends_in is None else now + timedelta(seconds=ends_in)
    return Pause(kind, name, "ana", "vendor is down", now - timedelta(hours=1), until)


def test_the_evidence_of_a_paused_queue_is_who_why_and_until_when():
    queue = locked_queue(pool_id="paused:ana", age=-1e9)
    pause = make_pause(PauseKind.QUEUE, queue.name, ends_in=600)

    finding = get_only(diagnose(make_snapshot(queues=(queue,), pauses=(pause,))))

    evidence = "paused by ana for 1h, ends in 10m; reason: vendor is down"
    assert (finding.severity, finding.evidence) == (Severity.NOTE, (evidence,))


def test_a_queue_that_is_paused_past_its_end_is_a_warning():
    queue = locked_queue(pool_id="paused:ana", age=-1e9)
    pause = make_pause(PauseKind.QUEUE, queue.name, ends_in=-60)

    finding = get_only(diagnose(make_snapshot(queues=(queue,), pauses=(pause,))))

    assert finding.severity is Severity.WARNING
    assert finding.title == (
        'queue "billing" is paused past the end of its pause, 214 jobs waiting'
    )
    assert "ended 1m ago" in finding.evidence[0]


def test_a_paused_task_is_a_note_and_not_late():
    task = make_task("send_email", ready=3, oldest_ready=4000.0)
    snapshot = make_snapshot(
        task, pools=(make_pool(),), pauses=(make_pause(PauseKind.TASK, "send_email"),)
    )

    finding = get_only(diagnose(snapshot))

    assert (finding.id, finding.severity) == (FindingId.TASK_PAUSED, Severity.NOTE)
    assert finding.title == "send_email is paused for Python workers, 3 jobs ready"
    assert finding.evidence == ("paused by ana for 1h; reason: vendor is down",)
    assert finding.command == "graphile-worker resume task send_email"
    assert (finding.affected, finding.subject) == (3, Subject(SubjectKind.TASK, "send_email"))


def test_a_finding_about_one_task_queue_or_worker_names_it():
    failed = make_task("a", failed=1, oldest_failure=1.0, newest_failure=1.0)
    other = make_task("b", failed=1, oldest_failure=1.0, newest_failure=1.0)
    dead = make_pool(id="pool-1", health=PoolHealth.DEAD, seconds_since_heartbeat=1e6)

    assert [each.subject for each in diagnose(make_snapshot(failed))] == [
        Subject(SubjectKind.TASK, "a")
    ]
    assert [each.subject for each in diagnose(make_snapshot(failed, other))] == [None]
    assert [each.subject for each in diagnose(make_snapshot(pools=(dead,)))] == [
        Subject(SubjectKind.WORKER, "pool-1")
    ]


def dead_rows(dead: int, live: int, seconds_since_vacuum: float | None = None) -> DeadRows:
    return DeadRows("_private_jobs", live, dead, seconds_since_vacuum, False)


@pytest.mark.parametrize(
    ("values", "id", "evidence"),
    [
        (
            {"vacuum_blockers": (VacuumBlocker("session", "77, bi", "active", 1200, 5),)},
            FindingId.HELD_SNAPSHOT,
            "session 77, bi, active for 20m, 5 transactions behind",
        ),
        (
            {"tables": (dead_rows(200_000, 100),)},
            FindingId.DEAD_ROWS,
            "_private_jobs: 200,000 dead beside 100, last vacuum never",
        ),
        (
            {"tables": (dead_rows(200_000, 300_000, 90_000.0),)},
            FindingId.DEAD_ROWS,
            "_private_jobs: 200,000 dead beside 300,000, last vacuum 1d1h ago",
        ),
        (
            {"tables": (dead_rows(200_000, 300_000, None),)},
            FindingId.DEAD_ROWS,
            "_private_jobs: 200,000 dead beside 300,000, last vacuum never",
        ),
    ],
)
def test_old_snapshots_and_dead_rows_are_warnings(values, id, evidence):
    finding = get_only(diagnose(make_snapshot(**values)))

    assert (finding.id, finding.severity, finding.evidence) == (id, Severity.WARNING, (evidence,))


@pytest.mark.parametrize(
    "values",
    [
        {"tables": (dead_rows(90_000, 0),)},
        {"tables": (dead_rows(200_000, 300_000, 60.0),)},
        {"clock_offset": 2.0},
    ],
)
def test_a_busy_database_has_no_findings(values):
    assert diagnose(make_snapshot(**values)) == []


@pytest.mark.parametrize(
    ("offset", "severity", "text"),
    [
        (4.9, None, ""),
        (-4.9, None, ""),
        (5.1, Severity.WARNING, "5.1s behind"),
        (-59.0, Severity.WARNING, "59s ahead of"),
        (61.0, Severity.CRITICAL, "1m1s behind"),
    ],
)
def test_a_clock_may_be_wrong_by_a_few_seconds(offset, severity, text):
    findings = diagnose(make_snapshot(clock_offset=offset))

    if severity is None:
        assert findings == []
        return
    assert (get_only(findings).id, findings[0].severity) == (FindingId.CLOCK_OFFSET, severity)
    assert findings[0].title == f"the clock of this machine is {text} the database's"


def test_a_newer_schema_is_a_note_unless_it_is_breaking():
    newer = get_only(diagnose(make_snapshot(level=23)))
    breaking = get_only(diagnose(make_snapshot(level=23, breaking_level=22)))

    assert (newer.id, newer.severity) == (FindingId.SCHEMA_NEWER, Severity.NOTE)
    assert (breaking.id, breaking.severity) == (FindingId.SCHEMA_TOO_NEW, Severity.CRITICAL)


def test_rust_workers_beside_an_unregistered_worker_are_reported():
    rust = make_pool("graphile_worker_ab12", runtime="rust")
    node = make_pool(
        NODE,
        health=PoolHealth.UNKNOWN,
        runtime="node",
        host=None,
        pid=None,
        jobs=2,
        seconds_since_heartbeat=None,
    )

    finding = get_only(diagnose(make_snapshot(pools=(rust, node))))

    assert finding.id is FindingId.UNREGISTERED_WORKERS
    assert finding.evidence == (f"node worker {NODE}, not registered: 2 jobs",)


def test_rows_hidden_from_the_role_are_critical():
    snapshot = make_snapshot(has_hidden_rows=True, role="reader", owner="admin")

    finding = get_only(diagnose(snapshot))

    assert (finding.id, finding.severity) == (FindingId.ROWS_HIDDEN, Severity.CRITICAL)
    # Unauthenticated HTTP clients get the title.
    assert finding.title == "row level security hides all jobs from this role"
    assert finding.evidence == ("'admin' owns the tables, and no policy applies to 'reader'",)
    assert finding.command == "graphile-worker doctor"


def test_the_worst_finding_comes_first():
    queue = locked_queue(pool_id="paused:ana", age=-1e9)
    task = make_task(ready=1, running=1, oldest_ready=100.0)
    dead = make_pool(health=PoolHealth.DEAD, seconds_since_heartbeat=61.0)

    findings = diagnose(
        make_snapshot(task, queues=(queue,), pools=(dead, make_pool("b")), locked=(make_locked(),))
    )

    assert [each.severity for each in findings] == list(Severity)


def test_commands_name_the_schema_and_are_quoted():
    odd = Schemas.from_names("it's; rm -rf /")
    task = make_task("a'b\n; reboot", ready=1, oldest_ready=61.0, running=1, first_ready=5)
    dead = make_pool("$(reboot)", health=PoolHealth.DEAD, seconds_since_heartbeat=61.0)
    job = make_locked(pool_id=dead.id)
    snapshot = make_snapshot(task, pools=(dead, make_pool("b")), locked=(job,))

    commands = [each.command for each in diagnose(snapshot, schemas=odd)]

    schema = "--schema 'it'\"'\"'s; rm -rf /'"
    assert commands == [
        f"graphile-worker workers recover {schema} '$(reboot)'",
        f"graphile-worker jobs why {schema} 5",
    ]

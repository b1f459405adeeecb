"""The metrics of a queue: which labels they have, and where each value comes from."""

import math

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import OTHER_LABEL
from graphile_worker._metrics.exposition import write_metrics
from graphile_worker._metrics.values import Families
from graphile_worker._sql.queries.diagnostics import DeadRows
from graphile_worker._sql.queries.metrics import OldestReadyRow, QueueStorage, SampleAccess
from graphile_worker._sql.queries.storage import VacuumBlocker
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.queue_metrics import (
    MAX_AGE_SECONDS,
    MAX_TASKS,
    Look,
    add_missing_states,
    build_look_families,
    build_sample_families,
    compute_pause,
    decode_sample,
    encode_sample,
)
from graphile_worker.ops.snapshot import Snapshot
from tests.support.hostile import HOSTILE
from tests.support.snapshots import make_pool, make_snapshot, make_task

STORAGE = QueueStorage(table_bytes=8192, locked_queues=3, notify_ratio=0.25, sequence_ratio=0.5)

# The database allows 128 characters, and all but NUL.
HOSTILE_NAMES = (
    *('"', "\\", "\n", "\r", "\\n", '\\"', "", " ", "{", "}", ",", "=", "#", "é名", "\U0001f600"),
    *('a="b",state="ready"} 5\n# EOF\n', "# HELP x", "# EOF", '"} 1\nx{a="', "_other", "\\" * 128),
    *(HOSTILE.replace("\0", "")[:128], "\u2028" * 128, "x" * 128),
)
ACCESS = SampleAccess(can_read=True, can_write=True, has_indexes=True)


def sample(snapshot: Snapshot, storage: QueueStorage = STORAGE) -> Families:
    """The families of a snapshot, as they come out of the database."""
    return decode_sample(encode_sample(build_sample_families(snapshot, storage)))


def row(
    task: str, seconds: float | None, *, certain: bool = True, complete: bool = True
) -> OldestReadyRow:
    return OldestReadyRow(task, seconds, certain, complete)


def oldest(look: Look, families: Families) -> dict[str, float]:
    found = build_look_families(look, families)[definitions.QUEUE_OLDEST_READY]
    return {labels[0]: float(value) for labels, value in found.items()}  # type: ignore[arg-type]


def test_a_sample_has_the_facts_of_the_snapshot_and_the_storage():
    tables = [
        DeadRows(name, 1, dead, None, False)
        for name, dead in (("_private_job_queues", 5), ("_private_jobs", 7))
    ]
    blockers = (
        VacuumBlocker("session", "x", None, 40, 9),
        VacuumBlocker("slot", "y", None, None, 9),
    )

    families = sample(
        make_snapshot(
            make_task("a", ready=2, stale=1, oldest_ready=9.5),
            make_task("b", running=4),
            pools=(
                make_pool(),
                make_pool("x", runtime="cobol", health=PoolHealth.DEAD),
                make_pool("y", runtime=None, health=PoolHealth.DEAD),
            ),
            rows_added=10,
            rows_deleted=8,
            tables=tuple(tables),
            vacuum_blockers=tuple(blockers),
        )
    )

    assert families[definitions.QUEUE_JOBS] == {
        ("a", "ready"): 2,
        ("a", "stale"): 1,
        ("b", "running"): 4,
    }
    assert families[definitions.QUEUE_OLDEST_READY] == {("a",): 9.5, ("b",): 0}
    workers = families[definitions.WORKERS]
    assert {labels: value for labels, value in workers.items() if value} == {
        ("python", "alive"): 1,
        ("unknown", "dead"): 2,
    }
    # An alert can compare a number of 0, and not a missing one.
    assert len(workers) == 12
    assert {
        metric.name.removeprefix("graphile_worker_"): samples[()]
        for metric, samples in families.items()
        if not metric.labels
    } == {
        "queues_locked": 3,
        "queue_stale_locks": 1,
        "table_inserted_total": 10,
        "table_deleted_total": 8,
        "table_dead_rows": 7,
        "table_bytes": 8192,
        "oldest_transaction_seconds": 40,
        "notify_queue_ratio": 0.25,
        "sequence_ratio": 0.5,
    }


def test_a_role_that_may_not_read_the_sequences_reports_no_share_of_them():
    hidden = QueueStorage(1, 0, 0.0, None)

    assert definitions.SEQUENCE_USAGE not in sample(make_snapshot(), hidden)


def test_the_200_tasks_with_the_most_jobs_have_a_label_and_the_rest_shares_one():
    tasks = [make_task(f"t{n}", ready=n, failed=1, oldest_ready=1000.0 - n) for n in range(1, 1001)]

    families = sample(make_snapshot(*tasks))

    jobs = families[definitions.QUEUE_JOBS]
    names = {task for task, _ in jobs}
    assert names == {OTHER_LABEL, *(f"t{n}" for n in range(801, 1001))}
    assert jobs["t1000", "ready"] == 1000
    assert (jobs[OTHER_LABEL, "ready"], jobs[OTHER_LABEL, "failed"]) == (sum(range(801)), 800)
    assert families[definitions.QUEUE_OLDEST_READY][OTHER_LABEL,] == 999


def test_tasks_without_a_name_share_a_label():
    snapshot = make_snapshot(make_task("task id 7", ready=2), missing_tasks={7: 2})

    assert sample(snapshot)[definitions.QUEUE_JOBS] == {(OTHER_LABEL, "ready"): 2}


def test_an_infinite_age_becomes_100_years():
    families = sample(make_snapshot(make_task("a", ready=1, oldest_ready=math.inf)))

    assert families[definitions.QUEUE_OLDEST_READY]["a",] == MAX_AGE_SECONDS
    assert oldest(Look(access=ACCESS, oldest_ready=[row("b", math.inf)]), {}) == {
        "b": MAX_AGE_SECONDS
    }


def test_the_oldest_ready_job_is_that_of_the_look_where_the_look_knows_it():
    families = sample(
        make_snapshot(
            make_task("fresh", ready=1, oldest_ready=50.0),
            make_task("done", ready=1, oldest_ready=60.0),
            make_task("unsure", ready=1, oldest_ready=70.0),
            make_task("late", ready=1, oldest_ready=10.0),
        )
    )
    known = [row("fresh", 2.0), row("new", 3.0), row("due later", None)]

    for rows, expected in (
        # Without the indexes there is only the sample.
        (None, {"fresh": 50, "done": 60, "unsure": 70, "late": 10}),
        ([], {"fresh": 0, "done": 0, "unsure": 0, "late": 0}),
        (
            [*known, row("unsure", None, certain=False), row("late", 90.0, certain=False)],
            {"fresh": 2, "new": 3, "due later": 0, "done": 0, "unsure": 70, "late": 90},
        ),
        # Some tasks were not read.
        (
            [row("fresh", 2.0, complete=False)],
            {"fresh": 2, "done": 60, "unsure": 70, "late": 10},
        ),
    ):
        assert oldest(Look(access=ACCESS, oldest_ready=rows), families) == expected


def test_tasks_that_are_new_since_the_sample_share_a_label_when_there_are_too_many():
    families = sample(make_snapshot(*(make_task(f"t{n}", ready=2) for n in range(MAX_TASKS - 1))))
    rows = [row(f"t{n}", 5.0) for n in range(MAX_TASKS - 1)]
    rows += [row(f"new{n}", float(n)) for n in range(1, 11)]

    found = oldest(Look(access=ACCESS, oldest_ready=rows), families)

    assert len(found) == MAX_TASKS + 1
    assert (found["new10"], found[OTHER_LABEL]) == (10, 9)


def test_runnable_jobs_are_those_of_the_look_or_else_of_the_sample():
    sampled: Families = {definitions.QUEUE_RUNNABLE: {(): 7.0}}

    for runnable, families, expected in ((5, sampled, 5), (None, sampled, 7), (None, {}, None)):
        look = Look(access=ACCESS, runnable=runnable)
        found = build_look_families(look, families)[definitions.QUEUE_RUNNABLE]
        assert found.get(()) == expected


def test_every_state_of_a_task_has_a_value():
    assert add_missing_states({("a", "ready"): 2.0}) == {
        **{("a", state): 0.0 for state in ("stale", "running", "failed", "waiting")},
        ("a", "ready"): 2.0,
        **{("a", state): 0.0 for state in ("retrying", "scheduled")},
    }


def test_a_shared_sample_of_another_version_or_program_is_checked():
    valid = '["graphile_worker_queues_locked", [[[], 4]]]'
    for body, expected in (
        (f"[{valid}]", {definitions.QUEUES_LOCKED: {(): 4}}),
        ("[]", {}),
        ("{}", {}),
        ("7", {}),
        ("[[]]", {}),
        ("[1, 2]", {}),
        ('[["a"]]', {}),
        ('[[["a"], []]]', {}),
        ('[["graphile_worker_queues_locked", {"a": 1}]]', {}),
        ("not JSON", {}),
        ("[" * 100_000, {}),
        # A metric of workers, and one that this version does not know.
        ('[["graphile_worker_jobs_running", [[[], 4]]]]', {}),
        ('[["graphile_worker_queue_new", [[[], 4]]]]', {}),
        # Other labels, and values that are not numbers.
        (
            '[["graphile_worker_queues_locked", [[["a"], 4], [[], "4"], [[], null], [[], NaN]]]]',
            {definitions.QUEUES_LOCKED: {}},
        ),
        (
            '[["graphile_worker_queues_locked", [[[], [[1, 2], 3.0]]]]]',
            {definitions.QUEUES_LOCKED: {}},
        ),
        (
            '[["graphile_worker_queue_oldest_ready_seconds", [[[7], 4], [["a"], 5]]]]',
            {definitions.QUEUE_OLDEST_READY: {("a",): 5}},
        ),
    ):
        assert decode_sample(body) == expected, body


def test_hostile_names_of_tasks_are_parsed_by_prometheus():
    tasks = [make_task(name, ready=n + 1) for n, name in enumerate(HOSTILE_NAMES)]
    families = sample(make_snapshot(*tasks))
    families[definitions.QUEUE_JOBS] = add_missing_states(families[definitions.QUEUE_JOBS])

    for parse, openmetrics in ((parse_text, False), (parse_openmetrics, True)):
        found = {
            (each.labels.get("task", ""), each.labels["state"]): each.value
            for family in parse(write_metrics(families, openmetrics=openmetrics))
            for each in family.samples
            if each.name == definitions.QUEUE_JOBS.name
        }
        assert found == families[definitions.QUEUE_JOBS]


def test_the_pause_is_100_times_the_duration_and_from_5_to_60_s():
    assert [compute_pause(each) for each in (0.0, 0.05, 0.2, 0.6, 9.0)] == [5, 5, 20, 60, 60]

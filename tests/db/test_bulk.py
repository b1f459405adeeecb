"""Bulk changes of jobs: the jobs that they change, previews, batches and actions."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from graphile_worker.errors import JobSpecError
from graphile_worker.ops.bulk import (
    BulkPreview,
    BulkResult,
    CompleteAction,
    FailAction,
    RescheduleAction,
    RetryAction,
    UnlockAction,
    plan_bulk_change,
    plan_bulk_preview,
)
from graphile_worker.ops.filters import Filter, filter_by_ids, parse_filter
from graphile_worker.ops.states import JobState
from tests.support.job_table import NODE, JobTable
from tests.support.pools import open_pool, queue_lock

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

ACTIONS = [
    RetryAction(),
    RescheduleAction(priority=7),
    FailAction("because"),
    CompleteAction(),
    UnlockAction(),
    UnlockAction(force=True),
]


def preview(
    table: JobTable,
    action: Any,
    job_filter: Filter = Filter(),  # noqa: B008
    **more: Any,
) -> BulkPreview:
    return table.run_plan(plan_bulk_preview(action, job_filter, table.schemas, **more))


def change(
    table: JobTable,
    action: Any,
    job_filter: Filter = Filter(),  # noqa: B008
    limit: int | None = None,
    **options: Any,
) -> BulkResult:
    """Preview and change without pauses."""
    found = preview(table, action, job_filter, limit=limit)
    return table.run_plan(plan_bulk_change(found, table.schemas, throttle=0, **options))


def columns(sql: Any, job: int, *names: str) -> tuple[Any, ...]:
    (row,) = sql.run(f"select {', '.join(names)} from :schema._private_jobs where id = $1", job)
    return tuple(row)


# States


@pytest.mark.parametrize("action", ACTIONS, ids=repr)
def test_an_action_changes_the_jobs_in_its_states_and_no_others(table, action):
    ids = {table.add_job_in_state(state): state for state in JobState}
    before = table.rows()

    result = change(table, action)

    after = table.rows()
    changed = {ids[each] for each in ids if after.get(each) != before[each]}
    assert changed == set(action.states)
    assert result.changed == len(action.states)


@pytest.mark.parametrize("action", ACTIONS[:4], ids=repr)
def test_locked_jobs_are_never_changed(table, action):
    locked = [table.add_job_in_state(state) for state in ("running", "stale")]
    table.add_job_in_state("retrying")
    before = table.rows()

    result = change(table, action)

    assert result == BulkResult(changed=1, skipped_locked=2)
    assert [table.rows()[each] for each in locked] == [before[each] for each in locked]


def test_a_job_claimed_after_the_preview_is_skipped(database, table, sql):
    ids = [table.add_job_in_state("failed") for _ in range(3)]
    found = preview(table, CompleteAction())
    sql.run("update :schema._private_jobs set attempts = 0 where id = $1", ids[1])
    with open_pool(database) as pool:
        assert pool.claim_one().job.id == ids[1]

    result = table.run_plan(plan_bulk_change(found, table.schemas, throttle=0))

    assert result == BulkResult(changed=2, skipped_locked=1)
    assert set(table.rows()) == {ids[1]}


def test_a_row_locked_by_another_session_is_skipped(table, sql):
    ids = [table.add_job_in_state("failed") for _ in range(3)]
    other = sql.another()
    other.run("begin")
    other.run("select from :schema._private_jobs where id = $1 for update", ids[1])

    result = change(table, RetryAction())
    other.close()

    assert result == BulkResult(changed=2, skipped_locked=1)


def test_each_batch_checks_the_filter_again(table, sql):
    ids = [table.add_job_in_state("failed") for _ in range(3)]
    found = preview(table, CompleteAction(), parse_filter("state:failed"))

    def change_one_meanwhile(plan: Any) -> Any:
        step = next(plan)
        while True:
            answer = yield step
            if "find_job_ids" in str(step):
                sql.run("update :schema._private_jobs set attempts = 3 where id = $1", ids[0])
            try:
                step = plan.send(answer)
            except StopIteration as end:
                return end.value

    plan = plan_bulk_change(found, table.schemas, throttle=0)
    result: BulkResult = table.run_plan(change_one_meanwhile(plan))

    assert result == BulkResult(changed=2, gone=1)
    assert set(table.rows()) == {ids[0]}


def test_a_job_added_after_the_preview_is_not_changed(table):
    table.add_job_in_state("failed")
    found = preview(table, CompleteAction())
    new = table.add_job_in_state("failed")

    result = table.run_plan(plan_bulk_change(found, table.schemas, throttle=0))

    assert result == BulkResult(changed=1)
    assert set(table.rows()) == {new}


def test_jobs_deleted_after_the_preview_are_ignored(table, sql):
    ids = [table.add_job_in_state("failed") for _ in range(2)]
    found = preview(table, CompleteAction(), filter_by_ids(ids))
    sql.run("delete from :schema._private_jobs")

    assert table.run_plan(plan_bulk_change(found, table.schemas, throttle=0)) == BulkResult()


def test_a_change_without_matching_jobs_changes_nothing(table):
    found = preview(table, CompleteAction())

    assert (found.total, found.locked_count, found.sample) == (0, 0, [])
    assert table.run_plan(plan_bulk_change(found, table.schemas)) == BulkResult()


# Previews


def test_a_preview_counts_the_jobs_and_shows_the_newest(table):
    failed = [table.add_job_in_state("failed") for _ in range(7)]
    for state in ("running", "stale", "ready"):
        table.add_job_in_state(state)

    found = preview(table, RetryAction())

    assert (found.total, found.locked_count) == (7, 2)
    assert dict(found.count.by_state) == {"stale": 1, "running": 1, "failed": 7, "ready": 1}
    assert [job.id for job in found.sample] == failed[:1:-1]
    assert preview(table, RetryAction(), limit=3).total == 3


def test_a_preview_changes_nothing(table):
    for state in JobState:
        table.add_job_in_state(state)
    before = table.rows()

    for action in ACTIONS:
        preview(table, action)

    assert table.rows() == before


# Batches


def test_a_change_runs_in_batches_and_reports_its_progress(table):
    for n in range(12):
        table.add_job_in_state("failed" if n % 2 else "ready")
    progress: list[int] = []

    result = change(
        table,
        RetryAction(),
        batch_size=3,
        scan_batch_size=5,
        on_progress=lambda result: progress.append(result.changed),
    )

    assert result == BulkResult(changed=6)
    # Each scan of five jobs finds two, then three, then one.
    assert progress == [2, 5, 6]


@pytest.mark.parametrize("batch_size", [2, 1000])
def test_a_limit_changes_only_the_oldest_jobs(table, batch_size):
    table.add_job_in_state("running")
    ids = [table.add_job_in_state("failed") for _ in range(6)]

    result = change(table, CompleteAction(), limit=3, batch_size=batch_size)

    assert result.changed == 3
    assert set(table.rows()) & {*ids} == {*ids[3:]}


def test_a_pause_follows_each_statement(table):
    table.add_job_in_state("failed")
    found = preview(table, RetryAction())

    steps = list(_steps(plan_bulk_change(found, table.schemas, throttle=4.0), table))

    assert sum("Pause" in step for step in steps) == 3
    assert all("Pause" in step for step in steps[-1:])


def _steps(plan: Any, table: JobTable) -> Iterator[str]:
    """Return the steps of a plan, without its pauses."""
    answer = None
    try:
        while True:
            step = plan.send(answer)
            yield type(step).__name__
            is_pause = type(step).__name__ == "Pause"
            answer = None if is_pause else table.run_plan(_one(step))
    except StopIteration:
        return


def _one(step: Any) -> Any:
    return (yield step)


# Actions


def test_a_failed_job_is_retried_from_the_beginning_and_runs(database, table, sql):
    job = table.add_job_in_state("failed", last_error="'boom'")

    change(table, RetryAction())

    assert columns(sql, job, "attempts", "last_error", "run_at <= now()") == (0, "boom", True)
    with open_pool(database) as pool:
        assert pool.claim_one().job.id == job


def test_a_retrying_job_keeps_its_attempts(table, sql):
    job = table.add_job_in_state("retrying")

    change(table, RetryAction())

    assert columns(sql, job, "attempts", "run_at <= now()") == (2, True)


def test_workers_are_notified_of_ready_jobs(table, sql):
    for _ in range(2):
        table.add_job_in_state("failed")
    sql.run('listen "jobs:insert"')

    change(table, RetryAction())

    (notification,) = sql.connection.notifies(timeout=10, stop_after=1)
    assert '"count" : 2' in notification.payload


def test_reschedule_changes_only_the_given_values(table, sql):
    job = table.add_job_in_state("failed")
    moment = datetime(2030, 1, 1, tzinfo=UTC)

    change(table, RescheduleAction(run_at=moment, priority=-3, attempts=0, max_attempts=4))

    found = columns(sql, job, "run_at", "priority", "attempts", "max_attempts")
    assert found == (moment, -3, 0, 4)


def test_a_relative_time_uses_the_clock_of_the_database(table, sql):
    job = table.add_job_in_state("ready")

    change(table, RescheduleAction(run_at=timedelta(hours=2)))

    ((left,),) = sql.run("select run_at - now() from :schema._private_jobs where id = $1", job)
    assert timedelta(hours=1, minutes=59) < left <= timedelta(hours=2)


def test_fail_stores_the_reason_as_the_last_error(table, sql):
    job = table.add_job_in_state("ready")

    change(table, FailAction("the customer left"))

    assert columns(sql, job, "attempts", "last_error") == (25, "the customer left")


def test_invalid_values_are_rejected_before_any_query():
    with pytest.raises(JobSpecError):
        RescheduleAction(priority=99999)
    with pytest.raises(JobSpecError):
        RescheduleAction(run_at=datetime(2030, 1, 1))
    with pytest.raises(JobSpecError):
        FailAction("\x00")


# Unlocking


def test_a_stale_job_is_released_with_its_named_queue(table, sql):
    queue = table.add_queue("q", locked_at="now() - interval '5 hours'", locked_by=f"'{NODE}'")
    job = table.add_job_in_state("stale", job_queue_id=queue, attempts="25")

    result = change(table, UnlockAction())

    assert result == BulkResult(changed=1)
    # The attempt counts, but it is not the last one.
    assert columns(sql, job, "locked_by", "attempts", "is_available") == (None, 24, True)
    assert queue_lock(sql, "q") == (None, True)
    (error,) = columns(sql, job, "last_error")
    assert error == f"Job recovered after worker interruption: it was held by pool {NODE}"


def test_a_queue_locked_by_another_worker_stays_locked(table, sql):
    queue = table.add_queue("q", locked_at="now()", locked_by="'other'")
    table.add_job_in_state("stale", job_queue_id=queue)

    assert change(table, UnlockAction()) == BulkResult(changed=1)
    assert queue_lock(sql, "q") == ("other", False)


def test_a_job_whose_queue_row_is_locked_is_skipped(table, sql):
    queue = table.add_queue("q", locked_at="now() - interval '5 hours'", locked_by=f"'{NODE}'")
    job = table.add_job_in_state("stale", job_queue_id=queue)
    other = sql.another()
    other.run("begin")
    other.run("select from :schema._private_job_queues for update")

    result = change(table, UnlockAction())
    other.close()

    assert result == BulkResult(skipped_locked=1)
    assert columns(sql, job, "locked_by") == (NODE,)


def test_a_running_job_is_unlocked_only_by_force(table, sql):
    job = table.add_job_in_state("running")

    assert change(table, UnlockAction()) == BulkResult(skipped_locked=1)
    assert columns(sql, job, "locked_by") == (NODE,)
    assert change(table, UnlockAction(force=True)) == BulkResult(changed=1)
    assert columns(sql, job, "locked_by") == (None,)


def test_an_unlocked_superseded_job_stays_permanently_failed(table, sql):
    job = table.add_job_in_state(
        "stale",
        attempts="25",
        created_at="now() - interval '9 hours'",
        updated_at="now() - interval '1 hour'",
    )

    change(table, UnlockAction())

    assert columns(sql, job, "attempts", "locked_by") == (25, None)

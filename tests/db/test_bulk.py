"""The same done to many jobs: which are meant, what is left alone, and what is said of it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from graphile_worker.errors import JobSpecError
from graphile_worker.ops import bulk
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

ACTIONS = [
    RetryAction(),
    RescheduleAction(priority=7),
    FailAction("because"),
    CompleteAction(),
    UnlockAction(),
    UnlockAction(force=True),
]


def preview(table: JobTable, action: Any, wanted: Filter = Filter(), **more: Any) -> BulkPreview:  # noqa: B008
    return table.run_plan(plan_bulk_preview(action, wanted, table.schemas, **more))


def change(table: JobTable, action: Any, wanted: Filter = Filter(), **more: Any) -> BulkResult:  # noqa: B008
    """Look, and do it, without a rest."""
    seen = preview(table, action, wanted, **more)
    return table.run_plan(plan_bulk_change(seen, table.schemas, throttle=0))


def columns(sql: Any, job: int, *names: str) -> tuple[Any, ...]:
    (row,) = sql.run(f"select {', '.join(names)} from :schema._private_jobs where id = $1", job)
    return tuple(row)


# Which jobs


@pytest.mark.parametrize("action", ACTIONS, ids=repr)
def test_an_action_changes_the_jobs_in_its_states_and_no_others(table, action):
    ids = {table.add_job_in_state(state): state for state in JobState}
    before = table.rows()

    outcome = change(table, action)

    after = table.rows()
    changed = {ids[each] for each in ids if after.get(each) != before[each]}
    assert changed == set(action.states)
    assert outcome.changed == len(action.states)


@pytest.mark.parametrize("action", ACTIONS[:4], ids=repr)
def test_what_a_worker_holds_is_never_touched(table, action):
    held = [table.add_job_in_state(state) for state in ("running", "stale")]
    table.add_job_in_state("retrying")
    before = table.rows()

    outcome = change(table, action)

    assert outcome == BulkResult(changed=1, skipped_locked=2)
    assert [table.rows()[each] for each in held] == [before[each] for each in held]


def test_a_job_that_was_taken_after_the_look_is_left_alone(database, table, sql):
    ids = [table.add_job_in_state("failed") for _ in range(3)]
    seen = preview(table, CompleteAction())
    sql.run("update :schema._private_jobs set attempts = 0 where id = $1", ids[1])
    with open_pool(database) as pool:
        assert pool.claim_one().job.id == ids[1]

    outcome = table.run_plan(plan_bulk_change(seen, table.schemas, throttle=0))

    assert outcome == BulkResult(changed=2, skipped_locked=1)
    assert set(table.rows()) == {ids[1]}


def test_a_row_that_somebody_has_locked_is_not_waited_for(table, sql):
    ids = [table.add_job_in_state("failed") for _ in range(3)]
    other = sql.another()
    other.run("begin")
    other.run("select from :schema._private_jobs where id = $1 for update", ids[1])

    outcome = change(table, RetryAction())
    other.close()

    assert outcome == BulkResult(changed=2, skipped_locked=1)


def test_it_is_asked_again_whether_a_job_is_meant(table, sql):
    ids = [table.add_job_in_state("failed") for _ in range(3)]
    seen = preview(table, CompleteAction(), parse_filter("state:failed"))
    found: list[BulkResult] = []

    def meanwhile(plan: Any) -> Any:
        """Somebody retries one of them after it was found."""
        step = next(plan)
        while True:
            answer = yield step
            if "find_job_ids" in str(step):
                sql.run("update :schema._private_jobs set attempts = 3 where id = $1", ids[0])
            try:
                step = plan.send(answer)
            except StopIteration as end:
                return end.value

    found.append(table.run_plan(meanwhile(plan_bulk_change(seen, table.schemas, throttle=0))))

    assert found == [BulkResult(changed=2, gone=1)]
    assert set(table.rows()) == {ids[0]}


def test_what_was_added_after_the_look_is_not_meant(table):
    table.add_job_in_state("failed")
    seen = preview(table, CompleteAction())
    new = table.add_job_in_state("failed")

    outcome = table.run_plan(plan_bulk_change(seen, table.schemas, throttle=0))

    assert outcome == BulkResult(changed=1)
    assert set(table.rows()) == {new}


def test_what_is_gone_meanwhile_is_no_matter(table, sql):
    ids = [table.add_job_in_state("failed") for _ in range(2)]
    seen = preview(table, CompleteAction(), filter_by_ids(ids))
    sql.run("delete from :schema._private_jobs")

    assert table.run_plan(plan_bulk_change(seen, table.schemas, throttle=0)) == BulkResult()


def test_nothing_is_done_to_nothing(table):
    seen = preview(table, CompleteAction())

    assert (seen.total, seen.locked_count, seen.sample) == (0, 0, [])
    assert table.run_plan(plan_bulk_change(seen, table.schemas)) == BulkResult()


# The look before


def test_the_look_says_how_many_and_shows_a_few(table):
    failed = [table.add_job_in_state("failed") for _ in range(7)]
    for state in ("running", "stale", "ready"):
        table.add_job_in_state(state)

    seen = preview(table, RetryAction())

    assert (seen.total, seen.locked_count) == (7, 2)
    assert dict(seen.count.by_state) == {"stale": 1, "running": 1, "failed": 7, "ready": 1}
    assert [job.id for job in seen.sample] == failed[:1:-1]
    assert preview(table, RetryAction(), limit=3).total == 3


def test_the_look_changes_nothing(table):
    for state in JobState:
        table.add_job_in_state(state)
    before = table.rows()

    for action in ACTIONS:
        preview(table, action)

    assert table.rows() == before


# Batches


def test_it_goes_on_batch_by_batch_and_says_how_far(table, monkeypatch):
    monkeypatch.setattr(bulk, "BATCH_SIZE", 3)
    monkeypatch.setattr(bulk, "SCAN_BATCH_SIZE", 5)
    for n in range(12):
        table.add_job_in_state("failed" if n % 2 else "ready")
    said: list[int] = []

    seen = preview(table, RetryAction())
    outcome = table.run_plan(
        plan_bulk_change(
            seen, table.schemas, throttle=0, on_progress=lambda so_far: said.append(so_far.changed)
        )
    )

    assert outcome == BulkResult(changed=6)
    # Of each stretch of five: two, then three, then one.
    assert said == [2, 5, 6]


@pytest.mark.parametrize("batch", [2, 1000])
def test_a_limit_is_how_many_are_changed_the_oldest_first(table, monkeypatch, batch):
    monkeypatch.setattr(bulk, "BATCH_SIZE", batch)
    table.add_job_in_state("running")
    ids = [table.add_job_in_state("failed") for _ in range(6)]

    outcome = change(table, CompleteAction(), limit=3)

    assert outcome.changed == 3
    assert set(table.rows()) & {*ids} == {*ids[3:]}


def test_after_each_part_others_have_a_while(table):
    table.add_job_in_state("failed")
    seen = preview(table, RetryAction())

    steps = list(_steps(plan_bulk_change(seen, table.schemas, throttle=4.0), table))

    assert sum("Pause" in step for step in steps) == 3
    assert all("Pause" in step for step in steps[-1:])


def _steps(plan: Any, table: JobTable) -> Iterator[str]:
    """What a plan does, without the pauses being made."""
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


# What each does


def test_a_failed_job_is_retried_from_the_beginning_and_runs(database, table, sql):
    job = table.add_job_in_state("failed", last_error="'boom'")

    change(table, RetryAction())

    assert columns(sql, job, "attempts", "last_error", "run_at <= now()") == (0, "boom", True)
    with open_pool(database) as pool:
        assert pool.claim_one().job.id == job


def test_one_that_backs_off_keeps_its_attempts(table, sql):
    job = table.add_job_in_state("retrying")

    change(table, RetryAction())

    assert columns(sql, job, "attempts", "run_at <= now()") == (2, True)


def test_workers_hear_of_what_is_ready_now(table, sql):
    for _ in range(2):
        table.add_job_in_state("failed")
    sql.run('listen "jobs:insert"')

    change(table, RetryAction())

    (heard,) = sql.connection.notifies(timeout=10, stop_after=1)
    assert '"count" : 2' in heard.payload


def test_jobs_are_rescheduled_as_given(table, sql):
    job = table.add_job_in_state("failed")
    moment = datetime(2030, 1, 1, tzinfo=UTC)

    change(table, RescheduleAction(run_at=moment, priority=-3, attempts=0, max_attempts=4))

    found = columns(sql, job, "run_at", "priority", "attempts", "max_attempts")
    assert found == (moment, -3, 0, 4)


def test_a_time_from_now_on_is_by_the_clock_of_the_database(table, sql):
    job = table.add_job_in_state("ready")

    change(table, RescheduleAction(run_at=timedelta(hours=2)))

    ((left,),) = sql.run("select run_at - now() from :schema._private_jobs where id = $1", job)
    assert timedelta(hours=1, minutes=59) < left <= timedelta(hours=2)


def test_jobs_fail_for_a_reason(table, sql):
    job = table.add_job_in_state("ready")

    change(table, FailAction("the customer left"))

    assert columns(sql, job, "attempts", "last_error") == (25, "the customer left")


def test_bad_values_are_refused_before_anything_is_asked():
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

    outcome = change(table, UnlockAction())

    assert outcome == BulkResult(changed=1)
    # Its attempt counts, but is not its last.
    assert columns(sql, job, "locked_by", "attempts", "is_available") == (None, 24, True)
    assert queue_lock(sql, "q") == (None, True)
    (error,) = columns(sql, job, "last_error")
    assert error == f"Job recovered after worker interruption: it was held by pool {NODE}"


def test_a_queue_that_somebody_else_holds_by_now_stays_his(table, sql):
    queue = table.add_queue("q", locked_at="now()", locked_by="'other'")
    table.add_job_in_state("stale", job_queue_id=queue)

    assert change(table, UnlockAction()) == BulkResult(changed=1)
    assert queue_lock(sql, "q") == ("other", False)


def test_a_job_whose_queue_somebody_has_in_hand_is_left(table, sql):
    queue = table.add_queue("q", locked_at="now() - interval '5 hours'", locked_by=f"'{NODE}'")
    job = table.add_job_in_state("stale", job_queue_id=queue)
    other = sql.another()
    other.run("begin")
    other.run("select from :schema._private_job_queues for update")

    outcome = change(table, UnlockAction())
    other.close()

    assert outcome == BulkResult(skipped_locked=1)
    assert columns(sql, job, "locked_by") == (NODE,)


def test_a_running_job_is_unlocked_only_by_force(table, sql):
    job = table.add_job_in_state("running")

    assert change(table, UnlockAction()) == BulkResult(skipped_locked=1)
    assert columns(sql, job, "locked_by") == (NODE,)
    assert change(table, UnlockAction(force=True)) == BulkResult(changed=1)
    assert columns(sql, job, "locked_by") == (None,)


def test_a_superseded_job_stays_dead(table, sql):
    job = table.add_job_in_state(
        "stale",
        attempts="25",
        created_at="now() - interval '9 hours'",
        updated_at="now() - interval '1 hour'",
    )

    change(table, UnlockAction())

    assert columns(sql, job, "attempts", "locked_by") == (25, None)

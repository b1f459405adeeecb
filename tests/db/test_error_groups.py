"""Groups of the errors of failing jobs: which jobs count, and how far a search goes."""

from typing import Any

from graphile_worker.ops.error_groups import ErrorGroups, plan_group_errors
from graphile_worker.ops.states import JobState


def search(table, **options) -> ErrorGroups:
    found: ErrorGroups = table.run_plan(plan_group_errors(table.schemas, **options))
    return found


def test_failing_jobs_are_grouped_by_their_error(table):
    ids = {
        state: table.add_job_in_state(state, last_error="'ValueError: no user 7'")
        for state in JobState
    }
    other = table.add_job("other", attempts="25", last_error="'KeyError'")

    found = search(table)

    first, second = found.groups
    assert set(first.ids) == {ids[JobState.RETRYING], ids[JobState.FAILED]}
    assert (first.summary, first.retrying, first.failed) == ("ValueError: no user <n>", 1, 1)
    assert first.sample_error == "ValueError: no user 7"
    assert first.first_at <= first.last_at <= found.now
    assert (second.ids, second.task_identifier) == ((other,), "other")
    assert (found.searched, found.is_complete) == (3, True)
    assert found.find(second.fingerprint) is second
    assert found.find("x") is None


def test_the_newest_failing_jobs_are_read_and_a_limited_search_is_not_complete(table):
    ids = [table.add_job(attempts="25", last_error="'ValueError'") for _ in range(5)]

    cases: list[tuple[dict[str, Any], int, bool]] = [
        ({"max_jobs": 3}, 3, False),
        ({"max_jobs": 5}, 5, True),
        ({"scan_size": 2}, 5, True),
        ({"scan_size": 2, "max_seconds": -1.0}, 2, False),
    ]
    for options, searched, is_complete in cases:
        found = search(table, **options)
        assert (found.searched, found.is_complete) == (searched, is_complete)
        assert found.groups[0].ids == tuple(reversed(ids))[:searched]


def test_a_job_stays_in_its_group_while_its_retry_is_due_or_runs(table):
    error, locked_at = "'ValueError'", "now()"
    waits = table.add_job(attempts="2", last_error=error, run_at="now() + interval '5 s'")
    due = table.add_job(attempts="2", last_error=error, run_at="now() - interval '5 s'")
    runs = table.add_job(attempts="2", last_error=error, locked_at=locked_at)
    last = table.add_job(attempts="25", last_error=error, locked_at=locked_at)
    failed = table.add_job(attempts="25", last_error=error)
    # A person retried these, so their errors are old.
    table.add_job(attempts="0", last_error=error)
    table.add_job(attempts="1", last_error=error, locked_at=locked_at)

    (group,) = search(table).groups

    assert group.ids == (failed, last, runs, due, waits)
    assert (group.retrying, group.failed) == (4, 1)


def test_an_empty_queue_has_no_groups(table):
    assert (search(table).groups, search(table).is_complete) == ((), True)


def test_of_a_long_error_the_start_and_the_end_are_read(table):
    table.add_job(attempts="25", last_error="'Error: a' || e'\\n' || repeat('x', 100000) || 'end'")

    (group,) = search(table).groups

    assert group.sample_error.startswith("Error: a\n")
    assert group.sample_error.endswith("xend")
    assert len(group.sample_error) < 5_000

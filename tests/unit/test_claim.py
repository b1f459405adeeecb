"""What is said to the database about jobs that end: which named queues they free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    complete_claimed_jobs,
    find_releasable_queues,
    format_ids,
)
from tests.support.jobs import make_job


def hold(job_id: int, queue_id: int | None, pool_id: str = "p1") -> ClaimedJob:
    return ClaimedJob(make_job(id=job_id, locked_by=pool_id), queue_id)


def table(*held: ClaimedJob) -> dict[int, ClaimedJob]:
    return {each.job.id: each for each in held}


@pytest.mark.feature("F292")
def test_jobs_without_a_queue_free_none():
    ending = [hold(1, None), hold(2, None)]

    assert find_releasable_queues(ending, table(*ending, hold(3, 5))) == []


@pytest.mark.feature("F292")
def test_each_job_of_a_batch_frees_its_queue():
    ending = [hold(1, 5), hold(2, None), hold(3, 6)]

    assert find_releasable_queues(ending, table(*ending)) == [5, 6]


@pytest.mark.feature("F292")
def test_a_queue_is_kept_that_the_pool_holds_for_a_job_that_does_not_end():
    ending = [hold(1, 5), hold(2, 6), hold(3, 7)]

    assert find_releasable_queues(ending, table(*ending, hold(4, 6))) == [5, 7]


@pytest.mark.feature("F292")
def test_two_jobs_of_one_queue_that_end_together_do_not_keep_each_other():
    # Somebody has unlocked the first one by force, so that the second could be taken.
    ending = [hold(1, 5), hold(2, 5)]

    assert set(find_releasable_queues(ending, table(*ending))) == {5}


@pytest.mark.feature("F292")
def test_a_queue_that_is_held_under_another_id_is_another_lock():
    old, new = hold(1, 5, "p1"), hold(2, 5, "p2")

    assert find_releasable_queues([old], table(old, new)) == [5]


@pytest.mark.feature("F292")
def test_a_job_that_was_claimed_again_keeps_its_queue():
    older, newer = hold(1, 5), hold(1, 5)
    assert older == newer

    assert find_releasable_queues([older, hold(2, 6)], table(newer)) == [6]


@pytest.mark.feature("F292")
def test_a_job_that_ended_before_and_is_still_in_the_table_keeps_no_queue():
    # It is written, and so its queue was taken again; that we have not heard yet.
    earlier, later = hold(1, 5), hold(2, 5)
    earlier.claimed_at, later.claimed_at = 1.0, 2.0

    assert find_releasable_queues([later], table(earlier, later)) == [5]
    assert find_releasable_queues([earlier], table(earlier, later)) == []


def test_jobs_that_are_not_in_the_table_any_more_free_theirs_too():
    assert find_releasable_queues([hold(1, 5), hold(2, 6)], {}) == [5, 6]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_ids_travel_as_an_array_that_postgresql_reads(ids):
    text = format_ids(ids)

    assert (text[0], text[-1]) == ("{", "}")
    assert [int(each) for each in text[1:-1].split(",") if each] == ids


def test_all_that_end_are_named_in_one_statement():
    assert complete_claimed_jobs("p1", [3, 1, 2], [5]).args == ("{3,1,2}", "p1", [5], False)

"""What a failed attempt leaves: the message, the time of the next one, and free locks."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from graphile_worker._sql.queries.claim import FailedAttempt, fail_claimed_jobs
from tests.support.pools import (
    in_one_transaction,
    payloads,
    queue_ids,
    queue_lock,
    read_job_row,
    update_job,
)

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

MOMENT = datetime(2035, 6, 7, 8, 9, 10, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)

# As the reference documents them, in seconds; from the tenth on they stay the same.
DELAYS = {
    1: 2.718,
    2: 7.389,
    3: 20.086,
    4: 54.598,
    5: 2 * 60 + 28.4,
    6: 6 * 60 + 43.4,
    7: 18 * 60 + 16.6,
    8: 49 * 60 + 41.0,
    9: 2 * 3600 + 15 * 60 + 3.1,
    10: 6 * 3600 + 7 * 60 + 6.5,
    11: 6 * 3600 + 7 * 60 + 6.5,
    12: 6 * 3600 + 7 * 60 + 6.5,
}


@pytest.fixture
def client(blocking_client):
    return blocking_client


# When the next attempt is


@pytest.mark.feature("F204", "F205", "F207")
@pytest.mark.parametrize(("attempt", "delay"), DELAYS.items())
def test_a_failed_job_waits_e_to_the_attempts_seconds(pool, client, sql, attempt, delay):
    update_job(sql, client.add_job("task"), f"attempts = {attempt} - 1")

    with in_one_transaction(pool) as still:
        held = still.claim_one()
        still.fail(held)

    waits = read_job_row(sql, held.job)["run_at"] - held.job.locked_at
    assert waits.total_seconds() == pytest.approx(math.exp(min(attempt, 10)), abs=1e-5)
    assert waits.total_seconds() == pytest.approx(delay, abs=0.1)


@pytest.mark.feature("F207")
def test_twenty_five_attempts_span_nearly_four_days(pool, client, sql):
    client.add_job("task")
    waited = timedelta()

    for _ in range(24):
        with in_one_transaction(pool) as still:
            held = still.claim_one()
            still.fail(held)
        waited += read_job_row(sql, held.job)["run_at"] - held.job.locked_at
        update_job(sql, held.job, "run_at = now()")

    assert timedelta(days=3, hours=16) < waited < timedelta(days=4)


@pytest.mark.feature("F206")
def test_the_delay_counts_from_run_at_where_that_is_later(pool, client, sql):
    client.add_job("task")
    held = pool.claim_one()
    update_job(sql, held.job, f"run_at = '{MOMENT.isoformat()}'")

    pool.fail(held)

    assert read_job_row(sql, held.job)["run_at"] - MOMENT == timedelta(microseconds=2718282)


@pytest.mark.feature("F206")
@pytest.mark.parametrize("run_at", ["-infinity", "4000-01-01 BC"])
def test_the_delay_counts_from_now_however_old_the_job_is(pool, client, sql, run_at):
    update_job(sql, client.add_job("task"), f"run_at = '{run_at}'")
    held = pool.claim_one()

    pool.fail(held)

    assert abs(read_job_row(sql, held.job)["run_at"] - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(microseconds=1), HOUR, 400 * HOUR])
def test_a_given_delay_counts_from_the_databases_now(pool, client, sql, delay):
    client.add_job("task", run_at=datetime(2001, 1, 1, tzinfo=UTC))

    with in_one_transaction(pool) as still:
        held = still.claim_one()
        still.fail(held, when=delay)

    assert read_job_row(sql, held.job)["run_at"] - held.job.locked_at == delay


def test_a_given_moment_is_kept(pool, client, sql):
    client.add_job("task")
    held = pool.claim_one()

    pool.fail(held, when=MOMENT.astimezone())

    assert read_job_row(sql, held.job)["run_at"] == MOMENT


@pytest.mark.feature("F204", "F208")
def test_a_failed_job_runs_again_when_its_time_has_come(pool, client):
    client.add_job("task")
    pool.fail(pool.claim_one())

    assert pool.claim(10) == []
    (again,) = pool.claim(10, now=datetime.now(UTC) + HOUR)

    assert (again.job.attempts, again.job.last_error) == (2, "boom")


# What a failure leaves


@pytest.mark.feature("F209")
def test_a_failure_keeps_its_message_and_frees_job_and_queue(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    message = "ValueError: ünï \\ \" ' $1 %s :x\nTraceback\t🐘"

    assert pool.fail(held, message=message) == {held.job.id}

    job = read_job_row(sql, held.job)
    assert (job["last_error"], job["attempts"]) == (message, 1)
    assert (job["locked_by"], job["locked_at"], job["is_available"]) == (None, None, True)
    assert queue_lock(sql, "queue") == (None, True)


def test_a_failure_leaves_the_rest_of_the_row_alone(pool, client, sql):
    added = client.add_job("task", {"a": 1}, job_key="k", priority=3, flags=["x"])
    before = read_job_row(sql, added)

    pool.fail(pool.claim_one())

    after = read_job_row(sql, added)
    changed = {name for name, value in after.items() if value != before[name]}
    assert changed == {"attempts", "run_at", "last_error"}


@pytest.mark.feature("F210")
def test_a_failed_last_attempt_leaves_a_job_that_is_not_claimed(pool, client, sql):
    client.add_job("task", max_attempts=1)
    held = pool.claim_one()

    pool.fail(held)

    job = read_job_row(sql, held.job)
    assert (job["attempts"], job["locked_by"], job["is_available"]) == (1, None, False)
    assert pool.claim(10, now=MOMENT) == []


@pytest.mark.feature("F210")
def test_giving_up_spends_all_attempts(pool, client, sql):
    client.add_job("task", queue_name="queue", max_attempts=7)
    held = pool.claim_one()

    assert pool.fail(held, message="for good", is_permanent=True) == {held.job.id}

    job = read_job_row(sql, held.job)
    assert (job["attempts"], job["last_error"], job["is_available"]) == (7, "for good", False)
    assert queue_lock(sql, "queue") == (None, True)


def test_a_job_that_does_not_run_again_has_the_time_of_its_failure_as_run_at(pool, client, sql):
    failures: list[dict[str, Any]] = [{}, {"when": MOMENT}, {"when": HOUR}, {"is_permanent": True}]
    for more in failures:
        client.add_job("task", max_attempts=7 if "is_permanent" in more else 1)
        held = pool.claim_one()
        before = sql.value("select now()")

        pool.fail(held, **more)

        assert before <= read_job_row(sql, held.job)["run_at"] <= sql.value("select now()")


def test_each_of_a_batch_fails_in_its_own_way(pool, client, sql):
    for n in range(4):
        client.add_job("task", n, queue_name=f"q{n}" if n % 2 else None)
    usual, moment, given_up, kept = pool.claim(4)
    failures = [
        FailedAttempt(usual.job, "usual"),
        FailedAttempt(moment.job, "moment", when=MOMENT),
        FailedAttempt(given_up.job, "given up", is_permanent=True),
    ]

    ids = pool.connection.run(
        fail_claimed_jobs("pool", failures, queue_ids((usual, moment, given_up)))
    )

    assert ids == {failure.job.id for failure in failures}
    assert read_job_row(sql, usual.job)["last_error"] == "usual"
    assert read_job_row(sql, moment.job)["run_at"] == MOMENT
    assert read_job_row(sql, given_up.job)["attempts"] == 25
    assert read_job_row(sql, kept.job)["locked_by"] == "pool"
    assert [queue_lock(sql, name)[0] for name in ("q1", "q3")] == [None, "pool"]


# Only what the pool holds


@pytest.mark.feature("F211")
def test_a_zombies_failure_changes_nothing(pool, client, sql):
    client.add_job("task", queue_name="queue")
    lost = pool.claim_one()
    client.force_unlock_workers(["pool"])
    held = pool.with_id("holder").claim_one()
    before = read_job_row(sql, held.job)

    assert pool.fail(lost, is_permanent=True) == set()

    assert read_job_row(sql, held.job) == before
    assert queue_lock(sql, "queue") == ("holder", False)


def test_failing_twice_is_failing_once(pool, client, sql):
    client.add_job("task", 1, queue_name="queue")
    client.add_job("task", 2, queue_name="queue")
    held = pool.claim_one()
    pool.fail(held, message="first")
    before = read_job_row(sql, held.job)
    assert payloads(pool.with_id("other").claim(10)) == [2]

    assert pool.fail(held, message="second") == set()

    assert read_job_row(sql, held.job) == before
    assert queue_lock(sql, "queue") == ("other", False)


@pytest.mark.feature("F211")
def test_the_queue_is_unlocked_even_if_the_job_was_deleted(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    sql.run("delete from :schema._private_jobs")

    assert pool.fail(held) == set()

    assert queue_lock(sql, "queue") == (None, True)


@pytest.mark.feature("F75")
def test_a_job_superseded_by_its_key_is_not_retried(pool, client, sql):
    client.add_job("task", "old", job_key="k")
    held = pool.claim_one()
    new = client.add_job("task", "new", job_key="k")

    pool.fail(held)

    job = read_job_row(sql, held.job)
    assert (job["attempts"], job["last_error"], job["is_available"]) == (25, "boom", False)
    assert read_job_row(sql, new)["last_error"] is None


@pytest.mark.feature("F84")
def test_a_job_removed_while_it_ran_is_not_retried(pool, client, sql):
    client.add_job("task", job_key="k")
    held = pool.claim_one()
    client.remove_job("k")

    pool.fail(held)

    assert not read_job_row(sql, held.job)["is_available"]

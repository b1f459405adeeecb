"""The checker finds each violation of a history, and reports nothing else."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laboratory import history_checker
from tests.laboratory.history_checker import (
    RULES,
    Add,
    Body,
    Change,
    Effect,
    Expectations,
    Fault,
    History,
    JobRow,
    Journal,
    KeptAttempt,
    KeptOutcome,
    check,
)
from tests.laboratory.history_checker.changes import NOT_STARTED, QUARANTINED, RECOVERED
from tests.laboratory.history_checker.story import (
    BEGIN,
    MINUTE,
    Story,
    cron_payload,
    job_row,
    process,
    token,
)

# Bad histories: each breaks one invariant and no other.


def lost() -> Story:
    story = Story()
    story.run_job(1, payload=token("a"))
    story.acknowledge(1, "a")
    story.acknowledge(2, "b")
    return story


def unexpected() -> Story:
    story = Story()
    story.run_job(1, payload=token("a"))
    story.history.adds += [Add("invoke", "1", story.now, ("a",)), Add("fail", "1", story.now)]
    return story


def duplicated() -> Story:
    story = Story()
    story.run_job(1, payload=token("a"))
    story.acknowledge(1, "a")
    story.run_job(2, payload=token("a"))
    return story


def deleted_without_having_run() -> Story:
    story = Story()
    story.run_job(1)
    story.add(2)
    story.complete(2, by="py-1")
    return story


def double_held() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.claim(1, "py-2a")
    story.complete(1)
    return story


def held_twice_by_one_pool() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.claim(1, "py-1a")
    story.complete(1)
    return story


def zombie_completes() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.recover(1)
    story.claim(1, "py-2a")
    story.complete(1, by="py-1")
    return story


def stranger_deletes_a_last_attempt() -> Story:
    story = Story()
    story.add(1, max_attempts=1)
    story.claim(1, "py-1a")
    story.complete(1, by="py-9")
    return story


def zombie_fails() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.recover(1)
    story.claim(1, "py-2a")
    story.fail(1, by="py-1")
    story.claim(1, "py-2a", attempts=3)
    story.complete(1)
    return story


def zombie_deletes_what_waits() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.recover(1)
    story.complete(1, by="py-1")
    return story


def stranger_refunds() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.refund(1, by="py-2")
    story.claim(1, "py-1a")
    story.complete(1)
    return story


def queue_overlap() -> Story:
    story = Story()
    story.add(1, queue=7)
    story.add(2, queue=7)
    story.claim(1, "py-1a")
    with story.together():
        # The queue is freed under its job.
        story.change_queue(7, "py-9", None)
    story.claim(2, "py-2a")
    story.complete(2)
    story.complete(1)
    return story


def queue_taken_over() -> Story:
    story = Story()
    story.add(1, queue=7)
    story.claim(1, "py-1a")
    with story.together():
        story.change_queue(7, "py-2", "py-2a")
    story.complete(1)
    return story


def queue_order() -> Story:
    story = Story()
    story.add(1, queue=7)
    story.add(2, queue=7)
    for job_id in (2, 1):
        story.claim(job_id, "py-1a")
        story.complete(job_id)
    return story


def attempts_drift() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a", attempts=2)
    story.complete(1)
    return story


def refunded_too_much() -> Story:
    story = Story()
    story.add(1, max_attempts=9)
    story.claim(1, "py-1a")
    story.fail(1)
    story.now += 10
    story.claim(1, "py-1a")
    story.release(1, attempts=0)
    story.claim(1, "py-1a")
    story.complete(1)
    return story


def claimed_without_attempts() -> Story:
    story = Story()
    story.add(1, max_attempts=1)
    story.claim(1, "py-1a")
    story.fail(1)
    story.now += 10
    story.claim(1, "py-1a")
    story.complete(1)
    return story


def recovered_for_ever() -> Story:
    story = Story()
    story.add(1)
    for pool in ("py-1a", "py-2a", "py-3a", "py-4a"):
        story.claim(1, pool)
        story.recover(1)
    story.claim(1, "py-5a")
    story.complete(1)
    return story


def cron_missing() -> Story:
    story = Story()
    for number, minute in enumerate((BEGIN, BEGIN + 2 * MINUTE), 1):
        story.tick("c", minute, job_id=number)
        story.claim(number, "py-1a")
        story.complete(number)
    return story


def cron_without_job() -> Story:
    story = cron_missing()
    story.tick("c", BEGIN + 3 * MINUTE)
    return story


def cron_double() -> Story:
    story = cron_missing()
    story.run_job(3, payload=cron_payload(BEGIN + 2 * MINUTE))
    return story


def orphan_lock() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    return story


def orphan_queue() -> Story:
    story = Story()
    story.run_job(1, queue=7)
    with story.together():
        story.change_queue(7, "py-1", "py-1a")
    return story


def second_end() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.fail(1)
    story.complete(1, by="py-1")
    return story


def second_refund() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.fail(1)
    story.now += 10
    story.claim(1, "py-1a")
    story.refund(1)
    story.change(1, "py-1", attempts=0)
    story.claim(1, "py-1a")
    story.complete(1)
    return story


def two_jobs_of_one_key() -> Story:
    story = Story()
    story.add(1, key="k")
    story.add(2, key="k")
    for job_id in (1, 2):
        story.claim(job_id, "py-1a")
        story.complete(job_id)
    return story


def payload_lost() -> Story:
    story = Story()
    story.add(1, key="k", payload=token("a"))
    story.acknowledge(1, "a", key="k")
    story.change(1, "add-2", revision=1)
    story.acknowledge(1, "b", key="k")
    story.claim(1, "py-1a")
    story.complete(1)
    return story


def payload_overwritten() -> Story:
    story = Story()
    story.add(1, key="k", payload=token("a"))
    story.change(1, "add-2", payload=token("b"), revision=1)
    story.claim(1, "py-1a", payload=token("a"))
    story.complete(1)
    return story


def two_effects() -> Story:
    story = Story()
    story.run_job(1)
    story.history.effects += [Effect(1, 1, story.now), Effect(1, 2, story.now)]
    return story


def no_effect() -> Story:
    story = Story()
    story.run_job(1)
    return story


def effect_of_a_failure() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.fail(1)
    story.history.effects += [Effect(1, 1, story.now)]
    return story


def early() -> Story:
    story = Story()
    story.add(1, run_at=BEGIN + 3600)
    story.claim(1, "py-1a")
    story.complete(1)
    return story


def worse_first() -> Story:
    story = Story()
    story.add(1, priority=0)
    story.add(2, priority=5)
    for job_id in (2, 1):
        story.claim(job_id, "py-1a")
        story.complete(job_id)
    return story


def an_outcome(story: Story, **fields: Any) -> None:
    """Keep the outcome and the attempt of a run of job 1 in pool py-1a."""
    outcome = replace(KeptOutcome(1, "task", "py-1a", 1, True, '"a"'), **fields)
    story.history.outcomes.append(outcome)
    attempt = KeptAttempt(outcome.job_id, outcome.pool, outcome.attempt)
    story.history.attempts.append(attempt)


def a_kept_run(story: Story) -> None:
    story.add(1)
    story.claim(1, "py-1a")
    story.history.bodies.append(Body("start", 1, 1, "py-1a", "py-1", story.now, '"a"'))
    story.complete(1)


def outcome_missing() -> Story:
    story = Story()
    a_kept_run(story)
    story.history.attempts.append(KeptAttempt(1, "py-1a", 1))
    return story


def outcome_stored_twice() -> Story:
    story = Story()
    a_kept_run(story)
    an_outcome(story)
    story.history.outcomes *= 2
    return story


def outcome_of_a_zombie() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.recover(1)
    story.claim(1, "py-2a")
    story.history.bodies.append(Body("start", 1, 2, "py-2a", "py-2", story.now, '"b"'))
    story.complete(1)
    an_outcome(story, pool="py-2a", attempt=2, result='"b"')
    story.history.outcomes.append(KeptOutcome(1, "task", "py-1a", 1, True, None))
    return story


def outcome_of_a_job_that_can_run() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.fail(1)
    an_outcome(story, succeeded=False, result=None)
    return story


def result_of_another_run() -> Story:
    story = Story()
    a_kept_run(story)
    an_outcome(story, result='"b"')
    return story


def attempt_missing() -> Story:
    story = Story()
    story.add(1)
    story.claim(1, "py-1a")
    story.fail(1)
    return story


def limit_exceeded() -> Story:
    story = Story()
    for job_id, name in ((1, "py-1"), (2, "py-2")):
        story.add(job_id)
        story.claim(job_id, f"{name}a")
        story.history.bodies.append(Body("start", job_id, 1, f"{name}a", name, story.now))
    for job_id, name in ((1, "py-1"), (2, "py-2")):
        story.complete(job_id)
        story.history.bodies.append(Body("end", job_id, 1, f"{name}a", name, story.now))
    return story


def slot_left() -> Story:
    story = Story()
    for job_id, name in ((1, "py-1"), (2, "py-2")):
        story.add(job_id)
        story.claim(job_id, f"{name}a")
        began = story.now
        story.complete(job_id)
        story.history.bodies += [
            Body("start", job_id, 1, f"{name}a", name, began),
            # As of a zombie, whose job was completed by another pool.
            Body("end", job_id, 1, f"{name}a", name, began + 100),
        ]
    return story


STRICT = Expectations(
    strict_priority=True,
    cron_minutes={"c": ()},
)
TRANSACTIONAL = replace(STRICT, transactional_tasks={"task"})
KEEPING = replace(STRICT, keeping_tasks={"task"})
CRON = replace(STRICT, cron_minutes={"c": (BEGIN, BEGIN + MINUTE, BEGIN + 2 * MINUTE)})
CRON_SEEN = replace(STRICT, cron_minutes={"c": (BEGIN, BEGIN + 2 * MINUTE)})
CRON_NOTED = replace(STRICT, cron_minutes={"c": (BEGIN, BEGIN + 2 * MINUTE, BEGIN + 3 * MINUTE)})

# A body that continues after its pool lost the job does not count.
LIMITED = replace(STRICT, concurrency_limits=[(frozenset({"task"}), 1)])
SLOT_LEFT = replace(LIMITED, rented_slots=["1 of 'api' by py-1a"])

BAD: list[tuple[Callable[[], Story], str, Expectations]] = [
    (lost, "lost", STRICT),
    (unexpected, "unexpected", STRICT),
    (duplicated, "duplicated", STRICT),
    (deleted_without_having_run, "lost", STRICT),
    (double_held, "double_held", STRICT),
    (held_twice_by_one_pool, "double_held", STRICT),
    (zombie_completes, "fence_breaks", STRICT),
    (stranger_deletes_a_last_attempt, "fence_breaks", STRICT),
    (zombie_fails, "fence_breaks", STRICT),
    (zombie_deletes_what_waits, "fence_breaks", STRICT),
    (stranger_refunds, "fence_breaks", STRICT),
    (queue_overlap, "queue_overlap", STRICT),
    (queue_taken_over, "queue_overlap", STRICT),
    (queue_order, "queue_order", STRICT),
    (attempts_drift, "attempts_drift", STRICT),
    (refunded_too_much, "attempts_drift", STRICT),
    (claimed_without_attempts, "attempts_drift", STRICT),
    (recovered_for_ever, "attempts_drift", STRICT),
    (cron_missing, "cron_missing", CRON),
    (cron_without_job, "cron_missing", CRON_NOTED),
    (cron_double, "cron_double", CRON_SEEN),
    (orphan_lock, "orphan_locks", STRICT),
    (orphan_queue, "orphan_locks", STRICT),
    (second_end, "second_ends", STRICT),
    (second_refund, "second_ends", STRICT),
    (two_jobs_of_one_key, "key_breaks", STRICT),
    (payload_lost, "key_breaks", STRICT),
    (payload_overwritten, "key_breaks", STRICT),
    (two_effects, "effects", TRANSACTIONAL),
    (no_effect, "effects", TRANSACTIONAL),
    (effect_of_a_failure, "effects", TRANSACTIONAL),
    (early, "early", STRICT),
    (worse_first, "priority", STRICT),
    (outcome_missing, "outcomes", KEEPING),
    (outcome_stored_twice, "outcomes", KEEPING),
    (outcome_of_a_zombie, "outcomes", KEEPING),
    (outcome_of_a_job_that_can_run, "outcomes", KEEPING),
    (result_of_another_run, "outcomes", KEEPING),
    (attempt_missing, "outcomes", KEEPING),
    (limit_exceeded, "limit_exceeded", LIMITED),
    (slot_left, "orphan_slots", SLOT_LEFT),
]


@pytest.mark.parametrize(("tell", "rule", "run"), BAD, ids=[tell.__name__ for tell, _, _ in BAD])
def test_a_bad_history_breaks_its_invariant_and_no_other(tell, rule, run):
    report = check(tell().end(), run)

    assert {rule: count for rule, count in report.counts.items() if count} == {rule: 1}
    assert report.violations == 1


def test_there_is_a_bad_history_for_each_invariant():
    caught = {RULES[rule][0] for _, rule, _ in BAD}

    assert caught == {f"I{number}" for number in range(1, 15)}


# Good histories.


def a_retry(story: Story) -> None:
    story.add(1)
    story.claim(1, "py-1a")
    story.fail(1)
    story.now += 10
    story.claim(1, "py-2a")
    story.complete(1)


def giving_up(story: Story) -> None:
    story.add(1)
    story.claim(1, "py-1a")
    story.fail(1, attempts=25)


def failing_for_good(story: Story) -> None:
    story.add(1, max_attempts=2)
    for _ in range(2):
        story.claim(1, "py-1a")
        story.fail(1)
        story.now += 20
    story.complete(1, by="py-1")


def a_recovery(story: Story) -> None:
    story.add(1, queue=7)
    story.claim(1, "py-1a")
    story.recover(1)
    story.claim(1, "py-2a")
    story.complete(1)


def a_recovery_of_the_last_attempt(story: Story) -> None:
    story.add(1, max_attempts=1)
    story.claim(1, "py-1a")
    story.recover(1)
    story.claim(1, "py-2a")
    story.complete(1)


def a_recovery_of_what_had_not_started(story: Story) -> None:
    story.add(1)
    story.claim(1, "py-1a")
    story.recover(1, error=f"{NOT_STARTED}, by pool py-1a", attempts=0)
    story.claim(1, "py-2a")
    story.complete(1)


def a_recovery_by_the_same_process_under_another_name(story: Story) -> None:
    story.add(1)
    story.claim(1, "py-1a")
    story.recover(1, by="py-1")
    story.claim(1, "py-1b")
    story.complete(1)


def quarantined_after_three_recoveries(story: Story) -> None:
    story.add(1)
    for pool in ("py-1a", "py-2a"):
        story.claim(1, pool)
        story.recover(1)
    story.claim(1, "py-3a")
    story.recover(1, error=f"{QUARANTINED}, as it was running", attempts=25)
    story.change(1, "admin-1", attempts=0)
    for pool in ("py-4a", "py-5a"):
        story.claim(1, pool)
        story.recover(1)
    story.claim(1, "py-6a")
    story.complete(1)


def locks_taken_by_force(story: Story) -> None:
    story.add(1)
    story.claim(1, "py-1a")
    story.release(1, by="admin-1")
    story.claim(1, "py-2a")
    story.complete(1)


def a_refund(story: Story) -> None:
    story.add(1, queue=7)
    story.claim(1, "py-1a")
    story.refund(1)
    story.claim(1, "py-2a")
    story.complete(1)


def a_snooze(story: Story) -> None:
    story.add(1)
    story.claim(1, "py-1a")
    story.refund(1, run_at=story.now + 60)
    story.now += 60
    story.claim(1, "py-1a")
    story.complete(1)


def a_refund_after_a_recovery(story: Story) -> None:
    story.add(1)
    story.claim(1, "py-1a")
    story.recover(1)
    story.claim(1, "py-2a")
    story.refund(1)
    story.claim(1, "py-2a")
    story.complete(1)


def a_key_replaced(story: Story) -> None:
    story.add(1, key="k", payload=token("a"))
    story.acknowledge(1, "a", key="k")
    story.change(1, "add-2", payload=token("b"), revision=1, run_at=story.now)
    story.acknowledge(1, "b", key="k")
    story.change(1, "add-2", revision=2)
    story.acknowledge(1, "c", key="k", key_mode="unsafe_dedupe")
    story.claim(1, "py-1a")
    story.complete(1)


def a_key_replaced_while_its_job_runs(story: Story) -> None:
    story.add(1, key="k", payload=token("a"))
    story.claim(1, "py-1a")
    with story.together():
        story.detach(1)
        story.add(2, key="k", payload=token("b"))
    story.fail(1)
    story.claim(2, "py-1a")
    story.complete(2)


def a_key_replaced_at_the_last_attempt_but_one(story: Story) -> None:
    story.add(1, key="k", max_attempts=2)
    story.claim(1, "py-1a")
    with story.together():
        story.detach(1)
        story.add(2, key="k")
    story.refund(1, attempts=2)
    story.claim(2, "py-1a")
    story.complete(2)


def a_key_of_a_failed_job_used_again(story: Story) -> None:
    story.add(1, key="k", max_attempts=1)
    story.claim(1, "py-1a")
    story.fail(1)
    with story.together():
        story.detach(1)
        story.add(2, key="k")
    story.claim(2, "py-1a")
    story.complete(2)


def removed_while_it_runs(story: Story) -> None:
    story.add(1, key="k")
    story.claim(1, "py-1a")
    story.detach(1)
    story.complete(1)


def removed_before_its_pool_died(story: Story) -> None:
    story.add(1, key="k", queue=7)
    story.claim(1, "py-1a")
    story.detach(1)
    story.complete(1, by="py-9")


def removed_while_it_waits(story: Story) -> None:
    story.add(1, key="k")
    story.complete(1, by="add-1")


def renewals(story: Story) -> None:
    story.add(1, queue=7)
    story.claim(1, "py-1a")
    for _ in range(3):
        with story.together():
            story.change(1, "py-1", locked_at=story.now)
            story.change_queue(7, "py-1", "py-1a")
    story.complete(1)


def a_batch_of_which_half_failed(story: Story) -> None:
    story.add(1, payload="[1, 2]")
    story.claim(1, "py-1a")
    story.fail(1, payload="[2]")
    story.now += 10
    story.claim(1, "py-1a")
    story.complete(1)


def failed_by_an_admin(story: Story) -> None:
    story.add(1)
    story.change(1, "admin-1", attempts=25, error="no")


def rescheduled(story: Story) -> None:
    story.add(1)
    story.change(1, "admin-1", run_at=story.now + 600, priority=3, attempts=2)
    story.now += 600
    story.claim(1, "py-1a")
    story.complete(1)


def a_queue_in_turn(story: Story) -> None:
    for job_id in (1, 2, 3):
        story.add(job_id, queue=7, priority=-job_id)
    for job_id, pool in ((3, "py-1a"), (2, "py-2a"), (1, "py-1a")):
        story.claim(job_id, pool)
        story.complete(job_id)


def a_batch_taken_at_once(story: Story) -> None:
    for job_id in (1, 2, 3):
        story.add(job_id)
    with story.together():
        for job_id in (3, 1, 2):
            story.claim(job_id, "py-1a")
    for job_id in (2, 3, 1):
        story.complete(job_id)


def crontabs(story: Story) -> None:
    for number, minute in enumerate((BEGIN, BEGIN + MINUTE), 1):
        story.tick("c", minute, job_id=number)
        story.claim(number, "py-1a")
        story.complete(number)


def adds_in_doubt(story: Story) -> None:
    story.run_job(1, payload=token("a"))
    for name in ("a", "b"):
        story.history.adds.append(Add("invoke", name, story.now, (name,)))
        story.history.adds.append(Add("info", name, story.now))


GOOD = [
    a_retry,
    giving_up,
    failing_for_good,
    a_recovery,
    a_recovery_of_the_last_attempt,
    a_recovery_of_what_had_not_started,
    a_recovery_by_the_same_process_under_another_name,
    quarantined_after_three_recoveries,
    locks_taken_by_force,
    a_refund,
    a_snooze,
    a_refund_after_a_recovery,
    a_key_replaced,
    a_key_replaced_while_its_job_runs,
    a_key_replaced_at_the_last_attempt_but_one,
    a_key_of_a_failed_job_used_again,
    removed_while_it_runs,
    removed_before_its_pool_died,
    removed_while_it_waits,
    renewals,
    a_batch_of_which_half_failed,
    failed_by_an_admin,
    rescheduled,
    a_queue_in_turn,
    a_batch_taken_at_once,
    crontabs,
    adds_in_doubt,
]


@pytest.mark.parametrize("tell", GOOD, ids=lambda tell: tell.__name__)
def test_a_good_history_passes(tell):
    story = Story()
    tell(story)
    minutes = {"c": (BEGIN, BEGIN + MINUTE) if tell is crontabs else ()}

    report = check(story.end(), replace(STRICT, cron_minutes=minutes))

    assert report.violations == 0, "\n".join(report.lines())


def test_outcomes_of_the_runs_that_ended_jobs_pass():
    story = Story()
    a_kept_run(story)
    an_outcome(story)
    # One that fails twice, and one that is replaced while it runs.
    story.add(2, max_attempts=2)
    for attempt in (1, 2):
        story.claim(2, "py-2a")
        story.fail(2)
        story.now += 60
        story.history.attempts.append(KeptAttempt(2, "py-2a", attempt))
    story.history.outcomes.append(KeptOutcome(2, "task", "py-2a", 2, False, None))
    story.add(3, key="k")
    story.claim(3, "py-1a")
    story.detach(3)
    story.complete(3)
    an_outcome(story, job_id=3, result=None)
    # One that is replaced while it runs and then released, which deletes it.
    story.add(6, key="l")
    story.claim(6, "py-1a")
    story.detach(6)
    story.complete(6)
    # One that is quarantined, and one that is released.
    story.add(4)
    story.claim(4, "py-1a")
    story.recover(4, error=QUARANTINED, attempts=25)
    story.add(5)
    story.claim(5, "py-1a")
    story.refund(5)

    report = check(story.end(), replace(KEEPING, must_finish=False))

    assert report.counts["outcomes"] == 0, "\n".join(report.lines())


# Which findings count, and which are listed as apart.


def test_findings_about_other_processes_are_listed_as_apart():
    story = Story()
    for job_id, pool in ((1, "node-1a"), (2, "node-2a")):
        story.add(job_id)
        story.claim(job_id, pool)
    story.complete(2, by="node-1")
    run = Expectations(counts_process=lambda app: app.startswith("py-"), exits=["node-1"])

    report = check(story.end(), run)

    assert report.violations == 0
    assert report.apart == {"orphan_locks": 1, "fence_breaks": 1, "exits": 1}
    assert check(story.end(), Expectations(exits=["node-1"])).violations == 3


def test_a_broken_claim_of_a_checked_process_counts_for_any_intruder():
    story = Story()
    story.add(1)
    story.claim(1, "node-1a")
    story.recover(1)
    story.claim(1, "py-1a")
    story.complete(1, by="node-1")

    report = check(story.end(), Expectations(counts_process=lambda app: app.startswith("py-")))

    assert report.counts == {"fence_breaks": 1}


def test_processes_that_are_alive_may_hold_locks_at_the_end():
    story = Story()
    story.add(1, queue=7)
    story.claim(1, "py-1a")

    assert check(story.end(), Expectations(alive={"py-1"})).violations == 0
    assert check(story.end()).counts == {"orphan_locks": 2}


def test_priority_is_listed_as_apart_unless_it_is_strict():
    report = check(worse_first().end())

    assert report.violations == 0
    assert report.apart["priority"] == 1


def test_unfinished_jobs_count_if_they_had_the_time_to_run():
    story = Story()
    story.add(1)
    story.add(2, run_at=story.now + 3600)

    assert check(story.end()).violations == 0
    assert check(story.end(), Expectations(must_finish=True)).counts == {"unfinished": 1}


def test_a_change_that_is_missing_from_the_record_is_found():
    story = Story()
    story.run_job(1)
    del story.history.changes[1]

    assert check(story.end()).counts["gaps"] == 1


def test_only_adds_after_the_durable_position_may_be_missing():
    story = Story()
    story.run_job(1, payload=token("a"))
    story.acknowledge(1, "a")
    until = story.now + 1
    story.now += 6
    story.acknowledge(2, "b")

    report = check(story.end(), Expectations(durable_until=until))

    assert report.violations == 0
    assert report.figures["jobs lost with the tail"] == 1
    assert check(story.end(), Expectations(durable_until=story.now + 1)).counts == {"lost": 1}
    assert check(story.end(), Expectations(durable_until=BEGIN)).counts == {"unexpected": 1}


def test_the_report_has_the_seconds_from_a_kill_to_recovery():
    story = Story()
    for job_id in (1, 2):
        story.add(job_id)
        story.claim(job_id, "py-1a")
    story.history.faults.append(Fault("SIGKILL", story.now + 1, "py-1"))
    story.recover(1)
    story.recover(2)

    figures = check(story.end()).figures

    assert figures["seconds to recovery (p50, p99, max)"] == [5.0, 5.0, 5.0]
    assert figures["jobs recovered after a kill"] == 2


def test_overlapping_bodies_of_two_pools_are_a_figure_and_not_a_violation():
    story = Story()
    story.run_job(1)
    story.run_job(2)
    story.history.bodies = [
        Body("start", 1, 1, "py-1a", "py-1", 10.0),
        Body("start", 1, 2, "py-2a", "py-2", 11.0),
        Body("end", 1, 1, "py-1a", "py-1", 12.0),
        # This one died before the other began.
        Body("start", 2, 1, "py-3a", "py-3", 10.0),
        Body("start", 2, 2, "py-2a", "py-2", 12.0),
    ]
    story.history.faults.append(Fault("SIGKILL", 11.0, "py-3"))

    report = check(story.end())

    assert report.figures["bodies that overlapped, jobs"] == [1]
    assert report.violations == 0


def test_journals_are_read_without_the_line_that_a_kill_cut_off(tmp_path):
    notes: list[Body | Add | Fault] = [
        Body("start", 1, 1, "py-1a", "py-1", 10.0),
        Add("ok", "1", 11.0, ("a", "b"), (1, 2), position=7.0),
        Fault("SIGKILL", 12.0, "py-1"),
    ]
    journal = Journal(tmp_path / "py-1.jsonl")
    for note in notes:
        journal.note(note)
    journal.close()
    with (tmp_path / "py-1.jsonl").open("a") as file:
        file.write('["Body", {"step": "st')
    history = History()

    history.read_journals(tmp_path)

    assert [*history.bodies, *history.adds, *history.faults] == notes


def test_a_report_has_a_table_and_json():
    report = check(zombie_completes().end())

    assert any(line.split() == ["I3", "fence_breaks", "1"] for line in report.lines())
    assert report.to_json()["counts"]["fence_breaks"] == 1
    assert "job 1" in report.to_json()["examples"]["fence_breaks"][0]


# Any history.

PROCESSES = ("py-1", "py-2", "node-1")


class Model:
    """Makes any valid history from the choices of Hypothesis."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw
        self.story = Story()
        self._last_id = 0

    def tell(self, steps: int) -> Story:
        for _ in range(steps):
            moves = [self.add, *(self._moves())]
            self._draw(st.sampled_from(moves))()
        for row in self._held():
            self.story.complete(row.id)
        return self.story

    def add(self) -> None:
        key = self._draw(st.sampled_from([None, None, "k", "l"]))
        for row in self.story.jobs.values():
            if key is not None and row.key == key:
                self._replace(row)
                return
        self._add(key)

    def _add(self, key: str | None) -> None:
        self._last_id += 1
        queue = self._draw(st.sampled_from([None, 7, 8]))
        priority = self._draw(st.integers(-1, 1))
        most = self._draw(st.sampled_from([1, 3, 25]))
        self.story.add(self._last_id, key=key, queue=queue, priority=priority, max_attempts=most)

    def _replace(self, row: JobRow) -> None:
        if row.is_available:
            fields = {"payload": token(str(self.story.now)), "attempts": 0, "error": None}
            self.story.change(row.id, "add-2", revision=row.revision + 1, **fields)
            return
        with self.story.together():
            self.story.detach(row.id)
            self._add(row.key)

    def _moves(self) -> list[Callable[[], None]]:
        held = self._held()
        claims = [lambda: self.claim()] if self._best() is not None else []
        return claims + [lambda row=row: self.end(row) for row in held]

    def claim(self) -> None:
        best = self._best()
        assert best is not None
        self.story.claim(best.id, self._draw(st.sampled_from(PROCESSES)) + "a")

    def end(self, row: JobRow) -> None:
        story = self.story
        is_superseded = row.attempts >= row.max_attempts
        fewer = row.attempts if is_superseded and row.key is None else row.attempts - 1
        error = f"{RECOVERED}: {story.now}"
        kept = row.attempts if is_superseded else min(row.attempts, row.max_attempts - 1)
        ways: list[Callable[[], None]] = [
            lambda: story.complete(row.id),
            lambda: story.fail(row.id),
            lambda: story.refund(row.id, attempts=fewer),
            lambda: story.recover(row.id, error=error, attempts=kept),
            lambda: story.change(row.id, process(str(row.locked_by)), locked_at=story.now + 3),
        ]
        self._draw(st.sampled_from(ways))()

    def _held(self) -> list[JobRow]:
        return [row for row in self.story.jobs.values() if row.locked_by is not None]

    def _best(self) -> JobRow | None:
        busy = {row.queue for row in self._held() if row.queue is not None}
        # When it will be taken.
        moment = self.story.now + 3
        ready = [
            row
            for row in self.story.jobs.values()
            if row.is_available and row.run_at <= moment and row.queue not in busy
        ]
        return min(ready, key=lambda row: (row.priority, row.run_at, row.id), default=None)


@st.composite
def stories(draw: Callable[..., Any]) -> Story:
    return Model(draw).tell(draw(st.integers(1, 25)))


ANY = Expectations(strict_priority=True, max_crashes=None)


@settings(max_examples=100)
@given(stories())
def test_any_history_that_keeps_the_rules_passes(story):
    report = check(story.end(), ANY)

    assert report.violations == 0, "\n".join(report.lines())


@settings(max_examples=100)
@given(stories(), st.data())
def test_any_change_that_is_left_out_is_found(story, data):
    changes = story.history.changes
    del changes[data.draw(st.integers(0, len(changes) - 1))]

    assert check(story.end(), ANY).violations > 0


@settings(max_examples=100)
@given(stories(), st.data())
def test_any_claim_that_is_doubled_is_found(story, data):
    story.run_job(99, priority=-9)
    changes = story.history.changes
    claims = [index for index, change in enumerate(changes) if is_claim(change)]
    index = data.draw(st.sampled_from(claims))
    changes.insert(index + 1, changes[index])

    assert check(story.end(), ANY).violations > 0


@settings(max_examples=100)
@given(stories(), st.data())
def test_any_job_that_another_process_completes_is_found(story, data):
    story.run_job(99, priority=-9)
    changes = story.history.changes
    # A job that was removed by its key is deleted by the process that recovers it.
    ends = [
        index
        for index, change in enumerate(changes)
        if change.op == "d"
        and isinstance(change.old, JobRow)
        and change.old.locked_by is not None
        and change.old.attempts < change.old.max_attempts
    ]
    index = data.draw(st.sampled_from(ends))
    changes[index] = changes[index]._replace(app="py-7")

    assert check(story.end(), ANY).broken == {"I3"}


@settings(max_examples=100)
@given(stories(), st.data())
def test_any_two_owners_that_are_swapped_are_found(story, data):
    story.run_job(99, priority=-9)
    changes = story.history.changes
    index = data.draw(st.sampled_from([n for n, each in enumerate(changes) if is_claim(each)]))
    changes[index] = changes[index]._replace(new=changes[index].new._replace(locked_by="py-8a"))

    assert check(story.end(), ANY).violations > 0


def is_claim(change: Change) -> bool:
    old, new = change.old, change.new
    if not isinstance(old, JobRow) or not isinstance(new, JobRow):
        return False
    return old.locked_by is None and new.locked_by is not None


# Seconds for a million changes.
MILLION_CHANGES_WITHIN = 40


@pytest.mark.nightly
def test_a_million_changes_are_checked_in_less_than_a_minute(figure):
    history = many_lives(50_000)

    began = time.process_time()
    report = check(history, STRICT)
    seconds = time.process_time() - began

    assert report.violations == 0, "\n".join(report.lines())
    assert len(history.changes) == 200_000
    assert seconds * 5 < MILLION_CHANGES_WITHIN
    figure(f"checker: {len(history.changes):,} changes in {seconds:.1f} s")


def many_lives(count: int) -> History:
    """Add, claim, renew and complete jobs, 100 at a time."""
    story = Story()
    for first in range(0, count, 100):
        ids = range(first, first + 100)
        for step in ("add", "claim", "renew", "complete"):
            with story.together():
                for job_id in ids:
                    _live_on(story, job_id, step)
    return story.end()


def _live_on(story: Story, job_id: int, step: str) -> None:
    if step == "add":
        story.jobs[job_id] = new = job_row(job_id, story.now)
        story._write("add-1", None, new)
    elif step == "complete":
        story._write("py-1", story.jobs.pop(job_id), None)
    elif step == "claim":
        story.change(job_id, "py-1", locked_by="py-1a", locked_at=story.now, attempts=1)
    else:
        story.change(job_id, "py-1", locked_at=story.now)


def test_the_checker_needs_no_other_module_of_the_laboratory():
    package = Path(__file__).with_name("history_checker")
    imported = {
        name
        for path in package.glob("*.py")
        for name in re.findall(r"^from (tests[\w.]*) import", path.read_text(), re.MULTILINE)
    }

    assert {name for name in imported if not name.startswith(history_checker.__name__)} == set()

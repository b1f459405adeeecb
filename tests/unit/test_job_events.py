"""What is said about a job's end, and that nothing is made for nobody."""

from typing import Any

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker import job_events as announce_module
from graphile_worker._worker.job_events import emit_job_ended, emit_job_started
from graphile_worker._worker.outcomes import Completed, CompletedInTransaction, Failed, Outcome
from graphile_worker.events import (
    Event,
    JobErrored,
    JobEvent,
    JobFailed,
    JobFinished,
    JobLockLost,
    JobStarted,
    JobSucceeded,
    JobSucceededLate,
)
from graphile_worker.hooks import Hooks
from tests.support.jobs import make_job

JOB = make_job()
HELD = ClaimedJob(JOB, None)


class Known:
    """All that events say of where a job ran."""

    pool_id = "p1"
    worker_id = "w1"
    job = JOB
    held = HELD


class Untouchable:
    """Nobody may want to know anything of it."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"somebody asked for {name}")


def untouchable() -> Any:
    return Untouchable()


def listening(*kinds: type[Event]) -> tuple[Hooks, list[Event]]:
    hooks, heard = Hooks(), list[Event]()
    for kind in kinds:
        hooks.on(kind)(heard.append)
    return hooks, heard


def end(hooks: Hooks, outcome: Outcome, *, still_ours: bool = True) -> None:
    context: Any = Known()
    emit_job_ended(hooks, context, outcome, is_still_owned=still_ours, seconds=0.5)


@pytest.mark.feature("F189")
@pytest.mark.parametrize("kinds", [(), (JobErrored,), (JobSucceededLate,), (JobLockLost,)])
def test_without_listeners_no_success_event_is_built(kinds, monkeypatch):
    hooks, heard = listening(*kinds)
    # Both would be called if anything was.
    monkeypatch.setattr(announce_module, "timedelta", Untouchable())
    monkeypatch.setattr(announce_module, "_build_events", Untouchable())

    emit_job_ended(hooks, untouchable(), Completed(HELD), is_still_owned=True, seconds=0.5)

    assert heard == []


def test_without_listeners_no_start_event_is_built():
    hooks, heard = listening(JobFinished)

    emit_job_started(hooks, untouchable())

    assert heard == []


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ((JobSucceeded,), [JobSucceeded]),
        ((JobFinished,), [JobFinished]),
        ((JobEvent,), [JobSucceeded, JobFinished]),
        ((Event,), [JobSucceeded, JobFinished]),
        ((JobSucceeded, JobFinished, JobErrored), [JobSucceeded, JobFinished]),
    ],
)
def test_a_listener_gets_the_events_of_its_class(kinds, said):
    hooks, heard = listening(*kinds)

    end(hooks, Completed(HELD))

    assert [type(event) for event in heard] == said


def test_a_listener_that_is_added_later_gets_the_next_event():
    hooks, _ = listening()
    end(hooks, Completed(HELD))
    heard: list[Event] = []
    hooks.on(JobSucceeded)(heard.append)

    end(hooks, Completed(HELD))

    assert [type(event) for event in heard] == [JobSucceeded]


@pytest.mark.feature("F189")
def test_a_lost_lock_is_an_event_without_listeners_of_success():
    hooks, heard = listening(JobLockLost)

    end(hooks, Completed(HELD), still_ours=False)

    assert [type(event) for event in heard] == [JobLockLost]


@pytest.mark.feature("F189")
def test_a_job_that_was_not_ours_any_more_did_not_succeed():
    hooks, heard = listening(JobEvent)

    end(hooks, Completed(HELD), still_ours=False)

    assert [type(event) for event in heard] == [JobLockLost]


def test_what_a_task_raised_after_it_had_ended_its_job_is_a_late_success():
    error = OSError("late")
    hooks, heard = listening(JobEvent)

    end(hooks, CompletedInTransaction(HELD, error))

    late, finished = heard
    assert isinstance(late, JobSucceededLate)
    assert late.late_error is error
    assert isinstance(finished, JobFinished)
    assert finished.error is None


@pytest.mark.parametrize("kind", [JobSucceeded, JobSucceededLate])
def test_a_late_success_is_also_a_success_event(kind):
    hooks, heard = listening(kind)

    end(hooks, CompletedInTransaction(HELD, OSError("late")))

    assert [type(event) for event in heard] == [JobSucceededLate]


def test_a_job_that_its_task_ended_in_time_is_a_plain_success():
    hooks, heard = listening(JobSucceeded)

    end(hooks, CompletedInTransaction(HELD, None))

    assert [type(event) for event in heard] == [JobSucceeded]


def test_a_failure_is_an_event_without_listeners_of_success():
    hooks, heard = listening(JobErrored)

    end(hooks, Failed(HELD, OSError("no")))

    assert [type(event) for event in heard] == [JobErrored]


def test_a_start_is_an_event():
    hooks, heard = listening(JobStarted)

    context: Any = Known()
    emit_job_started(hooks, context)

    [event] = heard
    assert isinstance(event, JobStarted)
    assert (event.pool_id, event.worker_id, event.job) == ("p1", "w1", JOB)


def test_a_failed_attempt_has_whether_it_is_retried():
    last = make_job(attempts=25, max_attempts=25)
    for job, give_up, will_retry in [(JOB, False, True), (JOB, True, False), (last, False, False)]:
        hooks, heard = listening(JobErrored, JobFailed)
        context: Any = Known()
        context.job = job

        failed = Failed(HELD, OSError(), is_permanent=give_up)
        emit_job_ended(hooks, context, failed, is_still_owned=True, seconds=0.5)

        errored, *rest = heard
        assert isinstance(errored, JobErrored)
        assert errored.will_retry is will_retry
        assert [type(event) for event in rest] == ([] if will_retry else [JobFailed])

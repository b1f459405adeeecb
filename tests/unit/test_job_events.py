"""Events at the end of a job. Without listeners none are created."""

import logging
from typing import Any

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.logs import Logger
from graphile_worker._worker import job_events as job_events_module
from graphile_worker._worker.job_events import emit_job_ended, emit_job_started
from graphile_worker._worker.outcomes import Completed, CompletedInTransaction, Failed, Outcome
from graphile_worker._worker.reporting import log_events
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
CLAIMED = ClaimedJob(JOB, None)


class Known:
    """The part of a context that events need."""

    pool_id = "p1"
    worker_id = "w1"
    job = JOB
    claimed = CLAIMED


class Untouchable:
    """A context that no code may read."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"somebody asked for {name}")


def untouchable() -> Any:
    return Untouchable()


def listening(*kinds: type[Event]) -> tuple[Hooks, list[Event]]:
    hooks, events = Hooks(), list[Event]()
    for kind in kinds:
        hooks.on(kind)(events.append)
    return hooks, events


def end(hooks: Hooks, outcome: Outcome, *, is_still_owned: bool = True) -> None:
    context: Any = Known()
    emit_job_ended(hooks, context, outcome, is_still_owned=is_still_owned, seconds=0.5)


@pytest.mark.feature("F189")
@pytest.mark.parametrize("kinds", [(), (JobErrored,), (JobSucceededLate,), (JobLockLost,)])
def test_without_listeners_no_success_event_is_built(kinds, monkeypatch):
    hooks, events = listening(*kinds)
    # Both would be called if an event were created.
    monkeypatch.setattr(job_events_module, "timedelta", Untouchable())
    monkeypatch.setattr(job_events_module, "_build_events", Untouchable())

    emit_job_ended(hooks, untouchable(), Completed(CLAIMED), is_still_owned=True, seconds=0.5)

    assert events == []


def test_where_info_is_off_no_success_event_is_built_for_the_log(caplog):
    logger = logging.getLogger("graphile_worker.test_job_events")
    with log_events(hooks := Hooks(), Logger(logger), {"p1"}, is_outage=lambda error: False):
        logger.setLevel(logging.WARNING)
        emit_job_ended(hooks, untouchable(), Completed(CLAIMED), is_still_owned=True, seconds=0.5)
        # The level may change while a worker runs.
        logger.setLevel(logging.INFO)
        end(hooks, Completed(CLAIMED))
        logger.setLevel(logging.WARNING)
        events = list[Event]()
        hooks.on(JobFinished)(events.append)
        end(hooks, Completed(CLAIMED))

    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"completed job {JOB.id}"
    ]
    assert [type(event) for event in events] == [JobFinished]
    assert not hooks._conditions


def test_without_listeners_no_start_event_is_built():
    hooks, events = listening(JobFinished)

    emit_job_started(hooks, untouchable())

    assert events == []


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ((JobSucceeded,), [JobSucceeded]),
        ((JobFinished,), [JobFinished]),
        ((JobEvent,), [JobSucceeded, JobFinished]),
        ((Event,), [JobSucceeded, JobFinished]),
        ((JobSucceeded, JobFinished, JobErrored), [JobSucceeded, JobFinished]),
    ],
)
def test_a_listener_gets_the_events_of_its_class(kinds, text):
    hooks, events = listening(*kinds)

    end(hooks, Completed(CLAIMED))

    assert [type(event) for event in events] == text


def test_a_listener_that_is_added_later_gets_the_next_event():
    hooks, _ = listening()
    end(hooks, Completed(CLAIMED))
    events: list[Event] = []
    hooks.on(JobSucceeded)(events.append)

    end(hooks, Completed(CLAIMED))

    assert [type(event) for event in events] == [JobSucceeded]


@pytest.mark.feature("F189")
def test_a_lost_lock_is_an_event_without_listeners_of_success():
    hooks, events = listening(JobLockLost)

    end(hooks, Completed(CLAIMED), is_still_owned=False)

    assert [type(event) for event in events] == [JobLockLost]


@pytest.mark.feature("F189")
def test_a_job_that_was_not_ours_any_more_did_not_succeed():
    hooks, events = listening(JobEvent)

    end(hooks, Completed(CLAIMED), is_still_owned=False)

    assert [type(event) for event in events] == [JobLockLost]


def test_what_a_task_raised_after_it_had_ended_its_job_is_a_late_success():
    error = OSError("late")
    hooks, events = listening(JobEvent)

    end(hooks, CompletedInTransaction(CLAIMED, error))

    late, finished = events
    assert isinstance(late, JobSucceededLate)
    assert late.late_error is error
    assert isinstance(finished, JobFinished)
    assert finished.error is None


@pytest.mark.parametrize("kind", [JobSucceeded, JobSucceededLate])
def test_a_late_success_is_also_a_success_event(kind):
    hooks, events = listening(kind)

    end(hooks, CompletedInTransaction(CLAIMED, OSError("late")))

    assert [type(event) for event in events] == [JobSucceededLate]


def test_a_job_that_its_task_ended_in_time_is_a_plain_success():
    hooks, events = listening(JobSucceeded)

    end(hooks, CompletedInTransaction(CLAIMED, None))

    assert [type(event) for event in events] == [JobSucceeded]


def test_a_failure_is_an_event_without_listeners_of_success():
    hooks, events = listening(JobErrored)

    end(hooks, Failed(CLAIMED, OSError("no")))

    assert [type(event) for event in events] == [JobErrored]


def test_a_start_is_an_event():
    hooks, events = listening(JobStarted)

    context: Any = Known()
    emit_job_started(hooks, context)

    [event] = events
    assert isinstance(event, JobStarted)
    assert (event.pool_id, event.worker_id, event.job) == ("p1", "w1", JOB)


def test_a_failed_attempt_has_whether_it_is_retried():
    last = make_job(attempts=25, max_attempts=25)
    for job, give_up, will_retry in [(JOB, False, True), (JOB, True, False), (last, False, False)]:
        hooks, events = listening(JobErrored, JobFailed)
        context: Any = Known()
        context.job = job

        failed = Failed(CLAIMED, OSError(), is_permanent=give_up)
        emit_job_ended(hooks, context, failed, is_still_owned=True, seconds=0.5)

        errored, *others = events
        assert isinstance(errored, JobErrored)
        assert errored.will_retry is will_retry
        assert [type(event) for event in others] == ([] if will_retry else [JobFailed])

"""RunState: the steps, and the states that they lead to."""

import threading

import pytest

from graphile_worker._worker.run_state import (
    INACTIVE_STATES,
    STOPPED_STATES,
    JobRun,
    RunState,
    RunStep,
)

# All changes of state. A step that is missing here does not change the state.
CHANGES = {
    RunState.CLAIMED: {RunStep.START: RunState.RUNNING, RunStep.DISCARD: RunState.DISCARDED},
    RunState.RUNNING: {
        RunStep.STOP: RunState.STOPPING,
        RunStep.BEGIN_COMMIT: RunState.COMMITTING,
        RunStep.END: RunState.ENDED,
        RunStep.RELEASE: RunState.RELEASED,
        RunStep.DISCARD: RunState.DISCARDED,
    },
    RunState.STOPPING: {
        RunStep.BEGIN_COMMIT: RunState.COMMITTING,
        RunStep.END: RunState.ENDED,
        RunStep.RELEASE: RunState.RELEASED,
        RunStep.DISCARD: RunState.DISCARDED,
    },
    RunState.COMMITTING: {
        RunStep.CONFIRM_COMMIT: RunState.COMMITTED,
        RunStep.END: RunState.UNCERTAIN,
        RunStep.RELEASE: RunState.RELEASED,
        RunStep.DISCARD: RunState.DISCARDED,
    },
    RunState.COMMITTED: {RunStep.END: RunState.ENDED, RunStep.RELEASE: RunState.RELEASED},
    RunState.ENDED: {RunStep.DISCARD: RunState.DISCARDED},
    RunState.UNCERTAIN: {RunStep.DISCARD: RunState.DISCARDED},
    RunState.RELEASED: {},
    RunState.DISCARDED: {RunStep.CONFIRM_COMMIT: RunState.COMMITTED},
}


@pytest.mark.parametrize("step", RunStep)
@pytest.mark.parametrize("state", RunState)
def test_each_step_leads_from_each_state_to_one_state(state, step):
    run = JobRun()
    run.state = state

    has_changed = run.advance(step)

    assert run.state is CHANGES[state].get(step, state)
    assert has_changed is (step in CHANGES[state])


@pytest.mark.parametrize("state", RunState)
def test_start_and_end_make_the_steps_of_their_names(state):
    for step, make in ((RunStep.START, JobRun.start), (RunStep.END, JobRun.end)):
        run = JobRun()
        run.state = state

        make(run)

        assert run.state is CHANGES[state].get(step, state)


def test_a_run_begins_as_claimed():
    assert JobRun().state is RunState.CLAIMED


def test_a_run_that_did_not_start_or_has_ended_is_inactive():
    assert sorted(INACTIVE_STATES) == ["claimed", "ended", "uncertain"]


def test_a_task_should_stop_when_it_is_stopped_or_its_job_is_released_or_claimed_again():
    assert sorted(STOPPED_STATES) == ["discarded", "released", "stopping"]


def test_a_task_that_was_asked_to_stop_stays_asked_while_its_transaction_commits():
    for step in (RunStep.STOP, RunStep.DISCARD):
        run = JobRun()
        run.advance(RunStep.START)
        assert not run.should_stop

        run.advance(step)
        run.advance(RunStep.BEGIN_COMMIT)
        run.advance(RunStep.CONFIRM_COMMIT)

        assert run.state is RunState.COMMITTED
        assert run.should_stop


def test_of_two_threads_only_one_makes_a_step():
    for _ in range(100):
        run, barrier = JobRun(), threading.Barrier(2)
        run.advance(RunStep.START)
        changes: list[bool] = []

        def stop(run=run, barrier=barrier, changes=changes):
            barrier.wait()
            changes.append(run.advance(RunStep.STOP))

        threads = [threading.Thread(target=stop) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

        assert sorted(changes) == [False, True]

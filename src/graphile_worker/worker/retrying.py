"""When a job that failed is tried again, by the policy of its task."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from graphile_worker.errors import JobNotHeld
from graphile_worker.jobs import Job, When, check_when
from graphile_worker.retries import Backoff
from graphile_worker.tasks import Task
from graphile_worker.worker.signals import is_interrupt


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """Without `when` the job backs off as usual; giving up spends all attempts."""

    when: When | None = None
    give_up: bool = False


AS_USUAL = NextAttempt()


def next_attempt(task: Task[..., Any], job: Job, error: BaseException) -> NextAttempt:
    """What the task's policy says about this error; a policy that fails itself has no say."""
    if isinstance(error, JobNotHeld) or task.options.retry is None:
        return AS_USUAL
    try:
        when = _asked(task, job, error)
    except BaseException as broken:
        if is_interrupt(broken):
            raise
        with suppress(Exception):
            error.add_note(f"and its retry policy failed, so it backs off as usual: {broken!r}")
        return AS_USUAL
    return NextAttempt(when, give_up=when is None)


def _asked(task: Task[..., Any], job: Job, error: BaseException) -> When | None:
    policy = task.options.retry
    if isinstance(policy, Backoff):
        return policy.delay(error, job.attempts)
    assert policy is not None
    when = policy(error, job)
    if when is not None:
        check_when("retry", when)
    return when

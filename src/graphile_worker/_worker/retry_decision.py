"""Decide when a failed job is retried, by the policy of its task."""

from contextlib import suppress
from typing import Any

from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker._worker.signals import is_interrupt
from graphile_worker.errors import JobLockLostError
from graphile_worker.jobs import Job, RunAt, check_run_at
from graphile_worker.retries import Backoff
from graphile_worker.tasks import Task


class NextAttempt(LazyDataclass):
    """When to retry: by default after the default backoff. `is_permanent` uses up all attempts."""

    when: RunAt | None = None
    is_permanent: bool = False


DEFAULT_BACKOFF = NextAttempt()


def decide_next_attempt(task: Task[..., Any], job: Job, error: BaseException) -> NextAttempt:
    """Apply the retry policy of the task, or the default backoff if the policy raises."""
    if isinstance(error, JobLockLostError) or task.options.retry is None:
        return DEFAULT_BACKOFF
    try:
        when = _apply_policy(task, job, error)
    except BaseException as broken:
        if is_interrupt(broken):
            raise
        with suppress(Exception):
            error.add_note(f"its retry policy raised {broken!r}, the default backoff applies")
        return DEFAULT_BACKOFF
    return NextAttempt(when, is_permanent=when is None)


def _apply_policy(task: Task[..., Any], job: Job, error: BaseException) -> RunAt | None:
    policy = task.options.retry
    if isinstance(policy, Backoff):
        return policy.delay(error, job.attempts)
    assert policy is not None
    when = policy(error, job)
    if when is not None:
        check_run_at("retry", when)
    return when

"""What became of a job: `Retention` chooses what is kept, `JobStatus` is what was kept."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker.errors import ConfigurationError

# Outcomes are deleted after this time, unless the schema has another value.
DEFAULT_KEEP = timedelta(days=7)

MIN_KEEP = timedelta(seconds=1)
MAX_KEEP = timedelta(days=3650)

# The largest result that a worker stores.
MAX_RESULT_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Choose what a task keeps of its ended jobs: `@app.task(retention=Retention(results=True))`.

    Each ended job leaves an outcome: whether it succeeded, when it ran, and its last error.

    Args:
        results: Also keep what the task returns.
        attempts: Also keep each attempt: its start, duration, worker and error.
        payloads: Also keep the payload and the priority of the job.
        keep: How long outcomes are visible (default: as long as the schema keeps them).

    Raises:
        ConfigurationError: `keep` is not a timedelta between a second and ten years.
    """

    results: bool = False
    attempts: bool = False
    payloads: bool = False
    keep: timedelta | None = None

    def __post_init__(self) -> None:
        if self.keep is not None:
            check_keep(self.keep)


def check_keep(keep: object) -> timedelta:
    """Return a time to keep outcomes, or raise ConfigurationError."""
    if not isinstance(keep, timedelta):
        raise ConfigurationError(f"keep must be a timedelta, got {keep!r}")
    if not MIN_KEEP <= keep <= MAX_KEEP:
        raise ConfigurationError(f"keep must be from {MIN_KEEP} to {MAX_KEEP}, got {keep}")
    return keep


class JobStatusState(StrEnum):
    """The states of `graphile-worker jobs list`, and two more for a job that is deleted."""

    STALE = "stale"
    """Locked for more than four hours, or by a dead worker."""
    RUNNING = "running"
    """Locked by a worker."""
    FAILED = "failed"
    """Permanently failed: no attempts are left."""
    RETRYING = "retrying"
    """Waits for its next attempt."""
    SCHEDULED = "scheduled"
    """Waits for its first `run_at`."""
    WAITING = "waiting"
    """Waits for another job of its named queue."""
    READY = "ready"
    """Waits for a worker."""
    SUCCEEDED = "succeeded"
    """The task returned."""
    UNKNOWN = "unknown"
    """The job is deleted and left no outcome."""


class Attempt(LazyKeywordDataclass):
    """One attempt of a job that ended, with its error if it failed.

    Attributes:
        number: Number of the attempt, from 1.
        started_at: When the task started.
        duration: How long the task ran.
        worker: Id of the worker pool.
        error: Error with its traceback, or None if the attempt succeeded.
        error_class: Import path of the class of the error, for example `builtins.ValueError`. None
            if the worker could not store it.
    """

    number: int
    started_at: datetime
    duration: timedelta
    worker: str
    error: str | None
    error_class: str | None = None


class Progress(LazyKeywordDataclass):
    """The progress that a running task reported last.

    Attributes:
        fraction: From 0 to 1, or None if the task does not know it.
        message: Text of the report, or None.
        updated_at: When the task reported.
    """

    fraction: float | None
    message: str | None
    updated_at: datetime


class JobStatus(LazyKeywordDataclass):
    """What is known of a job.

    `str(status)` is a sentence for people.

    Attributes:
        job_id: Id of the job.
        state: State of the job.
        task_identifier: Name of its task, or None if the state is unknown.
        attempts: The attempts that ended, oldest first, if the task keeps them.
        attempt_count: Number of attempts that started.
        progress: Progress of a running job, or None.
        error: Error of the last attempt, or None.
        created_at: When the job was added, or None if the state is unknown.
        started_at: Start of the last attempt of an ended job, or None.
        finished_at: End of the last attempt of an ended job, or None.
        detail: Why the state is unknown, or None.
    """

    job_id: int
    state: JobStatusState
    task_identifier: str | None = None
    attempts: tuple[Attempt, ...] = ()
    attempt_count: int = 0
    progress: Progress | None = None
    error: str | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    detail: str | None = None

    def __str__(self) -> str:
        task = "" if self.task_identifier is None else f" ({self.task_identifier})"
        return f"job {self.job_id}{task} {self.detail or self._describe()}"

    def _describe(self) -> str:
        match self.state:
            case JobStatusState.RUNNING | JobStatusState.STALE:
                return self._describe_run()
            case JobStatusState.SUCCEEDED:
                return f"succeeded{self._describe_end()}"
            case JobStatusState.FAILED:
                return f"permanently failed{self._describe_end()}{self._describe_error()}"
            case JobStatusState.RETRYING:
                count = self.attempt_count
                return f"waits for its next attempt after {_count_attempts(count)}" + (
                    self._describe_error()
                )
            case _:
                return _WAITING_WORDS.get(self.state, f"is {self.state}")

    def _describe_run(self) -> str:
        words = "is running" if self.state is JobStatusState.RUNNING else "is held by a dead worker"
        words += f", attempt {self.attempt_count}"
        if self.progress is not None:
            if self.progress.fraction is not None:
                words += f", {self.progress.fraction:.0%} done"
            words += f": {self.progress.message}" if self.progress.message else ""
        return words

    def _describe_end(self) -> str:
        at = "" if self.finished_at is None else f" at {self.finished_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{at} after {_count_attempts(self.attempt_count)}"

    def _describe_error(self) -> str:
        # The first line; a traceback follows.
        return "" if not self.error else f": {self.error.splitlines()[0]}"


_WAITING_WORDS = {
    JobStatusState.SCHEDULED: "is scheduled for later",
    JobStatusState.WAITING: "waits for another job of its named queue",
    JobStatusState.READY: "waits for a worker",
}


def _count_attempts(count: int) -> str:
    return f"{count} attempt" if count == 1 else f"{count} attempts"

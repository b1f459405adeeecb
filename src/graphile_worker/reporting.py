"""What a worker says about its work: one listener turns events into log lines."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from graphile_worker.error_text import error_line
from graphile_worker.errors import LeaseLapsed
from graphile_worker.events import (
    CronBackfillDue,
    CronFailed,
    CronJob,
    CronScheduled,
    Event,
    ForcefulShutdown,
    GetJobErrored,
    GracefulShutdown,
    HeartbeatFailed,
    JobErrored,
    JobEvent,
    JobFailed,
    JobInterrupted,
    JobLockLost,
    JobRecovered,
    JobStarted,
    JobSucceeded,
    JobSucceededLate,
    ListenFailed,
    ListenStarted,
    PoolEvent,
    PoolFatalError,
    PoolFenced,
    PoolForcefulShutdown,
    PoolGracefulShutdown,
    PoolSwept,
    ResetLockedFailed,
    RunnerStarted,
    RunnerStopped,
    SweepFailed,
    WorkerEvent,
)
from graphile_worker.hooks import Hooks
from graphile_worker.logs import Logger, job_logger


@contextmanager
def log_events(hooks: Hooks, logger: Logger, pool_ids: Collection[str]) -> Iterator[None]:
    """While this lasts, say what happens in a pool: a line for what a person would want to know.

    A pool may get further ids while it runs.
    """

    def register(event: type[Event], say: Callable[[Any], None]) -> None:
        def say_if_ours(event: Event) -> None:
            # Several pools may share their hooks.
            if not isinstance(event, PoolEvent) or event.pool_id in pool_ids:
                say(event)

        hooks.on(event)(say_if_ours)
        registered.append((event, say_if_ours))

    registered: list[tuple[type[Event], Callable[[Any], None]]] = []
    for event, say in _Lines(logger).wanted().items():
        register(event, say)
    try:
        yield
    finally:
        for event, say in registered:
            hooks.off(event, say)


class _Lines:
    """The words for each event."""

    def __init__(self, logger: Logger) -> None:
        self._core = logger
        self._last_error: BaseException | None = None

    def wanted(self) -> dict[type[Event], Callable[[Any], None]]:
        lines = self._always()
        if not os.environ.get("NO_LOG_SUCCESS"):
            lines |= {RunnerStarted: self.started, JobSucceeded: self.succeeded}
        # One more line for every job: only for those who look for a mistake.
        if os.environ.get("GRAPHILE_LOGGER_DEBUG") or os.environ.get("GRAPHILE_WORKER_DEBUG"):
            lines[JobStarted] = self.job_started
        return lines

    def _always(self) -> dict[type[Event], Callable[[Any], None]]:
        return {
            JobSucceededLate: self.failed_late,
            JobErrored: self.errored,
            JobFailed: self.failed,
            JobLockLost: self.lock_lost,
            JobInterrupted: self.interrupted,
            GetJobErrored: self.get_job_errored,
            ListenStarted: self.listening,
            ListenFailed: self.listen_failed,
            ResetLockedFailed: self.reset_locked_failed,
            HeartbeatFailed: self.heartbeat_failed,
            PoolFenced: self.fenced,
            PoolSwept: self.swept,
            JobRecovered: self.recovered,
            SweepFailed: self.sweep_failed,
            CronBackfillDue: self.cron_owed,
            CronScheduled: self.cron_scheduled,
            CronFailed: self.cron_failed,
            PoolFatalError: self.not_written,
            PoolGracefulShutdown: self.stopping,
            PoolForcefulShutdown: self.stopping_now,
            GracefulShutdown: self.signalled,
            ForcefulShutdown: self.signalled,
            RunnerStopped: self.stopped,
        }

    def started(self, event: RunnerStarted) -> None:
        names = ", ".join(repr(name) for name in event.tasks)
        self._core.info("worker connected and looking for jobs (task names: %s)", names)

    def job_started(self, event: JobStarted) -> None:
        self._job(event).debug("began job %s (%s)", event.job.id, event.job.task_identifier)

    def failed_late(self, event: JobSucceededLate) -> None:
        assert event.late_error is not None
        self._job(event).warning(
            "job %s was done with its own transaction, then its task raised %s",
            event.job.id,
            error_line(event.late_error),
            exc_info=event.late_error,
        )

    def succeeded(self, event: JobSucceeded) -> None:
        milliseconds = event.duration.total_seconds() * 1000
        job = event.job
        self._job(event).info(
            "completed job %s (%s) with success (%.2f ms)",
            job.id,
            job.task_identifier,
            milliseconds,
            duration_ms=milliseconds,
        )

    def errored(self, event: JobErrored) -> None:
        job = event.job
        self._job(event).error(
            "failed job %s (%s, attempt %s of %s) with error %s (%.2f ms)",
            job.id,
            job.task_identifier,
            job.attempts,
            job.max_attempts,
            error_line(event.error),
            event.duration.total_seconds() * 1000,
            exc_info=event.error,
        )

    def failed(self, event: JobFailed) -> None:
        job = event.job
        self._job(event).error(
            "gave up on job %s (%s): it will not run again", job.id, job.task_identifier
        )

    def lock_lost(self, event: JobLockLost) -> None:
        self._job(event).warning(
            "job %s ended, but somebody else holds it now: nothing was written", event.job.id
        )

    def interrupted(self, event: JobInterrupted) -> None:
        self._job(event).warning("handed job %s back, its attempt not counted", event.job.id)

    def get_job_errored(self, event: GetJobErrored) -> None:
        # Each worker that waited is told of the same error.
        last, self._last_error = self._last_error, event.error
        if event.error is last:
            return
        # Said once for each time that the database is away.
        if isinstance(event.error, LeaseLapsed) and isinstance(last, LeaseLapsed):
            return
        self._worker(event).warning("could not ask for a job: %s", error_line(event.error))

    def listening(self, event: ListenStarted) -> None:
        self._core.debug("listening for new jobs")

    def listen_failed(self, event: ListenFailed) -> None:
        self._core.warning(
            "cannot listen for new jobs, will try again: %s", error_line(event.error)
        )

    def reset_locked_failed(self, event: ResetLockedFailed) -> None:
        self._core.warning("could not look for stale locks: %s", error_line(event.error))

    def heartbeat_failed(self, event: HeartbeatFailed) -> None:
        # Once for each time that the database is away.
        if event.failures == 1:
            self._core.warning(
                "cannot say that this worker lives, will try again: %s", error_line(event.error)
            )

    def fenced(self, event: PoolFenced) -> None:
        self._core.error(
            "no heartbeat reached the database for %.1f s: gave up jobs %s, others may take them",
            event.silence.total_seconds(),
            _listed(event.job_ids),
        )

    def swept(self, event: PoolSwept) -> None:
        self._core.error(
            "others took this worker for dead and its jobs %s from it; it goes on as %s",
            _listed(event.job_ids),
            event.pool_id,
        )

    def recovered(self, event: JobRecovered) -> None:
        say = self._core.error if event.is_parked else self._core.warning
        say(
            "%s job %s (%s), which dead pool %s had %s (recoveries while it ran: %s)",
            "parked" if event.is_parked else "recovered",
            event.job.id,
            event.job.task_identifier,
            event.dead_pool_id,
            "started" if event.was_started else "fetched, not started",
            event.recoveries,
        )

    def sweep_failed(self, event: SweepFailed) -> None:
        self._core.warning("could not look for dead workers: %s", error_line(event.error))

    def cron_owed(self, event: CronBackfillDue) -> None:
        names = _named(event.jobs)
        self._core.info("cron makes up for %s of %s", names, event.timestamp.isoformat())

    def cron_scheduled(self, event: CronScheduled) -> None:
        if event.jobs:
            self._core.debug("cron added %s of %s", _named(event.jobs), event.timestamp.isoformat())

    def cron_failed(self, event: CronFailed) -> None:
        if event.identifier is not None:
            self._core.error(
                "cron item %r was left out: %s", event.identifier, _summary(event.error)
            )
        elif event.failures == 1:
            # Once for each time that the database is away.
            self._core.error("cron failed, will begin anew: %s", error_line(event.error))

    def not_written(self, event: PoolFatalError) -> None:
        self._core.error(
            "%s could not be written, will try again: %s", event.action, error_line(event.error)
        )

    def stopping(self, event: PoolGracefulShutdown) -> None:
        self._core.info("stopping: %s", event.message)

    def stopping_now(self, event: PoolForcefulShutdown) -> None:
        self._core.warning("stopping at once: %s", event.message)

    def signalled(self, event: GracefulShutdown | ForcefulShutdown) -> None:
        self._core.debug("heard %s", event.signal)

    def stopped(self, event: RunnerStopped) -> None:
        self._core.debug("stopped")

    def _worker(self, event: WorkerEvent) -> Logger:
        return self._core.scope(label="worker", worker_id=event.worker_id)

    def _job(self, event: JobEvent) -> Logger:
        return job_logger(self._core, event.worker_id, event.job.task_identifier, event.job.id)


def _summary(error: BaseException) -> str:
    """What went wrong, without the row that a database quotes beside it: payloads hold secrets."""
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    return str(said) if said else error_line(error)


def _named(jobs: Iterable[CronJob]) -> str:
    return ", ".join(repr(job.identifier) for job in jobs)


def _listed(job_ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, job_ids)) or "(none)"

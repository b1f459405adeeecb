"""What a worker says about its work: one listener turns events into log lines."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from graphile_worker._support.error_format import format_error_line, format_one_line, make_printable
from graphile_worker._support.logs import Logger, is_level_enabled
from graphile_worker.errors import LeaseExpiredError
from graphile_worker.events import (
    CronBackfillDue,
    CronFailed,
    CronJob,
    CronScheduled,
    Event,
    ForcefulShutdown,
    GetJobErrored,
    GetJobRecovered,
    GracefulShutdown,
    HeartbeatFailed,
    HeartbeatRecovered,
    JobErrored,
    JobEvent,
    JobFailed,
    JobInterrupted,
    JobLockLost,
    JobOverran,
    JobRecovered,
    JobStarted,
    JobSucceeded,
    JobSucceededLate,
    LeaseExpired,
    LeaseLost,
    ListenFailed,
    ListenStarted,
    PoolEvent,
    PoolFatalError,
    PoolForcefulShutdown,
    PoolGracefulShutdown,
    RecoveryFailed,
    ResetLockedFailed,
    RunnerStarted,
    RunnerStopped,
    TaskPaused,
    TaskResumed,
    WorkerEvent,
    WorkerRestarted,
)
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job

MILLISECOND = timedelta(milliseconds=1)

# Seconds between two lines about the same trouble.
REPEAT_INTERVAL_SECONDS = 60.0

# Where a worker finds the database unreachable, soon after it is.
FETCHING, LISTENING, HEARTBEAT = "fetching", "listening", "heartbeat"

FAILED_TEMPLATE = "failed job %s (%s, attempt %s of %s) with error %s (%.2f ms)"
FAILED_PERMANENTLY_TEMPLATE = f"permanently {FAILED_TEMPLATE}"

RECOVERED_TEMPLATE = (
    "recovered job %s (%s), which dead pool %s had %s (recoveries while it ran: %s)"
)
QUARANTINED_TEMPLATE = RECOVERED_TEMPLATE.replace("recovered", "quarantined", 1)


@contextmanager
def log_events(
    hooks: Hooks,
    logger: Logger,
    pool_ids: Collection[str],
    *,
    is_outage: Callable[[BaseException], bool],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """While this lasts, say what happens in a pool: a line for what a person would want to know.

    A pool may get further ids while it runs. `is_outage` tells errors of an unreachable database.
    """

    def register(event: type[Event], say: Callable[[Any], None]) -> None:
        def say_if_ours(event: Event) -> None:
            # Several pools may share their hooks.
            if not isinstance(event, PoolEvent) or event.pool_id in pool_ids:
                say(event)

        hooks.on(event)(say_if_ours)
        registered.append((event, say_if_ours))

    registered: list[tuple[type[Event], Callable[[Any], None]]] = []
    for event, say in _EventLogger(logger, is_outage, clock).get_handlers().items():
        register(event, say)
    try:
        yield
    finally:
        for event, say in registered:
            hooks.off(event, say)


def build_job_logger(logger: Logger, pool_id: str, job: Job, **more: Any) -> Logger:
    """A logger whose lines carry what there is to know of a job."""
    return logger.scope(
        label="job",
        pool_id=pool_id,
        **more,
        task_identifier=job.task_identifier,
        job_id=job.id,
        queue_name=job.queue_name,
        attempt=job.attempts,
        max_attempts=job.max_attempts,
    )


class _Outage:
    """Logs when the database becomes unreachable, once a minute while it is, and when it is back.

    A worker uses the database in several places: an outage lasts until all of them work again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failing_components: set[str] = set()
        self._began_at = self._logged_at = 0.0

    @property
    def is_active(self) -> bool:
        return bool(self._failing_components)

    def record_failure(self, component: str, logger: Logger, error: BaseException) -> None:
        now = self._clock()
        if not self._failing_components:
            self._began_at = self._logged_at = now
            logger.warning("database unreachable, retrying: %s", _format_outage_reason(error))
        elif now - self._logged_at >= REPEAT_INTERVAL_SECONDS:
            self._logged_at = now
            seconds = now - self._began_at
            logger.warning(
                "database unreachable for %.0f s, retrying: %s",
                seconds,
                _format_outage_reason(error),
            )
        self._failing_components.add(component)

    def record_success(self, component: str, logger: Logger) -> None:
        if component not in self._failing_components:
            return
        self._failing_components.remove(component)
        if not self._failing_components:
            seconds = self._clock() - self._began_at
            logger.warning("database reachable again after %.1f s", seconds)


class _EventLogger:
    """The words for each event."""

    def __init__(
        self,
        logger: Logger,
        is_outage: Callable[[BaseException], bool],
        clock: Callable[[], float],
    ) -> None:
        self._logger = logger
        self._is_outage = is_outage
        self._clock = clock
        self._outage = _Outage(clock)
        self._last_error: BaseException | None = None
        # When a line about something that fails again and again was written last.
        self._logged_at: dict[tuple[str, type[BaseException]], float] = {}

    def get_handlers(self) -> dict[type[Event], Callable[[Any], None]]:
        lines = self._get_default_handlers()
        if not os.environ.get("NO_LOG_SUCCESS"):
            lines |= {RunnerStarted: self.log_runner_started, JobSucceeded: self.log_job_succeeded}
        # One more line for every job: only for those who look for a mistake.
        if os.environ.get("GRAPHILE_LOGGER_DEBUG") or os.environ.get("GRAPHILE_WORKER_DEBUG"):
            lines[JobStarted] = self.log_job_started
        return lines

    def _get_default_handlers(self) -> dict[type[Event], Callable[[Any], None]]:
        return {
            JobSucceededLate: self.log_job_succeeded_late,
            JobErrored: self.log_job_errored,
            JobFailed: self.log_job_failed,
            JobLockLost: self.log_job_lock_lost,
            JobInterrupted: self.log_job_interrupted,
            JobOverran: self.log_job_overran,
            TaskPaused: self.log_task_paused,
            TaskResumed: self.log_task_resumed,
            WorkerRestarted: self.log_worker_restarted,
            GetJobErrored: self.log_get_job_errored,
            GetJobRecovered: self.log_get_job_recovered,
            ListenStarted: self.log_listen_started,
            ListenFailed: self.log_listen_failed,
            ResetLockedFailed: self.log_reset_locked_failed,
            HeartbeatFailed: self.log_heartbeat_failed,
            HeartbeatRecovered: self.log_heartbeat_recovered,
            LeaseExpired: self.log_lease_expired,
            LeaseLost: self.log_lease_lost,
            JobRecovered: self.log_job_recovered,
            RecoveryFailed: self.log_recovery_failed,
            CronBackfillDue: self.log_cron_backfill_due,
            CronScheduled: self.log_cron_scheduled,
            CronFailed: self.log_cron_failed,
            PoolFatalError: self.log_pool_fatal_error,
            PoolGracefulShutdown: self.log_graceful_shutdown,
            PoolForcefulShutdown: self.log_forceful_shutdown,
            GracefulShutdown: self.log_signal,
            ForcefulShutdown: self.log_signal,
            RunnerStopped: self.log_runner_stopped,
        }

    def log_runner_started(self, event: RunnerStarted) -> None:
        names = ", ".join(repr(name) for name in event.tasks)
        self._get_pool_logger(event).info(
            "worker connected and looking for jobs (task names: %s)", names
        )

    def log_job_started(self, event: JobStarted) -> None:
        self._get_job_logger(event).debug(
            "began job %s (%s)", event.job.id, event.job.task_identifier
        )

    def log_job_succeeded_late(self, event: JobSucceededLate) -> None:
        assert event.late_error is not None
        self._get_job_logger(event).warning(
            "job %s was done with its own transaction, then its task raised %s",
            event.job.id,
            format_error_line(event.late_error),
            exc_info=event.late_error,
        )

    def log_job_succeeded(self, event: JobSucceeded) -> None:
        if not is_level_enabled(self._logger, "info"):
            return
        job = event.job
        times = _compute_times(event)
        self._get_job_logger(event).info(
            "completed job %s (%s) with success (%.2f ms)",
            job.id,
            job.task_identifier,
            times["duration_ms"],
            **times,
        )

    def log_job_errored(self, event: JobErrored) -> None:
        # A permanent failure is one error, which `failed` logs. What is retried is a warning.
        if event.will_retry and is_level_enabled(self._logger, "warning"):
            _log_failure(self._get_job_logger(event).warning, FAILED_TEMPLATE, event)

    def log_job_failed(self, event: JobFailed) -> None:
        _log_failure(self._get_job_logger(event).error, FAILED_PERMANENTLY_TEMPLATE, event)

    def log_job_lock_lost(self, event: JobLockLost) -> None:
        self._get_job_logger(event).warning(
            "job %s ended, but somebody else holds it now: nothing was written", event.job.id
        )

    def log_job_interrupted(self, event: JobInterrupted) -> None:
        self._get_job_logger(event).warning(
            "handed job %s back, its attempt not counted", event.job.id
        )

    def log_job_overran(self, event: JobOverran) -> None:
        self._get_job_logger(event).warning(
            "job %s (%s) runs past its timeout of %s and cannot be stopped: its slot and its lock "
            "stay taken until the function returns",
            event.job.id,
            event.job.task_identifier,
            event.timeout,
        )

    def log_task_paused(self, event: TaskPaused) -> None:
        self._get_pool_logger(event).error(
            "%s functions of task %r run past their timeout: no more of its jobs are taken until "
            'one returns. With run_in="process" the task can be stopped',
            event.count,
            event.task_identifier,
        )

    def log_task_resumed(self, event: TaskResumed) -> None:
        self._get_pool_logger(event).info("jobs of task %r are taken again", event.task_identifier)

    def log_worker_restarted(self, event: WorkerRestarted) -> None:
        self._get_worker_logger(event).error(
            "worker was cancelled, not by a stop, and starts again: "
            "does a task or a listener cancel asyncio tasks that it did not start?"
        )

    def log_get_job_errored(self, event: GetJobErrored) -> None:
        # Each worker that waited is told of the same error.
        if event.error is self._last_error:
            return
        self._last_error = event.error
        self._log_retried_error(
            FETCHING, self._get_worker_logger(event), "could not ask for a job: %s", event.error
        )

    def log_get_job_recovered(self, event: GetJobRecovered) -> None:
        self._outage.record_success(FETCHING, self._get_pool_logger(event))

    def log_listen_started(self, event: ListenStarted) -> None:
        self._outage.record_success(LISTENING, self._get_pool_logger(event))
        self._get_pool_logger(event).debug("listening for new jobs")

    def log_listen_failed(self, event: ListenFailed) -> None:
        template = "cannot listen for new jobs, retrying: %s"
        self._log_retried_error(LISTENING, self._get_pool_logger(event), template, event.error)

    def log_heartbeat_failed(self, event: HeartbeatFailed) -> None:
        template = "heartbeat failed, retrying: %s"
        self._log_retried_error(HEARTBEAT, self._get_pool_logger(event), template, event.error)

    def log_heartbeat_recovered(self, event: HeartbeatRecovered) -> None:
        self._outage.record_success(HEARTBEAT, self._get_pool_logger(event))

    def log_reset_locked_failed(self, event: ResetLockedFailed) -> None:
        self._log_background_error(
            self._get_pool_logger(event), "could not look for stale locks: %s", event.error
        )

    def log_lease_expired(self, event: LeaseExpired) -> None:
        self._get_pool_logger(event).error(
            "no heartbeat reached the database for %.1f s: gave up jobs %s, others may take them",
            event.time_since_heartbeat.total_seconds(),
            _format_job_ids(event.job_ids),
        )

    def log_lease_lost(self, event: LeaseLost) -> None:
        self._logger = self._get_pool_logger(event)
        self._logger.error(
            "others took this worker for dead and its jobs %s from it; it goes on as %s",
            _format_job_ids(event.job_ids),
            event.pool_id,
        )

    def log_job_recovered(self, event: JobRecovered) -> None:
        logger = build_job_logger(self._logger, event.pool_id, event.job)
        say, template = (
            (logger.error, QUARANTINED_TEMPLATE)
            if event.is_quarantined
            else (logger.warning, RECOVERED_TEMPLATE)
        )
        say(
            template,
            event.job.id,
            make_printable(event.job.task_identifier),
            make_printable(event.dead_pool_id),
            "started" if event.was_started else "fetched, not started",
            event.crashes,
        )

    def log_recovery_failed(self, event: RecoveryFailed) -> None:
        self._log_background_error(
            self._get_pool_logger(event), "could not look for dead workers: %s", event.error
        )

    def log_cron_backfill_due(self, event: CronBackfillDue) -> None:
        names = _format_cron_names(event.jobs)
        self._logger.info("cron makes up for %s of %s", names, event.timestamp.isoformat())

    def log_cron_scheduled(self, event: CronScheduled) -> None:
        if event.jobs:
            self._logger.debug(
                "cron added %s of %s", _format_cron_names(event.jobs), event.timestamp.isoformat()
            )

    def log_cron_failed(self, event: CronFailed) -> None:
        if event.identifier is not None:
            self._logger.error(
                "cron item %r was left out: %s",
                event.identifier,
                _format_database_error(event.error),
            )
        elif event.failures == 1:
            self._log_background_error(
                self._logger, "cron failed, retrying: %s", event.error, "error"
            )

    def log_pool_fatal_error(self, event: PoolFatalError) -> None:
        self._get_pool_logger(event).error(
            "%s could not be written, will try again: %s",
            event.action,
            format_error_line(event.error),
        )

    def log_graceful_shutdown(self, event: PoolGracefulShutdown) -> None:
        self._get_pool_logger(event).info("stopping: %s", format_one_line(event.message))

    def log_forceful_shutdown(self, event: PoolForcefulShutdown) -> None:
        self._get_pool_logger(event).warning("stopping at once: %s", format_one_line(event.message))

    def log_signal(self, event: GracefulShutdown | ForcefulShutdown) -> None:
        self._logger.debug("heard %s", event.signal)

    def log_runner_stopped(self, event: RunnerStopped) -> None:
        self._get_pool_logger(event).debug("stopped")

    def _log_retried_error(
        self, component: str, logger: Logger, template: str, error: BaseException
    ) -> None:
        """Log what is retried all the time: outages together, any other error once a minute.

        Each single error is a debug line.
        """
        if self._is_outage(error):
            self._outage.record_failure(component, self._logger, error)
        elif not isinstance(error, LeaseExpiredError):
            # The database answered.
            self._outage.record_success(component, self._logger)
        if self._is_outage(error) or (
            isinstance(error, LeaseExpiredError) and self._outage.is_active
        ):
            _log_error(logger, "debug", template, error)
            return
        key, now = (component, type(error)), self._clock()
        is_due = now - self._logged_at.get(key, -math.inf) >= REPEAT_INTERVAL_SECONDS
        if is_due:
            self._logged_at[key] = now
        _log_error(logger, "warning" if is_due else "debug", template, error)

    def _log_background_error(
        self, logger: Logger, template: str, error: BaseException, level: str = "warning"
    ) -> None:
        """Log what is retried now and then; of an outage, the places above log more."""
        is_slow = isinstance(error, TimeoutError) and not self._outage.is_active
        is_covered = self._is_outage(error) and not is_slow
        _log_error(logger, "debug" if is_covered else level, template, error)

    def _get_pool_logger(self, event: PoolEvent) -> Logger:
        return self._logger.scope(pool_id=event.pool_id)

    def _get_worker_logger(self, event: WorkerEvent) -> Logger:
        return self._logger.scope(label="worker", pool_id=event.pool_id, worker_id=event.worker_id)

    def _get_job_logger(self, event: JobEvent) -> Logger:
        return build_job_logger(self._logger, event.pool_id, event.job, worker_id=event.worker_id)


def _log_error(logger: Logger, level: str, template: str, error: BaseException) -> None:
    if is_level_enabled(logger, level):
        getattr(logger, level)(template, format_error_line(error))


def _compute_times(event: JobSucceeded | JobErrored | JobFailed) -> dict[str, float | None]:
    """How long the task ran, and how long its job was due before this pool took it."""
    locked_at, run_at = event.job.locked_at, event.job.run_at
    wait = None if locked_at is None else max(0.0, (locked_at - run_at) / MILLISECOND)
    return {
        "duration_ms": round(event.duration / MILLISECOND, 2),
        "wait_ms": None if wait is None else round(wait, 2),
    }


def _log_failure(log: Callable[..., None], template: str, event: JobErrored | JobFailed) -> None:
    job, times = event.job, _compute_times(event)
    log(
        template,
        job.id,
        job.task_identifier,
        job.attempts,
        job.max_attempts,
        format_error_line(event.error),
        times["duration_ms"],
        exc_info=event.error,
        **times,
    )


def _format_outage_reason(error: BaseException) -> str:
    # By itself a time limit has no words.
    is_mute = isinstance(error, TimeoutError) and not str(error)
    return "TimeoutError: no answer in time" if is_mute else format_error_line(error)


def _format_database_error(error: BaseException) -> str:
    """What went wrong, without the row that a database quotes beside it: payloads hold secrets."""
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    return format_one_line(str(said)) if said else format_error_line(error)


def _format_cron_names(jobs: Iterable[CronJob]) -> str:
    return ", ".join(repr(job.identifier) for job in jobs)


def _format_job_ids(job_ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, job_ids)) or "(none)"

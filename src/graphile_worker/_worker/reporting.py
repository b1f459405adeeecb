"""Log the events of a worker: one listener turns events into log lines."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from graphile_worker._support.error_format import format_error_line, format_one_line, make_printable
from graphile_worker._support.logs import Logger, is_level_enabled
from graphile_worker._worker.outage_log import REPEAT_INTERVAL_SECONDS, OutageLog
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
    PausesChanged,
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

# The parts of a worker that notice an unreachable database soon.
FETCHING, LISTENING, HEARTBEAT = "fetching", "listening", "heartbeat"

FAILED_TEMPLATE = "failed job %s (%s, attempt %s of %s) with error %s (%.2f ms)"
FAILED_PERMANENTLY_TEMPLATE = f"permanently {FAILED_TEMPLATE}"
RECOVERED_TEMPLATE = "recovered job %s (%s) of dead pool %s (%s, crashes: %s)"
QUARANTINED_TEMPLATE = RECOVERED_TEMPLATE.replace("recovered", "quarantined", 1)


class _Line(NamedTuple):
    """A log line with fields of an event."""

    level: str
    template: str
    get_args: Callable[[Any], tuple[object, ...]] = lambda event: ()


LINES: Mapping[type[Event], _Line] = {
    JobLockLost: _Line(
        "warning",
        "lost the lock of job %s while it ran, result discarded",
        lambda event: (event.job.id,),
    ),
    JobInterrupted: _Line(
        "warning", "released job %s (attempt not counted)", lambda event: (event.job.id,)
    ),
    JobOverran: _Line(
        "warning",
        "job %s (%s) exceeded its timeout of %s and cannot be stopped; its slot and lock stay in "
        "use until the function returns",
        lambda event: (event.job.id, event.job.task_identifier, event.timeout),
    ),
    TaskPaused: _Line(
        "error",
        "paused task %r until one of %s functions past their timeout returns; "
        'with run_in="process" a worker can stop them',
        lambda event: (event.task_identifier, event.count),
    ),
    TaskResumed: _Line("info", "resumed task %r", lambda event: (event.task_identifier,)),
    PausesChanged: _Line(
        "info",
        "pauses changed, paused tasks: %s",
        lambda event: (", ".join(map(repr, event.paused_tasks)) or "none",),
    ),
    WorkerRestarted: _Line(
        "error",
        "worker was cancelled outside of a shutdown, restarting: a task or a listener may cancel "
        "asyncio tasks that it did not start",
    ),
    LeaseExpired: _Line(
        "error",
        "lease expired after %.1f s without a heartbeat, stopped jobs %s: other workers may claim "
        "them",
        lambda event: (
            event.time_since_heartbeat.total_seconds(),
            _format_job_ids(event.job_ids),
        ),
    ),
    CronBackfillDue: _Line(
        "info",
        "cron: backfilling %s for %s",
        lambda event: (_format_cron_names(event.jobs), event.timestamp.isoformat()),
    ),
    PoolFatalError: _Line(
        "error",
        "%s failed, retrying: %s",
        lambda event: (event.action, format_error_line(event.error)),
    ),
    PoolGracefulShutdown: _Line(
        "info", "stopping: %s", lambda event: (format_one_line(event.message),)
    ),
    PoolForcefulShutdown: _Line(
        "warning", "stopping at once: %s", lambda event: (format_one_line(event.message),)
    ),
    GracefulShutdown: _Line("debug", "received %s", lambda event: (event.signal,)),
    ForcefulShutdown: _Line("debug", "received %s", lambda event: (event.signal,)),
    RunnerStopped: _Line("debug", "stopped"),
}

STARTED_LINE = _Line(
    "info",
    "worker connected and looking for jobs (task names: %s)",
    lambda event: (", ".join(repr(name) for name in event.tasks),),
)
JOB_STARTED_LINE = _Line(
    "debug", "started job %s (%s)", lambda event: (event.job.id, event.job.task_identifier)
)


@contextmanager
def log_events(
    hooks: Hooks,
    logger: Logger,
    pool_ids: Collection[str],
    *,
    is_outage: Callable[[BaseException], bool],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Log the events of one pool inside the block.

    Args:
        hooks: Where the events are emitted, including those of other pools.
        logger: Where to write the lines.
        pool_ids: The ids of the pool. The collection may grow while the pool runs.
        is_outage: Returns whether an error means that the database is unreachable.
        clock: Returns the current time in seconds, to limit repeated lines.
    """

    def register(event: type[Event], log: Callable[[Any], None]) -> None:
        def log_own_events(event: Event) -> None:
            if not isinstance(event, PoolEvent) or event.pool_id in pool_ids:
                log(event)

        hooks.on(event)(log_own_events)
        if event is JobSucceeded:
            hooks._set_condition(log_own_events, lambda: is_level_enabled(logger, "info"))
        registered.append((event, log_own_events))

    registered: list[tuple[type[Event], Callable[[Any], None]]] = []
    for event, log in _EventLogger(logger, is_outage, clock).get_handlers().items():
        register(event, log)
    try:
        yield
    finally:
        for event, log in registered:
            hooks.off(event, log)


def build_job_logger(logger: Logger, pool_id: str, job: Job, **more: Any) -> Logger:
    """Return a logger whose lines carry the fields of a job."""
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


class _EventLogger:
    """Writes the lines. An error that repeats is logged once a minute."""

    def __init__(
        self,
        logger: Logger,
        is_outage: Callable[[BaseException], bool],
        clock: Callable[[], float],
    ) -> None:
        self._logger = logger
        self._is_outage = is_outage
        self._clock = clock
        self._outage = OutageLog(clock)
        self._last_error: BaseException | None = None
        # When the last line about a repeated error was written.
        self._logged_at: dict[tuple[str, type[BaseException]], float] = {}

    def get_handlers(self) -> dict[type[Event], Callable[[Any], None]]:
        handlers: dict[type[Event], Callable[[Any], None]] = {
            event: partial(self._log_line, line) for event, line in LINES.items()
        }
        handlers |= {
            JobSucceededLate: self._log_job_succeeded_late,
            JobErrored: self._log_job_errored,
            JobFailed: self._log_job_failed,
            GetJobErrored: self._log_get_job_errored,
            GetJobRecovered: partial(self._log_recovered, FETCHING),
            ListenStarted: self._log_listen_started,
            ListenFailed: self._log_listen_failed,
            HeartbeatFailed: self._log_heartbeat_failed,
            HeartbeatRecovered: partial(self._log_recovered, HEARTBEAT),
            LeaseLost: self._log_lease_lost,
            JobRecovered: self._log_job_recovered,
            ResetLockedFailed: partial(
                self._log_background_error, "check for stale locks failed, retrying: %s"
            ),
            RecoveryFailed: partial(self._log_background_error, "recovery failed, retrying: %s"),
            CronScheduled: self._log_cron_scheduled,
            CronFailed: self._log_cron_failed,
        }
        if not os.environ.get("NO_LOG_SUCCESS"):
            handlers[RunnerStarted] = partial(self._log_line, STARTED_LINE)
            handlers[JobSucceeded] = self._log_job_succeeded
        # One more line for each job, only for debugging.
        if os.environ.get("GRAPHILE_LOGGER_DEBUG") or os.environ.get("GRAPHILE_WORKER_DEBUG"):
            handlers[JobStarted] = partial(self._log_line, JOB_STARTED_LINE)
        return handlers

    def _log_line(self, line: _Line, event: Event) -> None:
        log = getattr(self._get_logger(event), line.level)
        log(line.template, *line.get_args(event))

    def _log_job_succeeded_late(self, event: JobSucceededLate) -> None:
        assert event.late_error is not None
        self._get_logger(event).warning(
            "job %s completed in its own transaction, then its task raised %s",
            event.job.id,
            format_error_line(event.late_error),
            exc_info=event.late_error,
        )

    def _log_job_succeeded(self, event: JobSucceeded) -> None:
        if not is_level_enabled(self._logger, "info"):
            return
        times = _compute_times(event)
        self._get_logger(event).info(
            "completed job %s (%s) with success (%.2f ms)",
            event.job.id,
            event.job.task_identifier,
            times["duration_ms"],
            **times,
        )

    def _log_job_errored(self, event: JobErrored) -> None:
        # `_log_job_failed` logs a permanent failure. A failure that is retried is a warning.
        if event.will_retry and is_level_enabled(self._logger, "warning"):
            _log_failure(self._get_logger(event).warning, FAILED_TEMPLATE, event)

    def _log_job_failed(self, event: JobFailed) -> None:
        _log_failure(self._get_logger(event).error, FAILED_PERMANENTLY_TEMPLATE, event)

    def _log_get_job_errored(self, event: GetJobErrored) -> None:
        # Each worker that waits reports the same error.
        if event.error is not self._last_error:
            self._last_error = event.error
            self._log_retried_error(FETCHING, event, "fetch failed, retrying: %s", event.error)

    def _log_recovered(self, component: str, event: PoolEvent) -> None:
        self._outage.record_success(component, self._get_logger(event))

    def _log_listen_started(self, event: ListenStarted) -> None:
        self._log_recovered(LISTENING, event)
        self._get_logger(event).debug("listening for new jobs")

    def _log_listen_failed(self, event: ListenFailed) -> None:
        template = "cannot listen for new jobs, retrying: %s"
        self._log_retried_error(LISTENING, event, template, event.error)

    def _log_heartbeat_failed(self, event: HeartbeatFailed) -> None:
        self._log_retried_error(HEARTBEAT, event, "heartbeat failed, retrying: %s", event.error)

    def _log_lease_lost(self, event: LeaseLost) -> None:
        self._logger = self._get_logger(event)
        self._logger.error(
            "lease lost, other workers recovered jobs %s of this worker; continuing as %s",
            _format_job_ids(event.job_ids),
            event.pool_id,
        )

    def _log_job_recovered(self, event: JobRecovered) -> None:
        logger = build_job_logger(self._logger, event.pool_id, event.job)
        log, template = (
            (logger.error, QUARANTINED_TEMPLATE)
            if event.is_quarantined
            else (logger.warning, RECOVERED_TEMPLATE)
        )
        log(
            template,
            event.job.id,
            make_printable(event.job.task_identifier),
            make_printable(event.dead_pool_id),
            "started" if event.was_started else "not started",
            event.crashes,
        )

    def _log_cron_scheduled(self, event: CronScheduled) -> None:
        if event.jobs:
            self._logger.debug(
                "cron: added %s for %s", _format_cron_names(event.jobs), event.timestamp.isoformat()
            )

    def _log_cron_failed(self, event: CronFailed) -> None:
        if event.identifier is not None:
            self._logger.error(
                "cron item %r skipped: %s", event.identifier, _format_database_error(event.error)
            )
        elif event.failures == 1:
            self._log_background_error("cron failed, retrying: %s", event, level="error")

    def _log_retried_error(
        self, component: str, event: PoolEvent, template: str, error: BaseException
    ) -> None:
        """Log an error that is retried: outages together, any other error once a minute.

        Each single error is a debug line.
        """
        logger = self._get_logger(event)
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
        self,
        template: str,
        event: ResetLockedFailed | RecoveryFailed | CronFailed,
        level: str = "warning",
    ) -> None:
        """Log an error of a rare background task. OutageLog logs an outage."""
        is_slow = isinstance(event.error, TimeoutError) and not self._outage.is_active
        is_covered = self._is_outage(event.error) and not is_slow
        _log_error(self._get_logger(event), "debug" if is_covered else level, template, event.error)

    def _get_logger(self, event: Event) -> Logger:
        match event:
            case JobEvent():
                return build_job_logger(
                    self._logger, event.pool_id, event.job, worker_id=event.worker_id
                )
            case WorkerEvent():
                return self._logger.scope(
                    label="worker", pool_id=event.pool_id, worker_id=event.worker_id
                )
            case PoolEvent():
                return self._logger.scope(pool_id=event.pool_id)
            case _:
                return self._logger


def _log_error(logger: Logger, level: str, template: str, error: BaseException) -> None:
    if is_level_enabled(logger, level):
        getattr(logger, level)(template, format_error_line(error))


def _compute_times(event: JobSucceeded | JobErrored | JobFailed) -> dict[str, float | None]:
    """Return how long the task ran, and how long its job was ready before it was claimed."""
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


def _format_database_error(error: BaseException) -> str:
    """Format an error without the row that PostgreSQL quotes: payloads may contain secrets."""
    message = getattr(getattr(error, "diag", None), "message_primary", None)
    return format_one_line(str(message)) if message else format_error_line(error)


def _format_cron_names(jobs: Iterable[CronJob]) -> str:
    return ", ".join(repr(job.identifier) for job in jobs)


def _format_job_ids(job_ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, job_ids)) or "(none)"

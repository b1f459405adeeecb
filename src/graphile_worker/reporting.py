"""What a worker says about its work: one listener turns events into log lines."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from graphile_worker.error_text import error_line, one_line, printable
from graphile_worker.errors import LeaseLapsed
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
    TaskPaused,
    TaskResumed,
    WorkerEvent,
    WorkerRestarted,
)
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job
from graphile_worker.logs import Logger, is_heard

MILLISECOND = timedelta(milliseconds=1)

# Seconds between two lines about the same trouble.
REPEAT_SECONDS = 60.0

# Where a worker finds the database unreachable, soon after it is.
FETCHING, LISTENING, HEARTBEAT = "fetching", "listening", "heartbeat"

FAILED = "failed job %s (%s, attempt %s of %s) with error %s (%.2f ms)"
FAILED_PERMANENTLY = f"permanently {FAILED}"

RECOVERED = "recovered job %s (%s), which dead pool %s had %s (recoveries while it ran: %s)"
PARKED = RECOVERED.replace("recovered", "parked", 1)


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
    for event, say in _Lines(logger, is_outage, clock).wanted().items():
        register(event, say)
    try:
        yield
    finally:
        for event, say in registered:
            hooks.off(event, say)


def job_logger(core: Logger, pool_id: str, job: Job, **more: Any) -> Logger:
    """A logger whose lines carry what there is to know of a job."""
    return core.scope(
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
        self._failing: set[str] = set()
        self._began_at = self._said_at = 0.0

    @property
    def lasts(self) -> bool:
        return bool(self._failing)

    def fails(self, place: str, logger: Logger, error: BaseException) -> None:
        now = self._clock()
        if not self._failing:
            self._began_at = self._said_at = now
            logger.warning("database unreachable, retrying: %s", _reason(error))
        elif now - self._said_at >= REPEAT_SECONDS:
            self._said_at = now
            seconds = now - self._began_at
            logger.warning("database unreachable for %.0f s, retrying: %s", seconds, _reason(error))
        self._failing.add(place)

    def works(self, place: str, logger: Logger) -> None:
        if place not in self._failing:
            return
        self._failing.remove(place)
        if not self._failing:
            seconds = self._clock() - self._began_at
            logger.warning("database reachable again after %.1f s", seconds)


class _Lines:
    """The words for each event."""

    def __init__(
        self,
        logger: Logger,
        is_outage: Callable[[BaseException], bool],
        clock: Callable[[], float],
    ) -> None:
        self._core = logger
        self._is_outage = is_outage
        self._clock = clock
        self._outage = _Outage(clock)
        self._last_error: BaseException | None = None
        # When a line about something that fails again and again was written last.
        self._said_at: dict[tuple[str, type[BaseException]], float] = {}

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
            JobOverran: self.overran,
            TaskPaused: self.task_paused,
            TaskResumed: self.task_resumed,
            WorkerRestarted: self.worker_restarted,
            GetJobErrored: self.get_job_errored,
            GetJobRecovered: self.get_job_recovered,
            ListenStarted: self.listening,
            ListenFailed: self.listen_failed,
            ResetLockedFailed: self.reset_locked_failed,
            HeartbeatFailed: self.heartbeat_failed,
            HeartbeatRecovered: self.heartbeat_recovered,
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
        self._pool(event).info("worker connected and looking for jobs (task names: %s)", names)

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
        if not is_heard(self._core, "info"):
            return
        job = event.job
        times = _times(event)
        self._job(event).info(
            "completed job %s (%s) with success (%.2f ms)",
            job.id,
            job.task_identifier,
            times["duration_ms"],
            **times,
        )

    def errored(self, event: JobErrored) -> None:
        # A permanent failure is one error, which `failed` logs. What is retried is a warning.
        if event.will_retry and is_heard(self._core, "warning"):
            _say_failure(self._job(event).warning, FAILED, event)

    def failed(self, event: JobFailed) -> None:
        _say_failure(self._job(event).error, FAILED_PERMANENTLY, event)

    def lock_lost(self, event: JobLockLost) -> None:
        self._job(event).warning(
            "job %s ended, but somebody else holds it now: nothing was written", event.job.id
        )

    def interrupted(self, event: JobInterrupted) -> None:
        self._job(event).warning("handed job %s back, its attempt not counted", event.job.id)

    def overran(self, event: JobOverran) -> None:
        self._job(event).warning(
            "job %s (%s) runs past its timeout of %s and cannot be stopped: its slot and its lock "
            "stay taken until the function returns",
            event.job.id,
            event.job.task_identifier,
            event.timeout,
        )

    def task_paused(self, event: TaskPaused) -> None:
        self._pool(event).error(
            "%s functions of task %r run past their timeout: no more of its jobs are taken until "
            'one returns. With run_in="process" the task can be stopped',
            event.count,
            event.task_identifier,
        )

    def task_resumed(self, event: TaskResumed) -> None:
        self._pool(event).info("jobs of task %r are taken again", event.task_identifier)

    def worker_restarted(self, event: WorkerRestarted) -> None:
        self._worker(event).error(
            "worker was cancelled, not by a stop, and starts again: "
            "does a task or a listener cancel asyncio tasks that it did not start?"
        )

    def get_job_errored(self, event: GetJobErrored) -> None:
        # Each worker that waited is told of the same error.
        if event.error is self._last_error:
            return
        self._last_error = event.error
        self._trouble(FETCHING, self._worker(event), "could not ask for a job: %s", event.error)

    def get_job_recovered(self, event: GetJobRecovered) -> None:
        self._outage.works(FETCHING, self._pool(event))

    def listening(self, event: ListenStarted) -> None:
        self._outage.works(LISTENING, self._pool(event))
        self._pool(event).debug("listening for new jobs")

    def listen_failed(self, event: ListenFailed) -> None:
        template = "cannot listen for new jobs, retrying: %s"
        self._trouble(LISTENING, self._pool(event), template, event.error)

    def heartbeat_failed(self, event: HeartbeatFailed) -> None:
        template = "heartbeat failed, retrying: %s"
        self._trouble(HEARTBEAT, self._pool(event), template, event.error)

    def heartbeat_recovered(self, event: HeartbeatRecovered) -> None:
        self._outage.works(HEARTBEAT, self._pool(event))

    def reset_locked_failed(self, event: ResetLockedFailed) -> None:
        self._aside(self._pool(event), "could not look for stale locks: %s", event.error)

    def fenced(self, event: PoolFenced) -> None:
        self._pool(event).error(
            "no heartbeat reached the database for %.1f s: gave up jobs %s, others may take them",
            event.silence.total_seconds(),
            _listed(event.job_ids),
        )

    def swept(self, event: PoolSwept) -> None:
        self._core = self._pool(event)
        self._core.error(
            "others took this worker for dead and its jobs %s from it; it goes on as %s",
            _listed(event.job_ids),
            event.pool_id,
        )

    def recovered(self, event: JobRecovered) -> None:
        logger = job_logger(self._core, event.pool_id, event.job)
        say, template = (logger.error, PARKED) if event.is_parked else (logger.warning, RECOVERED)
        say(
            template,
            event.job.id,
            printable(event.job.task_identifier),
            printable(event.dead_pool_id),
            "started" if event.was_started else "fetched, not started",
            event.recoveries,
        )

    def sweep_failed(self, event: SweepFailed) -> None:
        self._aside(self._pool(event), "could not look for dead workers: %s", event.error)

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
            self._aside(self._core, "cron failed, retrying: %s", event.error, "error")

    def not_written(self, event: PoolFatalError) -> None:
        self._pool(event).error(
            "%s could not be written, will try again: %s", event.action, error_line(event.error)
        )

    def stopping(self, event: PoolGracefulShutdown) -> None:
        self._pool(event).info("stopping: %s", one_line(event.message))

    def stopping_now(self, event: PoolForcefulShutdown) -> None:
        self._pool(event).warning("stopping at once: %s", one_line(event.message))

    def signalled(self, event: GracefulShutdown | ForcefulShutdown) -> None:
        self._core.debug("heard %s", event.signal)

    def stopped(self, event: RunnerStopped) -> None:
        self._pool(event).debug("stopped")

    def _trouble(self, place: str, logger: Logger, template: str, error: BaseException) -> None:
        """Log what is retried all the time: outages together, any other error once a minute.

        Each single error is a debug line.
        """
        if self._is_outage(error):
            self._outage.fails(place, self._core, error)
        elif not isinstance(error, LeaseLapsed):
            # The database answered.
            self._outage.works(place, self._core)
        if self._is_outage(error) or (isinstance(error, LeaseLapsed) and self._outage.lasts):
            _say_error(logger, "debug", template, error)
            return
        key, now = (place, type(error)), self._clock()
        is_due = now - self._said_at.get(key, -math.inf) >= REPEAT_SECONDS
        if is_due:
            self._said_at[key] = now
        _say_error(logger, "warning" if is_due else "debug", template, error)

    def _aside(
        self, logger: Logger, template: str, error: BaseException, level: str = "warning"
    ) -> None:
        """Log what is retried now and then; of an outage, the places above log more."""
        is_slow = isinstance(error, TimeoutError) and not self._outage.lasts
        is_covered = self._is_outage(error) and not is_slow
        _say_error(logger, "debug" if is_covered else level, template, error)

    def _pool(self, event: PoolEvent) -> Logger:
        return self._core.scope(pool_id=event.pool_id)

    def _worker(self, event: WorkerEvent) -> Logger:
        return self._core.scope(label="worker", pool_id=event.pool_id, worker_id=event.worker_id)

    def _job(self, event: JobEvent) -> Logger:
        return job_logger(self._core, event.pool_id, event.job, worker_id=event.worker_id)


def _say_error(logger: Logger, level: str, template: str, error: BaseException) -> None:
    if is_heard(logger, level):
        getattr(logger, level)(template, error_line(error))


def _times(event: JobSucceeded | JobErrored | JobFailed) -> dict[str, float | None]:
    """How long the task ran, and how long its job was due before this pool took it."""
    locked_at, run_at = event.job.locked_at, event.job.run_at
    wait = None if locked_at is None else max(0.0, (locked_at - run_at) / MILLISECOND)
    return {
        "duration_ms": round(event.duration / MILLISECOND, 2),
        "wait_ms": None if wait is None else round(wait, 2),
    }


def _say_failure(say: Callable[..., None], template: str, event: JobErrored | JobFailed) -> None:
    job, times = event.job, _times(event)
    say(
        template,
        job.id,
        job.task_identifier,
        job.attempts,
        job.max_attempts,
        error_line(event.error),
        times["duration_ms"],
        exc_info=event.error,
        **times,
    )


def _reason(error: BaseException) -> str:
    # By itself a time limit has no words.
    is_mute = isinstance(error, TimeoutError) and not str(error)
    return "TimeoutError: no answer in time" if is_mute else error_line(error)


def _summary(error: BaseException) -> str:
    """What went wrong, without the row that a database quotes beside it: payloads hold secrets."""
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    return one_line(str(said)) if said else error_line(error)


def _named(jobs: Iterable[CronJob]) -> str:
    return ", ".join(repr(job.identifier) for job in jobs)


def _listed(job_ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, job_ids)) or "(none)"

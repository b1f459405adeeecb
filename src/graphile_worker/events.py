"""Everything that is announced, one small frozen class each.

What happened is an `Event`, for `hooks.on`. What is happening, and can be wrapped, is a `Moment`,
for `hooks.around`. Both carry values, never live objects: a pool's id, not the pool.

Each event keeps the reference's name for those who know it, `JobStarted.name == "job:start"`;
names that only we have follow the same pattern. The classes without a name are groups, to hear
all that belong to them:

Event
└── PoolEvent           anything in one pool
    └── WorkerEvent     anything in one of its slots
        └── JobEvent    anything about one job there

One job: GetJobStarted, JobStarted, then once its outcome is written either JobSucceeded, or
JobErrored and at the last attempt JobFailed; JobFinished ends it. JobLockLost or JobInterrupted
stands in for all of those after JobStarted. `batch_job_errors` are those of a batch's single
entries, in their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import ClassVar

from graphile_worker.jobs import Job, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened; listening for this class hears everything."""

    name: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent(Event):
    """Something happened in a pool."""

    pool_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent(PoolEvent):
    """Something happened in one worker, which is one slot of a pool."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(WorkerEvent):
    """Something happened to a job in one worker."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something is about to happen, and can be wrapped."""


# Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(JobEvent):
    """A job was fetched and its task is about to run."""

    name = "job:start"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceeded(JobEvent):
    """The task returned, and the job is gone from the database."""

    name = "job:success"
    duration: timedelta
    # What a task raised after its own transaction had ended the job.
    late_error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceededLate(JobSucceeded):
    """A `JobSucceeded` whose task raised after its own transaction had ended the job."""

    name = "job:success:late"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobErrored(JobEvent):
    """An attempt failed, and that is written; every failed attempt, the last one too."""

    name = "job:error"
    error: BaseException
    duration: timedelta
    batch_job_errors: tuple[BaseException, ...] = ()
    # Whether there is another attempt; if not, JobFailed follows.
    will_retry: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(JobEvent):
    """The last attempt failed, after its JobErrored: the job will not run again by itself."""

    name = "job:failed"
    error: BaseException
    duration: timedelta
    batch_job_errors: tuple[BaseException, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished(JobEvent):
    """How the job ended is written; `error` is None when it succeeded."""

    name = "job:complete"
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLockLost(JobEvent):
    """The task ended, but its pool no longer held the job: nothing was written."""

    name = "job:lockLost"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInterrupted(JobEvent):
    """A shutdown or a lapsed lease stopped the job; it was handed back, its attempt not counted."""

    name = "job:interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverran(JobEvent):
    """A plain function reached its timeout: its job and its slot stay taken until it returns."""

    name = "job:overrun"
    timeout: timedelta


# Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCreated(WorkerEvent):
    """A worker was made for these task identifiers."""

    name = "worker:create"
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReleased(WorkerEvent):
    """A worker was asked to end."""

    name = "worker:release"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(WorkerEvent):
    """A worker has ended, maybe with an error."""

    name = "worker:stop"
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRestarted(WorkerEvent):
    """A worker was cancelled, not by a stop, and starts again: its program cancels its tasks."""

    name = "worker:restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFatalError(WorkerEvent):
    """A worker cannot go on; `job_error` is what its job had raised before, if it had."""

    name = "worker:fatalError"
    error: BaseException
    job_error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobStarted(WorkerEvent):
    """A worker asked for a job."""

    name = "worker:getJob:start"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobEmpty(WorkerEvent):
    """A worker asked, and there was nothing to do."""

    name = "worker:getJob:empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobErrored(WorkerEvent):
    """A worker asked, and asking failed."""

    name = "worker:getJob:error"
    error: BaseException


# Pools


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCreated(PoolEvent):
    """A pool was made."""

    name = "pool:create"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReleased(PoolEvent):
    """A pool has ended and let go of everything."""

    name = "pool:release"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFatalError(PoolEvent):
    """A write about a job failed; `action` is startJob, completeJob or failJob."""

    name = "pool:fatalError"
    error: BaseException
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobRecovered(PoolEvent):
    """A pool can ask for jobs again, after that failed."""

    name = "pool:getJob:recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConnecting(PoolEvent):
    """A connection for LISTEN is about to be made, after so many failed attempts."""

    name = "pool:listen:connecting"
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenStarted(PoolEvent):
    """The pool hears notifications from here on."""

    name = "pool:listen:success"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenFailed(PoolEvent):
    """The connection for LISTEN could not be made, or was lost."""

    name = "pool:listen:error"
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenNotified(PoolEvent):
    """A notification arrived."""

    name = "pool:listen:notification"
    channel: str
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenReleased(PoolEvent):
    """The connection for LISTEN was given up."""

    name = "pool:listen:release"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPaused(PoolEvent):
    """So many functions of one task run past their timeout that the pool takes none of its jobs."""

    name = "pool:taskPaused"
    task_identifier: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResumed(PoolEvent):
    """One of those functions has ended: the pool takes jobs of its task again."""

    name = "pool:taskResumed"
    task_identifier: str


# Leases


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatFailed(PoolEvent):
    """The pool could not say that it lives; after so many failures in a row it tries again."""

    name = "pool:heartbeat:error"
    error: BaseException
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRecovered(PoolEvent):
    """A heartbeat reached the database again, after some had failed."""

    name = "pool:heartbeat:recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExpired(PoolEvent):
    """No heartbeat was heard for so long that the pool gave up these jobs: others may take them."""

    name = "lease:expired"
    time_since_heartbeat: timedelta
    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(PoolEvent):
    """Others took the pool for dead: it lost these jobs and goes on under a new id, `pool_id`."""

    name = "lease:lost"
    old_pool_id: str
    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecovered(PoolEvent):
    """The pool took a job from a dead one: it can run again, unless that was once too often."""

    name = "job:recovered"
    job: Job
    dead_pool_id: str
    # Whether it ran there, and how often that has been so.
    was_started: bool
    crashes: int
    is_quarantined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFailed(PoolEvent):
    """The pool could not look for dead ones; it will again."""

    name = "recovery:error"
    error: BaseException


# Stopping a pool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGracefulShutdown(PoolEvent):
    """A pool began to stop: it takes no more jobs and lets the running ones finish."""

    name = "pool:gracefulShutdown"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGracefulShutdownError(PoolEvent):
    """Stopping gracefully went wrong: some jobs stay locked."""

    name = "pool:gracefulShutdown:error"
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGracefulShutdownWorkerError(PoolEvent):
    """A worker did not end well while its pool stopped; `job` is what it held."""

    name = "pool:gracefulShutdown:workerError"
    error: BaseException
    job: Job | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGracefulShutdownCompleted(PoolEvent):
    """A pool has stopped gracefully."""

    name = "pool:gracefulShutdown:complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolForcefulShutdown(PoolEvent):
    """A pool began to stop without waiting for its jobs."""

    name = "pool:forcefulShutdown"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolForcefulShutdownError(PoolEvent):
    """Stopping forcefully went wrong: some jobs stay locked."""

    name = "pool:forcefulShutdown:error"
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolForcefulShutdownCompleted(PoolEvent):
    """A pool has stopped forcefully."""

    name = "pool:forcefulShutdown:complete"


# Local queue


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueCreated(PoolEvent):
    """A local queue was made for a pool."""

    name = "localQueue:init"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueModeChanged(PoolEvent):
    """A local queue went from one mode to another."""

    name = "localQueue:setMode"
    old_mode: str
    new_mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueFetched(PoolEvent):
    """A local queue fetched these jobs."""

    name = "localQueue:getJobs:complete"
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueReturned(PoolEvent):
    """A local queue handed these jobs back, not started."""

    name = "localQueue:returnJobs"
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueRefetchDelayStarted(PoolEvent):
    """A fetch brought few jobs: the next waits for `delay`, or until enough are announced."""

    name = "localQueue:refetchDelay:start"
    job_count: int
    threshold: int
    delay: timedelta
    abort_threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueRefetchDelayAborted(PoolEvent):
    """So many jobs were announced that the wait before a fetch was cut short."""

    name = "localQueue:refetchDelay:abort"
    count: int
    abort_threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueRefetchDelayExpired(PoolEvent):
    """The wait before a fetch is over."""

    name = "localQueue:refetchDelay:expired"


# Stale locks


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLockedStarted(PoolEvent):
    """A sweep for locks older than four hours began."""

    name = "resetLocked:started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLockedSucceeded(PoolEvent):
    """That sweep is done; the next one comes after `delay`, if any."""

    name = "resetLocked:success"
    delay: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLockedFailed(PoolEvent):
    """That sweep failed; the next one comes after `delay`, if any."""

    name = "resetLocked:failure"
    error: BaseException
    delay: timedelta | None


# Cron


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJob:
    """What a crontab item, found by its identifier, adds at one minute."""

    identifier: str
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillJob(CronJob):
    """The same for a minute in the past, with what the database knew of the item."""

    known_since: datetime
    last_execution: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CronStarting(Event):
    """Cron is about to read what it knows and to catch up."""

    name = "cron:starting"
    start: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CronStarted(Event):
    """Cron has caught up with what it owed at `start` and goes on minute by minute."""

    name = "cron:started"
    start: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CronBackfillDue(Event):
    """These jobs are owed for a past minute and are about to be added."""

    name = "cron:backfill"
    timestamp: datetime
    jobs: tuple[BackfillJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CronDue(Event):
    """These jobs are due at this minute and are about to be added."""

    name = "cron:schedule"
    timestamp: datetime
    jobs: tuple[CronJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CronScheduled(Event):
    """These jobs of this minute were added, by this scheduler and not by another."""

    name = "cron:scheduled"
    timestamp: datetime
    jobs: tuple[CronJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CronTimerEarly(Event):
    """Cron woke before its minute and sleeps again."""

    name = "cron:prematureTimer"
    current_timestamp: datetime
    expected_timestamp: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CronTimerLate(Event):
    """Cron woke after its minute was over and makes up for it."""

    name = "cron:overdueTimer"
    current_timestamp: datetime
    expected_timestamp: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CronFailed(Event):
    """Cron failed and begins anew after `delay`; or one item did by itself, and was left out."""

    name = "cron:error"
    error: BaseException
    identifier: str | None = None
    failures: int = 1
    delay: timedelta | None = None


# Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStarted(PoolEvent):
    """Everything of a runner has started; these are the tasks whose jobs it runs."""

    name = "runner:started"
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GracefulShutdown(Event):
    """A signal asks every pool of the process to stop gracefully."""

    name = "gracefulShutdown"
    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcefulShutdown(Event):
    """A further signal asks every pool of the process to stop at once."""

    name = "forcefulShutdown"
    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStopped(PoolEvent):
    """The runner has stopped."""

    name = "stop"


# Moments, for around


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingJobs(Operation):
    """Jobs are about to be sent, as they then stand in `specs`: entries may be replaced."""

    specs: list[JobSpec]
    # Empty until they are added, then what each spec became, in their order.
    jobs: list[Job] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob(Operation):
    """The task of a job is about to run."""

    pool_id: str
    worker_id: str
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrating(Operation):
    """The schema is about to be installed or upgraded."""

    schema: str


def _index_by_name(candidates: list[object]) -> dict[str, type[Event]]:
    events = [it for it in candidates if isinstance(it, type) and issubclass(it, Event)]
    return {event.name: event for event in events if "name" in vars(event)}


EVENTS_BY_NAME: Mapping[str, type[Event]] = MappingProxyType(
    _index_by_name(list(globals().values()))
)

"""Events and operations: one small frozen class each.

An `Event` has happened: listen with `hooks.on`. An `Operation` is about to happen: wrap it with
`hooks.around`. Both carry values, for example the id of a pool and not the pool.

Each event has the name that Graphile Worker for Node uses, `JobStarted.name == "job:start"`. Names
of events that Node does not have follow the same pattern. Classes without a name are groups, and a
listener for a group receives all its events:

Event
└── PoolEvent           any event of one worker pool
    └── WorkerEvent     any event of one worker in it
        └── JobEvent    any event of one job in that worker

The events of one job are GetJobStarted, JobStarted, then after the write either JobSucceeded, or
JobErrored and at the last attempt JobFailed, and in the end JobFinished. JobLockLost or
JobInterrupted replaces all events after JobStarted. `batch_job_errors` are the errors of single
items of a batch, in their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import ClassVar

from graphile_worker.jobs import Job, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Any event. A listener for this class receives all events."""

    name: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent(Event):
    """Any event of one worker pool."""

    pool_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent(PoolEvent):
    """Any event of one worker, which is one slot of a pool."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(WorkerEvent):
    """Any event of one job in one worker."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation that a hook can wrap."""


# Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(JobEvent):
    """The worker claimed a job and is about to run its task."""

    name = "job:start"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceeded(JobEvent):
    """The task returned, and the worker deleted the job."""

    name = "job:success"
    duration: timedelta
    # The error that the task raised after its own transaction had completed the job.
    late_error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceededLate(JobSucceeded):
    """A `JobSucceeded` whose task raised after its own transaction had completed the job."""

    name = "job:success:late"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobErrored(JobEvent):
    """An attempt failed, and the failure is written. Also emitted for the last attempt."""

    name = "job:error"
    error: BaseException
    duration: timedelta
    batch_job_errors: tuple[BaseException, ...] = ()
    # False: JobFailed follows.
    will_retry: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(JobEvent):
    """The job permanently failed: its last attempt failed. Follows JobErrored."""

    name = "job:failed"
    error: BaseException
    duration: timedelta
    batch_job_errors: tuple[BaseException, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished(JobEvent):
    """The outcome of the job is written. `error` is None when it succeeded."""

    name = "job:complete"
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLockLost(JobEvent):
    """The task ended, but its pool had lost the job. Nothing was written."""

    name = "job:lockLost"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInterrupted(JobEvent):
    """A shutdown or an expired lease stopped the job. It was released, the attempt not counted."""

    name = "job:interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverran(JobEvent):
    """A plain function ran past its timeout. It occupies its worker until it returns."""

    name = "job:overrun"
    timeout: timedelta


# Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCreated(WorkerEvent):
    """A worker was created for these task identifiers."""

    name = "worker:create"
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReleased(WorkerEvent):
    """A worker received the request to stop."""

    name = "worker:release"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(WorkerEvent):
    """A worker stopped. `error` is None unless an error stopped it."""

    name = "worker:stop"
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRestarted(WorkerEvent):
    """Your program cancelled the asyncio task of a worker, which starts again."""

    name = "worker:restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFatalError(WorkerEvent):
    """An error stopped a worker. `job_error` is the error of its job, if the job had failed."""

    name = "worker:fatalError"
    error: BaseException
    job_error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobStarted(WorkerEvent):
    """A worker requested a job."""

    name = "worker:getJob:start"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobEmpty(WorkerEvent):
    """A worker requested a job, and none was ready."""

    name = "worker:getJob:empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobErrored(WorkerEvent):
    """A worker requested a job, and the request failed."""

    name = "worker:getJob:error"
    error: BaseException


# Pools


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCreated(PoolEvent):
    """A pool was created."""

    name = "pool:create"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReleased(PoolEvent):
    """A pool stopped and released its resources."""

    name = "pool:release"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFatalError(PoolEvent):
    """A write about a job failed. `action` is startJob, completeJob or failJob."""

    name = "pool:fatalError"
    error: BaseException
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobRecovered(PoolEvent):
    """A pool can fetch jobs again after failures."""

    name = "pool:getJob:recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConnecting(PoolEvent):
    """The pool opens a connection for LISTEN, after `attempts` failures."""

    name = "pool:listen:connecting"
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenStarted(PoolEvent):
    """The pool receives notifications from now on."""

    name = "pool:listen:success"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenFailed(PoolEvent):
    """The connection for LISTEN could not be opened, or was lost."""

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
    """The pool closed its connection for LISTEN."""

    name = "pool:listen:release"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPaused(PoolEvent):
    """The pool claims no jobs of a task, because `count` functions run past their timeout."""

    name = "pool:taskPaused"
    task_identifier: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResumed(PoolEvent):
    """A function that ran past its timeout ended. The pool claims jobs of its task again."""

    name = "pool:taskResumed"
    task_identifier: str


# Leases


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatFailed(PoolEvent):
    """A heartbeat failed, `failures` times in a row. The pool retries."""

    name = "pool:heartbeat:error"
    error: BaseException
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRecovered(PoolEvent):
    """A heartbeat succeeded after failures."""

    name = "pool:heartbeat:recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExpired(PoolEvent):
    """No heartbeat succeeded in time. The pool gave up these jobs, and other workers run them."""

    name = "lease:expired"
    time_since_heartbeat: timedelta
    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(PoolEvent):
    """Another worker took the pool for dead. It lost these jobs and continues as `pool_id`."""

    name = "lease:lost"
    old_pool_id: str
    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecovered(PoolEvent):
    """The pool released a job of a dead pool. The job is retried unless it is quarantined."""

    name = "job:recovered"
    job: Job
    dead_pool_id: str
    # Whether the job was running there, and how often its worker died while it ran.
    was_started: bool
    crashes: int
    is_quarantined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFailed(PoolEvent):
    """The search for dead pools failed. The pool retries."""

    name = "recovery:error"
    error: BaseException


# Stopping a pool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGracefulShutdown(PoolEvent):
    """A pool shuts down gracefully: it claims no more jobs and waits for the running ones."""

    name = "pool:gracefulShutdown"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGracefulShutdownError(PoolEvent):
    """A graceful shutdown failed. Some jobs stay locked."""

    name = "pool:gracefulShutdown:error"
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGracefulShutdownWorkerError(PoolEvent):
    """A worker failed during a graceful shutdown. `job` is the job that it was running."""

    name = "pool:gracefulShutdown:workerError"
    error: BaseException
    job: Job | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGracefulShutdownCompleted(PoolEvent):
    """A graceful shutdown is complete."""

    name = "pool:gracefulShutdown:complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolForcefulShutdown(PoolEvent):
    """A pool shuts down without waiting for its jobs."""

    name = "pool:forcefulShutdown"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolForcefulShutdownError(PoolEvent):
    """A forceful shutdown failed. Some jobs stay locked."""

    name = "pool:forcefulShutdown:error"
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolForcefulShutdownCompleted(PoolEvent):
    """A forceful shutdown is complete."""

    name = "pool:forcefulShutdown:complete"


# Local queue


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueCreated(PoolEvent):
    """A local queue was created for a pool."""

    name = "localQueue:init"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueModeChanged(PoolEvent):
    """A local queue changed its mode."""

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
    """A local queue released these jobs, which had not started."""

    name = "localQueue:returnJobs"
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueRefetchDelayStarted(PoolEvent):
    """A fetch returned few jobs. The next one waits for `delay`, or for enough notifications."""

    name = "localQueue:refetchDelay:start"
    job_count: int
    threshold: int
    delay: timedelta
    abort_threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueRefetchDelayAborted(PoolEvent):
    """Enough notifications arrived to end the wait before a fetch early."""

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
    """The search for locks older than 4 h started."""

    name = "resetLocked:started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLockedSucceeded(PoolEvent):
    """The search for old locks is complete. The next one follows after `delay`, if any."""

    name = "resetLocked:success"
    delay: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLockedFailed(PoolEvent):
    """The search for old locks failed. The next one follows after `delay`, if any."""

    name = "resetLocked:failure"
    error: BaseException
    delay: timedelta | None


# Cron


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJob:
    """The job that a cron item adds for one minute."""

    identifier: str
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillJob(CronJob):
    """The job of a past minute, with the times of the item that the database has recorded."""

    known_since: datetime
    last_execution: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CronStarting(Event):
    """The cron scheduler starts with its backfill."""

    name = "cron:starting"
    start: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CronStarted(Event):
    """The cron scheduler completed the backfill up to `start` and continues minute by minute."""

    name = "cron:started"
    start: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CronBackfillDue(Event):
    """These jobs of a past minute are about to be added."""

    name = "cron:backfill"
    timestamp: datetime
    jobs: tuple[BackfillJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CronDue(Event):
    """These jobs of the current minute are about to be added."""

    name = "cron:schedule"
    timestamp: datetime
    jobs: tuple[CronJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CronScheduled(Event):
    """This scheduler, not another one, added these jobs of this minute."""

    name = "cron:scheduled"
    timestamp: datetime
    jobs: tuple[CronJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CronTimerEarly(Event):
    """The timer of the cron scheduler fired early. It sleeps again."""

    name = "cron:prematureTimer"
    current_timestamp: datetime
    expected_timestamp: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CronTimerLate(Event):
    """The timer of the cron scheduler fired after its minute. It adds the missed jobs."""

    name = "cron:overdueTimer"
    current_timestamp: datetime
    expected_timestamp: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CronFailed(Event):
    """The cron scheduler failed and restarts after `delay`, or leaves out the item that failed."""

    name = "cron:error"
    error: BaseException
    identifier: str | None = None
    failures: int = 1
    delay: timedelta | None = None


# Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStarted(PoolEvent):
    """A runner started. `tasks` are the tasks whose jobs it runs."""

    name = "runner:started"
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GracefulShutdown(Event):
    """A signal requested a graceful shutdown of all pools in this process."""

    name = "gracefulShutdown"
    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcefulShutdown(Event):
    """A second signal requested an immediate shutdown of all pools in this process."""

    name = "forcefulShutdown"
    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStopped(PoolEvent):
    """The runner stopped."""

    name = "stop"


# Operations


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingJobs(Operation):
    """Jobs are about to be sent. A hook can replace entries of `specs`."""

    specs: list[JobSpec]
    # Empty before the call, then the jobs in the order of their specs.
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

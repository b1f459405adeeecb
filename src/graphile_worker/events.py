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
from dataclasses import field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import ClassVar

from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.tasks.task import RunIn


class Event(LazyKeywordDataclass):
    """Any event. A listener for this class receives all events."""

    name: ClassVar[str]
    """Name of the event, as in Graphile Worker for Node."""


class PoolEvent(Event):
    """Any event of one worker pool."""

    pool_id: str
    """Id of the worker pool."""


class WorkerEvent(PoolEvent):
    """Any event of one worker, which is one slot of a pool."""

    worker_id: str
    """Id of the worker."""


class JobEvent(WorkerEvent):
    """Any event of one job in one worker."""

    job: Job
    """The job."""


class Operation(LazyKeywordDataclass):
    """An operation that a hook can wrap."""


# Jobs


class JobStarted(JobEvent):
    """The worker claimed a job and is about to run its task."""

    name = "job:start"


class JobSucceeded(JobEvent):
    """The task returned, and the worker deleted the job."""

    name = "job:success"
    duration: timedelta
    """How long the task ran."""
    late_error: BaseException | None = None
    """Error that the task raised after its own transaction had completed the job, or None."""


class JobSucceededLate(JobSucceeded):
    """The task raised after its own transaction had completed the job."""

    name = "job:success:late"


class JobErrored(JobEvent):
    """An attempt failed, and the failure is written."""

    name = "job:error"
    error: BaseException
    """The error."""
    duration: timedelta
    """How long the task ran."""
    batch_job_errors: tuple[BaseException, ...] = ()
    """Errors of single items of a batch, in their order."""
    will_retry: bool = True
    """Whether the job is retried. If not, `JobFailed` follows."""


class JobFailed(JobEvent):
    """The job permanently failed. Follows JobErrored."""

    name = "job:failed"
    error: BaseException
    """The error."""
    duration: timedelta
    """How long the task ran."""
    batch_job_errors: tuple[BaseException, ...] = ()
    """Errors of single items of a batch, in their order."""


class JobFinished(JobEvent):
    """The outcome of the job is written."""

    name = "job:complete"
    error: BaseException | None
    """Error of the last attempt, or None if the job succeeded."""


class JobLockLost(JobEvent):
    """The task ended, but its pool had lost the job. Nothing was written."""

    name = "job:lockLost"


class JobInterrupted(JobEvent):
    """A shutdown or an expired lease stopped the job, which was released."""

    name = "job:interrupted"


class JobOverran(JobEvent):
    """A plain function ran past its timeout and occupies its worker."""

    name = "job:overrun"
    timeout: timedelta
    """Timeout of the task."""


# Workers


class WorkerCreated(WorkerEvent):
    """A worker was created."""

    name = "worker:create"
    tasks: tuple[str, ...]
    """Identifiers of the tasks."""


class WorkerReleased(WorkerEvent):
    """A worker received the request to stop."""

    name = "worker:release"


class WorkerStopped(WorkerEvent):
    """A worker stopped."""

    name = "worker:stop"
    error: BaseException | None = None
    """Error that stopped the worker, or None."""


class WorkerRestarted(WorkerEvent):
    """Your program cancelled the asyncio task of a worker, which restarts."""

    name = "worker:restart"


class WorkerFatalError(WorkerEvent):
    """An error stopped a worker."""

    name = "worker:fatalError"
    error: BaseException
    """The error."""
    job_error: BaseException | None = None
    """Error of the job, or None if it had not failed."""


class GetJobStarted(WorkerEvent):
    """A worker requested a job."""

    name = "worker:getJob:start"


class GetJobEmpty(WorkerEvent):
    """A worker requested a job, and none was ready."""

    name = "worker:getJob:empty"


class GetJobErrored(WorkerEvent):
    """A worker requested a job, and the request failed."""

    name = "worker:getJob:error"
    error: BaseException
    """The error."""


# Pools


class PoolCreated(PoolEvent):
    """A pool was created."""

    name = "pool:create"


class PoolReleased(PoolEvent):
    """A pool stopped and released its resources."""

    name = "pool:release"


class PoolFatalError(PoolEvent):
    """A write about a job failed. `action` is startJob, completeJob or failJob."""

    name = "pool:fatalError"
    error: BaseException
    """The error."""
    action: str
    """The write: startJob, completeJob or failJob."""


class GetJobRecovered(PoolEvent):
    """A pool can fetch jobs again after failures."""

    name = "pool:getJob:recovered"


class ListenConnecting(PoolEvent):
    """The pool opens a connection for LISTEN."""

    name = "pool:listen:connecting"
    attempts: int
    """Number of failures so far."""


class ListenStarted(PoolEvent):
    """The pool receives notifications from now on."""

    name = "pool:listen:success"


class ListenFailed(PoolEvent):
    """The connection for LISTEN could not be opened, or was lost."""

    name = "pool:listen:error"
    error: BaseException
    """The error."""


class ListenNotified(PoolEvent):
    """A notification arrived."""

    name = "pool:listen:notification"
    channel: str
    """Channel of the notification."""
    payload: str
    """Text of the notification."""


class ListenReleased(PoolEvent):
    """The pool closed its connection for LISTEN."""

    name = "pool:listen:release"


class TaskPaused(PoolEvent):
    """The pool claims no jobs of a task while functions run past their timeout."""

    name = "pool:taskPaused"
    task_identifier: str
    """Name of the task."""
    count: int
    """Number of functions that run past their timeout."""


class TaskResumed(PoolEvent):
    """The pool claims jobs of the task again."""

    name = "pool:taskResumed"
    task_identifier: str
    """Name of the task."""


class PausesChanged(PoolEvent):
    """A person paused or resumed tasks, or a pause ended."""

    name = "pool:pausesChanged"
    paused_tasks: tuple[str, ...]
    """Names of the tasks of this pool that are paused now."""


# Leases


class HeartbeatFailed(PoolEvent):
    """A heartbeat failed. The pool retries."""

    name = "pool:heartbeat:error"
    error: BaseException
    """The error."""
    failures: int
    """Number of failures in a row."""


class HeartbeatRecovered(PoolEvent):
    """A heartbeat succeeded after failures."""

    name = "pool:heartbeat:recovered"


class LeaseExpired(PoolEvent):
    """No heartbeat succeeded in time. The pool stopped these jobs. Other workers run them."""

    name = "lease:expired"
    time_since_heartbeat: timedelta
    """Time since the last heartbeat that succeeded."""
    job_ids: tuple[int, ...]
    """Ids of the jobs."""


class LeaseLost(PoolEvent):
    """Another worker took the pool for dead. It lost these jobs and continues as `pool_id`."""

    name = "lease:lost"
    old_pool_id: str
    """Id of the pool before."""
    job_ids: tuple[int, ...]
    """Ids of the jobs."""


class JobRecovered(PoolEvent):
    """The pool released a job of a dead pool. The job is retried unless it is quarantined."""

    name = "job:recovered"
    job: Job
    """The job."""
    dead_pool_id: str
    """Id of the dead pool."""
    was_started: bool
    """Whether the job was running when its pool died."""
    crashes: int
    """How often a worker died while it ran this job."""
    is_quarantined: bool
    """Whether the job crashed its worker too often and has permanently failed."""


class RecoveryFailed(PoolEvent):
    """The search for dead pools failed. The pool retries."""

    name = "recovery:error"
    error: BaseException
    """The error."""


# Stopping a pool


class PoolGracefulShutdown(PoolEvent):
    """A pool claims no more jobs and waits for the running ones."""

    name = "pool:gracefulShutdown"
    message: str
    """The reason."""


class PoolGracefulShutdownError(PoolEvent):
    """A graceful shutdown failed. Some jobs stay locked."""

    name = "pool:gracefulShutdown:error"
    error: BaseException
    """The error."""


class PoolGracefulShutdownWorkerError(PoolEvent):
    """A worker failed during a graceful shutdown."""

    name = "pool:gracefulShutdown:workerError"
    error: BaseException
    """The error."""
    job: Job | None
    """The job that the worker was running, or None."""


class PoolGracefulShutdownCompleted(PoolEvent):
    """A graceful shutdown is complete."""

    name = "pool:gracefulShutdown:complete"


class PoolForcefulShutdown(PoolEvent):
    """A pool shuts down without waiting for its jobs."""

    name = "pool:forcefulShutdown"
    message: str
    """The reason."""


class PoolForcefulShutdownError(PoolEvent):
    """A forceful shutdown failed. Some jobs stay locked."""

    name = "pool:forcefulShutdown:error"
    error: BaseException
    """The error."""


class PoolForcefulShutdownCompleted(PoolEvent):
    """A forceful shutdown is complete."""

    name = "pool:forcefulShutdown:complete"


# Local queue


class LocalQueueCreated(PoolEvent):
    """A local queue was created for a pool."""

    name = "localQueue:init"


class LocalQueueModeChanged(PoolEvent):
    """A local queue changed its mode."""

    name = "localQueue:setMode"
    old_mode: str
    """Mode before."""
    new_mode: str
    """Mode now."""


class LocalQueueFetched(PoolEvent):
    """A local queue fetched these jobs."""

    name = "localQueue:getJobs:complete"
    jobs: tuple[Job, ...]
    """The jobs."""


class LocalQueueReturned(PoolEvent):
    """A local queue released these jobs, which had not started."""

    name = "localQueue:returnJobs"
    jobs: tuple[Job, ...]
    """The jobs."""


class LocalQueueRefetchDelayStarted(PoolEvent):
    """A fetch returned few jobs, so the next one waits."""

    name = "localQueue:refetchDelay:start"
    job_count: int
    """Number of jobs that the fetch returned."""
    threshold: int
    """Largest fetch that delays the next one."""
    delay: timedelta
    """Longest wait before the next fetch."""
    abort_threshold: float
    """Number of notified jobs that ends the wait."""


class LocalQueueRefetchDelayAborted(PoolEvent):
    """Enough notifications arrived to end the wait early."""

    name = "localQueue:refetchDelay:abort"
    count: int
    """Number of notified jobs."""
    abort_threshold: float
    """Number of notified jobs that ends the wait."""


class LocalQueueRefetchDelayExpired(PoolEvent):
    """The wait before a fetch is over."""

    name = "localQueue:refetchDelay:expired"


# Stale locks


class ResetLockedStarted(PoolEvent):
    """The search for locks older than 4 h started."""

    name = "resetLocked:started"


class ResetLockedSucceeded(PoolEvent):
    """The search for old locks is complete."""

    name = "resetLocked:success"
    delay: timedelta | None
    """Time until the next one, or None."""


class ResetLockedFailed(PoolEvent):
    """The search for old locks failed."""

    name = "resetLocked:failure"
    error: BaseException
    """The error."""
    delay: timedelta | None
    """Time until the next one, or None."""


# Cron


class CronJob(LazyKeywordDataclass):
    """The job that a cron item adds for one minute."""

    identifier: str
    """Name of the cron item."""
    spec: JobSpec
    """The job to add."""


class BackfillJob(CronJob):
    """The job of a past minute, with the times of the item that the database has recorded."""

    known_since: datetime
    """When the database first recorded the item."""
    last_execution: datetime | None
    """Last minute whose job was added, or None."""


class CronStarting(Event):
    """The cron scheduler starts with its backfill."""

    name = "cron:starting"
    start: datetime
    """Time at which the scheduler starts."""


class CronStarted(Event):
    """The cron scheduler completed its backfill."""

    name = "cron:started"
    start: datetime
    """Time up to which the backfill is complete."""


class CronBackfillDue(Event):
    """These jobs of a past minute are about to be added."""

    name = "cron:backfill"
    timestamp: datetime
    """The minute."""
    jobs: tuple[BackfillJob, ...]
    """The jobs to add."""


class CronDue(Event):
    """These jobs of the current minute are about to be added."""

    name = "cron:schedule"
    timestamp: datetime
    """The minute."""
    jobs: tuple[CronJob, ...]
    """The jobs to add."""


class CronScheduled(Event):
    """This scheduler added these jobs of this minute."""

    name = "cron:scheduled"
    timestamp: datetime
    """The minute."""
    jobs: tuple[CronJob, ...]
    """The jobs that were added."""


class CronTimerEarly(Event):
    """The timer of the cron scheduler fired early. It sleeps again."""

    name = "cron:prematureTimer"
    current_timestamp: datetime
    """Time at which the timer fired."""
    expected_timestamp: datetime
    """Time for which it was set."""


class CronTimerLate(Event):
    """The timer of the cron scheduler fired late. It adds the missed jobs."""

    name = "cron:overdueTimer"
    current_timestamp: datetime
    """Time at which the timer fired."""
    expected_timestamp: datetime
    """Time for which it was set."""


class CronFailed(Event):
    """The cron scheduler failed and restarts, or skips the item that failed."""

    name = "cron:error"
    error: BaseException
    """The error."""
    identifier: str | None = None
    """Name of the item that failed, or None."""
    failures: int = 1
    """Number of failures in a row."""
    delay: timedelta | None = None
    """Time until the scheduler restarts, or None."""


# Runner


class RunnerStarted(PoolEvent):
    """A runner started."""

    name = "runner:started"
    tasks: tuple[str, ...]
    """Identifiers of the tasks."""


class GracefulShutdown(Event):
    """A signal requested a graceful shutdown of all pools in this process."""

    name = "gracefulShutdown"
    signal: str
    """Name of the signal."""


class ForcefulShutdown(Event):
    """A second signal requested an immediate shutdown of all pools in this process."""

    name = "forcefulShutdown"
    signal: str
    """Name of the signal."""


class RunnerStopped(PoolEvent):
    """The runner stopped."""

    name = "stop"


# Operations


class AddingJobs(Operation):
    """Jobs are about to be sent. A hook can replace entries of `specs`."""

    specs: list[JobSpec]
    """The jobs to add."""
    jobs: list[Job] = field(default_factory=list)
    """Empty before the call, then the jobs in the order of their specs."""


class RunningJob(Operation):
    """The task of a job is about to run."""

    pool_id: str
    """Id of the worker pool."""
    worker_id: str
    """Id of the worker."""
    job: Job
    """The job that is about to run."""
    runs_in: RunIn
    """Where the function of the task runs: on the event loop, in a thread or in a process."""
    is_task_process: bool = False
    """Whether this is the process of the task. Plain wrappers are entered in the worker and, for
    tasks with `run_in="process"`, in that process too."""


class Migrating(Operation):
    """The schema is about to be installed or upgraded."""

    schema: str
    """Name of the schema."""


def _index_by_name(candidates: list[object]) -> dict[str, type[Event]]:
    events = [it for it in candidates if isinstance(it, type) and issubclass(it, Event)]
    return {event.name: event for event in events if "name" in vars(event)}


EVENTS_BY_NAME: Mapping[str, type[Event]] = MappingProxyType(
    _index_by_name(list(globals().values()))
)

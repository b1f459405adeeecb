"""Graphile Worker for Python: a job queue on PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphile_worker._sql.plans.cleanup import CleanupTask
    from graphile_worker._sql.plans.migration import migration_sql, migration_statements
    from graphile_worker._sql.queries.pauses import Pause, PauseKind
    from graphile_worker._support.logs import Logger
    from graphile_worker.app import App
    from graphile_worker.client import (
        Client,
        add_job_adhoc,
        make_worker_utils,
        quick_add_job,
        run_migrations,
    )
    from graphile_worker.crontab import (
        Cron,
        CronItem,
        ParsedCronItem,
        TimestampDigest,
        parse_cron_items,
        parse_crontab,
    )
    from graphile_worker.errors import (
        CleanupBlocked,
        ConfigurationError,
        CrontabError,
        ExecutableFailed,
        GraphileWorkerError,
        JobFailedError,
        JobLockLostError,
        JobsLeftLocked,
        JobSpecError,
        LeaseExpiredError,
        MigrationBlocked,
        OpenTransactionError,
        OutcomeRefused,
        PayloadTooLarge,
        QueueBusy,
        ResultError,
        ResultUnknownError,
        SchemaError,
        SchemaMissing,
        SchemaTooNew,
        SchemaTooOld,
        ShardError,
        TaskLoadError,
        TaskNotFound,
        TaskProcessDied,
        TaskProcessError,
        WorkerStoppedError,
    )
    from graphile_worker.events import (
        AddingJobs,
        JobErrored,
        JobFailed,
        JobFinished,
        JobInterrupted,
        JobLockLost,
        JobRecovered,
        JobStarted,
        JobSucceeded,
        Migrating,
        RunnerStarted,
        RunnerStopped,
        RunningJob,
    )
    from graphile_worker.hooks import Hooks
    from graphile_worker.jobs import Job, JobKeyMode, JobOptions, JobSpec
    from graphile_worker.lanes import lane
    from graphile_worker.limits import ConcurrencyLimit, RateLimit
    from graphile_worker.options import (
        ExecutableOptions,
        LocalQueueOptions,
        RecoveryOptions,
        RefetchDelayOptions,
        TaskProcessOptions,
        WorkerOptions,
    )
    from graphile_worker.results import Attempt, JobStatus, JobStatusState, Progress, Retention
    from graphile_worker.retries import Backoff, Discard, PartialFailure, Retry, Snooze
    from graphile_worker.runner import Runner, run, run_once, run_task_list, run_task_list_once
    from graphile_worker.shards import Shards, ShardStatus, rendezvous
    from graphile_worker.tasks import (
        BaseJobContext,
        BatchTask,
        ExternalTask,
        JobContext,
        SyncJobContext,
        Task,
        TaskRouter,
    )

__all__ = [
    "AddingJobs",
    "App",
    "Attempt",
    "Backoff",
    "BaseJobContext",
    "BatchTask",
    "CleanupBlocked",
    "CleanupTask",
    "Client",
    "ConcurrencyLimit",
    "ConfigurationError",
    "Cron",
    "CronItem",
    "CrontabError",
    "Discard",
    "ExecutableFailed",
    "ExecutableOptions",
    "ExternalTask",
    "GraphileWorkerError",
    "Hooks",
    "Job",
    "JobContext",
    "JobErrored",
    "JobFailed",
    "JobFailedError",
    "JobFinished",
    "JobInterrupted",
    "JobKeyMode",
    "JobLockLost",
    "JobLockLostError",
    "JobOptions",
    "JobRecovered",
    "JobSpec",
    "JobSpecError",
    "JobStarted",
    "JobStatus",
    "JobStatusState",
    "JobSucceeded",
    "JobsLeftLocked",
    "LeaseExpiredError",
    "LocalQueueOptions",
    "Logger",
    "Migrating",
    "MigrationBlocked",
    "OpenTransactionError",
    "OutcomeRefused",
    "ParsedCronItem",
    "PartialFailure",
    "Pause",
    "PauseKind",
    "PayloadTooLarge",
    "Progress",
    "QueueBusy",
    "RateLimit",
    "RecoveryOptions",
    "RefetchDelayOptions",
    "ResultError",
    "ResultUnknownError",
    "Retention",
    "Retry",
    "Runner",
    "RunnerStarted",
    "RunnerStopped",
    "RunningJob",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "ShardError",
    "ShardStatus",
    "Shards",
    "Snooze",
    "SyncJobContext",
    "Task",
    "TaskLoadError",
    "TaskNotFound",
    "TaskProcessDied",
    "TaskProcessError",
    "TaskProcessOptions",
    "TaskRouter",
    "TimestampDigest",
    "WorkerOptions",
    "WorkerStoppedError",
    "add_job_adhoc",
    "lane",
    "make_worker_utils",
    "migration_sql",
    "migration_statements",
    "parse_cron_items",
    "parse_crontab",
    "quick_add_job",
    "rendezvous",
    "run",
    "run_migrations",
    "run_once",
    "run_task_list",
    "run_task_list_once",
]

# The names of each module, imported when a program first uses one of them: a program that only adds
# jobs does not wait for the modules of workers.
_NAMES = {
    "graphile_worker._sql.plans.cleanup": ("CleanupTask",),
    "graphile_worker._sql.plans.migration": (
        "migration_sql",
        "migration_statements",
    ),
    "graphile_worker._sql.queries.pauses": ("Pause", "PauseKind"),
    "graphile_worker._support.logs": ("Logger",),
    "graphile_worker.app": ("App",),
    "graphile_worker.client": (
        "Client",
        "add_job_adhoc",
        "make_worker_utils",
        "quick_add_job",
        "run_migrations",
    ),
    "graphile_worker.crontab": (
        "Cron",
        "CronItem",
        "ParsedCronItem",
        "TimestampDigest",
        "parse_cron_items",
        "parse_crontab",
    ),
    "graphile_worker.errors": (
        "CleanupBlocked",
        "ConfigurationError",
        "CrontabError",
        "ExecutableFailed",
        "GraphileWorkerError",
        "JobFailedError",
        "JobLockLostError",
        "JobsLeftLocked",
        "JobSpecError",
        "LeaseExpiredError",
        "MigrationBlocked",
        "OpenTransactionError",
        "OutcomeRefused",
        "PayloadTooLarge",
        "QueueBusy",
        "ResultError",
        "ResultUnknownError",
        "SchemaError",
        "SchemaMissing",
        "SchemaTooNew",
        "SchemaTooOld",
        "ShardError",
        "TaskLoadError",
        "TaskNotFound",
        "TaskProcessDied",
        "TaskProcessError",
        "WorkerStoppedError",
    ),
    "graphile_worker.events": (
        "AddingJobs",
        "JobErrored",
        "JobFailed",
        "JobFinished",
        "JobInterrupted",
        "JobLockLost",
        "JobRecovered",
        "JobStarted",
        "JobSucceeded",
        "Migrating",
        "RunnerStarted",
        "RunnerStopped",
        "RunningJob",
    ),
    "graphile_worker.hooks": ("Hooks",),
    "graphile_worker.jobs": (
        "Job",
        "JobKeyMode",
        "JobOptions",
        "JobSpec",
    ),
    "graphile_worker.lanes": ("lane",),
    "graphile_worker.limits": (
        "ConcurrencyLimit",
        "RateLimit",
    ),
    "graphile_worker.options": (
        "ExecutableOptions",
        "LocalQueueOptions",
        "RecoveryOptions",
        "RefetchDelayOptions",
        "TaskProcessOptions",
        "WorkerOptions",
    ),
    "graphile_worker.results": (
        "Attempt",
        "JobStatus",
        "JobStatusState",
        "Progress",
        "Retention",
    ),
    "graphile_worker.retries": (
        "Backoff",
        "Discard",
        "PartialFailure",
        "Retry",
        "Snooze",
    ),
    "graphile_worker.runner": (
        "Runner",
        "run",
        "run_once",
        "run_task_list",
        "run_task_list_once",
    ),
    "graphile_worker.shards": (
        "ShardStatus",
        "Shards",
        "rendezvous",
    ),
    "graphile_worker.tasks": (
        "BaseJobContext",
        "BatchTask",
        "ExternalTask",
        "JobContext",
        "SyncJobContext",
        "Task",
        "TaskRouter",
    ),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    module = f"{__name__}.{name}"
    if name.startswith("__"):
        # For example __main__, which runs the command.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

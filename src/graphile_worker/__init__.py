"""Graphile Worker for Python: a job queue whose engine is PostgreSQL."""

from graphile_worker.app import App
from graphile_worker.client import (
    Client,
    add_job_adhoc,
    make_worker_utils,
    quick_add_job,
    run_migrations,
)
from graphile_worker.db.migrate import migration_sql, migration_statements
from graphile_worker.errors import (
    CleanupBlocked,
    ConfigurationError,
    GraphileWorkerError,
    JobNotHeld,
    JobsLeftLocked,
    JobSpecError,
    MigrationBlocked,
    PoolStopped,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    TaskLoadError,
    TaskNotFound,
)
from graphile_worker.events import (
    AddingJobs,
    JobErrored,
    JobFailed,
    JobFinished,
    JobInterrupted,
    JobLockLost,
    JobStarted,
    JobSucceeded,
    Migrating,
    RunnerStarted,
    RunnerStopped,
    RunningJob,
)
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobKeyMode, JobSpec
from graphile_worker.logs import Logger
from graphile_worker.options import WorkerOptions
from graphile_worker.retries import Backoff, Discard, Retry, Snooze
from graphile_worker.runner import Runner, run, run_once, run_task_list, run_task_list_once
from graphile_worker.sql.cleaning import CleanupTask
from graphile_worker.tasks import JobContext, Task, Tasks

__all__ = [
    "AddingJobs",
    "App",
    "Backoff",
    "CleanupBlocked",
    "CleanupTask",
    "Client",
    "ConfigurationError",
    "Discard",
    "GraphileWorkerError",
    "Hooks",
    "Job",
    "JobContext",
    "JobErrored",
    "JobFailed",
    "JobFinished",
    "JobInterrupted",
    "JobKeyMode",
    "JobLockLost",
    "JobNotHeld",
    "JobSpec",
    "JobSpecError",
    "JobStarted",
    "JobSucceeded",
    "JobsLeftLocked",
    "Logger",
    "Migrating",
    "MigrationBlocked",
    "PoolStopped",
    "Retry",
    "Runner",
    "RunnerStarted",
    "RunnerStopped",
    "RunningJob",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "Snooze",
    "Task",
    "TaskLoadError",
    "TaskNotFound",
    "Tasks",
    "WorkerOptions",
    "add_job_adhoc",
    "make_worker_utils",
    "migration_sql",
    "migration_statements",
    "quick_add_job",
    "run",
    "run_migrations",
    "run_once",
    "run_task_list",
    "run_task_list_once",
]

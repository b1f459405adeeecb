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
    JobSpecError,
    MigrationBlocked,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
)
from graphile_worker.events import AddingJobs, Migrating
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobKeyMode, JobSpec
from graphile_worker.options import WorkerOptions
from graphile_worker.retries import Backoff, Discard, Retry, Snooze
from graphile_worker.runner import run_once
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
    "JobKeyMode",
    "JobSpec",
    "JobSpecError",
    "Migrating",
    "MigrationBlocked",
    "Retry",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "Snooze",
    "Task",
    "Tasks",
    "WorkerOptions",
    "add_job_adhoc",
    "make_worker_utils",
    "migration_sql",
    "migration_statements",
    "quick_add_job",
    "run_migrations",
    "run_once",
]

"""Graphile Worker for Python: a job queue whose engine is PostgreSQL."""

from graphile_worker.client import (
    Client,
    add_job_adhoc,
    make_worker_utils,
    quick_add_job,
    run_migrations,
)
from graphile_worker.db.migrate import migration_sql
from graphile_worker.errors import (
    ConfigurationError,
    GraphileWorkerError,
    JobSpecError,
    MigrationBlocked,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
)
from graphile_worker.jobs import Job, JobKeyMode, JobSpec
from graphile_worker.options import WorkerOptions
from graphile_worker.sql.cleaning import CleanupTask

__all__ = [
    "CleanupTask",
    "Client",
    "ConfigurationError",
    "GraphileWorkerError",
    "Job",
    "JobKeyMode",
    "JobSpec",
    "JobSpecError",
    "MigrationBlocked",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "WorkerOptions",
    "add_job_adhoc",
    "make_worker_utils",
    "migration_sql",
    "quick_add_job",
    "run_migrations",
]

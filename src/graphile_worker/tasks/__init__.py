"""Tasks: functions with an identifier, whose parameters are the keys of a JSON object.

A single positional-only parameter receives the whole payload instead. The worker passes the context
to a first parameter annotated with `JobContext` (async def) or `SyncJobContext` (def). Defining a
task opens no connection.
"""

from graphile_worker.tasks.batch import BatchTask
from graphile_worker.tasks.context import (
    BaseJobContext,
    CronRun,
    D,
    Enqueuer,
    JobContext,
    ReadResult,
    SyncJobContext,
    read_cron_run,
)
from graphile_worker.tasks.external import ExternalTask
from graphile_worker.tasks.router import TaskRouter, find_limits, find_retentions
from graphile_worker.tasks.signatures import Signature
from graphile_worker.tasks.task import Task, TaskOptions, make_positional_task

__all__ = [
    "BaseJobContext",
    "BatchTask",
    "CronRun",
    "D",
    "Enqueuer",
    "ExternalTask",
    "JobContext",
    "ReadResult",
    "Signature",
    "SyncJobContext",
    "Task",
    "TaskOptions",
    "TaskRouter",
    "find_limits",
    "find_retentions",
    "make_positional_task",
    "read_cron_run",
]

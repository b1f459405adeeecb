"""A task is a function with an identifier; its parameters are the keys of a JSON object.

One positional-only parameter is the whole payload instead. A first parameter annotated with
`JobContext` is given by the worker. Defining tasks never connects to anything.
"""

from graphile_worker.tasks.batch import BatchTask
from graphile_worker.tasks.context import CronRun, Enqueuer, JobContext, read_cron_run
from graphile_worker.tasks.router import D, TaskRouter
from graphile_worker.tasks.signatures import Signature
from graphile_worker.tasks.task import Task, TaskOptions, make_positional_task

__all__ = [
    "BatchTask",
    "CronRun",
    "D",
    "Enqueuer",
    "JobContext",
    "Signature",
    "Task",
    "TaskOptions",
    "TaskRouter",
    "read_cron_run",
    "make_positional_task",
]

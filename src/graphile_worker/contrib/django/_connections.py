"""Close broken and expired connections of Django around each job, as Django does for requests."""

import logging
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.core.cache import close_caches
from django.db import connections

from graphile_worker.events import JobEvent, RunningJob
from graphile_worker.hooks import Hooks

logger = logging.getLogger("graphile_worker")

# The jobs that run as coroutines.
_running_coroutines: set[object] = set()


def install(hooks: Hooks) -> None:
    """Register the wrappers, once."""
    hooks.around(RunningJob)(_around_function)
    hooks.around(RunningJob)(_around_coroutine)


# Functions, in a thread or in a process


@contextmanager
def _around_function(operation: RunningJob) -> Iterator[None]:
    """Run in the thread, or in the process, in which the function of a task runs."""
    runs_here = operation.runs_in == "thread" or operation.is_task_process
    if not runs_here or is_test(operation):
        yield
        return
    for connection in connections.all(initialized_only=True):
        connection.close_if_unusable_or_obsolete()
        connection.queries_log.clear()
    try:
        yield
    finally:
        for connection in connections.all(initialized_only=True):
            _close_after_job(connection)
        _close_caches()


def _close_after_job(connection: Any) -> None:
    """Close a connection that the next job cannot use. An error must not fail this job."""
    try:
        if connection.in_atomic_block:
            # The job did not end its transaction. The next one gets another connection.
            connection.close()
            del connections[connection.alias]
        else:
            connection.close_if_unusable_or_obsolete()
    except Exception:
        logger.exception("connection %r could not be closed after a job", connection.alias)


def _close_caches() -> None:
    try:
        close_caches()
    except Exception:
        logger.exception("caches could not be closed after a job")


# Coroutines, on the event loop


@asynccontextmanager
async def _around_coroutine(operation: RunningJob) -> AsyncIterator[None]:
    """Run in the thread of asgiref, in which all coroutines use the database."""
    if operation.runs_in != "loop" or is_test(operation):
        yield
        return
    await close_shared_connections()
    marker = object()
    _running_coroutines.add(marker)
    try:
        yield
    finally:
        _running_coroutines.discard(marker)
        _close_caches()
        await close_shared_connections()


async def close_shared_connections() -> None:
    """Close the connections of the thread of asgiref that cannot be used again."""
    await sync_to_async(_close_connections_of_thread)()


def _close_connections_of_thread() -> None:
    for connection in connections.all(initialized_only=True):
        if not _running_coroutines:
            connection.queries_log.clear()
        if not _must_close(connection):
            continue
        if not _running_coroutines:
            _close_after_job(connection)
        elif connection.is_usable():
            connection.errors_occurred = False
        else:
            connection.close()


def _must_close(connection: Any) -> bool:
    """Return whether a connection is broken, expired, or in a mode that a job left.

    While other jobs run, they may be in a transaction or read from a cursor of the connection. Then
    only a broken one is closed.
    """
    if connection.connection is None:
        return False
    if _running_coroutines:
        return bool(connection.errors_occurred and not connection.in_atomic_block)
    is_in_wrong_mode = connection.autocommit != connection.settings_dict["AUTOCOMMIT"]
    is_expired = connection.close_at is not None and time.monotonic() >= connection.close_at
    return bool(
        connection.in_atomic_block or connection.errors_occurred or is_in_wrong_mode or is_expired
    )


def is_test(operation: RunningJob | JobEvent) -> bool:
    """Return whether a test runs the job, on its own connection, whose queries it may count."""
    runner = sys.modules.get("graphile_worker.testing.runner")
    return runner is not None and operation.worker_id == runner.WORKER_ID

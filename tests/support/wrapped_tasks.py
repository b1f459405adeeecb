"""An app with wrappers around its tasks, which run in processes; a process imports this module."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

from graphile_worker import App, Retry, RunningJob, Snooze, TaskRouter
from tests.support.process_tasks import note

app = App()
router = TaskRouter[Any]()

RETRY_DELAY, SNOOZE_DELAY = timedelta(hours=2), timedelta(hours=3)


@app.around(RunningJob)
@contextmanager
def plain(operation: RunningJob) -> Iterator[None]:
    path, place = _describe(operation)
    note(path, "plain in", place)
    if operation.job.payload.get("fails_in") == place.split()[-1]:
        raise LookupError(f"no connection in {place}")
    try:
        yield
    except KeyError:
        note(path, "suppressed", place)
    except BaseException as error:
        note(path, type(error).__name__, place)
        raise
    note(path, "plain out", place)


@app.around(RunningJob)
@asynccontextmanager
async def asynchronous(operation: RunningJob) -> AsyncIterator[None]:
    path, place = _describe(operation)
    note(path, "async", place)
    yield


def _describe(operation: RunningJob) -> tuple[str, str]:
    where = "process" if operation.is_task_process else "worker"
    return operation.job.payload["path"], f"{operation.runs_in} {where}"


@app.task(run_in="process")
def work(path: str, **_: Any) -> None:
    note(path, "task", os.getpid())


@app.task
def in_thread(path: str) -> None: ...


@app.task
async def on_loop(path: str) -> None: ...


@app.task(run_in="process")
def raises(path: str, what: str) -> None:
    match what:
        case "retry":
            raise Retry(RETRY_DELAY, reason="not yet")
        case "snooze":
            raise Snooze(SNOOZE_DELAY)
        case "suppressed":
            raise KeyError("the wrapper suppresses it")


@router.task(run_in="process")
def of_router(path: str) -> None: ...


app.include(router)

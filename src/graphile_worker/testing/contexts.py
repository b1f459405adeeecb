"""Contexts for tests that call the function of a task themselves."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, Protocol

from graphile_worker._payloads import encode
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.context import Context, PoolResources, SyncContext
from graphile_worker._worker.progress import check_progress
from graphile_worker.app import App
from graphile_worker.jobs import EPOCH, Job, JobSpec
from graphile_worker.tasks import JobContext, SyncJobContext, Task
from graphile_worker.tasks.context import C
from graphile_worker.testing.runner import WORKER_ID


class _Recorded(Protocol):
    """What a test reads of a context after its task ran."""

    @property
    def result(self) -> object:
        """Return what the task passed to `set_result`, or None."""
        ...

    @property
    def reported_progress(self) -> list[tuple[float | None, str | None]]:
        """Return the fraction and the message of each call of `progress`, in order."""
        ...


class RecordedContext(JobContext[C], _Recorded, Protocol[C]):
    """The context that `Harness.context` builds for an async task.

    Attributes:
        result: What the task passed to `set_result`, or None.
        reported_progress: The fraction and the message of each call of `progress`, in order.
    """


class SyncRecordedContext(SyncJobContext[C], _Recorded, Protocol[C]):
    """The context that `Harness.context` builds for a plain function.

    Attributes:
        result: What the task passed to `set_result`, or None.
        reported_progress: The fraction and the message of each call of `progress`, in order.
    """


class TestContext(Context):
    """A context whose job is not in the queue, so its transaction does not complete one."""

    __test__ = False

    def __init__(self, claimed: ClaimedJob, worker_id: str, resources: PoolResources) -> None:
        super().__init__(claimed, worker_id, resources)
        self.reported_progress: list[tuple[float | None, str | None]] = []

    def progress(self, fraction: float | None, message: str | None = None) -> None:
        self.reported_progress.append(check_progress(fraction, message))

    @property
    def sync_context(self) -> SyncContext:
        return SyncTestContext(self, self._resources)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._resources.database.transaction() as connection:
            yield connection.raw


class SyncTestContext(SyncContext):
    """`TestContext` for plain functions."""

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self._get_database().transaction() as connection:
            yield connection.raw


def build_context(
    app: App[Any],
    task: Task[..., Any] | str | Job,
    payload: Any,
    attempts: int,
    now: datetime,
    resources: PoolResources,
) -> Any:
    """Build the context that a job of the task would have, async or plain as the task is."""
    if isinstance(task, Job):
        job, known = task, app.tasks().get(task.task_identifier)
    else:
        known = task if isinstance(task, Task) else app.tasks().get(task)
        spec = JobSpec(task.identifier if isinstance(task, Task) else task, payload)
        if known is not None:
            spec = known.options.completed(JobSpec(spec.identifier, payload, **known.job_options))
        job = _build_job(spec, attempts, now)
    if job.locked_by is None:
        job.locked_by = f"pypool-{secrets.token_hex(9)}"
    context = TestContext(ClaimedJob(job, None), WORKER_ID, resources)
    return context.sync_context if known is not None and not known.is_async else context


def _build_job(spec: JobSpec, attempts: int, now: datetime) -> Job:
    run_at = spec.run_at if isinstance(spec.run_at, datetime) else now
    return Job(
        id=0,
        task_identifier=spec.identifier,
        queue_name=spec.queue_name,
        payload_text=encode(spec.payload) or "{}",
        priority=spec.priority or 0,
        run_at=_format_epoch(run_at),
        attempts=attempts,
        max_attempts=spec.max_attempts or 25,
        last_error=None,
        created_at=_format_epoch(now),
        updated_at=None,
        key=spec.job_key,
        locked_at=_format_epoch(now),
        locked_by=None,
        revision=0,
        flags=None if spec.flags is None else encode(dict.fromkeys(spec.flags, True)),
    )


def _format_epoch(when: datetime) -> str:
    return f"{(when - EPOCH).total_seconds():.6f}"

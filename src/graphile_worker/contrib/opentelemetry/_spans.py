"""Hooks that record a span for adding jobs, running a job, and adding the job of a cron item."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from graphile_worker.contrib.opentelemetry._exceptions import (
    ExceptionEvent,
    ExceptionRecorder,
    format_error_type,
)
from graphile_worker.contrib.opentelemetry._metrics import SYSTEM, Durations
from graphile_worker.contrib.opentelemetry._settings import Settings
from graphile_worker.contrib.opentelemetry._trace_context import (
    add_trace_context,
    build_links,
    build_parent_context,
    build_trace_context,
)
from graphile_worker.events import AddingJobs, BackfillJob, CronJob, CronScheduled, RunningJob
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.retries import Snooze

Attributes = dict[str, str | int | bool]
# Takes the duration in seconds and the type of the error.
DurationRecorder = Callable[[float, str | None], None]

MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """What the hooks record with."""

    tracer: Tracer
    exceptions: ExceptionRecorder
    settings: Settings
    durations: Durations | None = None
    is_automatic: bool = False
    """Whether an instrumentor registered the hooks, and not the program."""


class SpanHook:
    """A hook that equals any hook of its class, so that hooks contain only one of each."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self._tracer = telemetry.tracer
        self._exceptions = telemetry.exceptions
        self._durations = telemetry.durations
        self._settings = telemetry.settings

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def _build_name_attributes(self, queue_name: str | None, job_key: str | None) -> Attributes:
        attributes: Attributes = {}
        if queue_name is not None and "queue_name" in self._settings.record:
            attributes["messaging.graphile_worker.queue.name"] = queue_name
        if job_key is not None and "job_key" in self._settings.record:
            attributes["messaging.graphile_worker.job.key"] = job_key
        return attributes

    @contextmanager
    def _use_span(
        self, span: Span, event: ExceptionEvent, measure: DurationRecorder | None
    ) -> Iterator[None]:
        """Make this the current span. An error that passes becomes its status."""
        with trace.use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            error_type = None
            started_at = time.perf_counter()
            try:
                yield
            except Snooze:
                # A snoozed job did not fail.
                raise
            except BaseException as error:
                error_type = format_error_type(error)
                span.set_attribute("error.type", error_type)
                span.set_status(Status(StatusCode.ERROR))
                self._exceptions.record(span, error, event)
                raise
            finally:
                # Inside the span, so that the SDK can record its ids as an exemplar.
                if measure is not None:
                    measure(time.perf_counter() - started_at, error_type)


class AddingJobsHook(SpanHook):
    """Records a span around a call that adds jobs."""

    @contextmanager
    def __call__(self, operation: AddingJobs) -> Iterator[None]:
        if not operation.specs or not all(isinstance(spec, JobSpec) for spec in operation.specs):
            # Nothing to send, or the client raises a better error.
            yield
            return
        is_single = len(operation.specs) == 1
        span = (
            self._start_single_span(operation.specs[0])
            if is_single
            else self._start_batch_span(operation.specs)
        )
        measure = self._build_measure(operation.specs)
        with self._use_span(span, ExceptionEvent.SEND, measure):
            if self._settings.writes_context and (mark := build_trace_context(span)) is not None:
                operation.specs[:] = [add_trace_context(spec, mark) for spec in operation.specs]
            yield
            if is_single and operation.jobs:
                span.set_attributes(_build_job_attributes(operation.jobs[0]))

    def _start_single_span(self, spec: JobSpec) -> Span:
        attributes = _build_spec_attributes(spec) | self._build_name_attributes(
            spec.queue_name, spec.job_key
        )
        return self._tracer.start_span(
            f"add_job {spec.identifier}", kind=SpanKind.PRODUCER, attributes=attributes
        )

    def _start_batch_span(self, specs: Sequence[JobSpec]) -> Span:
        attributes = _build_operation_attributes("add_jobs", "send")
        attributes["messaging.batch.message_count"] = len(specs)
        return self._tracer.start_span("add_jobs", kind=SpanKind.CLIENT, attributes=attributes)

    def _build_measure(self, specs: Sequence[JobSpec]) -> DurationRecorder | None:
        if (durations := self._durations) is None:
            return None
        is_single = len(specs) == 1
        operation = "add_job" if is_single else "add_jobs"
        task = specs[0].identifier if is_single else None
        return lambda seconds, error: durations.record_send(operation, task, seconds, error)


class RunningJobHook(SpanHook):
    """Records a span around the task of a job."""

    @contextmanager
    def __call__(self, operation: RunningJob) -> Iterator[None]:
        if operation.is_task_process:
            # The worker records the span.
            yield
            return
        job = operation.job
        context, links = self._find_origin(job)
        span = self._tracer.start_span(
            f"process {job.task_identifier}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=_build_running_attributes(operation)
            | self._build_name_attributes(job.queue_name, job.key),
            links=links,
        )
        with self._use_span(span, ExceptionEvent.PROCESS, self._build_measure(job)):
            yield

    def _find_origin(self, job: Job) -> tuple[Context, Sequence[Link]]:
        """Return the parent context and the links of the span of a job."""
        if self._settings.reads_context:
            if self._settings.parent == "first-attempt" and job.attempts == 1:
                parent = build_parent_context(job.payload)
                if parent is not None:
                    return parent, ()
            return Context(), build_links(job.payload)
        # A new trace: the span in which the worker started is unrelated.
        return Context(), ()

    def _build_measure(self, job: Job) -> DurationRecorder | None:
        if (durations := self._durations) is None:
            return None
        task = job.task_identifier
        return lambda seconds, error: durations.record_process(task, seconds, error)


class CronScheduledHook(SpanHook):
    """Records a span for each cron item whose job a worker added."""

    def __call__(self, event: CronScheduled) -> None:
        for job in event.jobs:
            span = self._tracer.start_span(
                f"cron {job.identifier}",
                context=Context(),
                attributes=_build_cron_attributes(event, job),
            )
            span.end()


# Attributes


def _build_operation_attributes(name: str, kind: str) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _build_spec_attributes(spec: JobSpec) -> Attributes:
    attributes = _build_operation_attributes("add_job", "send")
    attributes["messaging.destination.name"] = spec.identifier
    if spec.job_key_mode is not None:
        attributes["messaging.graphile_worker.job.key_mode"] = str(spec.job_key_mode)
    return attributes


def _build_job_attributes(job: Job) -> Attributes:
    return {
        "messaging.message.id": str(job.id),
        "messaging.graphile_worker.priority": job.priority,
        "messaging.graphile_worker.run_at": job.run_at.isoformat(),
    }


def _build_running_attributes(operation: RunningJob) -> Attributes:
    job = operation.job
    attributes = _build_operation_attributes("process", "process") | _build_job_attributes(job)
    attributes["messaging.destination.name"] = job.task_identifier
    attributes["messaging.client.id"] = operation.worker_id
    attributes["messaging.graphile_worker.worker.pool"] = operation.pool_id
    attributes["messaging.graphile_worker.attempt"] = job.attempts
    attributes["messaging.graphile_worker.max_attempts"] = job.max_attempts
    if job.locked_at is not None:
        waited = (job.locked_at - job.run_at) // MILLISECOND
        attributes["messaging.graphile_worker.wait_ms"] = max(waited, 0)
    return attributes


def _build_cron_attributes(event: CronScheduled, job: CronJob) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.graphile_worker.cron.identifier": job.identifier,
        "messaging.graphile_worker.cron.ts": event.timestamp.isoformat(),
        "messaging.graphile_worker.cron.backfilled": isinstance(job, BackfillJob),
    }

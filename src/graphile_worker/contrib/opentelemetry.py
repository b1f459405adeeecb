"""OpenTelemetry spans for adding and running jobs, linked with each other.

    from graphile_worker.contrib.opentelemetry import instrument

    instrument(app)

Names and attributes follow the conventions for messaging, with the task as the destination. A span
never contains a payload. It contains values that are often made from payloads only if `record`
lists them.
"""

import json
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Literal, get_args

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError('tracing needs OpenTelemetry: pip install "graphile-worker[otel]"') from error

from graphile_worker._payloads import encode
from graphile_worker.app import App
from graphile_worker.errors import ConfigurationError
from graphile_worker.events import AddingJobs, BackfillJob, CronJob, CronScheduled, RunningJob
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.retries import Snooze
from graphile_worker.tasks.batch import TRACE_KEY

Propagation = Literal["off", "read", "read-write"]
RecordedField = Literal["exception_message", "job_key", "queue_name"]
Attributes = dict[str, str | int | bool]

# The default limit of SDKs. Any number of spans may have added the items of a batch.
MAX_LINKS = 128

MILLISECOND = timedelta(milliseconds=1)
W3C_PROPAGATOR = TraceContextTextMapPropagator()


def instrument(
    hooks: Hooks | App[Any],
    *,
    tracer_provider: trace.TracerProvider | None = None,
    propagation: Propagation = "read",
    record: Collection[RecordedField] = (),
) -> None:
    """Record spans for the jobs that are added and run. Call it again to change the arguments.

    The span of a running job starts a new trace, because the job may run days later. A link leads
    to the span that added the job, which the payload names.

    Args:
        hooks: App or hooks to instrument.
        tracer_provider: Tracer provider (default: the global one).
        propagation: "read" reads the span from the payload, "read-write" also writes it into
            payloads of added jobs, and "off" does neither.
        record: Values that often contain parts of payloads, which spans omit by default.

    Raises:
        ConfigurationError: An argument is not valid.
    """
    if propagation not in get_args(Propagation):
        choices = ", ".join(get_args(Propagation))
        raise ConfigurationError(f"propagation must be one of {choices}, got {propagation!r}")
    if isinstance(record, str) or not set(record) <= {*get_args(RecordedField)}:
        choices = ", ".join(get_args(RecordedField))
        raise ConfigurationError(f"record must be a list of any of {choices}, got {record!r}")
    target = hooks.hooks if isinstance(hooks, App) else hooks
    if not isinstance(target, Hooks):
        raise ConfigurationError(f"expected an App or Hooks, got {type(hooks).__name__}")
    tracer = trace.get_tracer("graphile_worker", version("graphile-worker"), tracer_provider)
    adding = _AddingJobsHook(tracer, propagation, record)
    running = _RunningJobHook(tracer, propagation, record)
    scheduled = _CronScheduledHook(tracer, propagation, record)
    target.off(AddingJobs, adding)
    target.around(AddingJobs)(adding)
    target.off(RunningJob, running)
    target.around(RunningJob)(running)
    target.off(CronScheduled, scheduled)
    target.on(CronScheduled)(scheduled)


class _SpanHook:
    """A hook that equals any hook of its class, so that hooks contain only one of each."""

    def __init__(
        self, tracer: Tracer, propagation: Propagation, record: Collection[RecordedField]
    ) -> None:
        self._tracer = tracer
        self._recorded = frozenset(record)
        self._reads_context = propagation != "off"
        self._writes_context = propagation == "read-write"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def _build_name_attributes(self, queue_name: str | None, job_key: str | None) -> Attributes:
        attributes: Attributes = {}
        if queue_name is not None and "queue_name" in self._recorded:
            attributes["messaging.graphile_worker.queue.name"] = queue_name
        if job_key is not None and "job_key" in self._recorded:
            attributes["messaging.graphile_worker.job.key"] = job_key
        return attributes


class _AddingJobsHook(_SpanHook):
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
        with _use_span(span, self._recorded):
            if self._writes_context and (mark := _build_trace_context(span)) is not None:
                operation.specs[:] = [_add_trace_context(spec, mark) for spec in operation.specs]
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


class _RunningJobHook(_SpanHook):
    @contextmanager
    def __call__(self, operation: RunningJob) -> Iterator[None]:
        span = self._tracer.start_span(
            f"process {operation.job.task_identifier}",
            # A new trace: the span in which the worker started is unrelated.
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes=_build_running_attributes(operation)
            | self._build_name_attributes(operation.job.queue_name, operation.job.key),
            links=_build_links(operation.job.payload) if self._reads_context else (),
        )
        with _use_span(span, self._recorded):
            yield


class _CronScheduledHook(_SpanHook):
    def __call__(self, event: CronScheduled) -> None:
        for job in event.jobs:
            span = self._tracer.start_span(
                f"cron {job.identifier}",
                context=Context(),
                attributes=_build_cron_attributes(event, job),
            )
            span.end()


# Spans


@contextmanager
def _use_span(span: Span, recorded: Collection[RecordedField]) -> Iterator[None]:
    """Make this the current span. An error that passes becomes its status."""
    with trace.use_span(
        span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield
        except Snooze:
            # A snoozed job did not fail.
            raise
        except BaseException as error:
            _set_error_status(span, error)
            # The __str__ of the error may raise.
            with suppress(Exception):
                if "exception_message" in recorded:
                    span.record_exception(error)
                else:
                    _record_stacktrace(span, error)
            raise


def _set_error_status(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", _format_error_type(error))
    span.set_status(Status(StatusCode.ERROR))


def _record_stacktrace(span: Span, error: BaseException) -> None:
    """Record the stack of an error without its message and those of its causes."""
    stack = "".join(traceback.format_tb(error.__traceback__))
    span.add_event(
        "exception", {"exception.type": _format_error_type(error), "exception.stacktrace": stack}
    )


def _format_error_type(error: BaseException) -> str:
    kind = type(error)
    is_builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"


# Attributes


def _build_operation_attributes(name: str, kind: str) -> Attributes:
    return {
        "messaging.system": "graphile_worker",
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
        "messaging.system": "graphile_worker",
        "messaging.graphile_worker.cron.identifier": job.identifier,
        "messaging.graphile_worker.cron.ts": event.timestamp.isoformat(),
        "messaging.graphile_worker.cron.backfilled": isinstance(job, BackfillJob),
    }


# Trace context in the payload


def _build_trace_context(span: Span) -> dict[str, str | int] | None:
    """Build the trace context of a payload: the Rust worker's three keys, then W3C's.

    Returns None if the span is not valid.
    """
    context = span.get_span_context()
    if not context.is_valid:
        return None
    carrier: dict[str, str] = {}
    W3C_PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return {
        "flags": int(context.trace_flags),
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
        **carrier,
    }


def _add_trace_context(spec: JobSpec, trace_context: Mapping[str, object]) -> JobSpec:
    text = encode(spec.payload)
    # The database stores an empty object for a job without a payload.
    payload = {} if text is None else json.loads(text)
    if isinstance(payload, dict):
        payload[TRACE_KEY] = trace_context
    elif isinstance(payload, list):
        for item in payload:
            if isinstance(item, dict):
                item[TRACE_KEY] = trace_context
    return replace(spec, payload=payload)


def _build_links(payload: object) -> list[Link]:
    """Build links to the spans that added a job or the items of a batch, each once."""
    links: dict[tuple[int, int], Link] = {}
    for item in payload if isinstance(payload, list) else [payload]:
        if len(links) == MAX_LINKS:
            break
        if (context := _read_span_context(item)) is not None:
            links.setdefault((context.trace_id, context.span_id), Link(context))
    return list(links.values())


def _read_span_context(item: object) -> SpanContext | None:
    mark = item.get(TRACE_KEY) if isinstance(item, dict) else None
    if not isinstance(mark, dict):
        return None
    w3c_context = _parse_traceparent(mark.get("traceparent"), mark.get("tracestate"))
    return w3c_context or _parse_traceparent(_format_traceparent(mark))


def _format_traceparent(trace_context: Mapping[str, object]) -> str | None:
    """Convert the Rust worker's three keys to W3C's, unchecked."""
    flags = trace_context.get("flags")
    if not isinstance(flags, int) or isinstance(flags, bool):
        return None
    return f"00-{trace_context.get('trace_id')}-{trace_context.get('span_id')}-{flags:02x}"


def _parse_traceparent(traceparent: object, tracestate: object = None) -> SpanContext | None:
    """Parse a traceparent. Returns None if it is not valid, since payloads are untrusted."""
    if not isinstance(traceparent, str):
        return None
    carrier = {"traceparent": traceparent}
    if isinstance(tracestate, str):
        carrier["tracestate"] = tracestate
    context = trace.get_current_span(W3C_PROPAGATOR.extract(carrier, Context())).get_span_context()
    return context if context.is_valid else None

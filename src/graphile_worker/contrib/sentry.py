"""Sentry: spans of queues, one event per permanently failed job, check-ins of scheduled tasks.

    from graphile_worker.contrib.sentry import instrument

    sentry_sdk.init(dsn="…", traces_sample_rate=0.1)
    instrument(app)

Each job runs in its own isolation scope. Nothing that this module sends contains a payload. It
contains values that are often made from payloads only if `record` lists them.
"""

import asyncio
import contextvars
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any, Literal, get_args

try:
    import sentry_sdk
    from sentry_sdk.crons import capture_checkin
    from sentry_sdk.scope import Scope, add_global_event_processor, use_scope
    from sentry_sdk.utils import capture_internal_exceptions, event_from_exception
except ImportError as error:
    raise ImportError('this needs the Sentry SDK: pip install "graphile-worker[sentry]"') from error

try:
    from sentry_sdk.tracing_utils import has_span_streaming_enabled
except ImportError:
    # Older versions cannot stream spans.
    def has_span_streaming_enabled(options: dict[str, Any] | None) -> bool:
        return False


from graphile_worker._payloads import encode
from graphile_worker._worker.reporting import (
    FAILED_PERMANENTLY_TEMPLATE,
    FAILED_TEMPLATE,
    QUARANTINED_TEMPLATE,
)
from graphile_worker.app import App
from graphile_worker.contrib._sentry_monitors import CheckIn, Monitors
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.errors import ConfigurationError, GraphileWorkerError, TaskProcessError
from graphile_worker.events import (
    AddingJobs,
    JobErrored,
    JobEvent,
    JobFailed,
    JobFinished,
    JobInterrupted,
    JobLockLost,
    JobRecovered,
    JobSucceeded,
    RunningJob,
)
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.retries import Discard, Retry, Snooze
from graphile_worker.tasks.batch import TRACE_KEY

Capture = Literal["failures", "every attempt"]
Propagation = Literal["off", "read", "read-write"]
RecordedField = Literal["job_key", "local_variables", "queue_name"]
Headers = dict[str, str]
Data = dict[str, str | int | float]

ORIGIN = "auto.queue.graphile_worker"
SYSTEM = "graphile_worker"
HEADER_NAMES = ("sentry-trace", "baggage")
MILLISECOND = timedelta(milliseconds=1)

# Upper bound on runs without a reported end, for example those of a killed worker.
MAX_RUNS = 10_000

# Lines of the worker about failures that this module sends itself.
FAILURE_TEMPLATES = frozenset({FAILED_TEMPLATE, FAILED_PERMANENTLY_TEMPLATE, QUARANTINED_TEMPLATE})

JOB_EVENTS = (JobErrored, JobFailed, JobSucceeded, JobFinished, JobInterrupted, JobLockLost)


def instrument(
    hooks: Hooks | App[Any],
    *,
    capture: Capture = "failures",
    propagation: Propagation = "read",
    monitors: bool | Iterable[ParsedCronItem] = True,
    record: Collection[RecordedField] = (),
) -> None:
    """Send spans, errors and check-ins of jobs. Call it again to change the arguments.

    Call it before the worker starts. While `sentry_sdk` is not initialized, it has no effect.

    Args:
        hooks: App or hooks to instrument.
        capture: "failures" sends one event for each permanently failed job, and "every attempt"
            one for each failed attempt.
        propagation: "read" continues the trace that the payload names, "read-write" also writes the
            current trace into payloads of added jobs, and "off" does neither.
        monitors: Whether scheduled tasks send check-ins. Pass the items of a crontab to include
            them, because only the items of the app are known.
        record: Values that often contain parts of payloads, which are omitted by default.

    Raises:
        ConfigurationError: An argument is not valid.
    """
    _check_choice("capture", capture, get_args(Capture))
    _check_choice("propagation", propagation, get_args(Propagation))
    if isinstance(record, str) or not set(record) <= {*get_args(RecordedField)}:
        choices = ", ".join(get_args(RecordedField))
        raise ConfigurationError(f"record must be a list of any of {choices}, got {record!r}")
    target = hooks.hooks if isinstance(hooks, App) else hooks
    if not isinstance(target, Hooks):
        raise ConfigurationError(f"expected an App or Hooks, got {type(hooks).__name__}")
    settings = _Settings(
        capture=capture,
        reads_trace=propagation != "off",
        writes_trace=propagation == "read-write",
        recorded=frozenset(record),
        monitors=_build_monitors(hooks, monitors),
    )
    _register(target, settings)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _build_monitors(hooks: Hooks | App[Any], monitors: bool | Iterable[ParsedCronItem]) -> Monitors:
    if monitors is False:
        return Monitors(list)
    items = [] if monitors is True else _check_items(monitors)
    if not isinstance(hooks, App):
        return Monitors(lambda: items)
    app = hooks
    return Monitors(lambda: [*app.cron_items(), *items])


def _check_items(monitors: object) -> list[ParsedCronItem]:
    items: list[Any] = list(monitors) if isinstance(monitors, Iterable) else [monitors]
    for item in items:
        if not isinstance(item, ParsedCronItem):
            raise ConfigurationError(
                f"monitors must be a bool, or items of parse_crontab() or parse_cron_items(), "
                f"got {item!r}"
            )
    return items


def _register(hooks: Hooks, settings: "_Settings") -> None:
    _install_log_filter()
    runs = _Runs()
    adding, running = _AddingJobsHook(settings, runs), _RunningJobHook(settings, runs)
    hooks.off(AddingJobs, adding)
    hooks.around(AddingJobs)(adding)
    hooks.off(RunningJob, running)
    hooks.around(RunningJob)(running)
    listener, recovery = _JobEventHook(settings, runs), _JobRecoveredHook(settings, runs)
    for event in JOB_EVENTS:
        hooks.off(event, listener)
        hooks.on(event)(listener)
    hooks.off(JobRecovered, recovery)
    hooks.on(JobRecovered)(recovery)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    capture: Capture
    reads_trace: bool
    writes_trace: bool
    recorded: frozenset[RecordedField]
    monitors: Monitors


# Runs


@dataclass(slots=True)
class _Run:
    """A run of a job, from its start until its outcome is written."""

    check_in: CheckIn | None = None
    context: contextvars.Context | None = None
    scope: Scope | None = None

    def remember_scope(self) -> None:
        """Keep the scopes and the span of the task for what is sent after the write."""
        self.context = contextvars.copy_context()
        self.scope = Scope.get_current_scope().fork()

    def send(self, function: Callable[[], object]) -> None:
        """Call a function in the scopes of the task."""
        if self.context is None or self.scope is None:
            function()
        else:
            self.context.run(_call_in_scope, self.scope, function)


def _call_in_scope(scope: Scope, function: Callable[[], object]) -> None:
    with use_scope(scope):
        function()


class _Runs:
    """The runs of all pools. Threads of tasks add runs, and the event loop removes them."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], _Run] = {}

    def add(self, pool_id: str, job: Job) -> _Run:
        with suppress(StopIteration, RuntimeError):
            if len(self._runs) >= MAX_RUNS:
                self._runs.pop(next(iter(self._runs)), None)
        run = self._runs[pool_id, job.id] = _Run()
        return run

    def get(self, event: JobEvent) -> _Run | None:
        return self._runs.get((event.pool_id, event.job.id))

    def remove(self, event: JobEvent) -> None:
        self._runs.pop((event.pool_id, event.job.id), None)


# Hooks


class _Hook:
    """A hook that equals any hook of its class, so that hooks contain only one of each."""

    def __init__(self, settings: _Settings, runs: _Runs) -> None:
        self._settings = settings
        self._runs = runs

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


class _AddingJobsHook(_Hook):
    @contextmanager
    def __call__(self, operation: AddingJobs) -> Iterator[None]:
        specs = operation.specs
        is_valid = bool(specs) and all(isinstance(spec, JobSpec) for spec in specs)
        # A span without a parent would not be sent.
        if not is_valid or not sentry_sdk.is_initialized() or _get_current_span() is None:
            yield
            return
        span: _Span | None = None
        # An error of the SDK must not fail the call, nor raise after the job was added.
        with capture_internal_exceptions():
            span = _start_publish_span(_get_span_name(specs))
        if span is None:
            yield
            return
        with span:
            with capture_internal_exceptions():
                span.set_data(self._build_data(specs))
                if self._settings.writes_trace and (headers := _read_current_trace()):
                    operation.specs[:] = [_add_trace(spec, headers) for spec in specs]
            yield
            if len(operation.jobs) == 1:
                job = operation.jobs[0]
                span.set_data(
                    {
                        "messaging.message.id": str(job.id),
                        "messaging.message.body.size": len(job.payload_text.encode()),
                    }
                )

    def _build_data(self, specs: Sequence[JobSpec]) -> Data:
        data: Data = {"messaging.system": SYSTEM}
        if len({spec.identifier for spec in specs}) == 1:
            data["messaging.destination.name"] = specs[0].identifier
        if len(specs) > 1:
            return data | {"messaging.batch.message_count": len(specs)}
        return data | _build_name_data(self._settings, specs[0].queue_name, specs[0].job_key)


class _RunningJobHook(_Hook):
    @contextmanager
    def __call__(self, operation: RunningJob) -> Iterator[None]:
        # The worker reports the run of a task process.
        if operation.is_task_process or not sentry_sdk.is_initialized():
            yield
            return
        run = self._runs.add(operation.pool_id, operation.job)
        with sentry_sdk.isolation_scope() as scope:
            span: AbstractContextManager[object] = nullcontext()
            with capture_internal_exceptions():
                span = self._start_span(scope, operation)
            with span:
                with capture_internal_exceptions():
                    run.check_in = self._open_check_in(scope, operation.job)
                try:
                    yield
                finally:
                    with capture_internal_exceptions():
                        run.remember_scope()

    def _start_span(self, scope: Scope, operation: RunningJob) -> "_Span":
        settings, job = self._settings, operation.job
        _describe_job(scope, settings, job, operation.pool_id, operation.worker_id)
        headers = _read_trace(job) if settings.reads_trace else {}
        data = _build_process_data(settings, job)
        return _start_process_span(scope, job.task_identifier, headers, data)

    def _open_check_in(self, scope: Scope, job: Job) -> CheckIn | None:
        check_in = self._settings.monitors.build_check_in(job)
        if check_in is not None:
            # Connects errors with the monitor.
            scope.set_context("monitor", {"slug": check_in.slug})
            _send_check_in(check_in, "in_progress")
        return check_in


class _JobEventHook(_Hook):
    def __call__(self, event: JobEvent) -> None:
        if sentry_sdk.is_initialized():
            self._report(event)
        if isinstance(event, JobFinished | JobInterrupted | JobLockLost):
            self._runs.remove(event)

    def _report(self, event: JobEvent) -> None:
        match event:
            case JobErrored() if self._settings.capture == "every attempt":
                self._capture_error(event, is_handled=event.will_retry)
            case JobFailed():
                if self._settings.capture == "failures":
                    self._capture_error(event, is_handled=False)
                self._close_check_in(event, "error")
            case JobSucceeded():
                self._close_check_in(event, "ok")

    def _capture_error(self, event: JobErrored | JobFailed, *, is_handled: bool) -> None:
        key = _get_failure_key(event.pool_id, event.job)
        if _is_line_sent(key):
            return
        settings = self._settings

        def send() -> None:
            sentry_event, hint = _build_error_event(settings, event, is_handled)
            sentry_sdk.capture_event(sentry_event, hint=hint)

        run = self._runs.get(event)
        if run is not None:
            run.send(send)
        else:
            # The task did not run, for example because its payload does not fit.
            with _use_job_scope(settings, event.job, event.pool_id, event.worker_id):
                send()
        _mark_event_sent(key)

    def _close_check_in(self, event: JobSucceeded | JobFailed, status: str) -> None:
        run = self._runs.get(event)
        if run is None:
            if check_in := self._settings.monitors.build_check_in(event.job):
                _send_check_in(check_in, status, event.duration)
        elif run.check_in is not None:
            check_in = run.check_in
            run.send(lambda: _send_check_in(check_in, status, event.duration))


class _JobRecoveredHook(_Hook):
    """Reports a job that crashed its worker too often. It permanently failed without an error."""

    def __call__(self, event: JobRecovered) -> None:
        if not event.is_quarantined or not sentry_sdk.is_initialized():
            return
        job, key = event.job, _get_failure_key(event.pool_id, event.job)
        if not _is_line_sent(key):
            with _use_job_scope(self._settings, job, event.dead_pool_id) as scope:
                scope.fingerprint = ["graphile_worker.quarantined", job.task_identifier]
                sentry_sdk.capture_message(
                    f"quarantined a job of task {job.task_identifier}: its worker died while it "
                    f"ran (crashes: {event.crashes})",
                    level="error",
                )
            _mark_event_sent(key)
        if check_in := self._settings.monitors.build_check_in(job):
            _send_check_in(check_in, "error")


# What is sent about a job


@contextmanager
def _use_job_scope(
    settings: _Settings, job: Job, pool_id: str, worker_id: str | None = None
) -> Iterator[Scope]:
    """Describe a job whose task did not run in this process, with the trace that it names."""
    with sentry_sdk.isolation_scope() as scope:
        _describe_job(scope, settings, job, pool_id, worker_id)
        # The span in which the worker started is unrelated.
        current = Scope.get_current_scope()
        current.span = None
        current.set_transaction_name(job.task_identifier, source="task")
        scope.set_new_propagation_context()
        if settings.reads_trace and (headers := _read_trace(job)):
            scope.generate_propagation_context(headers)
        yield scope


def _describe_job(
    scope: Scope, settings: _Settings, job: Job, pool_id: str, worker_id: str | None
) -> None:
    # Those of other jobs of this worker.
    scope.clear_breadcrumbs()
    scope.set_tag("task", job.task_identifier)
    scope.set_tag("job_id", str(job.id))
    scope.set_tag("attempt", str(job.attempts))
    details = {
        "job_id": job.id,
        "task": job.task_identifier,
        "attempt": job.attempts,
        "max_attempts": job.max_attempts,
        "priority": job.priority,
        "run_at": job.run_at.isoformat(),
        "pool_id": pool_id,
        "worker_id": worker_id,
    }
    if "queue_name" in settings.recorded:
        details["queue_name"] = job.queue_name
    else:
        scope.add_event_processor(_remove_queue_names)
    if "job_key" in settings.recorded:
        details["job_key"] = job.key
    scope.set_context("graphile_worker", details)


def _remove_queue_names(event: Any, hint: Any) -> Any:
    """Remove the queue from breadcrumbs of the log lines of a job."""
    breadcrumbs = event.get("breadcrumbs")
    for crumb in breadcrumbs.get("values", ()) if isinstance(breadcrumbs, dict) else ():
        if isinstance(crumb.get("data"), dict) and "job_id" in crumb["data"]:
            crumb["data"].pop("queue_name", None)
    return event


def _build_error_event(
    settings: _Settings, event: JobErrored | JobFailed, is_handled: bool
) -> tuple[Any, Any]:
    sentry_event: Any
    sentry_event, hint = event_from_exception(
        event.error,
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": "graphile_worker", "handled": is_handled},
    )
    values = sentry_event["exception"]["values"]
    if "local_variables" not in settings.recorded:
        # The arguments of a task are its payload.
        for value in values:
            for frame in (value.get("stacktrace") or {}).get("frames", ()):
                frame.pop("vars", None)
    if isinstance(event.error, TaskProcessError):
        values[-1]["type"] = event.error.kind
    if isinstance(event.error, GraphileWorkerError):
        # The stack of these errors is in the worker, and the same for all tasks.
        task, kind = event.job.task_identifier, values[-1]["type"]
        sentry_event["fingerprint"] = ["{{ default }}", task, kind]
    return sentry_event, hint


def _build_process_data(settings: _Settings, job: Job) -> Data:
    data: Data = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": job.task_identifier,
        "messaging.message.id": str(job.id),
        "messaging.message.retry.count": max(job.attempts - 1, 0),
    }
    if job.locked_at is not None:
        waited = (job.locked_at - job.run_at) / MILLISECOND
        data["messaging.message.receive.latency"] = max(waited, 0.0)
    return data | _build_name_data(settings, job.queue_name, job.key)


def _build_name_data(settings: _Settings, queue_name: str | None, job_key: str | None) -> Data:
    data: Data = {}
    if queue_name is not None and "queue_name" in settings.recorded:
        data["messaging.graphile_worker.queue.name"] = queue_name
    if job_key is not None and "job_key" in settings.recorded:
        data["messaging.graphile_worker.job.key"] = job_key
    return data


def _send_check_in(check_in: CheckIn, status: str, duration: timedelta | None = None) -> None:
    config: Any = check_in.monitor_config
    capture_checkin(
        monitor_slug=check_in.slug,
        check_in_id=check_in.id,
        status=status,
        duration=None if duration is None else duration.total_seconds(),
        monitor_config=config,
    )


# One event per failure
#
# The worker also logs a failure, and the logging integration of the SDK sends error lines. The
# event and the line follow each other in one call of `Hooks.emit`, in either order.

_FailureKey = tuple[str, int, int]
_reported: contextvars.ContextVar[tuple[str, _FailureKey] | None] = contextvars.ContextVar(
    "graphile_worker_sentry_reported", default=None
)


def _get_failure_key(pool_id: str, job: Job) -> _FailureKey:
    return pool_id, job.id, job.attempts


def _is_line_sent(key: _FailureKey) -> bool:
    return _reported.get() == ("line", key)


def _mark_event_sent(key: _FailureKey) -> None:
    _reported.set(("event", key))


@cache
def _install_log_filter() -> None:
    """Drop lines of reported failures, from the first call on."""
    add_global_event_processor(_drop_reported_line)


def _drop_reported_line(event: Any, hint: Any) -> Any:
    record = (hint or {}).get("log_record")
    if record is None or not isinstance(record.msg, str) or record.msg not in FAILURE_TEMPLATES:
        return event
    key = record.pool_id, record.job_id, record.attempt
    if _reported.get() == ("event", key):
        _reported.set(None)
        return None
    _reported.set(("line", key))
    return event


# Spans
#
# The SDK has two APIs: spans of a transaction, and streamed spans, which
# init(trace_lifecycle="stream") selects in newer versions.


class _Span:
    """A span of either API. It does not turn each exception into an error, as the SDK does."""

    def __init__(self, span: Any, *, is_streamed: bool) -> None:
        self._span = span
        self._is_streamed = is_streamed

    def set_data(self, data: Mapping[str, Any]) -> None:
        with capture_internal_exceptions():
            set_value = self._span.set_attribute if self._is_streamed else self._span.set_data
            for name, value in data.items():
                set_value(name, value)

    def __enter__(self) -> "_Span":
        with capture_internal_exceptions():
            self._span.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with capture_internal_exceptions():
            self._set_status(_get_status(error))
            self._span.__exit__(None, None, None)

    def _set_status(self, status: str) -> None:
        if self._is_streamed:
            self._span.status = "ok" if status in ("ok", "cancelled") else "error"
        else:
            self._span.set_status(status)


def _get_status(error: BaseException | None) -> str:
    match error:
        case None | Snooze():
            return "ok"
        case Retry() | Discard():
            return "aborted"
        case asyncio.CancelledError():
            # By its timeout or a shutdown.
            return "cancelled"
        case _:
            return "internal_error"


def _is_streaming() -> bool:
    return has_span_streaming_enabled(sentry_sdk.get_client().options)


def _get_current_span() -> object:
    if _is_streaming():
        return sentry_sdk.traces.get_current_span()
    return sentry_sdk.get_current_span()


def _start_publish_span(name: str) -> _Span:
    if _is_streaming():
        attributes: Any = {"sentry.op": "queue.publish", "sentry.origin": ORIGIN}
        return _Span(sentry_sdk.traces.start_span(name, attributes), is_streamed=True)
    span = sentry_sdk.start_span(op="queue.publish", origin=ORIGIN)
    # The parameter has another name in older versions.
    span.description = name
    return _Span(span, is_streamed=False)


def _start_process_span(scope: Scope, name: str, headers: Headers, data: Data) -> _Span:
    """Start a transaction that continues the trace of the headers, if they name one."""
    if _is_streaming():
        attributes: Any = {
            "sentry.op": "queue.process",
            "sentry.origin": ORIGIN,
            "sentry.segment.name.source": "task",
            **data,
        }
        sentry_sdk.traces.continue_trace(headers)
        streamed = sentry_sdk.traces.start_span(name, attributes, parent_span=None)
        return _Span(streamed, is_streamed=True)
    # Without headers, the trace in which the worker started is unrelated.
    scope.set_new_propagation_context()
    transaction = sentry_sdk.continue_trace(
        headers, op="queue.process", name=name, source="task", origin=ORIGIN
    )
    scope.add_event_processor(_DataProcessor(transaction.span_id, data))
    return _Span(sentry_sdk.start_transaction(transaction), is_streamed=False)


class _DataProcessor:
    """Adds the data of a transaction, which older versions of the SDK do not send."""

    def __init__(self, span_id: str, data: Data) -> None:
        self._span_id = span_id
        self._data = data

    def __call__(self, event: Any, hint: Any) -> Any:
        trace = (event.get("contexts") or {}).get("trace") or {}
        if event.get("type") == "transaction" and trace.get("span_id") == self._span_id:
            trace["data"] = {**trace.get("data", {}), **self._data}
        return event


def _get_span_name(specs: Sequence[JobSpec]) -> str:
    return specs[0].identifier if len(specs) == 1 else "add_jobs"


# Traces in payloads


def _read_current_trace() -> Headers:
    headers = dict(Scope.get_current_scope().iter_trace_propagation_headers())
    return {name: headers[name] for name in HEADER_NAMES if headers.get(name)}


def _add_trace(spec: JobSpec, headers: Headers) -> JobSpec:
    text = encode(spec.payload)
    # The database stores an empty object for a job without a payload.
    payload = {} if text is None else json.loads(text)
    for item in payload if isinstance(payload, list) else [payload]:
        if isinstance(item, dict):
            mark = item.get(TRACE_KEY)
            # OpenTelemetry and the Rust worker have other keys in it.
            item[TRACE_KEY] = {**mark, **headers} if isinstance(mark, dict) else headers
    return replace(spec, payload=payload)


def _read_trace(job: Job) -> Headers:
    """Read the trace that added a job, or the first item of a batch that has one."""
    payload = None
    with suppress(ValueError):
        payload = job.payload
    for item in payload if isinstance(payload, list) else [payload]:
        mark = item.get(TRACE_KEY) if isinstance(item, dict) else None
        if isinstance(mark, dict) and isinstance(mark.get("sentry-trace"), str):
            return {name: mark[name] for name in HEADER_NAMES if isinstance(mark.get(name), str)}
    return {}

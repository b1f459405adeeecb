"""Exceptions as log events, as `OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN` says, with the real SDK."""

import inspect
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import _logs
from opentelemetry.sdk._logs import LoggerProvider, export
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from graphile_worker import App, JobSpecError, Snooze
from graphile_worker.contrib.opentelemetry import RecordedField, instrument
from tests.integrations.conftest import Run

VARIABLE = "OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN"

pytestmark = [
    pytest.mark.single_version,
    pytest.mark.skipif(
        "event_name" not in inspect.signature(_logs.Logger.emit).parameters,
        reason="opentelemetry-api has no log events before 1.38",
    ),
]


class Telemetry:
    """An app's exported spans and log records."""

    def __init__(self, app: App[None], record: Sequence[RecordedField] = ()) -> None:
        # The exporter had another name until 1.39.
        names = [name for name in dir(export) if name.startswith("InMemoryLog")]
        self._logs: Any = getattr(export, max(names))()
        self._spans = InMemorySpanExporter()
        loggers, tracers = LoggerProvider(shutdown_on_exit=False), TracerProvider()
        loggers.add_log_record_processor(SimpleLogRecordProcessor(self._logs))
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        instrument(app, tracer_provider=tracers, logger_provider=loggers, record=record)

    @property
    def span(self) -> ReadableSpan:
        """The last span."""
        return self._spans.get_finished_spans()[-1]

    @property
    def logs(self) -> list[Any]:
        return [each.log_record for each in self._logs.get_finished_logs()]


async def greet(name: str) -> None:
    if name == "Sue":
        raise Snooze(timedelta(hours=1))
    try:
        raise KeyError(f"cause {name}")
    except KeyError as cause:
        raise ValueError(f"message {name}") from cause


@pytest.mark.parametrize(
    ("value", "has_span_event", "has_log"),
    [(None, True, False), ("logs", False, True), ("logs/dup", True, True), ("spans", True, False)],
)
async def test_the_environment_variable_selects_span_events_log_events_or_both(
    app: App[None],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    value: str | None,
    has_span_event: bool,
    has_log: bool,
) -> None:
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    telemetry = Telemetry(app)
    app.task(greet)

    await app.aadd_job("greet", {"name": "Ada"})
    await run()

    assert len(telemetry.logs) == int(has_log)
    assert [event.name for event in telemetry.span.events] == ["exception"] * has_span_event
    assert (telemetry.span.attributes or {})["error.type"] == "ValueError"


async def test_the_log_event_of_a_failed_attempt_belongs_to_its_span(
    app: App[None], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "logs")
    telemetry = Telemetry(app)
    app.task(greet)

    await app.aadd_job("greet", {"name": "Ada"})
    await run()

    [log] = telemetry.logs
    assert log.event_name == "messaging.process.exception"
    assert (log.severity_number.value, log.severity_text) == (17, "ERROR")
    assert telemetry.span.context is not None
    assert log.trace_id == telemetry.span.context.trace_id
    assert log.span_id == telemetry.span.context.span_id
    assert log.attributes.keys() == {"exception.type", "exception.stacktrace"}
    assert log.attributes["exception.type"] == "ValueError"
    assert "raise ValueError(" in log.attributes["exception.stacktrace"]
    assert "Ada" not in str(log.attributes)


async def test_log_events_contain_messages_only_with_record(
    app: App[None], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "logs")
    telemetry = Telemetry(app, record=["exception_message"])
    app.task(greet)

    await app.aadd_job("greet", {"name": "Ada"})
    await run()

    [log] = telemetry.logs
    assert log.attributes["exception.message"] == "message Ada"
    assert "cause Ada" in log.attributes["exception.stacktrace"]


async def test_a_snooze_has_no_log_event_and_a_rejected_job_a_warning(
    app: App[None], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "logs")
    telemetry = Telemetry(app)
    app.task(greet)

    await app.aadd_job("greet", {"name": "Sue"})
    await run()
    with pytest.raises(JobSpecError):
        await app.aadd_job("resize", {"name": object()})

    [log] = telemetry.logs
    assert log.event_name == "messaging.send.exception"
    assert (log.severity_number.value, log.severity_text) == (13, "WARN")


async def test_without_log_events_in_the_api_exceptions_stay_on_the_span(
    app: App[None], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "logs")
    monkeypatch.setattr(_logs.Logger, "emit", lambda self, record: None)
    telemetry = Telemetry(app)
    app.task(greet)

    await app.aadd_job("greet", {"name": "Ada"})
    await run()

    assert telemetry.logs == []
    assert [event.name for event in telemetry.span.events] == ["exception"]

"""Exceptions as events of a span or as log events, without their messages unless recorded."""

import inspect
import os
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from opentelemetry.trace import Span

try:
    from opentelemetry import _logs
except ImportError:
    # The name of the module has an underscore, so it may change.
    _logs = None  # type: ignore[assignment]  # replaces a module

from graphile_worker.contrib.opentelemetry._settings import RecordedField

if TYPE_CHECKING:
    from opentelemetry._logs import Logger, LoggerProvider

SIGNAL_VARIABLE = "OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN"


class ExceptionEvent(Enum):
    """The log event of an exception: its name, and the number and text of its severity."""

    SEND = ("messaging.send.exception", 13, "WARN")
    PROCESS = ("messaging.process.exception", 17, "ERROR")


class ExceptionRecorder:
    """Records exceptions on spans, in logs or both, by the environment variable."""

    def __init__(
        self,
        record: Collection[RecordedField],
        version: str,
        logger_provider: "LoggerProvider | None" = None,
    ) -> None:
        self._has_message = "exception_message" in record
        signal = os.environ.get(SIGNAL_VARIABLE, "").strip()
        self._logger = (
            _get_logger(version, logger_provider) if signal in ("logs", "logs/dup") else None
        )
        self._writes_span_event = self._logger is None or signal == "logs/dup"

    def record(self, span: Span, error: BaseException, event: ExceptionEvent) -> None:
        """Record an exception that ended the operation of a span, which is the current one."""
        if self._writes_span_event:
            # The __str__ of the error may raise.
            with suppress(Exception):
                self._add_span_event(span, error)
        if self._logger is not None:
            with suppress(Exception):
                self._emit_log_event(error, event)

    def _add_span_event(self, span: Span, error: BaseException) -> None:
        if self._has_message:
            span.record_exception(error)
        else:
            span.add_event("exception", _build_attributes(error))

    def _emit_log_event(self, error: BaseException, event: ExceptionEvent) -> None:
        assert self._logger is not None
        assert _logs is not None
        name, severity, text = event.value
        attributes = _build_attributes(error)
        if self._has_message:
            attributes["exception.message"] = str(error)
            attributes["exception.stacktrace"] = "".join(traceback.format_exception(error))
        self._logger.emit(
            timestamp=time.time_ns(),
            severity_number=_logs.SeverityNumber(severity),
            severity_text=text,
            event_name=name,
            attributes=attributes,
        )


def format_error_type(error: BaseException) -> str:
    """Return the qualified name of the class of an error."""
    kind = type(error)
    is_builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"


def _build_attributes(error: BaseException) -> dict[str, str]:
    """Describe an error without its message and those of its causes."""
    return {
        "exception.type": format_error_type(error),
        "exception.stacktrace": "".join(traceback.format_tb(error.__traceback__)),
    }


def _get_logger(version: str, provider: "LoggerProvider | None") -> "Logger | None":
    """Return a logger of events, or None if the installed API has none: before 1.38."""
    if _logs is None or "event_name" not in inspect.signature(_logs.Logger.emit).parameters:
        return None
    return _logs.get_logger("graphile_worker", version, logger_provider=provider)

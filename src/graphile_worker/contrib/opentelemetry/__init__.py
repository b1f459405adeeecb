"""OpenTelemetry: spans and metrics of adding and running jobs.

    from graphile_worker.contrib.opentelemetry import instrument

    instrument(app)

Names and attributes follow the conventions for messaging, with the task as the destination. Spans,
metrics and log events never contain a payload. They contain values that are often made from
payloads only if `record` lists them.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

try:
    from opentelemetry import trace
    from opentelemetry.metrics import MeterProvider
except ImportError as error:
    raise ImportError('tracing needs OpenTelemetry: pip install "graphile-worker[otel]"') from error

from graphile_worker.app import App
from graphile_worker.contrib.opentelemetry._register import (
    build_telemetry,
    register_hooks,
    replace_recorder,
)
from graphile_worker.contrib.opentelemetry._settings import (
    Metrics,
    Parent,
    Propagation,
    RecordedField,
    Settings,
)
from graphile_worker.contrib.opentelemetry._trace_context import MAX_LINKS
from graphile_worker.errors import ConfigurationError
from graphile_worker.hooks import Hooks

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider

__all__ = ["MAX_LINKS", "Metrics", "Parent", "Propagation", "RecordedField", "instrument"]


def instrument(
    hooks: Hooks | App[Any],
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: "LoggerProvider | None" = None,
    propagation: Propagation = "read",
    parent: Parent = "link",
    record: Collection[RecordedField] = (),
    metrics: Metrics = "counters",
) -> None:
    """Record spans and metrics of the jobs that are added and run.

    Call it again to change the arguments. The span of a running job starts a new trace, because the
    job may run days later. A link leads to the span that added the job, which the payload names.

    Args:
        hooks: App or hooks to instrument.
        tracer_provider: Tracer provider (default: the global one).
        meter_provider: Meter provider (default: the global one).
        logger_provider: Logger provider for exceptions (default: the global one). The environment
            variable `OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN` turns them on.
        propagation: "read" reads the span from the payload, "read-write" also writes it into
            payloads of added jobs, and "off" does neither.
        parent: "first-attempt" makes the span that added the job the parent of its first attempt.
            Retries and batches have links.
        record: Values that often contain parts of payloads, which spans omit by default.
        metrics: "counters" exports counters and gauges, "histograms" also records two durations
            for each job, and "off" exports nothing.

    Raises:
        ConfigurationError: An argument is not valid.
    """
    settings = Settings(propagation=propagation, parent=parent, record=record, metrics=metrics)
    target = hooks.hooks if isinstance(hooks, App) else hooks
    if not isinstance(target, Hooks):
        raise ConfigurationError(f"expected an App or Hooks, got {type(hooks).__name__}")
    telemetry, exporter = build_telemetry(
        settings, tracer_provider, meter_provider, logger_provider
    )
    register_hooks(target, telemetry)
    replace_recorder(target, exporter)

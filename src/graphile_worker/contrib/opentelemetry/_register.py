"""Register the hooks of OpenTelemetry, and attach the recorder to the instruments."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider

from graphile_worker._metrics.recorder import Recorder
from graphile_worker.contrib.opentelemetry._exceptions import ExceptionRecorder
from graphile_worker.contrib.opentelemetry._metrics import (
    MetricExporter,
    detach_recorder,
    get_exporter,
)
from graphile_worker.contrib.opentelemetry._settings import Settings
from graphile_worker.contrib.opentelemetry._spans import (
    AddingJobsHook,
    CronScheduledHook,
    RunningJobHook,
    SpanHook,
    Telemetry,
)
from graphile_worker.events import AddingJobs, CronScheduled, RunningJob
from graphile_worker.hooks import Hooks

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider


class SharedRecorder(Recorder):
    """Counts the work of all hooks that an instrumentor found."""

    is_automatic = True


def build_telemetry(
    settings: Settings,
    tracer_provider: trace.TracerProvider | None,
    meter_provider: MeterProvider | None,
    logger_provider: "LoggerProvider | None",
) -> tuple[Telemetry, MetricExporter | None]:
    """Return what the hooks record with, and the instruments unless metrics are off."""
    own_version = version("graphile-worker")
    exporter = None if settings.metrics == "off" else get_exporter(own_version, meter_provider)
    has_durations = exporter is not None and settings.metrics == "histograms"
    telemetry = Telemetry(
        tracer=trace.get_tracer("graphile_worker", own_version, tracer_provider),
        exceptions=ExceptionRecorder(settings.record, own_version, logger_provider),
        settings=settings,
        durations=exporter.get_durations() if exporter and has_durations else None,
    )
    return telemetry, exporter


def register_hooks(hooks: Hooks, telemetry: Telemetry) -> None:
    """Register the three hooks, in place of those that are registered."""
    adding, running = AddingJobsHook(telemetry), RunningJobHook(telemetry)
    scheduled = CronScheduledHook(telemetry)
    hooks.off(AddingJobs, adding)
    hooks.around(AddingJobs)(adding)
    hooks.off(RunningJob, running)
    hooks.around(RunningJob)(running)
    hooks.off(CronScheduled, scheduled)
    hooks.on(CronScheduled)(scheduled)


def find_registered(hooks: Hooks) -> SpanHook | None:
    """Return one of the registered hooks."""
    functions: tuple[object, ...] = hooks._wrappers[RunningJob]
    return next((each for each in functions if isinstance(each, SpanHook)), None)


def unregister_hooks(hooks: Hooks) -> None:
    """Remove the three hooks. Hooks of a class are equal, so any instance names them."""
    if (registered := find_registered(hooks)) is not None:
        telemetry = registered.telemetry
        hooks.off(AddingJobs, AddingJobsHook(telemetry))
        hooks.off(RunningJob, RunningJobHook(telemetry))
        hooks.off(CronScheduled, CronScheduledHook(telemetry))


def replace_recorder(hooks: Hooks, exporter: MetricExporter | None) -> None:
    """Attach the recorder of these hooks to one exporter, or to none."""
    if isinstance(hooks._recorder, SharedRecorder):
        hooks._recorder = None
    if exporter is not None:
        exporter.attach(hooks._enable_metrics())
    if hooks._recorder is not None:
        detach_recorder(hooks._recorder, keep=exporter)

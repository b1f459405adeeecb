"""The instrumentor that `opentelemetry-instrument` finds by its entry point.

It needs the package opentelemetry-instrumentation.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]  # no types
    BaseInstrumentor,
)

from graphile_worker.contrib.opentelemetry._metrics import MetricExporter, detach_recorder
from graphile_worker.contrib.opentelemetry._register import (
    SharedRecorder,
    build_telemetry,
    find_registered,
    register_hooks,
    unregister_hooks,
)
from graphile_worker.contrib.opentelemetry._settings import Settings
from graphile_worker.contrib.opentelemetry._spans import Telemetry
from graphile_worker.hooks import Hooks


class GraphileWorkerInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # has no types
    """Instrument all apps and hooks of the process, also those that are created later.

    An app that your program instruments keeps the arguments of that call.
    """

    _instrumentation: "_Instrumentation | None" = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the package that is instrumented, with pre-releases."""
        return ("graphile-worker >= 0.dev0",)

    def _instrument(self, **arguments: Any) -> None:
        """Take the arguments of `instrument`, except the first."""
        names = ("tracer_provider", "meter_provider", "logger_provider")
        providers = [arguments.pop(name, None) for name in names]
        telemetry, exporter = build_telemetry(Settings(**arguments), *providers)
        self._instrumentation = _Instrumentation(replace(telemetry, is_automatic=True), exporter)
        self._instrumentation.start()

    def _uninstrument(self, **arguments: Any) -> None:
        if self._instrumentation is not None:
            self._instrumentation.stop()
            self._instrumentation = None


class _Instrumentation:
    """Registers hooks with all `Hooks` of the process, which share one recorder.

    With one recorder, hooks that a program creates for each request leave nothing behind.
    """

    def __init__(self, telemetry: Telemetry, exporter: MetricExporter | None) -> None:
        self._telemetry = telemetry
        self._exporter = exporter
        self._recorder = SharedRecorder()

    def start(self) -> None:
        if self._exporter is not None:
            self._exporter.attach(self._recorder)
        Hooks._instances.call_with_each(self._register)

    def stop(self) -> None:
        for hooks in Hooks._instances.stop_calling(self._register):
            self._unregister(hooks)
        detach_recorder(self._recorder)

    def _register(self, hooks: Hooks) -> None:
        if find_registered(hooks) is not None:
            return
        register_hooks(hooks, self._telemetry)
        if self._exporter is None:
            return
        if hooks._recorder is None:
            hooks._recorder = self._recorder
        else:
            self._exporter.attach(hooks._recorder)

    def _unregister(self, hooks: Hooks) -> None:
        registered = find_registered(hooks)
        if registered is None or not registered.telemetry.is_automatic:
            return
        unregister_hooks(hooks)
        if hooks._recorder is self._recorder:
            hooks._recorder = None
        elif hooks._recorder is not None:
            detach_recorder(hooks._recorder)

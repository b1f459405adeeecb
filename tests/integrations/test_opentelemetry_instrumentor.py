"""The instrumentor that `opentelemetry-instrument` loads, with the real SDK."""

import gc
import weakref
from collections.abc import Iterator
from importlib.metadata import distribution
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from graphile_worker import App, Client, Hooks
from graphile_worker._metrics.definitions import FETCHES
from graphile_worker.contrib.opentelemetry import instrument
from tests.conftest import TestDatabase
from tests.integrations.conftest import Run

# The oldest releases that are allowed are tested without it.
pytest.importorskip("opentelemetry.instrumentation")

pytestmark = pytest.mark.single_version


class Instrumented:
    """The instrumentor, and what the SDK exports."""

    def __init__(self) -> None:
        from graphile_worker.contrib.opentelemetry.instrumentor import GraphileWorkerInstrumentor

        self.instrumentor: Any = GraphileWorkerInstrumentor()
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def instrument(self, **arguments: Any) -> None:
        self.instrumentor.instrument(
            tracer_provider=self.tracers, meter_provider=self.meters, **arguments
        )

    @property
    def span_names(self) -> list[str]:
        return [span.name for span in self._spans.get_finished_spans()]

    @property
    def sums(self) -> dict[str, float]:
        """The sums over all attributes, by the name of the instrument."""
        data = self._reader.get_metrics_data()
        resources = data.resource_metrics if data is not None else []
        found: Any = [each for resource in resources for each in resource.scope_metrics[0].metrics]
        return {each.name: sum(point.value for point in each.data.data_points) for each in found}


@pytest.fixture
def instrumented() -> Iterator[Instrumented]:
    instrumented = Instrumented()
    yield instrumented
    if instrumented.instrumentor.is_instrumented_by_opentelemetry:
        instrumented.instrumentor.uninstrument()


def test_opentelemetry_finds_the_instrumentor_by_its_entry_point() -> None:
    [entry_point] = distribution("graphile-worker").entry_points.select(
        group="opentelemetry_instrumentor"
    )

    instrumentor = entry_point.load()()

    assert list(instrumentor.instrumentation_dependencies()) == ["graphile-worker >= 0.dev0"]
    assert instrumentor._check_dependency_conflicts() is None


async def test_apps_and_clients_are_instrumented_before_and_after_they_are_created(
    app: App[None], database: TestDatabase, run: Run, instrumented: Instrumented
) -> None:
    app.task(name="greet")(greet)
    instrumented.instrument()

    await app.aadd_job("greet")
    async with App(database.dsn, schema=database.schema) as later:
        await later.aadd_job("greet")
    async with Client(database.dsn, schema=database.schema) as client:
        await client.add_job("greet")
    await run()
    # The worker merges these hooks with those of the app.
    await app.aadd_job("greet")
    await run(hooks=Hooks())

    assert instrumented.span_names == [*["add_job greet"] * 3, *["process greet"] * 3] + [
        "add_job greet",
        "process greet",
    ]
    assert instrumented.sums["messaging.client.sent.messages"] == 4
    assert instrumented.sums["messaging.client.consumed.messages"] == 4
    assert instrumented.sums["graphile_worker.jobs.finished"] == 4


async def greet() -> None: ...


async def test_uninstrument_restores_all_hooks(
    app: App[None], run: Run, instrumented: Instrumented
) -> None:
    app.task(name="greet")(greet)
    instrumented.instrument()
    later = Hooks()
    instrumented.instrumentor.uninstrument()

    await app.aadd_job("greet")
    await run()

    assert instrumented.span_names == []
    assert instrumented.sums == {}
    for hooks in (app.hooks, later, Hooks()):
        assert hooks._recorder is None
        assert hooks._wrappers.entries == ()
        assert hooks._listeners.entries == ()

    instrumented.instrument(metrics="off")
    assert later._recorder is None
    assert later._wrappers.entries


async def test_an_app_keeps_the_arguments_that_the_program_passed(
    app: App[None], run: Run, instrumented: Instrumented
) -> None:
    before, after, own = Hooks(), Hooks(), Instrumented()
    arguments: dict[str, Any] = {"tracer_provider": own.tracers, "meter_provider": own.meters}

    instrument(before, **arguments)
    instrumented.instrument(propagation="read-write")
    instrument(app, **arguments)
    instrument(after, **arguments, metrics="off")
    app.task(name="greet")(greet)
    job = await app.aadd_job("greet")
    await run()

    assert job.payload == {}
    assert instrumented.span_names == []
    assert own.span_names == ["add_job greet", "process greet"]
    assert own.sums["graphile_worker.jobs.finished"] == 1
    assert "graphile_worker.jobs.finished" not in instrumented.sums
    assert after._recorder is None

    instrumented.instrumentor.uninstrument()
    await app.aadd_job("greet")
    assert own.span_names == ["add_job greet", "process greet", "add_job greet"]


def test_instrumented_hooks_are_freed_and_their_counts_stay(instrumented: Instrumented) -> None:
    instrumented.instrument()
    hooks = Hooks()
    hooks._enable_metrics().add(FETCHES, ("hit",))
    reference = weakref.ref(hooks)

    del hooks
    gc.collect()

    assert reference() is None
    assert instrumented.sums["graphile_worker.fetches"] == 1

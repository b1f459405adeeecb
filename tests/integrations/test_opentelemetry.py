"""Spans of adding and running jobs, with the real SDK, on a real database."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
)
from pydantic import BaseModel

from graphile_worker import (
    App,
    Client,
    ConfigurationError,
    Discard,
    Hooks,
    JobContext,
    JobSpec,
    JobSpecError,
    PartialFailure,
    Retry,
    RunningJob,
    Snooze,
    SyncJobContext,
    parse_crontab,
    sync,
)
from graphile_worker._cron.scheduler import CronScheduler
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.contrib.opentelemetry import MAX_LINKS, RecordedField, instrument
from tests.conftest import TestDatabase
from tests.integrations.conftest import Run
from tests.support.jobs import make_job
from tests.support.sql import Sql

pytestmark = pytest.mark.single_version

TRACE_ID = "1f2e3d4c5b6a79880123456789abcdef"
SPAN_ID = "89abcdef01234567"
RUST = {"flags": 1, "trace_id": TRACE_ID, "span_id": SPAN_ID}
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
SOMEWHERE_ELSE = f"00-{'ab' * 16}-{'cd' * 8}-01"

PAYLOADS = "select payload::text from :schema._private_jobs order by id"


class Spans:
    """The exported spans by name."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("a program")

    @property
    def finished(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.finished]

    @property
    def text(self) -> str:
        """Return all attributes and events as text."""
        return "".join(span.to_json() for span in self.finished)

    def one(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.finished if span.name == name]
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.provider.shutdown()


def context_of(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.context
    assert context is not None
    return context


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> list[tuple[str, str]]:
    """Return the traces and spans that a span is linked to."""
    return [
        (trace.format_trace_id(link.context.trace_id), trace.format_span_id(link.context.span_id))
        for link in span.links
    ]


def ids_of(span: ReadableSpan) -> tuple[str, str]:
    context = context_of(span)
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def mark_of(span: ReadableSpan) -> dict[str, Any]:
    """Return the trace context that is written for a span."""
    trace_id, span_id = ids_of(span)
    flags = int(context_of(span).trace_flags)
    traceparent = f"00-{trace_id}-{span_id}-{flags:02x}"
    return {"flags": flags, "trace_id": trace_id, "span_id": span_id, "traceparent": traceparent}


def stored(sql: Sql) -> list[Any]:
    return [json.loads(text) for (text,) in sql.run(PAYLOADS)]


# Adding

OPTIONS: dict[str, Any] = {
    "queue_name": "mails",
    "job_key": "ada",
    "job_key_mode": "preserve_run_at",
    "priority": -3,
    "run_at": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
}

NAMES: list[RecordedField] = ["job_key", "queue_name"]


async def by_client(app: App[None], hooks: Hooks) -> None:
    async with Client(app.dsn, schema=app.schema, hooks=hooks) as client:
        await client.add_job("greet", {"name": "Ada"}, **OPTIONS)


async def by_batch_of_one(app: App[None], hooks: Hooks) -> None:
    async with Client(app.dsn, schema=app.schema, hooks=hooks) as client:
        await client.add_jobs([JobSpec("greet", {"name": "Ada"}, **OPTIONS)])


async def by_blocking_client(app: App[None], hooks: Hooks) -> None:
    def add() -> None:
        with sync.Client(app.dsn, schema=app.schema, hooks=hooks) as client:
            client.add_job("greet", {"name": "Ada"}, **OPTIONS)

    await asyncio.to_thread(add)


async def by_app(app: App[None], hooks: Hooks) -> None:
    await asyncio.to_thread(app.add_job, "greet", {"name": "Ada"}, **OPTIONS)


async def by_async_app(app: App[None], hooks: Hooks) -> None:
    await app.aadd_job("greet", {"name": "Ada"}, **OPTIONS)


async def by_task(app: App[None], hooks: Hooks) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    await asyncio.to_thread(greet.using(**OPTIONS).enqueue, "Ada")


async def by_async_task(app: App[None], hooks: Hooks) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    await greet.using(**OPTIONS).aenqueue("Ada")


@pytest.mark.parametrize(
    "add",
    [
        by_client,
        by_batch_of_one,
        by_blocking_client,
        by_app,
        by_async_app,
        by_task,
        by_async_task,
    ],
)
async def test_adding_one_job_is_a_span_for_every_client(
    add: Callable[[App[None], Hooks], Awaitable[None]], app: App[None], spans: Spans, sql: Sql
) -> None:
    instrument(app, tracer_provider=spans.provider, record=NAMES)

    with spans.tracer.start_as_current_span("request"):
        await add(app, app.hooks)

    span = spans.one("add_job greet")
    assert span.kind is SpanKind.PRODUCER
    assert span.status.status_code is StatusCode.UNSET
    assert span.parent is not None
    assert span.parent.span_id == context_of(spans.one("request")).span_id
    assert attributes_of(span) == {
        "messaging.system": "graphile_worker",
        "messaging.operation.name": "add_job",
        "messaging.operation.type": "send",
        "messaging.destination.name": "greet",
        "messaging.message.id": str(sql.value("select id from :schema._private_jobs")),
        "messaging.graphile_worker.queue.name": "mails",
        "messaging.graphile_worker.job.key": "ada",
        "messaging.graphile_worker.job.key_mode": "preserve_run_at",
        "messaging.graphile_worker.priority": -3,
        "messaging.graphile_worker.run_at": "2030-01-02T03:04:05+00:00",
    }


async def test_options_that_are_not_set_have_no_attribute(app: App[None], spans: Spans) -> None:
    instrument(app, tracer_provider=spans.provider)

    job = await app.aadd_job("greet")

    attributes = attributes_of(spans.one("add_job greet"))
    own = "messaging.graphile_worker."
    assert {name for name in attributes if name.startswith(own)} == {
        f"{own}priority",
        f"{own}run_at",
    }
    assert attributes["messaging.graphile_worker.priority"] == 0
    assert attributes["messaging.graphile_worker.run_at"] == job.run_at.isoformat()


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_adding_many_jobs_is_one_span(kind: str, app: App[None], spans: Spans) -> None:
    instrument(app, tracer_provider=spans.provider)
    specs = [JobSpec("greet", {"name": "Ada"}), JobSpec("greet"), JobSpec("resize")]

    if kind == "async":
        await app.aadd_jobs(specs)
    else:
        await asyncio.to_thread(app.add_jobs, specs)

    assert spans.names == ["add_jobs"]
    assert spans.one("add_jobs").kind is SpanKind.CLIENT
    assert attributes_of(spans.one("add_jobs")) == {
        "messaging.system": "graphile_worker",
        "messaging.operation.name": "add_jobs",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 3,
    }


async def test_adding_nothing_makes_no_span(app: App[None], spans: Spans) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")

    assert await app.aadd_jobs([]) == []
    with pytest.raises(TypeError, match="takes JobSpec values, got str"):
        await app.aadd_jobs(["greet"])  # type: ignore[list-item]  # what the test is about

    assert spans.names == []


@pytest.mark.parametrize("propagation", ["read", "read-write"])
async def test_a_job_that_is_rejected_is_an_error_of_its_span(
    propagation: Any, app: App[None], spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation=propagation)

    with pytest.raises(JobSpecError, match="object has no JSON form"):
        await app.aadd_job("greet", {"secret": object()})

    span = spans.one("add_job greet")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes_of(span)["error.type"] == "graphile_worker.errors.JobSpecError"
    assert [event.name for event in span.events] == ["exception"]


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_a_job_in_your_transaction_has_a_span(
    kind: str, app: App[None], database: TestDatabase, spans: Spans, sql: Sql
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")

    if kind == "async":
        async with await psycopg.AsyncConnection.connect(database.dsn) as conn:
            job = await app.aadd_job("greet", conn=conn)
            assert stored(sql) == []
    else:
        with psycopg.connect(database.dsn) as blocking:
            job = await asyncio.to_thread(app.add_job, "greet", conn=blocking)
            assert stored(sql) == []

    assert attributes_of(spans.one("add_job greet"))["messaging.message.id"] == str(job.id)
    assert stored(sql) == [{"_trace": mark_of(spans.one("add_job greet"))}]


# Running


async def test_running_a_job_is_a_span(app: App[None], run: Run, spans: Spans) -> None:
    instrument(app, tracer_provider=spans.provider, record=NAMES)
    seen: list[tuple[str, str]] = []

    @app.task(queue_name="mails", priority=4, max_attempts=7)
    async def greet(ctx: JobContext, name: str) -> None:
        seen.append((ctx.worker_id, ctx.pool_id))

    late = datetime.now(UTC) - timedelta(seconds=90)
    job = await greet.using(job_key="ada", run_at=late).aenqueue("Ada")
    await run()

    span = spans.one("process greet")
    [(worker_id, pool_id)] = seen
    found = attributes_of(span)
    assert 90_000 <= found.pop("messaging.graphile_worker.wait_ms") < 150_000
    assert span.kind is SpanKind.CONSUMER
    assert span.status.status_code is StatusCode.UNSET
    assert found == {
        "messaging.system": "graphile_worker",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "greet",
        "messaging.message.id": str(job.id),
        "messaging.client.id": worker_id,
        "messaging.graphile_worker.worker.pool": pool_id,
        "messaging.graphile_worker.attempt": 1,
        "messaging.graphile_worker.max_attempts": 7,
        "messaging.graphile_worker.queue.name": "mails",
        "messaging.graphile_worker.job.key": "ada",
        "messaging.graphile_worker.priority": 4,
        "messaging.graphile_worker.run_at": late.isoformat(),
    }


async def test_a_job_starts_a_new_trace(app: App[None], run: Run, spans: Spans) -> None:
    instrument(app, tracer_provider=spans.provider)
    app.task(name="greet")(_nothing)

    await app.aadd_job("greet")
    with spans.tracer.start_as_current_span("program"):
        await run()

    assert spans.one("process greet").parent is None


async def _nothing() -> None: ...


async def test_spans_of_an_async_task_belong_to_the_span_of_its_job(
    app: App[None], run: Run, spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider)

    @app.task
    async def greet(ctx: JobContext) -> None:
        with spans.tracer.start_as_current_span("render"):
            await ctx.add_job("resize", run_at=timedelta(hours=1))

    await greet.aenqueue()
    await run()

    _check_chain(spans, "process greet", "render", "add_job resize")


async def test_spans_of_a_plain_function_belong_to_the_span_of_its_job(
    app: App[None], run: Run, spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider)

    @app.task
    def greet(ctx: SyncJobContext) -> None:
        with spans.tracer.start_as_current_span("render"):
            ctx.add_job("resize", run_at=timedelta(hours=1))

    await greet.aenqueue()
    await run()

    _check_chain(spans, "process greet", "render", "add_job resize")


def _check_chain(spans: Spans, *names: str) -> None:
    """Check that each span is the parent of the next."""
    for outer, inner in zip(names, names[1:], strict=False):
        parent = spans.one(inner).parent
        assert parent is not None
        assert parent.span_id == context_of(spans.one(outer)).span_id


class Gone(Exception):
    class Nested(Exception):
        pass


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no such name"), "ValueError"),
        (Gone.Nested("away"), f"{__name__}.Gone.Nested"),
        (SystemExit(3), "SystemExit"),
        # An attempt is spent, and the row and the events say error, so the span does too.
        (Retry(timedelta(hours=1)), "graphile_worker.retries.Retry"),
        (Discard("no such invoice"), "graphile_worker.retries.Discard"),
    ],
)
async def test_an_attempt_that_fails_is_an_error_of_its_span(
    app: App[None], run: Run, spans: Spans, error: BaseException, kind: str, in_thread: bool
) -> None:
    instrument(app, tracer_provider=spans.provider)
    app.task(name="greet")(_raising(error, in_thread))

    await app.aadd_job("greet", {"secret": "hunter2"})
    await run()

    span = spans.one("process greet")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes_of(span)["error.type"] == kind
    [event] = span.events
    assert event.name == "exception"
    assert dict(event.attributes or {})["exception.type"] == kind
    assert "hunter2" not in span.to_json()


async def test_messages_job_keys_and_queue_names_are_recorded_only_with_record(
    app: App[None], run: Run, spans: Spans
) -> None:
    @app.task
    async def greet(name: str) -> None:
        try:
            raise KeyError(f"cause {name}")
        except KeyError as cause:
            raise ValueError(f"message {name}") from cause

    async def add_and_run() -> None:
        await greet.using(queue_name="queue Ada", job_key="key Ada").aenqueue("Ada")
        await run()

    instrument(app, tracer_provider=spans.provider)
    await add_and_run()
    [event] = spans.one("process greet").events
    assert "Ada" not in spans.text
    assert dict(event.attributes or {}).keys() == {"exception.type", "exception.stacktrace"}
    assert "raise ValueError(" in str((event.attributes or {})["exception.stacktrace"])

    asked = Spans()
    instrument(
        app,
        tracer_provider=asked.provider,
        record=["exception_message", "job_key", "queue_name"],
    )
    await add_and_run()
    for recorded in ("cause Ada", "message Ada", "queue Ada", "key Ada"):
        assert recorded in asked.text
    asked.provider.shutdown()


def _raising(error: BaseException, in_thread: bool = False) -> Callable[..., Any]:
    def plain() -> None:
        raise error

    async def on_loop() -> None:
        raise error

    return plain if in_thread else on_loop


async def test_a_snooze_is_not_an_error(app: App[None], run: Run, spans: Spans) -> None:
    instrument(app, tracer_provider=spans.provider)
    app.task(name="greet")(_raising(Snooze(timedelta(hours=1))))

    await app.aadd_job("greet")
    await run()

    span = spans.one("process greet")
    assert span.status.status_code is StatusCode.UNSET
    assert not span.events
    assert "error.type" not in attributes_of(span)


async def test_a_cancelled_task_is_an_error_of_its_span(
    app: App[None], run: Run, spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider)

    @app.task(timeout=timedelta(milliseconds=10))
    async def greet() -> None:
        await asyncio.Event().wait()

    await greet.aenqueue()
    await run()

    span = spans.one("process greet")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes_of(span)["error.type"] == "asyncio.exceptions.CancelledError"


async def test_a_batch_that_raises_a_partial_failure_is_an_error(
    app: App[None], run: Run, spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider)

    @app.batch_task
    async def greet(names: list[str]) -> None:
        raise PartialFailure({1: Gone("away")})

    await greet.aenqueue(["Ada", "Bob"])
    await run()

    error = attributes_of(spans.one("process greet"))["error.type"]
    assert error == "graphile_worker.retries.PartialFailure"


async def test_an_error_without_text_stays_the_error_of_the_job(
    app: App[None], run: Run, spans: Spans, sql: Sql
) -> None:
    instrument(app, tracer_provider=spans.provider)
    app.task(name="greet")(_raising(Textless()))

    await app.aadd_job("greet")
    await run()

    assert attributes_of(spans.one("process greet"))["error.type"] == f"{__name__}.Textless"
    assert "Textless" in sql.value("select last_error from :schema._private_jobs")


# Links


@pytest.mark.feature("F63")
async def test_a_job_is_linked_to_the_span_that_added_it(
    app: App[None], run: Run, spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")
    app.task(name="greet")(_nothing)

    await app.aadd_job("greet", {"name": "Ada"})
    await run()

    added, ran = spans.one("add_job greet"), spans.one("process greet")
    assert linked(ran) == [ids_of(added)]
    assert ran.parent is None
    assert context_of(ran).trace_id != context_of(added).trace_id
    assert ran.links[0].context.is_remote
    assert ran.links[0].context.trace_flags.sampled


async def test_jobs_of_one_call_are_linked_to_its_span(
    app: App[None], run: Run, spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")
    app.task(name="greet")(_nothing)
    app.task(name="resize")(_nothing)

    await app.aadd_jobs([JobSpec("greet"), JobSpec("resize", {"width": 3})])
    await run()

    origin = ids_of(spans.one("add_jobs"))
    assert linked(spans.one("process greet")) == [origin]
    assert linked(spans.one("process resize")) == [origin]


@pytest.mark.feature("F63")
async def test_payloads_are_unchanged_by_default(
    app: App[None], run: Run, spans: Spans, sql: Sql
) -> None:
    instrument(app, tracer_provider=spans.provider)
    app.task(name="greet")(_nothing)

    await app.aadd_jobs([JobSpec("greet", {"name": "Ada"}), JobSpec("greet")])
    await app.aadd_job("greet", {"name": "Bob"})

    assert stored(sql) == [{"name": "Ada"}, {}, {"name": "Bob"}]
    await run()
    assert spans.names.count("process greet") == 3


@pytest.mark.feature("F63")
async def test_the_trace_context_has_the_keys_of_the_rust_worker_and_w3c(
    app: App[None], spans: Spans, sql: Sql
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")

    await app.aadd_job("greet", {"name": "Ada"})

    span = spans.one("add_job greet")
    trace_id, span_id = ids_of(span)
    flags = context_of(span).trace_flags
    assert flags.sampled
    assert sql.run(PAYLOADS) == [
        (
            f'{{"name":"Ada","_trace":{{"flags":{flags:d},'
            f'"trace_id":"{trace_id}","span_id":"{span_id}",'
            f'"traceparent":"00-{trace_id}-{span_id}-{flags:02x}"}}}}',
        )
    ]


@dataclass
class Point:
    x: int


@pytest.mark.feature("F63")
@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (None, {"_trace": ...}),
        ({}, {"_trace": ...}),
        ({"_trace": RUST, "a": {"b": 1}}, {"_trace": ..., "a": {"b": 1}}),
        (Point(1), {"x": 1, "_trace": ...}),
        ([], []),
        (
            (Point(1), "two", None, [{}], {}),
            [{"x": 1, "_trace": ...}, "two", None, [{}], {"_trace": ...}],
        ),
        ("text", "text"),
        (3, 3),
        (False, False),
    ],
)
async def test_only_objects_and_the_object_items_of_arrays_get_a_trace_context(
    app: App[None], spans: Spans, sql: Sql, payload: Any, expected: Any
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")

    job = await app.aadd_job("greet", payload)

    mark = mark_of(spans.one("add_job greet"))
    text = json.dumps(expected, default=lambda _: mark)
    assert stored(sql) == [json.loads(text)]
    assert job.payload == json.loads(text)
    if isinstance(payload, dict):
        assert payload.get("_trace") in (None, RUST)


async def test_the_tracestate_is_propagated(
    app: App[None], run: Run, spans: Spans, sql: Sql
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")
    app.task(name="greet")(_nothing)
    given = SpanContext(
        int(TRACE_ID, 16),
        int(SPAN_ID, 16),
        is_remote=True,
        trace_flags=TraceFlags(1),
        trace_state=TraceState([("vendor", "value")]),
    )

    with trace.use_span(NonRecordingSpan(given)):
        await app.aadd_job("greet")
    [payload] = stored(sql)
    await run()

    assert payload["_trace"]["trace_id"] == TRACE_ID
    assert payload["_trace"]["tracestate"] == "vendor=value"
    assert spans.one("process greet").links[0].context.trace_state == {"vendor": "value"}


async def test_without_a_trace_nothing_is_written(app: App[None], run: Run, sql: Sql) -> None:
    # Nobody has set a provider, so there are no spans.
    instrument(app, propagation="read-write")
    app.task(name="greet")(_nothing)

    await app.aadd_job("greet", {"name": "Ada"})

    assert stored(sql) == [{"name": "Ada"}]
    assert await run() == 1
    assert stored(sql) == []


@pytest.mark.feature("F63")
@pytest.mark.parametrize(
    "mark",
    [
        RUST,
        {**RUST, "and": "more"},
        {"traceparent": TRACEPARENT},
        {**RUST, "traceparent": TRACEPARENT, "tracestate": "vendor=value"},
        # The first that can be read counts.
        {"traceparent": TRACEPARENT, "flags": 1, "trace_id": "cd" * 16, "span_id": "ab" * 8},
        {**RUST, "traceparent": "nonsense", "tracestate": 7},
        {**RUST, "traceparent": 7},
        {**RUST, "traceparent": None},
    ],
)
async def test_trace_contexts_of_other_programs_are_linked(
    app: App[None], run: Run, spans: Spans, mark: object
) -> None:
    app.task(name="greet")(_nothing)
    await app.aadd_job("greet", {"_trace": mark})

    instrument(app, tracer_provider=spans.provider)
    await run()

    assert linked(spans.one("process greet")) == [(TRACE_ID, SPAN_ID)]


INVALID_MARKS: list[Any] = [
    None,
    True,
    "text",
    TRACEPARENT,
    [RUST],
    {},
    {"trace_id": TRACE_ID, "span_id": SPAN_ID},
    {**RUST, "flags": "1"},
    {**RUST, "flags": True},
    {**RUST, "flags": 256},
    {**RUST, "flags": -1},
    {**RUST, "flags": 0.5},
    {**RUST, "flags": 10**400},
    {**RUST, "trace_id": "0" * 32},
    {**RUST, "span_id": "0" * 16},
    {**RUST, "trace_id": TRACE_ID[1:]},
    {**RUST, "span_id": SPAN_ID + "0"},
    {**RUST, "trace_id": 5},
    {**RUST, "span_id": ["x"]},
    {**RUST, "trace_id": "g" * 32},
    {"traceparent": f"ff{TRACEPARENT[2:]}"},
    {"traceparent": [TRACEPARENT]},
    {"traceparent": ""},
]


async def test_an_invalid_trace_context_is_ignored(app: App[None], run: Run, spans: Spans) -> None:
    app.task(name="greet")(_nothing)
    await app.aadd_jobs([JobSpec("greet", {"_trace": mark}) for mark in INVALID_MARKS])

    instrument(app, tracer_provider=spans.provider)
    await run()

    found = [span for span in spans.finished if span.name == "process greet"]
    assert len(found) == len(INVALID_MARKS)
    for span in found:
        assert linked(span) == []
        assert span.status.status_code is StatusCode.UNSET


async def test_propagation_off_reads_and_writes_nothing(
    app: App[None], run: Run, spans: Spans, sql: Sql
) -> None:
    app.task(name="greet")(_nothing)
    await app.aadd_job("greet", {"_trace": RUST})

    instrument(app, tracer_provider=spans.provider, propagation="off")
    await app.aadd_job("greet", run_at=timedelta(hours=1))
    await run()

    assert linked(spans.one("process greet")) == []
    assert stored(sql) == [{}]


async def test_a_batch_is_linked_to_the_spans_of_all_its_items(
    app: App[None], run: Run, spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")

    @app.batch_task
    async def greet(people: list[Person]) -> None: ...

    async def gather(name: str) -> None:
        with spans.tracer.start_as_current_span(f"request of {name}"):
            within = timedelta(0)
            await greet.aaccumulate({"name": name}, {"name": "too"}, key="k", delay=within)

    await gather("Ada")
    await gather("Bob")
    await run()

    origins = {trace_id for trace_id, _ in linked(spans.one("process greet"))}
    assert len(spans.one("process greet").links) == 2
    assert origins == {ids_of(spans.one(f"request of {name}"))[0] for name in ("Ada", "Bob")}


async def test_at_most_128_links_are_made(app: App[None], run: Run, spans: Spans) -> None:
    async def greet(payload: Any, /) -> None: ...

    app.task(greet)
    marks = [{**RUST, "span_id": f"{number:016x}"} for number in range(1, 200)]
    items = [None, 3, {}, *({"_trace": mark} for mark in marks for _ in range(2))]
    await app.aadd_job("greet", items)

    instrument(app, tracer_provider=spans.provider)
    await run()

    found = linked(spans.one("process greet"))
    assert MAX_LINKS == 128
    assert found == [(TRACE_ID, f"{number:016x}") for number in range(1, 129)]


async def test_jobs_of_sql_and_of_the_crontab_have_spans_without_links(
    app: App[None], database: TestDatabase, run: Run, spans: Spans, sql: Sql
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")
    app.task(name="greet")(_nothing)
    app.task(name="clean")(_nothing)
    minute = datetime(2024, 2, 29, 4, 30, tzinfo=UTC)
    own = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema))

    sql.run("select :schema.add_job('greet')")
    items = parse_crontab("* * * * * clean ?id=nightly")
    await CronScheduler(own, lambda: items, app.hooks).tick(minute)
    await own.close()

    assert all("_trace" not in payload for payload in stored(sql))
    assert await run() == 2
    assert linked(spans.one("process greet")) == []
    assert linked(spans.one("process clean")) == []
    cron = spans.one("cron nightly")
    assert cron.kind is SpanKind.INTERNAL
    assert attributes_of(cron) == {
        "messaging.system": "graphile_worker",
        "messaging.graphile_worker.cron.identifier": "nightly",
        "messaging.graphile_worker.cron.ts": "2024-02-29T04:30:00+00:00",
        "messaging.graphile_worker.cron.backfilled": False,
    }


# Parents


async def test_with_first_attempt_the_first_attempt_is_a_child_and_retries_are_linked(
    app: App[None], run: Run, spans: Spans, sql: Sql
) -> None:
    instrument(
        app, tracer_provider=spans.provider, propagation="read-write", parent="first-attempt"
    )
    app.task(name="greet")(_raising(Retry(timedelta(0))))

    with spans.tracer.start_as_current_span("request"):
        await app.aadd_job("greet", {"name": "Ada"}, max_attempts=2)
    await run()

    added = spans.one("add_job greet")
    first, second = (span for span in spans.finished if span.name == "process greet")
    assert first.parent is not None
    assert first.parent.span_id == context_of(added).span_id
    assert context_of(first).trace_id == context_of(added).trace_id
    assert linked(first) == []
    assert second.parent is None
    assert context_of(second).trace_id != context_of(added).trace_id
    assert linked(second) == [ids_of(added)]


@pytest.mark.parametrize(
    ("payload", "propagation", "links"),
    [
        ([{"_trace": RUST}], "read", [(TRACE_ID, SPAN_ID)]),
        ({"_trace": {**RUST, "span_id": "0" * 16}}, "read", []),
        ({}, "read", []),
        ({"_trace": RUST}, "off", []),
    ],
)
async def test_batches_and_jobs_without_a_trace_context_have_no_parent(
    app: App[None], run: Run, spans: Spans, payload: Any, propagation: Any, links: list[Any]
) -> None:
    async def greet(payload: Any, /) -> None: ...

    app.task(greet)
    await app.aadd_job("greet", payload)
    instrument(app, tracer_provider=spans.provider, propagation=propagation, parent="first-attempt")
    with spans.tracer.start_as_current_span("program"):
        await run()

    assert spans.one("process greet").parent is None
    assert linked(spans.one("process greet")) == links


# Payloads of tasks


class Person(TypedDict):
    name: str


@dataclass
class Place:
    name: str


class Strict(BaseModel, extra="forbid"):
    name: str


async def test_the_trace_context_reaches_no_parameter(
    app: App[None], run: Run, spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")
    seen: dict[str, Any] = {}

    @app.task
    async def named(name: str) -> None:
        seen["named"] = name

    @app.task
    async def rest(name: str, **others: Any) -> None:
        seen["rest"] = name, others

    @app.batch_task
    async def people(items: list[Person]) -> None:
        seen["people"] = items

    @app.batch_task
    async def places(items: list[Place]) -> None:
        seen["places"] = items

    @app.batch_task
    async def strict(items: list[Strict]) -> None:
        seen["strict"] = items

    @app.batch_task
    async def texts(items: list[dict[str, str]]) -> None:
        seen["texts"] = items

    await named.aenqueue("Ada")
    await rest.aenqueue("Ada", loud=True)
    await people.aenqueue([{"name": "Ada"}])
    await places.aenqueue([Place("Rome")])
    await strict.aenqueue([Strict(name="Ada")])
    await texts.aenqueue([{"name": "Ada"}])
    assert await run() == 6

    assert seen == {
        "named": "Ada",
        "rest": ("Ada", {"loud": True}),
        "people": [{"name": "Ada"}],
        "places": [Place("Rome")],
        "strict": [Strict(name="Ada")],
        "texts": [{"name": "Ada"}],
    }
    assert [len(spans.one(f"process {name}").links) for name in seen] == [1] * 6


async def test_retried_items_keep_their_trace_context(
    app: App[None], run: Run, spans: Spans, sql: Sql
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")

    @app.batch_task
    async def greet(people: list[Person]) -> list[BaseException | None]:
        return [None, Gone("away")]

    await greet.aenqueue([{"name": "Ada"}, {"name": "Bob"}])
    await run()

    assert stored(sql) == [[{"name": "Bob", "_trace": mark_of(spans.one("add_job greet"))}]]


async def test_a_task_that_takes_the_whole_payload_receives_the_trace_context(
    app: App[None], run: Run, spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider, propagation="read-write")
    seen = []

    @app.task
    async def whole(payload: dict[str, Any], /) -> None:
        seen.append(payload)

    await whole.aenqueue({"name": "Ada"})
    await run()

    assert seen == [{"name": "Ada", "_trace": mark_of(spans.one("add_job whole"))}]


# Instrumenting


async def test_instrumenting_twice_makes_one_span(
    app: App[None], run: Run, spans: Spans, sql: Sql
) -> None:
    hooks = Hooks()
    app.task(name="greet")(_nothing)
    instrument(app, tracer_provider=spans.provider)
    instrument(hooks, tracer_provider=spans.provider)
    instrument(app, tracer_provider=spans.provider, propagation="read-write")

    await app.aadd_job("greet")
    # What was asked for last counts.
    assert stored(sql) == [{"_trace": mark_of(spans.one("add_job greet"))}]
    await run(hooks=hooks)

    assert spans.names == ["add_job greet", "process greet"]


def test_only_the_worker_records_the_span_of_a_task_in_a_process(
    app: App[None], spans: Spans
) -> None:
    instrument(app, tracer_provider=spans.provider)
    job = make_job(task_identifier="greet")

    for is_task_process in (True, False):
        operation = RunningJob(
            pool_id="p", worker_id="w", job=job, runs_in="process", is_task_process=is_task_process
        )
        with app.hooks.around_sync_only(operation):
            assert spans.names == []

    assert spans.names == ["process greet"]


def test_invalid_arguments_of_instrument_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="one of off, read, read-write, got 'write'"):
        instrument(Hooks(), propagation="write")  # type: ignore[arg-type]  # what it is about
    with pytest.raises(ConfigurationError, match="^parent must be one of link, first-attempt, got"):
        instrument(Hooks(), parent="child")  # type: ignore[arg-type]  # what it is about
    with pytest.raises(ConfigurationError, match="^metrics must be one of off, counters, histog"):
        instrument(Hooks(), metrics=True)  # type: ignore[arg-type]  # what it is about
    for wrong in ("job_key", ["payload"]):
        with pytest.raises(
            ConfigurationError, match="^record must be a list of any of exception_m"
        ):
            instrument(Hooks(), record=wrong)  # type: ignore[arg-type]  # what it is about
    with pytest.raises(ConfigurationError, match="expected an App or Hooks, got str"):
        instrument("app")  # type: ignore[arg-type]  # what it is about


def test_without_opentelemetry_the_error_names_the_package_to_install() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None; import graphile_worker;"
        "import graphile_worker.contrib.opentelemetry"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert 'ImportError: tracing needs OpenTelemetry: pip install "graphile-worker[otel]"' in (
        done.stderr
    )

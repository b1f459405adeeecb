"""Spans, errors and check-ins in Sentry: the real SDK, a server that receives, a real database."""

import asyncio
import contextvars
import gc
import gzip
import json
import logging
import runpy
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.scope import Scope

import graphile_worker.contrib.sentry
from graphile_worker import (
    App,
    Backoff,
    Client,
    ConfigurationError,
    CronItem,
    Discard,
    Hooks,
    JobContext,
    JobSpec,
    JobSpecError,
    ParsedCronItem,
    PartialFailure,
    RecoveryOptions,
    Retry,
    RunningJob,
    Snooze,
    SyncJobContext,
    WorkerOptions,
    parse_cron_items,
    parse_crontab,
)
from graphile_worker._cron.scheduler import CronScheduler
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.workers import heartbeat, register_pool
from graphile_worker.contrib.sentry import instrument
from graphile_worker.events import JobFailed, JobStarted
from graphile_worker.runner import run_once
from tests.conftest import TestDatabase
from tests.support.jobs import make_job
from tests.support.pools import open_pool
from tests.support.process_tasks import tasks as process_tasks
from tests.support.recorder import Recorder
from tests.support.sql import Sql

pytestmark = pytest.mark.single_version

Run = Callable[..., Awaitable[int]]

AT_ONCE = Backoff(base=timedelta(0), jitter=0)
PAYLOADS = "select payload::text from :schema._private_jobs order by id"
TRACE_ID = "1f2e3d4c5b6a79880123456789abcdef"
SPAN_ID = "89abcdef01234567"
RUST = {"flags": 1, "trace_id": TRACE_ID, "span_id": SPAN_ID}

# Not in the lines of this file that a stack contains.
SECRET = "hun" + "ter2"


class Sentry:
    """A server that receives envelopes, and the SDK that sends them there."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        received = self._bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append(
                    gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def init(self, **options: Any) -> None:
        # The integrations of other packages would change them for all tests of this process.
        sentry_sdk.init(
            dsn=f"http://key@127.0.0.1:{self._server.server_port}/1",
            auto_enabling_integrations=False,
            **{"traces_sample_rate": 1.0, **options},
        )

    def close(self) -> None:
        sentry_sdk.get_client().close()
        Scope.get_global_scope().set_client(None)
        Scope.get_isolation_scope().clear()
        Scope.get_current_scope().clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def text(self) -> str:
        """Return all that was received."""
        sentry_sdk.flush(timeout=20)
        return b"\n".join(self._bodies).decode()

    @property
    def errors(self) -> list[dict[str, Any]]:
        return self._items("event")

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return self._items("transaction")

    @property
    def check_ins(self) -> list[dict[str, Any]]:
        return self._items("check_in")

    @property
    def streamed_spans(self) -> list[dict[str, Any]]:
        return [span for batch in self._items("span") for span in batch["items"]]

    def one(self, name: str) -> dict[str, Any]:
        """Return the transaction with this name."""
        [found] = [each for each in self.transactions if each["transaction"] == name]
        return found

    def _items(self, kind: str) -> list[dict[str, Any]]:
        sentry_sdk.flush(timeout=20)
        items = [item for body in self._bodies for item in parse_envelope(body)]
        return [payload for found, payload in items if found == kind]


def parse_envelope(body: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the type and the payload of each item."""
    _, _, rest = body.partition(b"\n")
    while rest.strip():
        line, _, rest = rest.partition(b"\n")
        header = json.loads(line)
        payload, rest = rest[: header["length"]], rest[header["length"] :].removeprefix(b"\n")
        yield header["type"], json.loads(payload)


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    sentry = Sentry()
    sentry.init()
    yield sentry
    sentry.close()


@pytest.fixture
def run(database: TestDatabase, app: App[None]) -> Run:
    async def run(**more: Any) -> int:
        options = WorkerOptions(schema=database.schema, concurrency=4)
        return await run_once(database.dsn, app, options=options, **more)

    return run


def stored(sql: Sql) -> list[Any]:
    return [json.loads(text) for (text,) in sql.run(PAYLOADS)]


def add_from_sql(sql: Sql, task: str, payload: object) -> None:
    """Add a job that has one attempt, without the checks of the app."""
    sql.run("select :schema.add_job($1, $2::json, max_attempts => 1)", task, json.dumps(payload))


def data_of(span: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a span without the values that the SDK adds to each."""
    return {name: value for name, value in span["data"].items() if name.startswith("messaging.")}


def process_span(transaction: dict[str, Any]) -> dict[str, Any]:
    span: dict[str, Any] = transaction["contexts"]["trace"]
    return span


def functions(error: dict[str, Any]) -> list[str]:
    """Return the names of the functions in the stack of an event."""
    values = error["exception"]["values"]
    return [frame["function"] for each in values for frame in each["stacktrace"]["frames"]]


async def _nothing() -> None: ...


def _raising(error: BaseException, in_thread: bool = False) -> Callable[..., Any]:
    def plain() -> None:
        raise error

    async def on_loop() -> None:
        raise error

    return plain if in_thread else on_loop


# Spans


async def test_running_a_job_is_a_transaction_with_the_data_of_the_queues_page(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    instrument(app)

    @app.task
    async def greet(name: str) -> None:
        with sentry_sdk.start_span(op="render"):
            pass

    @app.task(max_attempts=7)
    def resize(ctx: SyncJobContext) -> None:
        with sentry_sdk.start_span(op="render"):
            pass

    late = datetime.now(UTC) - timedelta(seconds=90)
    jobs = {
        "greet": await greet.using(run_at=late).aenqueue("Ada"),
        "resize": await resize.using(run_at=late).aenqueue(),
    }
    await run()

    for name, job in jobs.items():
        transaction = sentry.one(name)
        span = process_span(transaction)
        found = data_of(span)
        assert 90_000 <= found.pop("messaging.message.receive.latency") < 150_000
        assert found == {
            "messaging.system": "graphile_worker",
            "messaging.destination.name": name,
            "messaging.message.id": str(job.id),
            "messaging.message.retry.count": 0,
        }
        assert (span["op"], span["status"]) == ("queue.process", "ok")
        assert span["origin"] == "auto.queue.graphile_worker"
        assert transaction["transaction_info"] == {"source": "task"}
        assert transaction["tags"] == {"task": name, "job_id": str(job.id), "attempt": "1"}
        assert [each["op"] for each in transaction["spans"]] == ["render"]
        assert transaction["spans"][0]["parent_span_id"] == span["span_id"]
    assert len({process_span(each)["trace_id"] for each in sentry.transactions}) == 2
    assert sentry.errors == []
    assert sentry.check_ins == []


async def test_the_status_of_a_transaction_is_the_outcome_of_the_attempt(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    instrument(app)
    outcomes: dict[str, tuple[BaseException, str]] = {
        "fails": (ValueError("no such name"), "internal_error"),
        "exits": (SystemExit(3), "internal_error"),
        "snoozes": (Snooze(timedelta(hours=1)), "ok"),
        "retries": (Retry(timedelta(hours=1)), "aborted"),
        "discards": (Discard("no such invoice"), "aborted"),
        "partial": (PartialFailure({0: ValueError("one item")}), "internal_error"),
    }
    for name, (error, _) in outcomes.items():
        for in_thread in (False, True):
            app.task(name=f"{name} {in_thread}")(_raising(error, in_thread))
            await app.aadd_job(f"{name} {in_thread}")

    @app.task(timeout=timedelta(milliseconds=10))
    async def endless() -> None:
        await asyncio.Event().wait()

    await endless.aenqueue()
    await run()

    found = {each["transaction"]: process_span(each)["status"] for each in sentry.transactions}
    assert found.pop("endless") == "cancelled"
    assert found == {
        f"{name} {in_thread}": status
        for name, (_, status) in outcomes.items()
        for in_thread in (False, True)
    }


async def test_adding_jobs_in_a_transaction_is_a_span(app: App[None], sentry: Sentry) -> None:
    instrument(app, record=["job_key", "queue_name"])

    with sentry_sdk.start_transaction(name="request"):
        job = await app.aadd_job("greet", {"name": "Åda"}, job_key="k", queue_name="q")
        await asyncio.to_thread(app.add_jobs, [JobSpec("greet"), JobSpec("greet")])
        await app.aadd_jobs([JobSpec("greet"), JobSpec("resize")])
        with pytest.raises(JobSpecError, match="object has no JSON form"):
            await app.aadd_job("greet", {"secret": object()})
        await app.aadd_jobs([])

    spans = sentry.one("request")["spans"]
    assert {(each["op"], each["origin"]) for each in spans} == {
        ("queue.publish", "auto.queue.graphile_worker")
    }
    assert [each["description"] for each in spans] == ["greet", "add_jobs", "add_jobs", "greet"]
    one, same, different, rejected = (data_of(each) for each in spans)
    assert one == {
        "messaging.system": "graphile_worker",
        "messaging.destination.name": "greet",
        "messaging.message.id": str(job.id),
        "messaging.message.body.size": len('{"name": "Åda"}'.encode()) - 1,
        "messaging.graphile_worker.queue.name": "q",
        "messaging.graphile_worker.job.key": "k",
    }
    assert same == {
        "messaging.system": "graphile_worker",
        "messaging.destination.name": "greet",
        "messaging.batch.message_count": 2,
    }
    assert different == {
        "messaging.system": "graphile_worker",
        "messaging.batch.message_count": 2,
    }
    assert rejected == {
        "messaging.system": "graphile_worker",
        "messaging.destination.name": "greet",
    }
    # Older versions of the SDK send it as a tag.
    statuses = [each.get("status") or each["tags"]["status"] for each in spans]
    assert statuses == ["ok", "ok", "ok", "internal_error"]


async def test_an_error_of_the_sdk_neither_fails_nor_repeats_a_job(
    app: App[None], run: Run, sentry: Sentry, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentry.init()
    instrument(app, propagation="read-write")
    ran: list[int] = []

    @app.task
    async def work(ctx: JobContext) -> None:
        ran.append(ctx.job.id)

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the SDK")

    with sentry_sdk.start_transaction(name="outer"):
        monkeypatch.setattr("sentry_sdk.tracing.Span.set_data", fail)
        job = await app.aadd_job("work")
        monkeypatch.setattr("sentry_sdk.tracing.Span.__enter__", fail)
        await app.aadd_job("work")
        assert await run() == 2
    assert job.id in ran
    assert len(set(ran)) == 2


async def test_adding_jobs_outside_of_a_transaction_sends_and_writes_nothing(
    app: App[None], sentry: Sentry, sql: Sql
) -> None:
    instrument(app, propagation="read-write")

    await app.aadd_job("greet", {"name": "Ada"})

    assert stored(sql) == [{"name": "Ada"}]
    assert sentry.text == ""


async def test_streamed_spans_have_the_same_data(
    app: App[None], run: Run, sentry: Sentry, sql: Sql
) -> None:
    pytest.importorskip("sentry_sdk.traces", reason="this version of the SDK does not stream")
    sentry.init(trace_lifecycle="stream")
    instrument(app, propagation="read-write")
    app.task(name="greet", max_attempts=1)(_raising(ValueError("no such name")))

    with sentry_sdk.traces.start_span("request") as request:
        job = await app.aadd_job("greet", {"name": "Ada"})
    await run()

    spans = {each["name"]: each for each in sentry.streamed_spans if each["name"] == "request"}
    by_op = {
        each["attributes"].get("sentry.op", {}).get("value"): each for each in sentry.streamed_spans
    }
    publish, process = by_op["queue.publish"], by_op["queue.process"]
    [error] = sentry.errors
    assert publish["parent_span_id"] == spans["request"]["span_id"] == request.span_id
    assert process["trace_id"] == request.trace_id
    assert process["parent_span_id"] == publish["span_id"]
    assert (publish["status"], process["status"]) == ("ok", "error")
    assert process["attributes"]["messaging.message.id"]["value"] == str(job.id)
    assert publish["attributes"]["messaging.message.id"]["value"] == str(job.id)
    assert error["contexts"]["trace"]["trace_id"] == request.trace_id
    assert error["contexts"]["trace"]["span_id"] == process["span_id"]


# Errors


async def test_a_permanently_failed_job_is_one_event(
    app: App[None], run: Run, sentry: Sentry, caplog: pytest.LogCaptureFixture
) -> None:
    instrument(app)

    @app.task(max_attempts=2, retry=AT_ONCE)
    async def greet(name: str) -> None:
        sentry_sdk.set_tag("of", "greet")
        raise ValueError("no such name")

    @app.task(max_attempts=2, retry=AT_ONCE)
    def resize() -> None:
        sentry_sdk.set_tag("of", "resize")
        raise ValueError("no such image")

    @app.batch_task(max_attempts=1)
    async def pack(items: list[str]) -> list[BaseException | None]:
        sentry_sdk.set_tag("of", "pack")
        return [None, ValueError("no such box")]

    @app.task(max_attempts=1, timeout=timedelta(milliseconds=10))
    async def endless() -> None:
        sentry_sdk.set_tag("of", "endless")
        await asyncio.Event().wait()

    ids = {
        "greet": (await greet.aenqueue("Ada")).id,
        "resize": (await resize.aenqueue()).id,
        "pack": (await pack.aenqueue(["a", "b"])).id,
        "endless": (await endless.aenqueue()).id,
    }
    await run()

    logged = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(logged) == 4
    attempts = {"greet": 2, "resize": 2, "pack": 1, "endless": 1}
    errors = {each["tags"]["task"]: each for each in sentry.errors}
    assert len(sentry.errors) == 4
    for name, error in errors.items():
        assert error["level"] == "error"
        assert error["tags"] == {
            "task": name,
            "job_id": str(ids[name]),
            "attempt": str(attempts[name]),
            "of": name,
        }
        assert error["exception"]["values"][-1]["mechanism"]["handled"] is False
        last = [each for each in sentry.transactions if each["transaction"] == name][-1]
        assert error["transaction"] == name
        for key in ("trace_id", "span_id"):
            assert error["contexts"]["trace"][key] == process_span(last)[key]
        assert error["contexts"]["graphile_worker"]["attempt"] == attempts[name]
    assert functions(errors["greet"])[-1] == "greet"
    assert functions(errors["resize"])[-1] == "resize"
    assert "endless" in functions(errors["endless"])
    types = {name: each["exception"]["values"][-1]["type"] for name, each in errors.items()}
    assert types == {
        "greet": "ValueError",
        "resize": "ValueError",
        "pack": "PartialFailure",
        "endless": "TimeoutError",
    }
    retries = [data_of(process_span(each)) for each in sentry.transactions]
    found = sorted(each["messaging.message.retry.count"] for each in retries)
    assert found == [0, 0, 0, 0, 1, 1]


async def test_events_need_no_tracing(app: App[None], run: Run, sentry: Sentry) -> None:
    sentry.init(traces_sample_rate=None)
    instrument(app)
    for in_thread in (False, True):
        error = ValueError("no such name")
        app.task(name=f"greet {in_thread}", max_attempts=1)(_raising(error, in_thread))
        await app.aadd_job(f"greet {in_thread}")

    await run()

    assert {each["tags"]["task"] for each in sentry.errors} == {"greet False", "greet True"}
    assert len({each["contexts"]["trace"]["trace_id"] for each in sentry.errors}) == 2
    assert sentry.transactions == []


async def test_an_attempt_that_is_retried_sends_no_event(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    instrument(app)
    for in_thread in (False, True):
        app.task(name=f"greet {in_thread}")(_raising(ValueError("no such name"), in_thread))
        await app.aadd_job(f"greet {in_thread}")

    await run()

    assert len(sentry.transactions) == 2
    assert sentry.errors == []


async def test_every_attempt_is_an_event_if_you_ask(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    # As in a program that sends warnings too.
    sentry.init(integrations=[LoggingIntegration(event_level=logging.WARNING)])
    instrument(app, capture="every attempt")
    app.task(name="greet", max_attempts=2, retry=AT_ONCE)(_raising(ValueError("no such name")))

    await app.aadd_job("greet")
    await run()

    found = [
        (each["tags"]["attempt"], each["exception"]["values"][-1]["mechanism"]["handled"])
        for each in sentry.errors
    ]
    assert found == [("1", True), ("2", False)]


async def test_a_job_that_cannot_start_is_one_event(
    app: App[None], run: Run, sentry: Sentry, sql: Sql
) -> None:
    instrument(app)

    @app.task(max_attempts=1)
    async def greet(name: str) -> None: ...

    payload = {"name": 7, "_trace": {"sentry-trace": f"{TRACE_ID}-{SPAN_ID}-1"}}
    add_from_sql(sql, "greet", payload)
    await run()

    [error] = sentry.errors
    assert error["tags"]["task"] == error["transaction"] == "greet"
    assert error["contexts"]["trace"]["trace_id"] == TRACE_ID
    assert sentry.transactions == []


async def test_errors_of_the_worker_form_one_issue_per_task(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    instrument(app)
    app.include(process_tasks)

    await app.aadd_job("raises", max_attempts=1)
    await run()

    [error] = sentry.errors
    assert error["exception"]["values"][-1]["type"] == "LookupError"
    assert error["fingerprint"] == ["{{ default }}", "raises", "LookupError"]


async def test_a_quarantined_job_is_one_event(
    app: App[None], database: TestDatabase, cron: "Cron", sentry: Sentry, sql: Sql
) -> None:
    app.cron("* * * * *")(app.task(name="task")(_nothing))
    instrument(app)
    [job_id] = (await cron.tick(app.cron_items())).values()
    with open_pool(database) as dead:
        held = dead.claim_one()
        dead.connection.run(register_pool(dead.id, timedelta(hours=1), {}))
        dead.connection.run(heartbeat([dead.id], [held.job.id]))
    sql.run("update :ext_schema.pools set seen_at = now() - interval '1 hour', lease = '50 ms'")

    recovery = RecoveryOptions(max_crashes=1)
    options = WorkerOptions(schema=database.schema, recovery=recovery)
    await run_once(database.dsn, app, options=options)

    [error] = sentry.errors
    assert error["message"] == (
        "quarantined a job of task task: its worker died while it ran (crashes: 1)"
    )
    assert error["level"] == "error"
    assert error["fingerprint"] == ["graphile_worker.quarantined", "task"]
    assert error["tags"]["job_id"] == str(job_id)
    assert error["contexts"]["graphile_worker"]["pool_id"] == "pool"
    assert [each["status"] for each in sentry.check_ins] == ["error"]


async def test_other_error_lines_and_those_of_a_task_stay_events(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    instrument(app)

    @app.task
    async def greet(ctx: JobContext) -> None:
        ctx.logger.error("no %s today", "flowers")

    await greet.aenqueue()
    await run()

    [error] = sentry.errors
    assert error["logentry"]["message"] == "no %s today"
    assert error["tags"]["task"] == "greet"


async def test_a_worker_without_this_integration_keeps_its_error_lines(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    instrument(Hooks())
    app.task(name="greet", max_attempts=1)(_raising(ValueError("no such name")))

    await app.aadd_job("greet")
    await run()

    [error] = sentry.errors
    assert error["logger"] == "graphile_worker"
    assert sentry.transactions == []


async def test_instrumenting_a_running_worker_sends_one_event(
    app: App[None], recorder: Recorder, sentry: Sentry
) -> None:
    app.task(name="greet", max_attempts=1)(_raising(ValueError("no such name")))
    app.hooks.include(recorder.hooks)

    async with app.worker():
        instrument(app)
        await app.aadd_job("greet")
        await recorder.wait_for(JobFailed)

    assert len(sentry.errors) == 1


# Isolation


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_jobs_at_the_same_time_share_no_tags_and_breadcrumbs(
    app: App[None], run: Run, sentry: Sentry, kind: str
) -> None:
    instrument(app)
    together = threading.Barrier(3, timeout=20)
    all_started, started = asyncio.Event(), []

    def mark(number: int) -> None:
        sentry_sdk.set_tag(f"tag {number}", "set")
        sentry_sdk.add_breadcrumb(message=f"crumb {number}")

    if kind == "async":

        @app.task(max_attempts=1)
        async def greet(number: int) -> None:
            mark(number)
            started.append(number)
            if len(started) == 3:
                all_started.set()
            await all_started.wait()
            raise ValueError(str(number))

    else:

        @app.task(max_attempts=1)
        def greet(number: int) -> None:
            mark(number)
            together.wait()
            raise ValueError(str(number))

    sentry_sdk.add_breadcrumb(message="of the program")
    for number in range(3):
        await app.aadd_job("greet", {"number": number})
    await run()
    # Another job in the same worker, and perhaps the same thread.
    started.clear()
    app.task(name="later", max_attempts=1)(_raising(ValueError("later"), kind == "plain"))
    await app.aadd_job("later")
    await run()

    assert len(sentry.errors) == 4
    for error in sentry.errors:
        number = error["exception"]["values"][-1]["value"]
        own = [] if number == "later" else [f"tag {number}"]
        assert [each for each in error["tags"] if each.startswith("tag")] == own
        crumbs = [each["message"] for each in error["breadcrumbs"]["values"]]
        assert crumbs == [each.replace("tag", "crumb") for each in own]
    assert Scope.get_isolation_scope()._tags == {}


# Traces


@pytest.mark.parametrize("in_thread", [False, True])
async def test_the_transaction_of_a_job_continues_the_trace_that_added_it(
    app: App[None], run: Run, sentry: Sentry, in_thread: bool
) -> None:
    instrument(app, propagation="read-write")
    app.task(name="greet", max_attempts=1)(_raising(ValueError("no such name"), in_thread))

    with sentry_sdk.start_transaction(name="request") as request:
        await app.aadd_job("greet")
    await run()

    [publish] = sentry.one("request")["spans"]
    span = process_span(sentry.one("greet"))
    [error] = sentry.errors
    assert span["trace_id"] == request.trace_id
    assert span["parent_span_id"] == publish["span_id"]
    assert error["contexts"]["trace"]["trace_id"] == request.trace_id


async def test_the_trace_is_written_beside_the_keys_of_opentelemetry_and_rust(
    app: App[None], sentry: Sentry, sql: Sql
) -> None:
    instrument(app, propagation="read-write")
    traceparent = f"00-{TRACE_ID}-{SPAN_ID}-01"
    payloads: list[Any] = [
        None,
        {"a": {"b": 1}, "_trace": {**RUST, "traceparent": traceparent}},
        {"_trace": {"sentry-trace": "old", "baggage": "old"}},
        {"_trace": "text"},
        [{"a": 1}, "two", {}],
        "text",
        [],
    ]

    with sentry_sdk.start_transaction(name="request") as request:
        await app.aadd_jobs([JobSpec("greet", payload) for payload in payloads])

    [publish] = sentry.one("request")["spans"]
    headers = stored(sql)[0]["_trace"]
    assert headers["sentry-trace"] == f"{request.trace_id}-{publish['span_id']}-1"
    assert f"sentry-trace_id={request.trace_id}" in headers["baggage"]
    assert stored(sql) == [
        {"_trace": headers},
        {"a": {"b": 1}, "_trace": {**RUST, "traceparent": traceparent, **headers}},
        {"_trace": headers},
        {"_trace": headers},
        [{"a": 1, "_trace": headers}, "two", {"_trace": headers}],
        "text",
        [],
    ]
    assert payloads[1]["_trace"] == {**RUST, "traceparent": traceparent}


async def test_propagation_read_writes_nothing_and_off_reads_nothing(
    app: App[None], run: Run, sentry: Sentry, sql: Sql
) -> None:
    app.task(name="greet")(_nothing)

    @app.batch_task
    async def pack(items: list[Any]) -> None: ...

    instrument(app)
    with sentry_sdk.start_transaction(name="request"):
        await app.aadd_job("greet", {"name": "Ada"}, run_at=timedelta(hours=1))
    mark = {"sentry-trace": f"{TRACE_ID}-{SPAN_ID}-1"}
    await app.aadd_jobs(
        [JobSpec("greet", {"_trace": mark}), JobSpec("pack", [7, {"_trace": mark}])]
    )
    assert stored(sql)[0] == {"name": "Ada"}

    await run()
    found = [process_span(each)["trace_id"] for each in sentry.transactions[1:]]
    assert found == [TRACE_ID, TRACE_ID]

    instrument(app, propagation="off")
    await app.aadd_job("greet", {"_trace": mark})
    await run()
    assert process_span(sentry.transactions[-1])["trace_id"] != TRACE_ID


async def test_an_invalid_trace_in_a_payload_is_ignored(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    instrument(app)
    app.task(name="greet")(_nothing)
    marks: list[Any] = [
        None,
        "text",
        [],
        RUST,
        {"sentry-trace": 7},
        {"sentry-trace": None, "baggage": "sentry-trace_id=1"},
        {"sentry-trace": "nonsense", "baggage": ["x"]},
        {"sentry-trace": f"{TRACE_ID}-{SPAN_ID}-1-more", "baggage": "=;,%"},
        {"sentry-trace": "a" * 100_000},
    ]

    await app.aadd_jobs([JobSpec("greet", {"_trace": mark}) for mark in marks])
    assert await run() == len(marks)

    spans = [process_span(each) for each in sentry.transactions]
    assert [each["status"] for each in spans] == ["ok"] * len(marks)
    assert len({each["trace_id"] for each in spans} - {TRACE_ID}) == len(marks)


# Sensitive data


async def test_payloads_job_keys_and_queue_names_are_sent_only_with_record(
    app: App[None], run: Run, sentry: Sentry, sql: Sql
) -> None:
    @app.task(max_attempts=1)
    async def greet(ctx: JobContext, name: str) -> None:
        ctx.logger.info("hello")
        local = name.upper()
        raise ValueError(f"no name of {len(local)} letters")

    @app.task(max_attempts=1)
    def resize(ctx: SyncJobContext, name: str) -> None:
        ctx.logger.warning("hello")
        raise ValueError(f"no name of {len(name)} letters")

    async def add_and_run() -> None:
        names: Any = {"queue_name": f"queue {SECRET}"}
        with sentry_sdk.start_transaction(name="request"):
            for task in (greet, resize):
                key = f"key {SECRET} {task.identifier}"
                await task.using(**names, job_key=key).aenqueue(SECRET)
        with pytest.raises(JobSpecError):
            await app.aadd_job("greet", {SECRET: object()})
        add_from_sql(sql, "greet", {"name": [SECRET]})
        await run()

    logging.getLogger("graphile_worker").setLevel(logging.DEBUG)
    instrument(app, propagation="read-write")
    await add_and_run()
    logging.getLogger("graphile_worker").setLevel(logging.NOTSET)
    assert len(sentry.errors) == 3
    assert "no name of 7 letters" in sentry.text
    assert SECRET not in sentry.text.lower()

    instrument(app, record=["job_key", "local_variables", "queue_name"])
    await add_and_run()
    for recorded in (f"'{SECRET}'", f"'{SECRET.upper()}'", f"queue {SECRET}", f"key {SECRET}"):
        assert recorded in sentry.text


# Check-ins


class Cron:
    """Adds the jobs of cron items, as a worker does at a minute."""

    def __init__(self, database: TestDatabase, hooks: Hooks) -> None:
        self._own = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema))
        self._hooks = hooks
        self._minute = datetime(2024, 2, 29, 4, 30, tzinfo=UTC)

    async def tick(self, items: list[ParsedCronItem]) -> dict[str, int]:
        added = await CronScheduler(self._own, lambda: items, self._hooks).tick(self._minute)
        self._minute += timedelta(minutes=1)
        return added

    async def close(self) -> None:
        await self._own.close()


@pytest.fixture
async def cron(database: TestDatabase, app: App[None]) -> Any:
    cron = Cron(database, app.hooks)
    yield cron
    await cron.close()


async def test_a_scheduled_task_sends_check_ins_with_its_schedule(
    app: App[None], run: Run, cron: Cron, sentry: Sentry
) -> None:
    @app.cron("*/15 1-9 * * *", tz="Europe/Berlin")
    @app.task
    async def clean() -> None: ...

    app.task(name="greet", max_attempts=1)(_raising(ValueError("no such name"), True))
    crontab = parse_crontab(
        "* * 1-31 2 4,7 greet ?max=1\n* * 28,29 * 1-3 greet ?id=often&max=1 {a: 1}"
    )
    items = [*app.cron_items(), *crontab]
    instrument(app, monitors=crontab)

    assert set(await cron.tick(items)) == {"clean", "greet", "often"}
    await app.aadd_job("clean")
    await run()

    by_slug: dict[str, list[dict[str, Any]]] = {}
    for each in sentry.check_ins:
        by_slug.setdefault(each["monitor_slug"], []).append(each)
    found = {slug: [each["status"] for each in sent] for slug, sent in by_slug.items()}
    assert found == {
        "clean": ["in_progress", "ok"],
        "greet": ["in_progress", "error"],
        "often": ["in_progress", "error"],
    }
    for begin, end in by_slug.values():
        assert begin["check_in_id"] == end["check_in_id"]
        assert begin["monitor_config"] == end["monitor_config"]
        assert 0 <= end["duration"] < 20
    schedules = {slug: sent[0]["monitor_config"] for slug, sent in by_slug.items()}
    assert schedules == {
        "clean": {
            "schedule": {"type": "crontab", "value": "*/15 1-9 * * *"},
            "timezone": "Europe/Berlin",
        },
        "greet": {"schedule": {"type": "crontab", "value": "* * * 2 0,4"}, "timezone": "UTC"},
        "often": {"schedule": {"type": "crontab", "value": "* * 28-29 * 1-3"}, "timezone": "UTC"},
    }
    slugs = {each["contexts"]["monitor"]["slug"] for each in sentry.errors}
    assert slugs == {"greet", "often"}
    traces = {process_span(each)["trace_id"] for each in sentry.transactions}
    assert {each["contexts"]["trace"]["trace_id"] for each in sentry.check_ins} < traces


async def test_the_check_in_of_a_job_closes_with_its_last_attempt(
    app: App[None], run: Run, cron: Cron, sentry: Sentry
) -> None:
    outcomes: list[BaseException | None] = [
        ValueError("first"),
        Snooze(timedelta(0)),
        Retry(timedelta(0)),
        None,
    ]

    @app.cron("* * * * *")
    @app.task(retry=AT_ONCE)
    async def clean() -> None:
        if outcome := outcomes.pop(0):
            raise outcome

    instrument(app)
    await cron.tick(app.cron_items())
    await run()

    assert [each["status"] for each in sentry.check_ins] == ["in_progress"] * 4 + ["ok"]
    assert len({each["check_in_id"] for each in sentry.check_ins}) == 1

    outcomes[:] = [None]
    await cron.tick(app.cron_items())
    await run()
    assert [each["status"] for each in sentry.check_ins[5:]] == ["in_progress", "ok"]
    assert len({each["check_in_id"] for each in sentry.check_ins}) == 2


async def test_a_slug_is_valid_for_sentry_and_unique(
    app: App[None], run: Run, cron: Cron, sentry: Sentry
) -> None:
    app.task(name="clean")(_nothing)
    names = [
        "plain-name_1",
        "reports:daily",
        "reports/daily",
        "Reports-Daily",
        "--",
        "123",
        "ünïcødé",
        "a" * 50,
        "a" * 51,
        "a" * 52,
    ]
    items = parse_cron_items(
        [
            CronItem(task="clean", match="* * * * *", identifier=name, payload={"n": number})
            for number, name in enumerate(names)
        ]
    )
    instrument(app, monitors=items)

    await cron.tick(items)
    await run()

    slugs = {each["monitor_slug"] for each in sentry.check_ins}
    assert len(slugs) == len(names)
    assert {"plain-name_1", "a" * 50} < slugs
    assert {"reports-daily-2c4f485f", "123-a665a459", "n-c-d-5713bed3"} < slugs
    for slug in slugs:
        assert 0 < len(slug) <= 50
        assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")
        assert not slug.isdigit()


async def test_jobs_without_a_known_item_send_no_check_in(
    app: App[None], run: Run, cron: Cron, sentry: Sentry
) -> None:
    app.task(name="clean")(_nothing)
    minute = datetime(2024, 2, 29, 4, 30, tzinfo=UTC)

    def odd(*_: object) -> bool:
        raise ValueError("no such time")

    known = parse_crontab("30 4 * * * clean")
    broken = parse_cron_items([CronItem(task="clean", match=odd, identifier="odd")])
    marks: list[Any] = ["text", {}, {"ts": 7}, {"ts": "2024"}, {"ts": "2024-02-29T04:31:00.000Z"}]
    specs = [JobSpec("clean", {"_cron": mark}) for mark in marks]
    backfilled = known[0].spec_at(minute, backfilled=True)
    due = known[0].spec_at(minute)

    instrument(app, monitors=known)
    await app.aadd_jobs([*specs, backfilled])
    instrument(app, monitors=[*known, *broken])
    await app.aadd_jobs([due])
    assert await run() == 7
    for monitors in (False, [], parse_crontab("* * * * * clean ?id=a\n* * * * * clean ?id=b")):
        instrument(app, monitors=monitors)
        await app.aadd_jobs([due])
        assert await run() == 1

    assert len(sentry.transactions) == 10
    assert sentry.check_ins == []


async def test_a_function_as_a_pattern_sends_check_ins_without_a_schedule(
    app: App[None], run: Run, cron: Cron, sentry: Sentry
) -> None:
    app.task(name="clean")(_nothing)
    items = parse_cron_items([CronItem(task="clean", match=lambda digest: digest.hour == 4)])
    instrument(app, monitors=items)

    await cron.tick(items)
    await run()

    assert [each["status"] for each in sentry.check_ins] == ["in_progress", "ok"]
    assert all("monitor_config" not in each for each in sentry.check_ins)


# Instrumenting


async def test_without_an_initialized_sdk_nothing_changes(
    app: App[None], run: Run, cron: Cron, sql: Sql, database: TestDatabase
) -> None:
    assert not sentry_sdk.is_initialized()
    instrument(app, propagation="read-write")

    @app.cron("* * * * *")
    @app.task(max_attempts=1)
    async def greet() -> None:
        sentry_sdk.set_tag("of", "greet")
        raise ValueError("no such name")

    await cron.tick(app.cron_items())
    async with Client(database.dsn, schema=database.schema, hooks=app.hooks) as client:
        await client.add_job("greet", {"name": "Ada"})
    assert stored(sql)[1] == {"name": "Ada"}
    assert await run() == 2

    assert sql.value("select count(*) from :schema._private_jobs where attempts = 1") == 2


async def test_instrumenting_twice_sends_everything_once(
    app: App[None], run: Run, cron: Cron, sentry: Sentry
) -> None:
    hooks = Hooks()

    @app.cron("* * * * *")
    @app.task(max_attempts=1)
    async def greet() -> None:
        raise ValueError("no such name")

    instrument(app, capture="every attempt", monitors=False)
    instrument(hooks)
    instrument(app)
    hooks.include(app.hooks)

    await cron.tick(app.cron_items())
    await run()
    await app.aadd_job("greet")
    await run(hooks=hooks)

    assert len(sentry.transactions) == len(sentry.errors) == 2
    assert len(sentry.check_ins) == 2


def test_only_the_worker_reports_the_run_of_a_task_in_a_process(
    app: App[None], sentry: Sentry
) -> None:
    instrument(app)
    job = make_job(task_identifier="greet")

    for is_task_process in (True, False):
        operation = RunningJob(
            pool_id="p", worker_id="w", job=job, runs_in="process", is_task_process=is_task_process
        )
        with app.hooks.around_sync_only(operation):
            assert sentry.transactions == []

    assert [each["transaction"] for each in sentry.transactions] == ["greet"]


async def test_nothing_of_a_job_is_kept_after_its_end(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    instrument(app)
    kept: list[weakref.ref[Thing]] = []
    variable: contextvars.ContextVar[Thing] = contextvars.ContextVar("variable")
    # Without errors: the SDK keeps the last one of each worker.
    outcomes: list[type[BaseException] | None] = [None, Late]

    def run_task(number: int) -> None:
        variable.set(Thing())
        kept.append(weakref.ref(variable.get()))
        if (outcome := outcomes[number]) is not None:
            raise outcome

    async def on_loop(number: int) -> None:
        run_task(number)

    for name, function in (("on_loop", on_loop), ("in_thread", run_task)):
        app.task(name=name, max_attempts=1)(function)
        await app.aadd_jobs([JobSpec(name, {"number": number}) for number in range(2)])
    await run()
    gc.collect()

    assert len(kept) == 4
    assert [each() for each in kept] == [None] * 4


class Thing:
    """A value of a job."""


class Late(Snooze):
    def __init__(self) -> None:
        super().__init__(timedelta(hours=1))


async def test_tags_of_a_listener_and_of_the_program_reach_the_event(
    app: App[None], run: Run, sentry: Sentry
) -> None:
    instrument(app)
    app.task(name="greet", max_attempts=1)(_raising(ValueError("no such name")))
    app.on(JobStarted)(lambda event: Scope.get_isolation_scope().set_tag("tenant", "7"))

    await app.aadd_job("greet")
    with sentry_sdk.isolation_scope() as scope:
        scope.set_tag("program", "shop")
        await run()

    [error] = sentry.errors
    assert (error["tags"]["program"], error["tags"]["tenant"]) == ("shop", "7")


def test_invalid_arguments_of_instrument_are_rejected() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"capture": "all"}, "capture must be one of failures, every attempt, got 'all'"),
        ({"propagation": "write"}, "propagation must be one of off, read, read-write, got 'write'"),
        ({"record": "job_key"}, "record must be a list of any of job_key, local_variables"),
        ({"record": ["payload"]}, "record must be a list of any of job_key, local_variables"),
        ({"monitors": "* * * * * clean"}, "monitors must be a bool, or items of parse_crontab"),
        ({"monitors": None}, "monitors must be a bool, or items of parse_crontab"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            instrument(Hooks(), **arguments)
    with pytest.raises(ConfigurationError, match="expected an App or Hooks, got str"):
        instrument("app")  # type: ignore[arg-type]  # what the test is about


def test_without_the_sdk_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)

    message = r'^this needs the Sentry SDK: pip install "graphile-worker\[sentry\]"$'
    with pytest.raises(ImportError, match=message):
        runpy.run_path(graphile_worker.contrib.sentry.__file__)

"""The overview: what the poller reads, how it reaches browsers, and what it shows in an outage."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest

from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.contrib.dashboard import _poller
from graphile_worker.contrib.dashboard._poller import Poller, PollTimings
from graphile_worker.contrib.dashboard._resources import overview as overview_resource
from tests.conftest import TestDatabase
from tests.support.dashboard import Board, Caller, open_dashboard
from tests.support.job_table import JobTable
from tests.support.processes import eventually
from tests.support.proxy import Proxy, Reset, Stall
from tests.support.rows import lock_job
from tests.support.sql import Sql

QUICK = PollTimings(interval=0.1, light_interval=0.2, retry_interval=0.1, linger=0.5)


class EventReader:
    """Reads the events of a stream in a thread."""

    def __init__(self, caller: Caller) -> None:
        self.events: list[tuple[str, Any]] = []
        self._url = f"{caller.url}api/v1/stream"
        self._cookies = dict(caller.http.cookies)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for(self, is_right: Any, what: str) -> Any:
        """Wait for an overview, and return it."""
        return eventually(
            lambda: next((data for _, data in self.events if is_right(data)), None), what
        )

    def join(self) -> None:
        self._thread.join(30)

    def _read(self) -> None:
        with (
            httpx.Client(cookies=self._cookies, timeout=120, trust_env=False) as http,
            http.stream("GET", self._url) as answer,
        ):
            event = ""
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    self.events.append((event, json.loads(value)))


@pytest.fixture
def quick(database: TestDatabase) -> Iterator[Board]:
    with open_dashboard(database, timings=QUICK) as board:
        yield board


@pytest.fixture
def table(database: TestDatabase, sql: Sql) -> JobTable:
    return JobTable(database, sql)


def wait_for(caller: Caller, is_right: Any, what: str) -> Any:
    """Ask until the overview is right."""

    def ask() -> Any:
        overview = caller.get("overview")
        return overview if is_right(overview) else None

    return eventually(ask, what)


@asynccontextmanager
async def open_poller(
    database: TestDatabase,
    timings: PollTimings = QUICK,
    *,
    dsn: str | None = None,
    **options: Any,
) -> AsyncIterator[Poller]:
    """A poller without a server."""
    schemas = Schemas.from_names(database.schema)
    poller = Poller(PsycopgDatabase(dsn or database.dsn, schemas), timings=timings, **options)
    try:
        with poller.view():
            yield poller
    finally:
        await poller.close()


async def wait_until(poller: Poller, is_true: Callable[[], Any]) -> None:
    """Wait for a look of the poller."""
    await poller._wait_until(is_true, 30.0)
    assert is_true()


def raise_bug(*_arguments: Any, **_options: Any) -> Any:
    raise RuntimeError("a bug")


def count_sessions(sql: Sql) -> int:
    found: int = sql.value(
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and application_name = 'graphile-worker'"
    )
    return found


def test_overview_counts_jobs_by_state_and_task(quick: Board, table: JobTable) -> None:
    for state in ("ready", "ready", "waiting", "running", "retrying", "failed", "scheduled"):
        table.add_job_in_state(state)
    caller = quick.sign_in()
    overview = wait_for(caller, lambda each: not each["is_partial"], "the counts are there")
    assert overview["totals"] == {
        "ready": 2,
        "waiting": 1,
        "running": 1,
        "retrying": 1,
        "failed": 1,
        "scheduled": 1,
        "stale": 0,
    }
    assert overview["oldest_ready_seconds"] >= 60
    assert overview["oldest_ready_task"] == "task"
    [task] = overview["tasks"]
    assert (task["identifier"], task["ready"], task["is_paused"]) == ("task", 2, False)
    assert overview["task_count"] == 1
    assert overview["outage"] is None
    assert overview["slots"] == {"used": 1, "total": None}
    assert overview["ended"] == []
    assert overview["server"]["role"] == "postgres"


def test_overview_is_sent_once_for_each_version(quick: Board) -> None:
    caller = quick.sign_in()
    answer = caller.request("GET", "overview")
    tag = answer.headers["etag"]
    # A version of another process is another one.
    assert tag.startswith(f'"{overview_resource.PROCESS_ID}-')

    def is_unchanged() -> bool:
        again = caller.request("GET", "overview", headers={"if-none-match": tag})
        return again.status_code == 304 and not again.content

    # The poller may look between two requests.
    for _ in range(20):
        tag = caller.request("GET", "overview").headers["etag"]
        if is_unchanged():
            return
    raise AssertionError("each answer had another tag")


def test_a_job_added_by_sql_appears_in_the_stream_and_disappears(quick: Board, sql: Sql) -> None:
    reader = EventReader(quick.sign_in())
    reader.wait_for(lambda each: each.get("totals", {}).get("ready") == 0, "an empty queue")
    sql.run("select :schema.add_job('send_email')")
    found = reader.wait_for(lambda each: each["totals"]["ready"] == 1, "the job is there")
    sql.run("delete from :schema._private_jobs")
    later = reader.wait_for(
        lambda each: each["version"] > found["version"] and each["totals"]["ready"] == 0,
        "the job is gone",
    )
    assert later["series"]
    rates = reader.wait_for(lambda each: each["rates"], "rates of the last seconds")["rates"]
    assert rates.keys() == {"added", "completed"}


def test_many_viewers_share_one_poller_and_its_connection(quick: Board, sql: Sql) -> None:
    readers = [EventReader(quick.sign_in()) for _ in range(7)]
    for reader in readers:
        reader.wait_for(lambda each: "totals" in each, "an overview")
    # One of the poller, and those of the requests that signed in.
    assert quick.service.events.stream_count == 7
    assert count_sessions(sql) <= 3


def test_the_poller_stops_without_viewers(quick: Board, sql: Sql) -> None:
    caller = quick.sign_in()
    caller.get("overview")
    assert quick.service.poller.is_running
    eventually(lambda: not quick.service.poller.is_running, "the poller stops")
    eventually(lambda: count_sessions(sql) == 0, "its connections are closed")
    version = quick.service.poller.version
    caller.get("session")
    assert quick.service.poller.version == version
    assert caller.get("overview")["version"] >= version


def test_requests_after_a_time_without_viewers_wait_for_new_data(
    database: TestDatabase, sql: Sql
) -> None:
    with open_dashboard(database, timings=replace(QUICK, first_full_wait=10.0)) as board:
        caller = board.sign_in()
        assert caller.get("overview")["totals"]["ready"] == 0
        poller = board.service.poller
        for ready, path in enumerate(("overview", "tasks", "overview"), start=1):
            eventually(lambda: not poller.is_running, "the poller stops")
            # The pause of the last snapshot is over.
            poller._next_snapshot_at = 0.0
            sql.run("select :schema.add_job('send_email')")
            answer = caller.get(path)
            counts = answer["totals"] if path == "overview" else answer["tasks"][0]["counts"]
            assert counts["ready"] == ready
            assert answer["age_seconds"] < 10


async def test_an_outage_ends_with_the_viewers(database: TestDatabase, proxy: Proxy) -> None:
    dsn = f"{database.dsn} port={proxy.port}"
    async with open_poller(database, dsn=dsn) as poller:
        assert await poller.get()
        proxy.put(Reset())
        await wait_until(poller, lambda: poller.outage)
        poller._viewer_count -= 1
        assert poller._task is not None
        await poller._task
        assert poller.outage is None
        proxy.heal()
        sample = await poller.get()
        assert sample is not None
        assert sample.age < 10
        assert poller.outage is None
        poller._viewer_count += 1


def test_a_change_brings_the_next_look_forward(database: TestDatabase, sql: Sql) -> None:
    timings = PollTimings(interval=600.0, light_interval=600.0)
    with open_dashboard(database, timings=timings) as board:
        caller = board.sign_in()
        assert not wait_for(caller, lambda each: not each["is_partial"], "counts")["totals"][
            "ready"
        ]
        added = caller.post("jobs", {"task": "send_email", "payload": "{}"})
        assert added["is_new"]
        wait_for(caller, lambda each: each["totals"]["ready"] == 1, "the new job is counted")


def test_alerts_have_a_page_and_one_action(quick: Board, table: JobTable, sql: Sql) -> None:
    queue = table.add_queue("a/b c", locked_at="'9999-01-01'", locked_by="'paused:ann'")
    table.add_job("task", job_queue_id=queue)
    sql.run("insert into :ext_schema.pauses (kind, name, paused_by) values ('task', 'mail', 'ann')")
    table.add_job("late", run_at="now() - interval '1 hour'")
    lock_job(sql, table.add_job("busy"), by="pool-000000000000000000")
    caller = quick.sign_in()
    caller.post("tasks/busy/pause")
    overview = wait_for(caller, lambda each: each["paused"]["tasks"], "the pause of a task")
    assert overview["verdict"]["health"] in ("degraded", "stalled")
    alerts = {each["id"]: each for each in overview["alerts"]}
    paused = alerts["queue-paused"]
    assert paused["subject"] == {"kind": "queue", "name": "a/b c"}
    assert paused["action"] == {
        "kind": "resume_queue",
        "target": "a/b c",
        "label": "Resume",
        "permission": "pause",
        "path": "/queues/a%2Fb%20c/resume",
        "body": {},
        "question": None,
    }
    assert paused["link"] == "jobs?q=queue%3A%22a%2Fb%20c%22%20state%3Awaiting"
    assert alerts["task-paused"]["action"]["kind"] == "resume_task"
    assert alerts["task-paused"]["action"]["target"] == "mail"
    assert alerts["task-paused"]["link"] == "jobs?q=task%3Amail%20state%3Aready"
    assert alerts["late"]["link"] == "jobs?q=task%3Alate%20state%3Aready"
    assert overview["paused"] == {"queues": 1, "tasks": 2}
    assert alerts["task-paused"]["action"]["kind"] == "resume_task"
    tasks = {each["identifier"]: each["is_paused"] for each in overview["tasks"]}
    assert tasks == {"task": False, "late": False, "busy": True}
    for alert in alerts.values():
        assert {"severity", "title", "evidence", "advice", "affected"} <= alert.keys()


def test_the_dashboard_ends_pauses_whose_time_is_over(database: TestDatabase, sql: Sql) -> None:
    lock = "select locked_at is not null from :schema._private_job_queues"
    with open_dashboard(database, timings=QUICK) as board:
        board.sign_in().post("queues/a/pause", {"seconds": 600})
    sql.run("update :ext_schema.pauses set until = now()")
    with open_dashboard(database, timings=QUICK, read_only=True) as board:
        overview = wait_for(board.sign_in(), lambda each: not each["is_partial"], "the counts")
        assert overview["paused"]["queues"] == 1
        assert sql.value(lock)
    with open_dashboard(database, timings=QUICK) as board:
        caller = board.sign_in()
        wait_for(caller, lambda each: not each["is_partial"], "the counts")
        wait_for(caller, lambda each: each["paused"]["queues"] == 0, "the pause ends")
        assert not sql.value(lock)


# Outages


def test_the_last_good_data_stays_in_an_outage(
    database: TestDatabase, sql: Sql, proxy: Proxy
) -> None:
    sql.run("select :schema.add_job('send_email')")
    dsn = f"{database.dsn} port={proxy.port}"
    with open_dashboard(database, dsn=dsn, timings=QUICK) as board:
        caller = board.sign_in()
        reader = EventReader(caller)
        reader.wait_for(lambda each: each.get("totals", {}).get("ready") == 1, "the job")
        proxy.put(Reset())
        reader.wait_for(lambda each: each.get("outage"), "the outage reaches the browser")
        overview = wait_for(caller, lambda each: each["outage"], "the outage")
        assert overview["totals"]["ready"] == 1
        assert overview["outage"]["code"] == "database_unreachable"
        assert overview["age_seconds"] >= 0
        assert caller.get("session")["user"]
        problem = caller.request("GET", "jobs")
        assert (problem.status_code, problem.json()["code"]) == (503, "database_unreachable")
        version = overview["version"]
        proxy.heal()
        sql.run("select :schema.add_job('send_email')")
        reader.wait_for(
            lambda each: (
                each["version"] > version and not each["outage"] and each["totals"]["ready"] == 2
            ),
            "the dashboard recovers by itself",
        )


def test_a_dashboard_that_starts_in_an_outage_reports_it(
    database: TestDatabase, proxy: Proxy
) -> None:
    proxy.put(Reset())
    dsn = f"{database.dsn} port={proxy.port}"
    with open_dashboard(database, dsn=dsn, timings=QUICK) as board:
        caller = board.sign_in()
        assert caller.http.get("").is_success
        assert caller.http.get("healthz").is_success
        assert caller.http.get("healthz/ready").status_code == 503
        overview = caller.get("overview")
        assert overview["outage"]["code"] == "database_unreachable"
        assert overview["verdict"]["health"] == "unknown"
        assert overview["totals"]["ready"] is None
        proxy.heal()
        wait_for(caller, lambda each: not each["outage"], "it recovers")
        eventually(lambda: caller.http.get("healthz/ready").is_success, "it is ready")


def test_a_server_that_does_not_answer_does_not_block_pages(
    database: TestDatabase, proxy: Proxy
) -> None:
    dsn = f"{database.dsn} port={proxy.port}"
    timings = replace(QUICK, snapshot_timeout=0.5, light_timeout=0.5, grace=0.1)
    with open_dashboard(database, dsn=dsn, timings=timings) as board:
        caller = board.sign_in()
        wait_for(caller, lambda each: each["totals"]["ready"] == 0, "the queue is counted")
        proxy.put(Stall())
        # From memory, without the database.
        assert caller.get("overview")["version"]
        assert caller.get("session")["user"]
        overview = wait_for(caller, lambda each: each["outage"], "the outage")
        assert overview["outage"]["message"] == "The database does not answer."
        assert overview["totals"]["ready"] == 0
        proxy.heal()
        wait_for(caller, lambda each: not each["outage"], "it recovers")


def test_a_snapshot_that_takes_too_long_leaves_what_is_read_by_indexes(
    database: TestDatabase, sql: Sql
) -> None:
    sql.run("select :schema.add_job('send_email', run_at => now() - interval '1 hour')")
    timings = replace(QUICK, snapshot_timeout=0.001)
    with open_dashboard(database, timings=timings) as board:
        caller = board.sign_in()
        overview = wait_for(caller, lambda each: each["outage"], "the time limit")
        assert overview["outage"]["code"] == "timeout"
        later = wait_for(caller, lambda each: each["version"] > overview["version"], "it goes on")
        assert later["is_partial"]
        assert later["outage"]["code"] == "timeout"
        assert later["totals"]["ready"] is None
        assert later["oldest_ready_task"] == "send_email"
        assert later["oldest_ready_seconds"] > 3000


def test_a_missing_schema_is_named(empty_database: TestDatabase) -> None:
    with open_dashboard(empty_database, timings=QUICK) as board:
        caller = board.sign_in()
        assert caller.get("overview")["outage"]["code"] == "schema_missing"
        problem = caller.request("GET", "jobs")
        assert (problem.status_code, problem.json()["code"]) == (409, "schema_missing")


def test_a_slow_statement_ends_at_the_time_limit(database: TestDatabase, sql: Sql) -> None:
    sql.run("select :schema.add_job('send_email')")
    with (
        open_dashboard(database, query_timeout=timedelta(milliseconds=300)) as board,
        psycopg.connect(database.dsn) as blocker,
    ):
        caller = board.sign_in()
        blocker.execute(sql.text("lock table :schema._private_jobs in access exclusive mode"))
        problem = caller.request("GET", "jobs")
        assert (problem.status_code, problem.json()["code"]) == (504, "timeout")


# Streams


def test_a_slow_browser_gets_only_the_newest_overview(quick: Board) -> None:
    caller = quick.sign_in()
    with caller.http.stream("GET", "api/v1/stream", timeout=60) as answer:
        chunks = answer.iter_raw()
        next(chunks)
        service = quick.service
        [stream] = service.events._streams
        for number in range(1000):
            service.publish("bulk", "7", {"id": "7", "changed": number})
        assert len(stream._pending) <= 2


def test_the_number_of_streams_is_limited(quick: Board) -> None:
    reader = EventReader(quick.sign_in())
    reader.wait_for(lambda each: "totals" in each, "an overview")
    quick.service.events.max_streams = 1
    problem = quick.sign_in().request("GET", "stream")
    assert (problem.status_code, problem.json()["code"]) == (503, "too_many_streams")


def test_streams_end_when_the_server_stops(database: TestDatabase) -> None:
    with open_dashboard(database, timings=QUICK) as board:
        reader = EventReader(board.sign_in())
        reader.wait_for(lambda each: "totals" in each, "an overview")
    reader.join()
    assert reader.events[-1] == ("bye", {"reason": "server_stops"})


def test_health_needs_no_user(quick: Board) -> None:
    with httpx.Client(base_url=quick.url, trust_env=False) as http:
        assert http.get("healthz").text == "ok"
        assert http.get("healthz/ready").text == "ok"
        assert "Disallow: /" in http.get("robots.txt").text


# What the poller does with errors


async def test_an_unexpected_error_is_an_outage_and_the_poller_continues(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_poller(database) as poller:
        assert await poller.get()
        with monkeypatch.context() as patch:
            patch.setattr(_poller, "diagnose_queue", raise_bug)
            await wait_until(poller, lambda: poller.outage)
            await asyncio.sleep(3 * QUICK.interval)
            outage = poller.outage
            assert outage is not None
            assert outage.code == "internal_error"
            assert poller.latest is not None
        # The pause of the budget is over.
        poller._next_snapshot_at = 0.0
        await wait_until(poller, lambda: poller.outage is None)
        assert poller.is_running
    assert sum("RuntimeError: a bug" in each.message for each in caplog.records) == 1


async def test_a_snapshot_does_not_need_what_is_read_and_sent_after_it(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_poller, "plan_get_recent_history", raise_bug)
    async with open_poller(database, on_update=raise_bug) as poller:
        await wait_until(poller, lambda: poller.latest and not poller.latest.is_partial)
        version = poller.version
        await wait_until(poller, lambda: poller.version > version + 2)
        assert poller.outage is None
    failed = [each.message for each in caplog.records if "RuntimeError: a bug" in each.message]
    assert len(failed) == 2, failed

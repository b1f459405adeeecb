"""Queues that only Node or only Rust workers use, without the companion schema of Python."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import TestDatabase
from tests.support.dashboard import Board, Caller, add_jobs, fail_jobs, open_dashboard, open_page
from tests.support.processes import Program, Programs, eventually
from tests.support.rust import rust_install
from tests.support.sql import Sql
from tests.support.tiers import size
from tests.support.tools import MODULES, NODE

# It prints each fetch. "flaky" fails until the file "fixed" appears, "linger" ends with "release".
NODE_WORKER = """
const [, , reference, connectionString, schema] = process.argv;
const fs = require("fs");
const { EventEmitter } = require("events");
const { run } = require(reference);

const events = new EventEmitter();
events.on("worker:getJob:start", () => console.log("fetch"));

const taskList = {
  work: async () => {},
  flaky: async () => {
    if (!fs.existsSync("fixed")) throw new Error("no answer from 10.0.0.7");
  },
  linger: async () => {
    while (!fs.existsSync("release")) await new Promise((resolve) => setTimeout(resolve, 20));
  },
};

run({
  connectionString,
  schema,
  events,
  taskList,
  concurrency: 2,
  pollInterval: 100,
  crontab: "0 4 * * * work ?id=nightly",
});
"""
RUST_WORKER = "graphile_worker_0b1f6c3d5e7a9c2b"
RUST_CRONTAB = """
insert into :schema._private_known_crontabs (identifier, known_since, last_execution)
values ('nightly', now(), now())
"""

RELEASED = "Released 1 job and 1 queue."

# In the gate, pages of a browser show the queue of Rust workers only: both lack the same tables.
IN_FULL = size(gate=False, nightly=True)

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(300)]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path) as programs:
        yield programs


@pytest.fixture
def node_sql(node_database: TestDatabase) -> Iterator[Sql]:
    with closing(Sql(node_database.dsn, node_database.schema)) as sql:
        assert not has_companion(sql)
        yield sql


@pytest.fixture
def node(programs: Programs, node_database: TestDatabase) -> Program:
    """A worker of Node, which has registered its crontab."""
    script = programs.write("worker.js", NODE_WORKER)
    reference = str(MODULES / "gw018")
    command = [str(NODE), str(script), reference, node_database.url, node_database.schema]
    return programs.start(command, {})


@pytest.fixture
def rust_database(empty_database: TestDatabase) -> TestDatabase:
    """A database as the Rust worker leaves it."""
    rust_install(empty_database.url, empty_database.dsn, empty_database.schema)
    return empty_database


def has_companion(sql: Sql) -> bool:
    return bool(sql.value("select count(*) from pg_namespace where nspname like '%\\_ext'"))


def wait_for_fetches(program: Program, count: int) -> None:
    """Wait until a worker of Node has looked for jobs this many times more."""
    before = program.out.splitlines().count("fetch")
    eventually(lambda: program.out.splitlines().count("fetch") >= before + count, "it fetches")


def change(caller: Caller, action: str, job: int, **parameters: Any) -> None:
    """Change one job, as the dialogs of the pages do."""
    body = {"action": action, "ids": [str(job)], "parameters": parameters}
    token = caller.post("bulk/preview", body)["token"]
    run = caller.post("bulk", {"token": token})

    def find_end() -> Any:
        found = caller.get(f"bulk/{run['id']}")
        return found if found["state"] != "running" else None

    ended = eventually(find_end, "the change ends")
    assert (ended["state"], ended["changed"]) == ("done", 1), ended


def check_pages(caller: Caller, job: int, runtime: str) -> None:
    """Check that each page has data, or the words for what needs the companion schema."""
    eventually(lambda: not caller.get("overview")["is_partial"], "counts")
    overview = caller.get("overview")
    assert overview["totals"]["failed"] == 1
    assert overview["outage"] is None
    assert caller.get("session")["features"] == {
        "history": False,
        "audit": False,
        "app": False,
        "pauses": False,
    }
    assert str(job) in {each["id"] for each in caller.get("jobs")["jobs"]}
    assert caller.get("jobs/count")["by_state"]["failed"] == 1
    shown = caller.get(f"jobs/{job}")
    assert (shown["state"], shown["has_history"]) == ("failed", False)
    assert "no answer" in shown["job"]["last_error"]
    assert caller.get(f"jobs/{job}/payload")["text"] == '{"to":"ada"}'
    [group] = caller.get("errors")["groups"]
    assert (group["task"], group["jobs"]) == ("flaky", 1)
    assert "imports" in {each["name"] for each in caller.get("queues")["queues"]}
    assert "flaky" in {each["identifier"] for each in caller.get("tasks")["tasks"]}
    assert not caller.get("limits")["is_stored"]
    assert caller.get("workers")["workers"]
    assert [each["identifier"] for each in caller.get("cron")["items"]] == ["nightly"]
    assert caller.get("history/series")["source"] == "memory"
    diagnosis = caller.get("diagnosis")
    assert f"installed by {runtime}" in diagnosis["facts"]["schema"]
    assert "companion-missing" in {each["id"] for each in diagnosis["findings"]}
    for method, path, word in (
        ("GET", "audit", "'audit'"),
        ("GET", "history/outcomes", "outcomes"),
        ("POST", "tasks/work/pause", "'pauses'"),
    ):
        problem = caller.request(method, path).json()
        assert (problem["status"], problem["code"]) == (409, "companion_missing"), path
        assert "_ext'" in problem["detail"]
        assert word in problem["detail"]
        assert "graphile-worker migrate" in problem["detail"]
    timed = caller.request("POST", "queues/imports/pause", {"seconds": 60})
    assert "Without a duration" in timed.json()["detail"]


def check_in_browser(browser: Browser, board: Board, job: int, worker: str) -> None:
    """Look at the pages, and pause and resume a queue, retry a job and see what is missing."""
    allowed = ("status of 409", "status of 404")
    with open_page(browser, board, allowed=allowed) as page:
        expect(page.locator(".stat", has_text="Failed")).to_contain_text("1")
        expect(page.get_by_role("table", name="Jobs by task")).to_contain_text("flaky")
        page.goto(f"{board.url}jobs?q=task:flaky")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name=str(job), exact=True).click()
        expect(page.locator("main")).to_contain_text("It failed permanently")
        expect(page.get_by_role("region", name="Payload as JSON")).to_contain_text("ada")
        page.goto(f"{board.url}workers")
        expect(page.locator("tbody")).to_contain_text(worker)
        page.goto(f"{board.url}queues")
        row = page.locator("tbody tr", has_text="mail")
        row.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_role("button", name="Pause the queue").click()
        expect(row).to_contain_text("Paused")
        row.get_by_role("button", name="Resume").click()
        expect(row.get_by_role("button", name="Pause", exact=True)).to_be_visible()
        page.goto(f"{board.url}limits")
        expect(page.locator("main")).to_contain_text("Limits are stored in the companion schema")
        page.goto(f"{board.url}history")
        expect(page.locator("main")).to_contain_text("Turn on history")
        page.goto(f"{board.url}audit")
        expect(page.locator("main")).to_contain_text("The companion schema is not installed")
        expect(page.locator("main")).to_contain_text("graphile-worker migrate")
        page.goto(f"{board.url}jobs/{job}")
        page.get_by_role("button", name="Retry", exact=True).click()
        expect(page.locator("dialog[open]")).to_contain_text("1 job retried.")


def operate(caller: Caller, sql: Sql, is_done: Callable[[int], Any]) -> None:
    """Do what operators do with jobs. `is_done` returns whether the job may have run."""
    later = add_jobs(sql, "work", 3, run_at="now() + interval '1 hour'")
    change(caller, "fail", later[0], reason="not wanted")
    failed = "select attempts = max_attempts, last_error from :schema._private_jobs where id = $1"
    assert sql.run(failed, later[0]) == [(True, "not wanted")]
    change(caller, "delete", later[1])
    assert sql.run(failed, later[1]) == []
    change(caller, "reschedule", later[2], run_at="2020-01-01T00:00Z")
    eventually(lambda: is_done(later[2]), "the rescheduled job")
    added = caller.post("jobs", {"task": "work", "payload": "{}"})
    eventually(lambda: is_done(int(added["id"])), "the added job")


def read_queue_lock(sql: Sql) -> Any:
    """Return who has locked the queue that holds the job that lingers."""
    return sql.value(
        "select locked_by from :schema._private_job_queues where queue_name = 'imports'"
    )


def is_gone(sql: Sql, job: int) -> bool:
    return sql.run("select id from :schema._private_jobs where id = $1", job) == []


def fill(sql: Sql) -> int:
    """Add a job that fails, in a queue, and one that lingers. Return the first."""
    payload = """'{"to":"ada"}'"""
    (flaky,) = add_jobs(sql, "flaky", payload=payload, max_attempts="1", queue_name="'mail'")
    add_jobs(sql, "linger", queue_name="'imports'")
    return flaky


def test_a_queue_of_node_workers_is_shown_and_operated(
    browser: Browser, node_database: TestDatabase, node_sql: Sql, node: Program, programs: Programs
) -> None:
    sql = node_sql
    flaky = fill(sql)
    worker = eventually(lambda: read_queue_lock(sql), "Node runs a job of the queue")
    failed = "select last_error from :schema._private_jobs where id = $1"
    eventually(lambda: sql.value(failed, flaky), "Node reports the failure")
    eventually(
        lambda: sql.run("select identifier from :schema._private_known_crontabs"), "its crontab"
    )
    with open_dashboard(node_database) as board:
        caller = board.sign_in()
        check_pages(caller, flaky, "Node")
        [unknown] = caller.get("workers")["workers"]
        assert (unknown["id"], unknown["health"]) == (worker, "unknown")
        # A pause waits for the job that runs.
        busy = caller.request("POST", "queues/imports/pause")
        assert (busy.status_code, busy.json()["code"]) == (409, "conflict")
        programs.write("fixed", "")
        if IN_FULL:
            check_in_browser(browser, board, flaky, worker)
        else:
            change(caller, "retry", flaky)
        eventually(lambda: is_gone(sql, flaky), "Node runs the job that was retried")
        operate(caller, sql, lambda job: is_gone(sql, job))

        # Node obeys the pause of a queue.
        caller.post("queues/mail/pause", {"reason": "the vendor is down"})
        (paused,) = add_jobs(sql, "work", queue_name="'mail'")
        (other,) = add_jobs(sql, "work", queue_name="'other'")
        eventually(lambda: is_gone(sql, other), "another queue runs")
        wait_for_fetches(node, 10)
        assert not is_gone(sql, paused)
        [queue] = [each for each in caller.get("queues")["queues"] if each["name"] == "mail"]
        assert (queue["state"], queue["paused"]["by"]) == ("paused", "dashboard")
        assert caller.post("queues/mail/resume")["was_paused"]
        eventually(lambda: is_gone(sql, paused), "Node runs the job after the pause")

        # The worker dies while it holds a queue.
        node.kill()
        dead = {"ids": [worker], "force": True, "confirm": worker}
        assert caller.post("workers/recover", dead)["sentence"] == RELEASED
        assert read_queue_lock(sql) is None
    assert not has_companion(sql)


@pytest.mark.nightly
def test_a_queue_of_rust_workers_is_shown_and_operated(
    browser: Browser, rust_database: TestDatabase
) -> None:
    with closing(Sql(rust_database.dsn, rust_database.schema)) as sql:
        flaky = fill(sql)
        fail_jobs(sql, [flaky], "Error: no answer from 10.0.0.7")
        sql.run(RUST_CRONTAB)
        sql.run("select :schema.worker_heartbeat($1)", RUST_WORKER)
        for table in ("jobs", "job_queues"):
            sql.run(
                f"update :schema._private_{table} set locked_at = now(), locked_by = $1 where id = "
                f"(select max(id) from :schema._private_{table})",
                RUST_WORKER,
            )
        with open_dashboard(rust_database) as board:
            caller = board.sign_in()
            check_pages(caller, flaky, "Rust")
            [alive] = caller.get("workers")["workers"]
            assert (alive["id"], alive["health"]) == (RUST_WORKER, "alive")
            assert caller.post("workers/recover", {"ids": [RUST_WORKER]})["rejected"]
            check_in_browser(browser, board, flaky, RUST_WORKER)
            due = "select attempts = 0 from :schema._private_jobs where id = $1 and run_at <= now()"
            assert sql.value(due, flaky)
            operate(caller, sql, lambda job: sql.value(due, job))
            # Its heartbeats end.
            sql.run(
                "update :schema._private_workers set last_heartbeat_at = now() - '1 day'::interval"
            )
            dead = {"ids": [RUST_WORKER]}
            assert caller.post("workers/recover", dead)["sentence"] == RELEASED
            assert read_queue_lock(sql) is None
        assert not has_companion(sql)

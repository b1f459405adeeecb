"""Paused queues and workers of the reference: they leave the queue alone, and run it on resume."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from graphile_worker import QueueBusy, sync
from tests.conftest import TestDatabase
from tests.support.node import node_install
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tools import MODULES, NODE

# It prints each fetch and each reset of stale locks. The task "linger" ends when a file appears.
NODE_WORKER = """
const [, , reference, connectionString, schema, intervals] = process.argv;
const fs = require("fs");
const { EventEmitter } = require("events");
const { run } = require(reference);

const events = new EventEmitter();
events.on("worker:getJob:start", () => console.log("fetch"));
events.on("resetLocked:success", () => console.log("reset"));

const taskList = {
  work: async () => {},
  linger: async () => {
    while (!fs.existsSync("release")) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  },
};

run({
  connectionString,
  schema,
  events,
  taskList,
  ...JSON.parse(intervals),
});
"""
OFTEN = {"pollInterval": 50, "minResetLockedInterval": 50, "maxResetLockedInterval": 100}
# The real rule for stale locks, every one to two seconds.
LIVE = {"pollInterval": 500, "minResetLockedInterval": 1_000, "maxResetLockedInterval": 2_000}
# Only a notification leads to a fetch.
NEVER = {"pollInterval": 3_600_000}
RESETS = 4

# The version of the worker, and of the one that installed the schema, or "python" for this package.
# 0.16 rejects newer schemas.
VERSIONS = [
    ("0.16", "0.16"),
    ("0.17", "0.17"),
    ("0.17", "python"),
    ("0.18", "0.18"),
    ("0.18", "python"),
]

LEFT = """
select job_queues.queue_name, jobs.locked_by is null, jobs.attempts
from :schema._private_jobs as jobs
join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id
"""
CLAIMABLE = """
select id from :schema._private_job_queues where queue_name = 'imports' for update skip locked
"""
LOCK = "select locked_by from :schema._private_job_queues where queue_name = 'imports'"


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path) as programs:
        yield programs


@pytest.fixture
def client(either_database) -> Iterator[sync.Client]:
    with sync.Client(either_database.dsn, schema=either_database.schema, actor="ada") as client:
        client.migrate()
        yield client


@pytest.fixture
def sql(either_database) -> Iterator[Sql]:
    connection = Sql(either_database.dsn, either_database.schema)
    yield connection
    connection.close()


@pytest.fixture
def node(programs: Programs, either_database: TestDatabase, client: sync.Client) -> Program:
    return start_node(programs, either_database, "0.18", OFTEN)


def start_node(
    programs: Programs, database: TestDatabase, version: str, intervals: dict[str, int]
) -> Program:
    script = programs.write("worker.js", NODE_WORKER)
    reference = str(MODULES / f"gw{version.replace('.', '')}")
    arguments = [reference, database.url, database.schema, json.dumps(intervals)]
    return programs.start([str(NODE), str(script), *arguments], {})


def wait_for(program: Program, line: str, count: int) -> None:
    """Wait until a program has printed a line this many times more."""
    before = program.out.splitlines().count(line)
    eventually(lambda: program.out.splitlines().count(line) >= before + count, f"{count} {line}")


@pytest.mark.timeout(120)
def test_node_leaves_a_paused_queue_alone_and_runs_it_on_resume(client, sql, node):
    client.pause_queue("imports", reason="vendor is down")
    client.add_job("work", queue_name="imports")
    client.add_job("work", queue_name="other")

    # For several polls, and with its own rule for stale locks.
    eventually(lambda: sql.run(LEFT) == [("imports", True, 0)], "the other queue ran")
    wait_for(node, "fetch", 10)
    wait_for(node, "reset", 3)
    assert sql.run(LEFT) == [("imports", True, 0)]
    assert sql.value(LOCK) == "paused:ada"

    assert client.resume_queue("imports")
    eventually(lambda: sql.run(LEFT) == [], "it runs on resume")


@pytest.mark.timeout(120)
def test_a_pause_waits_for_a_job_that_node_runs(client, sql, node, programs):
    running = client.add_job("linger", queue_name="imports")
    waiting = client.add_job("work", queue_name="imports")
    pool_id = eventually(lambda: sql.value(LOCK), "node runs the first one")

    with pytest.raises(QueueBusy, match=pool_id):
        client.pause_queue("imports", wait=timedelta(milliseconds=200))

    with ThreadPoolExecutor(1) as threads:
        pausing = threads.submit(client.pause_queue, "imports", wait=timedelta(seconds=60))
        eventually(lambda: not sql.run(CLAIMABLE), "the pause comes next")
        programs.write("release", "")
        pausing.result(60)
    # Node ended the first job meanwhile, and did not get the second one.
    assert client.get_job(running.id) is None
    wait_for(node, "fetch", 5)
    assert sql.run(LEFT) == [("imports", True, 0)]
    assert sql.value(LOCK) == "paused:ada"
    assert client.resume_queue("imports")
    eventually(lambda: client.get_job(waiting.id) is None, "it runs on resume")


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("version", "installer"), VERSIONS)
def test_every_version_of_node_obeys_a_pause_and_is_woken_on_resume(
    empty_database, programs, figure, version, installer
):
    dsn, schema = empty_database.dsn, empty_database.schema
    with sync.Client(dsn, schema=schema, actor="ada") as client, closing(Sql(dsn, schema)) as sql:
        if installer == "python":
            client.migrate()
        else:
            # Without the companion schema, which describes a pause.
            node_install(empty_database.url, version=installer, schema=schema)
        client.pause_queue("imports", reason="vendor is down")
        client.add_job("work", queue_name="imports")
        client.add_job("work", queue_name="other")

        worker = start_node(programs, empty_database, version, LIVE)
        eventually(lambda: sql.run(LEFT) == [("imports", True, 0)], "the other queue ran")
        wait_for(worker, "reset", RESETS)
        assert sql.run(LEFT) == [("imports", True, 0)]
        assert sql.value(LOCK) == "paused:ada"

        # A pause survives the worker, and one that never polls is woken on resume.
        worker.stop()
        worker = start_node(programs, empty_database, version, NEVER)
        client.add_job("work", queue_name="other")
        eventually(lambda: sql.run(LEFT) == [("imports", True, 0)], "it is started")
        assert client.resume_queue("imports")
        began = time.monotonic()
        eventually(lambda: sql.run(LEFT) == [], "it runs on resume")
        seconds = time.monotonic() - began
        worker.stop()
    assert seconds < 6
    figure(
        f"paused queue, Node {version} on the schema of {installer}: {RESETS} resets left it "
        f"alone, it ran {seconds * 1000:.0f} ms after resume"
    )

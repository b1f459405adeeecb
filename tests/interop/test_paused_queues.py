"""Paused queues and workers of the reference: they leave the queue alone, and run it on resume."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from graphile_worker import QueueBusy, sync
from tests.conftest import TestDatabase
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tools import MODULES, NODE

# It prints each fetch and each reset of stale locks. The task "linger" ends when a file appears.
NODE_WORKER = """
const [, , reference, connectionString, schema] = process.argv;
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
  pollInterval: 50,
  minResetLockedInterval: 50,
  maxResetLockedInterval: 100,
});
"""

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
    script = programs.write("worker.js", NODE_WORKER)
    reference = str(MODULES / "gw018")
    command = [str(NODE), str(script), reference, either_database.url, either_database.schema]
    return programs.start(command, {})


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

"""Workers in both languages start jobs when they are announced, long before they poll."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from graphile_worker import sync
from graphile_worker.jobs import JobOptions
from tests.support.processes import Programs, eventually
from tests.support.sql import Sql
from tests.support.tools import MODULES, NODE

NODE_WORKER = """
const [, , reference, connectionString, schema] = process.argv;
const { EventEmitter } = require("node:events");
const { run } = require(reference);

// A notification that comes before Node listens is lost, and the next poll is an hour away.
const events = new EventEmitter();
events.once("pool:listen:success", () => console.error("listening"));
run({
  events,
  connectionString,
  schema,
  taskList: { work: async () => {} },
  pollInterval: 3600000,
});
"""
PYTHON_WORKER = """
from graphile_worker import App

app = App()


@app.task
async def work() -> None:
    pass
"""

LEFT = "select id from :schema._private_jobs"
OPTIONS: tuple[JobOptions, ...] = ({}, {"job_key": "key"}, {"queue_name": "queue"})


@pytest.fixture
def programs(either_database, tmp_path: Path) -> Iterator[Programs]:
    with Programs.for_database(either_database, tmp_path) as programs:
        yield programs


@pytest.fixture
def sql(either_database) -> Iterator[Sql]:
    with closing(Sql(either_database.dsn, either_database.schema)) as sql:
        yield sql


@pytest.mark.single_version
@pytest.mark.timeout(300)
def test_a_coalesced_job_wakes_workers_in_both_languages(either_database, programs, sql):
    script = programs.write("worker.js", NODE_WORKER)
    programs.write("worker.py", PYTHON_WORKER)
    url, schema = either_database.url, either_database.schema
    with sync.Client(either_database.dsn, schema=schema) as client:
        client.migrate()
    with sync.Client(either_database.dsn, schema=schema, notify="coalesced") as client:
        for language in ("node", "python"):
            if language == "node":
                command = [str(NODE), str(script), str(MODULES / "gw018"), url, schema]
                worker = programs.start(command, {})
                worker.wait_for_line("listening")
            else:
                worker = programs.worker("--app", "worker:app", "--poll-interval", "1h")
            for options in OPTIONS:
                client.add_job("work", **options)
                eventually(lambda: not sql.run(LEFT), f"{language} ran it")
            worker.stop()

"""`graphile-worker exporter`: its paths, its load on the database, and fleets beside it."""

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from graphile_worker._metrics.definitions import LIMIT_SLOTS, QUEUE_METRICS
from tests.conftest import TestDatabase
from tests.support.cluster import free_port
from tests.support.health import status
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tiers import size
from tests.support.tools import MODULES, NODE

LISTENING = re.compile(r"exporter listening on 127\.0\.0\.1 port (\d+)")
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"

SCRAPERS = 50
SCRAPE_SECONDS = 10.0

SAMPLES = size(gate=2, nightly=6)

# The server logs each statement of the session, so that a test can count them.
LOG_STATEMENTS = {"PGOPTIONS": "-c log_statement=all -c log_min_error_statement=panic"}
LOOK = "set_config('enable_seqscan', 'off', true)"

# Its tasks go on until a file appears.
NODE_WORKER = """
const [, , graphileWorker, connectionString, schema] = process.argv;
const fs = require("fs");
const { run } = require(graphileWorker);

const linger = async () => {
  while (!fs.existsSync("release")) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};

run({ connectionString, schema, concurrency: 3, taskList: { linger } });
"""

Samples = dict[tuple[str, ...], float]


def get(port: int, path: str, accept: str = "") -> str:
    headers = {"Accept": accept} if accept else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        text: str = answer.read().decode()
        return text


def scrape(port: int, path: str = "/metrics/queue") -> Samples:
    """The values by name and labels, without the prefix."""
    return {
        (sample.name.removeprefix("graphile_worker_"), *sample.labels.values()): sample.value
        for family in parse_text(get(port, path))
        for sample in family.samples
    }


def start_exporter(programs: Programs, *arguments: str, **variables: str) -> tuple[Program, int]:
    """A running exporter, and its port."""
    program = programs.command("exporter", "--port", "0", *arguments, **variables)
    line = program.wait_for_line("exporter listening")
    match = LISTENING.search(line)
    assert match is not None
    return program, int(match[1])


@pytest.mark.parametrize("number", [15, 2], ids=["SIGTERM", "SIGINT"])
def test_exporter_serves_the_queue_until_a_signal(programs, sql, number):
    sql.run("select :schema.add_job('a') from generate_series(1, 25)")
    exporter, port = start_exporter(programs)

    text, openmetrics = get(port, "/metrics"), get(port, "/metrics/queue", OPENMETRICS)
    scale = json.loads(get(port, "/scale?jobs=10&tasks=a"))
    limited = json.loads(get(port, "/scale?jobs=10&max=2"))
    others = [status(port, path) for path in ("/livez", "/readyz", "/", "/scale", "/metrics/")]

    names = {sample.name for family in parse_text(text) for sample in family.samples}
    # Without limits there are no slots.
    assert names == {metric.name for metric in QUEUE_METRICS} - {LIMIT_SLOTS.name}
    assert names == {
        sample.name for family in parse_openmetrics(openmetrics) for sample in family.samples
    }
    assert 'graphile_worker_queue_jobs{task="a",state="ready"} 25\n' in text
    assert (scale, limited) == ({"runnable": 25, "pods": 3}, {"runnable": 20, "pods": 2})
    assert others == [200, 200, 404, 400, 404]
    assert exporter.stop(number) == 0
    assert "Traceback" not in exporter.err


def test_exporter_reports_mistakes_in_one_line(programs):
    port = str(free_port())

    for arguments, variables, error in (
        (["--host", "192.0.2.1"], {}, f"cannot listen on 192.0.2.1 port {port}: "),
        ([], {"DATABASE_URL": None}, "no database configured. "),
    ):
        done = programs.run_to_end("exporter", "--port", port, *arguments, **variables)
        assert done.code == 1
        assert done.err.startswith(f"graphile-worker: {error}")
        assert done.err.count("\n") == 1
        assert "--health" not in done.err


def test_exporter_without_its_database_is_ready_and_reports_it(programs):
    url = f"postgres://postgres@127.0.0.1:{free_port()}/x"
    _, port = start_exporter(programs, DATABASE_URL=url)

    samples = scrape(port)
    with pytest.raises(urllib.error.HTTPError) as scale:
        get(port, "/scale?jobs=10")
    scale.value.close()

    assert samples["queue_reachable",] == 0
    assert samples["snapshot_errors_total",] == 1
    assert scale.value.code == 503
    assert [status(port, path) for path in ("/livez", "/readyz")] == [200, 200]


@pytest.mark.timeout(120)
def test_50_scrapers_for_10_s_cause_at_most_3_looks(programs, database, sql, record_property):
    sql.run("select :schema.add_job('a') from generate_series(1, 25)")
    log = Path(database.cluster.log)
    position = log.stat().st_size
    _, port = start_exporter(programs, **LOG_STATEMENTS)
    ended = threading.Event()
    end_at = time.monotonic() + SCRAPE_SECONDS

    def keep_scraping(_: int) -> int:
        number = 0
        while time.monotonic() < end_at:
            assert scrape(port)["queue_jobs", "a", "ready"] == 25
            number += 1
            # A scraper that does not pause would only measure this machine.
            ended.wait(0.5)
        return number

    with ThreadPoolExecutor(SCRAPERS) as pool:
        answers = sum(pool.map(keep_scraping, range(SCRAPERS)))

    looks = log.read_bytes()[position:].decode(errors="replace").count(LOOK)
    record_property("figure", f"{SCRAPERS} scrapers for 10 s: {answers} answers, {looks} looks")
    assert answers > SCRAPERS
    # On a busy machine it takes longer than 10 s until all of them have ended.
    assert 1 <= looks <= 3 + (time.monotonic() - end_at) // 5


# Records each sample that a process writes.
RECORD_SAMPLES = """
create table written (at timestamptz);
create function record_sample() returns trigger language plpgsql as $$
begin
  insert into written values (new.taken_at);
  return new;
end;
$$;
create trigger record_sample before update of body on :ext_schema.samples
for each row execute function record_sample();
"""


@pytest.mark.timeout(180)
def test_of_two_exporters_and_three_workers_exactly_one_samples(programs, sql):
    sql.connection.execute(sql.text(RECORD_SAMPLES), prepare=False)
    programs.write("tasks/note.py", "async def task(payload):\n    pass\n")
    sql.run("select :schema.add_job('later', run_at => now() + interval '1 day')")
    ports = [start_exporter(programs)[1] for _ in range(2)]
    for _ in range(3):
        ports.append(free_port())
        programs.worker("--health-port", str(ports[-1]))

    shown: dict[int, Samples] = {}

    def scrape_all() -> bool:
        shown.update((port, scrape(port)) for port in ports)
        time.sleep(0.3)
        return bool(sql.value("select count(*) >= $1 from written", SAMPLES))

    eventually(scrape_all, "the samples are written", within=120)

    [(number, shortest)] = sql.run("""
      select count(*), min(pause) from (
        select extract(epoch from at - lag(at) over (order by at))::float8 as pause from written
      ) as samples
    """)
    assert number >= SAMPLES
    # Each of five processes would write one each 5 s.
    assert shortest >= 5
    for samples in shown.values():
        assert samples["queue_jobs", "later", "scheduled"] == 1
        assert samples["snapshot_shared",] == 1
        assert samples["snapshot_errors_total",] == 0


@pytest.fixture
def node_programs(node_database: TestDatabase, tmp_path: Path) -> Iterator[Programs]:
    with Programs.for_database(node_database, tmp_path) as programs:
        yield programs


@pytest.mark.timeout(120)
def test_exporter_beside_a_node_worker_shows_its_jobs_and_its_worker(node_programs, node_database):
    sql = Sql(node_database.dsn, node_database.schema)
    script = node_programs.write("worker.js", NODE_WORKER)
    sql.run("select :schema.add_job('linger') from generate_series(1, 5)")
    sql.run("select :schema.add_job('unknown', queue_name => 'q') from generate_series(1, 4)")
    command = [str(NODE), str(script), str(MODULES / "gw018")]
    node_programs.start([*command, node_database.url, node_database.schema], {})
    eventually(
        lambda: sql.value("select count(locked_at) = 3 from :schema._private_jobs"), "it works"
    )

    _, port = start_exporter(node_programs)
    samples = scrape(port)
    runnable = {tasks: json.loads(get(port, f"/scale?jobs=1&tasks={tasks}"))["runnable"]
                for tasks in ("linger", "unknown", "linger,unknown")}  # fmt: skip
    sql.close()

    assert samples["queue_jobs", "linger", "running"] == 3
    assert samples["queue_jobs", "linger", "ready"] == 2
    assert samples["queue_jobs", "unknown", "ready"] == 4
    assert samples["queue_oldest_ready_seconds", "unknown"] > 0
    assert samples["workers", "node", "unknown"] == 1
    assert samples["workers", "python", "alive"] == 0
    assert samples["snapshot_shared",] == 0
    assert samples["queue_runnable",] == 6
    assert runnable == {"linger": 5, "unknown": 1, "linger,unknown": 6}

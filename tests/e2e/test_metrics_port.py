"""`/metrics` on the health port: of one process, and of all processes of a supervisor."""

import json
import os
import signal
import threading
import time
import urllib.request

import pytest

from tests.support.cluster import free_port
from tests.support.container import children
from tests.support.health import status
from tests.support.metrics import OPENMETRICS, Scrape, scrape
from tests.support.processes import Programs, eventually
from tests.support.proxy import Reset
from tests.support.tiers import size

pytestmark = pytest.mark.timeout(180)

KILLS = size(gate=1, nightly=4)
PROCESSES = size(gate=2, nightly=3)

# Answered from memory.
MAX_ANSWER_SECONDS = size(gate=10.0, nightly=0.05)

TASK = """
    async def task(payload, ctx):
        if payload.get("fail"):
            raise ValueError("as the test wants")
"""

APP = """
    from pathlib import Path

    from graphile_worker import App

    app = App(Path("URL").read_text)

    @app.task
    async def work() -> None:
        pass
"""


@pytest.fixture
def folder(programs: Programs) -> Programs:
    programs.write("tasks/work.py", TASK)
    return programs


def wait_for_finished(port: int, count: int) -> Scrape:
    """Wait until the metrics show this many finished jobs."""

    def look() -> Scrape | None:
        found = scrape(port)
        return found if found.sum("jobs_finished_total") == count else None

    found = eventually(look, f"{count} finished jobs in the metrics")
    assert found is not None
    return found


def test_metrics_count_what_the_process_did(folder, sql):
    port = free_port()
    worker = folder.worker("--health-port", str(port), "--jobs", "2")
    sql.run("select :schema.add_job('work') from generate_series(1, 10)")
    sql.run("select :schema.add_job('work', '{\"fail\": true}', max_attempts => 1)")

    found = wait_for_finished(port, 11)

    assert found.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert found.sum("jobs_finished_total", task="work", outcome="success") == 10
    assert found.sum("jobs_finished_total", task="work", outcome="failed") == 1
    assert found.sum("jobs_started_total") == 11
    assert found.sum("job_duration_seconds_count", task="work") == 11
    assert found.sum("concurrency") == 2
    assert found.sum("processes") == 1
    assert found.sum("database_reachable") == 1
    openmetrics = scrape(port, accept=OPENMETRICS)
    assert openmetrics.content_type.startswith("application/openmetrics-text")
    assert openmetrics.sum("jobs_finished_total") == 11
    assert worker.stop() == 0


def test_metrics_can_be_off(folder):
    port = free_port()
    folder.worker("--health-port", str(port), "--metrics", "off")
    eventually(lambda: status(port, "/readyz") == 200, "the worker is ready")
    assert status(port, "/metrics") == 404


def test_histograms_can_be_of_all_tasks_together(folder, sql):
    port = free_port()
    folder.worker("--health-port", str(port), "--metrics", "total", "--processes", "1")
    sql.run("select :schema.add_job('work')")
    found = wait_for_finished(port, 1)
    assert found.sum("jobs_finished_total", task="work") == 1
    [sample] = found.find("job_duration_seconds_count")
    assert sample.labels == {}


def test_counters_of_killed_processes_stay_and_their_gauges_vanish(folder, sql):
    port = free_port()
    parent = folder.worker("--health-port", str(port), "--processes", str(PROCESSES), "--jobs", "2")
    eventually(lambda: scrape(port).sum("processes") == PROCESSES, "all processes report")
    eventually(lambda: scrape(port).sum("concurrency") == 2 * PROCESSES, "all workers report")
    sql.run("select :schema.add_job('work') from generate_series(1, 100)")
    wait_for_finished(port, 100)

    with Watch(port) as watch:
        for expected in range(150, 101 + 50 * KILLS, 50):
            [victim, *_] = children(parent.pid)
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: scrape(port).sum("processes") == PROCESSES - 1, "its gauges vanish")
            # The outcomes of the killed process are in its last message.
            sql.run("select :schema.add_job('work') from generate_series(1, 50)")
            wait_for_finished(port, expected)
            eventually(
                lambda: scrape(port).sum("processes") == PROCESSES, "another process reports"
            )

    assert watch.decreased == {}
    eventually(lambda: scrape(port).sum("concurrency") == 2 * PROCESSES, "all workers report")
    assert parent.stop() == 0


def test_metrics_are_answered_while_the_database_is_unreachable(folder, database, proxy, figure):
    port = free_port()
    address = f"127.0.0.1:{proxy.port}/"
    url = database.url.replace(f"127.0.0.1:{database.cluster.port}/", address)
    assert address in url
    folder.worker("--health-port", str(port), DATABASE_URL=url)
    eventually(lambda: scrape(port).sum("database_reachable") == 1, "the database is reachable")

    proxy.mode = Reset()
    eventually(
        lambda: scrape(port).sum("database_reachable") == 0,
        "the metrics say that the database is unreachable",
    )
    seconds = []
    for _ in range(20):
        began = time.monotonic()
        assert scrape(port).has("database_reachable")
        seconds.append(time.monotonic() - began)

    figure(f"/metrics without a database: slowest of 20 answers {max(seconds) * 1000:.0f} ms")
    assert max(seconds) < MAX_ANSWER_SECONDS


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["worker", "supervisor"])
def test_the_queue_is_described_on_the_same_port(folder, database, sql, flags):
    port = free_port()
    # An app may set the database itself, also by a function, so a supervisor learns it from its
    # processes.
    folder.write("shop.py", APP.replace("URL", folder.folder.joinpath("url").as_posix()))
    folder.write("url", database.url)
    sql.run("select :schema.add_job('unknown') from generate_series(1, 7)")
    folder.worker("--app", "shop:app", "--health-port", str(port), *flags, DATABASE_URL=None)

    def look() -> Scrape | None:
        found = scrape(port, "/metrics/queue") if status(port, "/metrics/queue") == 200 else None
        return found if found is not None and found.sum("queue_reachable") == 1 else None

    found = eventually(look, "the port describes the queue")
    assert found is not None

    assert found.sum("queue_jobs", task="unknown", state="ready") == 7
    assert found.sum("queue_runnable") == 7
    assert found.sum("workers", runtime="python", health="alive") >= 1
    assert read_json(port, "/scale?jobs=2") == {"runnable": 7, "pods": 4}
    assert read_json(port, "/scale?jobs=2&tasks=work") == {"runnable": 0, "pods": 0}
    assert status(port, "/readyz?verbose") == 200


def read_json(port: int, path: str) -> object:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return json.loads(answer.read())


class Watch:
    """Scrapes all the time, and remembers the counters that decreased."""

    def __init__(self, port: int) -> None:
        self.decreased: dict[tuple[str, ...], tuple[float, float]] = {}
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before: dict[tuple[str, ...], float] = {}
        while not self._stop.wait(0.1):
            now = scrape(self._port).counters
            for name, value in before.items():
                if now.get(name, 0) < value:
                    self.decreased[name] = (value, now.get(name, 0))
            before = now

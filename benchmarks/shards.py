"""The same jobs and as many workers on one database, and on several side by side."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.contenders.contender import CONCURRENCY
from benchmarks.rounds import Figures, alternated, ratios, summary
from benchmarks.server import Server
from graphile_worker._bench.adding import add_trivial_jobs
from graphile_worker._bench.processes import WorkerProcess, start_workers
from graphile_worker._bench.schema import BenchTarget, open_bench_target


def shards(server: Server, *, jobs: int, databases: int, rounds: int) -> dict[str, Any]:
    measures = {
        "shards": shape(server, jobs, shards=databases, workers_each=1),
        "one_database": shape(server, jobs, shards=1, workers_each=databases),
        "one_worker": shape(server, jobs, shards=1, workers_each=1),
    }
    found = alternated(measures, rounds)
    return {
        "settings": {"jobs": jobs, "databases": databases, "rounds": rounds},
        "shapes": {name: summary(figures) for name, figures in found.items()},
        "ratio_of": "jobs_per_second",
        "ratios": ratios(found, "shards", "jobs_per_second"),
    }


def shape(server: Server, jobs: int, *, shards: int, workers_each: int) -> Callable[[], Figures]:
    """Measures so many databases, with so many workers on each of them."""

    def measure() -> Figures:
        with ExitStack() as stack:
            # Empty: a place of our own is made in each.
            made = [server.database("empty", lambda _: None) for _ in range(shards)]
            urls = [stack.enter_context(each).url for each in made]
            places = [stack.enter_context(open_bench_target(url)) for url in urls]
            for place in places:
                with place.client() as client:
                    add_trivial_jobs(client, jobs // shards)
            started = [
                worker
                for place in places
                for worker in stack.enter_context(_started(place, workers_each))
            ]
            return _drained(started, jobs // shards * shards)

    return measure


def _started(place: BenchTarget, count: int) -> Any:
    return start_workers(count, place, "--once", "--jobs", str(CONCURRENCY))


def _drained(started: Sequence[WorkerProcess], jobs: int) -> Figures:
    """From the word to begin, all being ready, until the last has nothing to do."""
    began = time.monotonic()
    for worker in started:
        worker.send_start()
    reports = [worker.read_message("done") for worker in started]
    assert sum(each["jobs"] for each in reports) == jobs
    seconds = max(each["done"] for each in reports) - began
    cpu = sum(each["cpu"] for each in reports)
    return {"jobs_per_second": jobs / seconds, "cpu_us_per_job": cpu / jobs * 1e6}

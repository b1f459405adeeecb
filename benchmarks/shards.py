"""One worker process on one server, and over the shards of 2 and 4 servers: CPU time per job.

All servers share the machine, so only CPU time shows what shards cost.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.rounds import Figures, alternated, ratios, summary
from benchmarks.server import Server, served
from graphile_worker._bench.adding import add_trivial_jobs
from graphile_worker._bench.processes import QUIET_VARIABLES
from graphile_worker.sync import Client

SCHEMA = "graphile_worker"
SHARD_COUNTS = (1, 2, 4)


def shards(server: Server, *, jobs: int, rounds: int, pg: int) -> dict[str, Any]:
    """Measure the given server alone, and with further ones."""
    with ExitStack() as stack:
        servers = [server]
        servers += [stack.enter_context(served(pg)) for _ in range(max(SHARD_COUNTS) - 1)]
        measures: dict[str, Callable[[], Figures]] = {
            f"shards_{count}": partial(measure, servers[:count], jobs) for count in SHARD_COUNTS
        }
        # Without the code of shards.
        measures["one_database"] = partial(measure, servers[:1], jobs, is_sharded=False)
        found = alternated(measures, rounds)
    return {
        "settings": {"jobs": jobs, "shards": list(SHARD_COUNTS), "rounds": rounds},
        "shapes": {name: summary(figures) for name, figures in found.items()},
        "ratio_of": "cpu_us_per_job",
        "ratios": ratios(found, "shards_4", "cpu_us_per_job"),
    }


def measure(servers: list[Server], jobs: int, *, is_sharded: bool = True) -> Figures:
    """Run trivial jobs, as many on each server, with one worker process."""
    with ExitStack() as stack:
        urls = [stack.enter_context(each.database("empty", lambda _: None)).url for each in servers]
        for url in urls:
            with Client(url, schema=SCHEMA) as client:
                client.migrate()
                add_trivial_jobs(client, jobs // len(servers))
        settings = {
            "jobs": jobs // len(servers) * len(servers),
            "schema": SCHEMA,
            "urls": urls,
            "is_sharded": is_sharded,
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.shards_worker"],
            input=json.dumps(settings),
            env={**os.environ, **QUIET_VARIABLES},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    figures: Figures = json.loads(done.stdout)
    return figures

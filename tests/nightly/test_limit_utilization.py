"""Limits use what they allow: at least 95 % of the slots, with short and with long jobs."""

import json

import pytest

from graphile_worker import JobSpec, sync
from tests.support.processes import Programs, eventually

SLOTS = 4
POOLS = 2

# Each pool is a process of its own, as people run them.
WORKER = """
    import asyncio
    import atexit
    import json
    import os
    import time
    from pathlib import Path

    from graphile_worker import App, ConcurrencyLimit

    app = App()
    busy = []

    @app.task(limit=ConcurrencyLimit(4))
    async def work(seconds: float) -> None:
        began = time.monotonic()
        await asyncio.sleep(seconds)
        busy.append((began, time.monotonic()))

    @atexit.register
    def report() -> None:
        Path(f"busy-{os.getpid()}.json").write_text(json.dumps(busy))
"""


@pytest.mark.nightly
@pytest.mark.serial
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("seconds", "jobs"), [(0.005, 16_000), (5.0, 40)])
def test_jobs_use_at_least_95_percent_of_the_slots(database, sql, tmp_path, figure, seconds, jobs):
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.add_jobs([JobSpec("work", {"seconds": seconds})] * jobs)
    with Programs.for_database(database, tmp_path).with_whole_end as programs:
        programs.write("worker.py", WORKER)
        pools = [
            programs.worker("--app", "worker:app", "--jobs", str(2 * SLOTS)) for _ in range(POOLS)
        ]
        is_empty = "select not exists (select from :schema._private_jobs)"
        eventually(lambda: sql.value(is_empty), "no job is left", within=120)
        assert [pool.stop() for pool in pools] == [0] * POOLS
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("busy-*.json")]
    busy = sorted((end, began) for report in reports for began, end in report)
    assert len(busy) == jobs

    # After the pools have shared the slots, and before fewer jobs than slots are left.
    since, until = busy[jobs // 2][0], busy[-SLOTS * 2][1]
    used = sum(max(0.0, min(end, until) - max(began, since)) for end, began in busy)
    share = used / (SLOTS * (until - since))
    shares = ", ".join(f"{len(report) / jobs:.0%}" for report in reports)
    figure(f"{share:.1%} of {SLOTS} slots with jobs of {seconds:g} s ({shares} of them in a pool)")
    assert share >= 0.95

"""What kept outcomes cost: bytes of the write-ahead log and CPU time for each job."""

from statistics import median
from typing import Any

import pytest

from benchmarks.retention import KINDS, drain
from benchmarks.server import Database

JOBS = 10_000
ROUNDS = 7

# More bytes of the write-ahead log than for a job of which nothing is kept.
MAX_MORE_BYTES = {"outcome": 450, "result": 700, "attempts": 950}

# The CPU time of worker and server by that for a job of which nothing is kept.
MAX_CPU_RATIO = {"outcome": 2.0, "result": 2.2, "attempts": 2.5}

FILL = """
with task as (
  insert into :schema._private_tasks (identifier) values ('noop')
  on conflict (identifier) do update set identifier = excluded.identifier
  returning id
)
insert into :schema._private_jobs (task_id, payload)
select task.id, json_build_object('id', number)
from task, generate_series(1, $1::int) as number
"""


@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(900)
async def test_kept_outcomes_cost_a_known_share(database, sql, figure):
    found: dict[str, list[Any]] = {name: [] for name in KINDS}
    for number in range(ROUNDS + 1):
        names = list(KINDS)[:: 1 if number % 2 else -1]
        for name in names:
            sql.run(FILL, JOBS)
            sql.run("vacuum analyze")
            opened = Database(database.dsn)
            figures = await drain(opened, KINDS[name][1], JOBS, schema=database.schema)
            # The first round fills caches.
            if number:
                found[name].append(figures)
    wal, cpu = (
        {name: [each[key] for each in rounds] for name, rounds in found.items()}
        for key in ("wal_bytes_per_job", "cpu_us_per_job")
    )
    for name in MAX_MORE_BYTES:
        more = median(wal[name]) - median(wal["nothing"])
        pairs = zip(cpu[name], cpu["nothing"], strict=True)
        ratio = median(each / base for each, base in pairs)
        figure(
            f"{KINDS[name][0]}: {more:.0f} bytes of the log more for a job, {ratio:.2f} of the CPU "
            f"time (medians of {ROUNDS} rounds, {JOBS:,} jobs each)"
        )
        assert more <= MAX_MORE_BYTES[name]
        assert ratio <= MAX_CPU_RATIO[name]

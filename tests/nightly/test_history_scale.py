"""A million outcomes a day for seven days: how long it takes to find one, list some, and rotate."""

import logging
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._db.database import run_plan_sync
from graphile_worker._db.external_pools import open_sync_database
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.history import plan_rotate_history
from graphile_worker._sql.queries.ended_jobs import get_job_outcomes
from graphile_worker._sql.query import Plan, Row
from graphile_worker.ops.filters import Filter, parse_ended_filter
from graphile_worker.ops.history import (
    EndedPage,
    plan_get_history_status,
    plan_get_job_history,
    plan_list_outcomes,
)
from tests.conftest import TestDatabase
from tests.support.sql import Sql

logger = logging.getLogger(__name__)

DAYS = 7
PER_DAY = 1_000_000
ROUNDS = 5

LOOKUP_MS, LIST_MS, ROTATION_MS = 5, 200, 1000

# Seven days are eight slots of 21 hours. The ninth is free.
SET_RING = """
update :ext_schema.history
set slot = 7,
    started_at = array(
      select case
        when slot = 8 then '-infinity'::timestamptz
        else now() - interval '7 days' + slot * interval '21 hours'
      end
      from generate_series(0, 8) as slot
    )
"""
# Each task is about a fifth less frequent than the one before: from 1,500,000 outcomes to a few.
LOAD_DAY = """
insert into :ext_schema.outcomes (
  job_id, created_at, run_at, started_at, finished_at, slot, succeeded, attempts, task_identifier,
  pool_id, result, error
)
select
  id,
  at - interval '3 seconds',
  at - interval '3 seconds',
  at - interval '1 second',
  at,
  least(7, floor(extract(epoch from at - (now() - interval '7 days')) / 75600)),
  succeeded,
  1,
  'task_' || lpad(least(59, floor(-ln(1 - random()) * 4))::text, 2, '0'),
  'pypool-0123456789abcdef01',
  case when succeeded then '{"rows": 12, "name": "something"}'::json end,
  case when not succeeded then 'ValueError: no such file ' || id end
from (
  select
    id,
    -- Jobs end in about the order of their ids.
    now() - interval '7 days' + (id + random() * 5) * interval '86400 microseconds' as at,
    random() >= 0.01 as succeeded
  from generate_series($1::bigint, $1::bigint + $2::bigint - 1) as id
) as jobs
"""

# Every combination of task, outcome, time and id.
FILTERS = [
    f"{task} {state} {when}".strip()
    for task in ("", "task:task_00", "task:task_45", "task:task_1*", "-task:task_00")
    for state in ("", "state:succeeded", "state:failed")
    for when in ("", "finished:<10m", "finished:>3d", "finished:3d..4d")
]
FILTERS += ["id:4000000", "id:4000000..4000999 state:failed", "id:4000000..4009999"]
# These read the errors of all failed jobs.
ERROR_FILTERS = ["error:nosuch", "nosuch"]


class History:
    """Seven million outcomes, and plans on them."""

    def __init__(self, database: TestDatabase, sql: Sql) -> None:
        self.sql = sql
        self.schemas = Schemas.from_names(database.schema)
        self._db = open_sync_database(database.dsn, self.schemas, prepared_statements=True)

    def load(self) -> None:
        self.sql.run("select setseed(0.5)")
        self.sql.run(SET_RING)
        for day in range(DAYS):
            self.sql.run(LOAD_DAY, day * PER_DAY, PER_DAY)
        self.sql.run("vacuum analyze :ext_schema.outcomes")

    def run(self, plan: Any) -> Any:
        return run_plan_sync(self._db, plan)

    def measure(self, build_plan: Callable[[], Any]) -> float:
        """Return the median of some runs in milliseconds."""
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            self.run(build_plan())
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1000

    def measure_list(self, text: str) -> tuple[float, float]:
        """Return the times of the first and the next page."""
        job_filter = parse_ended_filter(text)
        first: EndedPage = self.run(plan_list_outcomes(job_filter, self.schemas))

        def build_next() -> Any:
            return plan_list_outcomes(job_filter, self.schemas, before=first.next)

        time = self.measure(lambda: plan_list_outcomes(job_filter, self.schemas))
        return time, self.measure(build_next) if first.next is not None else 0.0

    def close(self) -> None:
        self._db.close()


@pytest.fixture
def history(database: TestDatabase, sql: Sql) -> Iterator[History]:
    if database.cluster.major != 18 or not database.schema.isidentifier():
        pytest.skip("measured once is enough: on 18, in a schema with a plain name")
    history = History(database, sql)
    yield history
    history.close()


def plan_find(job_id: int) -> Plan[list[Row]]:
    rows: list[Row] = yield get_job_outcomes(job_id, 1)
    return rows


@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(1800)
def test_seven_million_outcomes_are_found_listed_and_rotated_in_time(
    history: History, figure: Callable[[str], None]
):
    history.load()

    lookup = history.measure(lambda: plan_find(1_234_567))
    whole = history.measure(lambda: plan_get_job_history(1_234_567, history.schemas))
    lists = {text: history.measure_list(text) for text in [*FILTERS, *ERROR_FILTERS]}
    status = history.measure(lambda: plan_get_history_status(history.schemas))
    # The free slot, and a slot later one that has outcomes.
    now = history.sql.value("select now()")
    history.run(plan_rotate_history(now + timedelta(minutes=1)))
    start = time.perf_counter()
    rotation = history.run(plan_rotate_history(now + timedelta(hours=21, minutes=2)))
    rotated = (time.perf_counter() - start) * 1000

    slow = {text: max(times) for text, times in lists.items() if text not in ERROR_FILTERS}
    slowest = max(slow, key=lambda text: slow[text])
    figure(
        f"7,000,000 outcomes: lookup {lookup:.1f} ms (with all that is known of a job "
        f"{whole:.0f} ms), status {status:.0f} ms, "
        f"rotation {rotated:.0f} ms; list at most {slow[slowest]:.0f} ms ({slowest or 'all'}), "
        f"median {statistics.median(slow.values()):.0f} ms, "
        f"error {max(lists[ERROR_FILTERS[0]]):.0f} ms"
    )
    for text, times in lists.items():
        logger.info("%-45s %7.1f ms, next page %7.1f ms", text or "all", *times)
    assert rotation is not None
    assert rotation.emptied_slots == (0,)
    assert len(history.run(plan_list_outcomes(Filter(), history.schemas)).jobs) == 50
    assert lookup < LOOKUP_MS
    assert slow[slowest] < LIST_MS
    assert rotated < ROTATION_MS

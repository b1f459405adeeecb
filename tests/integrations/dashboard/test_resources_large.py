"""The resources of the dashboard on a large queue: how long each answer takes."""

import time
from contextlib import closing

import pytest

from graphile_worker.contrib.dashboard._poller import DEFAULT_TIMINGS
from tests.support.dashboard import open_dashboard
from tests.support.sql import Sql

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.serial,
    pytest.mark.single_version,
    pytest.mark.timeout(900),
]

JOBS = 1_000_000
QUEUES = 5_000
TASKS = 300
OUTCOMES = 700_000

# The first data of a page, and any other answer. A search may take its time limit, twice.
FIRST_DATA_SECONDS = 1.0
MAX_SECONDS = 5.0

INSERT_TASKS = """
insert into :schema._private_tasks (identifier)
select 'task_' || number from generate_series(1, $1::int) as number
"""
INSERT_QUEUES = """
insert into :schema._private_job_queues (queue_name, locked_at, locked_by)
select
  'queue_' || number,
  case when number % 100 = 0 then now() end,
  case when number % 100 = 0 then 'pool-0123456789abcdef01' end
from generate_series(1, $1::int) as number
"""
INSERT_JOBS = """
insert into :schema._private_jobs (
  task_id, job_queue_id, payload, attempts, run_at, last_error, locked_at, locked_by
)
select
  (select min(id) from :schema._private_tasks) + number % $2::int,
  case
    when number % 2 = 0
      then (select min(id) from :schema._private_job_queues) + number / 2 % $3::int
  end,
  '{"user": {"id": 1}}',
  case when number % 500 = 0 then 25 when number % 50 = 0 then 2 else 0 end,
  now() + case when number % 50 = 0 then interval '1 hour' else -interval '1 hour' end,
  case when number % 50 = 0 then 'ValueError: user ' || number || ' has no mail' end,
  case when number % 10000 = 1 then now() end,
  case when number % 10000 = 1 then 'pool-0123456789abcdef01' end
from generate_series(1, $1::int) as number
"""
INSERT_OUTCOMES = """
insert into :ext_schema.outcomes (
  slot, job_id, task_identifier, succeeded, attempts, created_at, run_at, started_at, finished_at,
  pool_id
)
select
  slot, number, 'task_' || number % 300, number % 20 > 0, 1, end_at, end_at - interval '3 s',
  end_at - interval '1 s', end_at, 'pool'
from :ext_schema.history, generate_series(1, $1::int) as number
cross join lateral (select now() - interval '7 days' * (number::float8 / $1) as end_at) as times
"""
# What each page asks for when it opens.
PAGE_PATHS = (
    "jobs",
    "jobs/count",
    "jobs/4711",
    "errors",
    "queues",
    "tasks",
    "tasks/task_7",
    "limits",
    "workers",
    "cron",
    "history/series?range=1h",
    "history/outcomes",
    "audit",
    "completions",
    "diagnosis",
)
SEARCH_PATHS = (
    "jobs?q=task:task_7 state:failed",
    "jobs?q=payload.user.id:42",
    "jobs/count?q=state:failed",
    "queues?q=7",
    "history/series?range=24h",
    "history/series?range=7d",
)


def test_each_answer_comes_soon_on_a_large_queue(database, figure):
    with closing(Sql(database.dsn, database.schema)) as sql:
        sql.run(INSERT_TASKS, TASKS)
        sql.run(INSERT_QUEUES, QUEUES)
        sql.run(INSERT_JOBS, JOBS, TASKS, QUEUES)
        sql.run(INSERT_OUTCOMES, OUTCOMES)
        for table in (":schema._private_jobs", ":ext_schema.outcomes"):
            sql.run(f"vacuum analyze {table}")
    with open_dashboard(database, timings=DEFAULT_TIMINGS) as board:
        admin = board.sign_in()
        admin.get("overview")
        for path in (*PAGE_PATHS, *SEARCH_PATHS):
            started = time.monotonic()
            response = admin.request("GET", path)
            seconds = time.monotonic() - started
            assert response.status_code == 200, f"{path}: {response.text}"
            limit = FIRST_DATA_SECONDS if path in PAGE_PATHS else MAX_SECONDS
            assert seconds < limit, f"{path}: {seconds:.2f} s"
            figure(f"{path}: {seconds * 1000:.0f} ms at {JOBS:,} jobs and {QUEUES:,} queues")


def test_a_bulk_retry_of_many_jobs_reports_its_progress(database, figure):
    with closing(Sql(database.dsn, database.schema)) as sql:
        sql.run(INSERT_TASKS, 1)
        sql.run(
            "insert into :schema._private_jobs (task_id, attempts)"
            " select id, 25 from :schema._private_tasks, generate_series(1, 120000)"
        )
        with open_dashboard(database, timings=DEFAULT_TIMINGS) as board:
            admin = board.sign_in()
            body = {"action": "retry", "q": "state:failed"}
            preview = admin.post("bulk/preview", body)
            problem = admin.request("POST", "bulk", {"token": preview["token"]}).json()
            assert (preview["is_capped"], problem["code"]) == (True, "too_many_jobs")
            sql.run(
                "delete from :schema._private_jobs where id in"
                " (select id from :schema._private_jobs order by id offset $1)",
                100_000,
            )
            preview = admin.post("bulk/preview", body)
            run = admin.post("bulk", {"token": preview["token"]})
            seen = set()
            while run["state"] == "running":
                run = admin.get(f"bulk/{run['id']}")
                seen.add(run["changed"])
                time.sleep(0.2)
            left = sql.value("select count(*) from :schema._private_jobs where attempts = 25")

    assert (preview["total"], preview["is_capped"]) == (100_000, False)
    assert (run["state"], run["changed"], left) == ("done", 100_000, 0)
    assert len(seen) > 3
    figure(f"bulk retry of 100,000 jobs: {run['rate']:.0f} jobs per second")

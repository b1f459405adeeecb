"""The pages of the admin beside a million jobs: prints how long each takes."""

import sys
import time

from django.contrib.auth.models import User
from django.db import connection
from django.test import TestCase

from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker.contrib.django import app

JOBS = 1_000_000
JOB = "/admin/graphile_worker/job/"

# Ready jobs, jobs for later, and permanently failed ones with an error, of 20 tasks.
INSERT = """
insert into GW._private_jobs (task_id, payload, run_at, attempts, max_attempts, last_error)
select
  (select min(id) from GW._private_tasks) + mod(number, 20),
  '{"order_id": 4711}',
  now() + mod(number, 3) * interval '1 hour',
  case mod(number, 10) when 0 then 25 else 0 end,
  25,
  case mod(number, 10) when 0 then 'TimeoutError: ' || repeat('x', 500) end
from generate_series(1, %s) as number
"""


class Scale(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        for number in range(20):
            app.add_job(f"task_{number}")
        schema = quote_identifier(Schemas.from_names(app.schema).shared).replace("%", "%%")
        with connection.cursor() as cursor:
            cursor.execute(INSERT.replace("GW.", f"{schema}."), [JOBS])
            cursor.execute(f"analyze {schema}._private_jobs")
        cls.user = User.objects.create_superuser("ada")

    def measure(self, name: str, url: str) -> float:
        self.client.get(url)
        times = []
        for _ in range(3):
            started = time.monotonic()
            response = self.client.get(url)
            times.append(time.monotonic() - started)
            assert response.status_code == 200, (url, response.content)
            assert b"errornote" not in response.content or "action" in url, response.content
        sys.stdout.write(f"{name}: {min(times) * 1000:.0f} ms\n")
        return min(times)

    def test_pages_beside_a_million_jobs(self) -> None:
        self.client.force_login(self.user)
        newest = app.add_job("task_0").id
        assert self.measure("list", JOB) < 1
        assert self.measure("a state", f"{JOB}?state=failed") < 1
        assert self.measure("a task", f"{JOB}?task=task_7") < 1
        assert self.measure("a later page", f"{JOB}?before=500000") < 1
        # These read the whole queue, up to the time limit.
        self.measure("a job", f"{JOB}{newest}/change/")
        self.measure("workers", "/admin/graphile_worker/worker/")
        self.measure("a state without jobs", f"{JOB}?state=stale")
        self.measure("an error without jobs", f"{JOB}?q=error:nothing")
        self.measure("preview of all jobs", f"{JOB}action/?action=retry&all=1")

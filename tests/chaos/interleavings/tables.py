"""What the tables say, read by plain SQL."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tests.support.sql import Sql

_ALL = """
select json_build_object(
  'now', clock_timestamp(),
  'jobs', (
    select coalesce(json_agg(jobs order by jobs.id), '[]') from :schema._private_jobs as jobs
  ),
  'queues', (
    select coalesce(json_agg(job_queues order by job_queues.id), '[]')
    from :schema._private_job_queues as job_queues
  ),
  'pools', (
    select coalesce(json_agg(pools order by pools.id), '[]') from :ext_schema.pools as pools
  ),
  'recoveries', (
    select coalesce(json_agg(recoveries order by recoveries.job_id), '[]')
    from :ext_schema.recoveries as recoveries
  )
)
"""

# Ids of a scene's own jobs are smaller.
FIRST_NEW_ID = 100

Fields = dict[str, Any]


@dataclass(frozen=True)
class Tables:
    """All rows, as they are."""

    now: datetime
    jobs: dict[int, Fields]
    queues: dict[int, Fields]
    pools: list[Fields]
    recoveries: list[Fields]

    def __eq__(self, other: object) -> bool:
        """Equal to the last column; only the time at which it was read does not count."""
        return isinstance(other, Tables) and self._content == other._content

    @property
    def _content(self) -> tuple[object, ...]:
        return self.jobs, self.queues, self.pools, self.recoveries

    def held_in(self, queue_id: int) -> list[Fields]:
        jobs = self.jobs.values()
        return [job for job in jobs if job["job_queue_id"] == queue_id and job["locked_by"]]

    def told(self, before: "Tables", without: Collection[int] = frozenset()) -> tuple[object, ...]:
        """The same without what differs from run to run: times and the ids of new jobs.

        And without these, if they are free and cannot be taken any more.
        """
        shown = {
            job_id: job
            for job_id, job in self.jobs.items()
            if job_id not in without or job["locked_by"] or job["is_available"]
        }
        jobs = (self._job(job, before) for job in shown.values())
        queues = ((queue["queue_name"], queue["locked_by"]) for queue in self.queues.values())
        swept = (pool["id"] for pool in self.pools if pool["swept_at"])
        # Of a job that is gone they are forgotten some time later.
        recoveries = (
            (each["job_id"], each["count"]) for each in self.recoveries if each["job_id"] in shown
        )
        return tuple(jobs), tuple(queues), tuple(swept), tuple(recoveries)

    def _job(self, job: Fields, before: "Tables") -> tuple[object, ...]:
        is_new = job["id"] >= FIRST_NEW_ID
        return (
            "new" if is_new else job["id"],
            job["key"],
            job["job_queue_id"],
            str(job["payload"]),
            job["locked_by"],
            job["attempts"],
            job["max_attempts"],
            job["last_error"],
            job["revision"],
            "now" if is_new else self._when(job["run_at"], before.jobs[job["id"]]["run_at"]),
        )

    def _when(self, run_at: str, run_at_before: str) -> str:
        if run_at == run_at_before:
            return "as before"
        later = datetime.fromisoformat(run_at) > self.now + timedelta(milliseconds=500)
        return "later" if later else "now"


def read_tables(sql: Sql) -> Tables:
    found = sql.value(_ALL)
    return Tables(
        datetime.fromisoformat(found["now"]),
        {job["id"]: job for job in found["jobs"]},
        {queue["id"]: queue for queue in found["queues"]},
        found["pools"],
        found["recoveries"],
    )

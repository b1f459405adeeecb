"""Read and change the rows of a queue, past the library."""

from datetime import timedelta
from typing import Any

from graphile_worker import Job
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.render import render_bytes
from tests.support.sql import Sql

_SESSIONS = "select count(*) from pg_stat_activity where datname = current_database()"


def count_jobs(sql: Sql) -> int:
    count: int = sql.value("select count(*) from :schema._private_jobs")
    return count


def read_names(sql: Sql, kind: str) -> set[str]:
    """Return the names of all `tasks` or all `job_queues`."""
    column = {"tasks": "identifier", "job_queues": "queue_name"}[kind]
    return {name for (name,) in sql.run(f"select {column} from :schema._private_{kind}")}


def lock_job(sql: Sql, job: Job | int, *, age: timedelta = timedelta(0), by: str = "pool") -> None:
    """Lock a job and its queue, as a fetch of that age did."""
    job_id = job.id if isinstance(job, Job) else job
    sql.run(
        "update :schema._private_jobs set locked_at = now() - $2::interval, locked_by = $3, "
        "attempts = attempts + 1 where id = $1",
        job_id,
        age,
        by,
    )
    sql.run(
        "update :schema._private_job_queues set locked_at = now() - $2::interval, locked_by = $3 "
        "where id = (select job_queue_id from :schema._private_jobs where id = $1)",
        job_id,
        age,
        by,
    )


def fail_job(sql: Sql, job: Job | int, attempts: int) -> None:
    """Give a job this number of attempts and an error."""
    sql.run(
        "update :schema._private_jobs set attempts = $2::int, last_error = 'boom' where id = $1",
        job.id if isinstance(job, Job) else job,
        attempts,
    )


def count_worker_sessions(sql: Sql) -> int:
    """Return the number of sessions of workers in this database."""
    count: int = sql.value(f"{_SESSIONS} and application_name = 'graphile-worker'")
    return count


def count_waiting_sessions(sql: Sql) -> int:
    """Return the number of sessions in this database that wait for a lock."""
    count: int = sql.value(f"{_SESSIONS} and wait_event_type = 'Lock'")
    return count


def count_pages(sql: Sql, statement: str, *args: Any) -> int:
    """Return the pages that a statement of the library reads; its writes are rolled back."""
    text = render_bytes(statement, Schemas.from_names(sql.schema))
    with sql.connection.transaction(force_rollback=True):
        found = sql.connection.execute(
            b"explain (analyze, buffers, format json) " + text, args
        ).fetchone()
    assert found is not None
    plan = found[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])

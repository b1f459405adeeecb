"""Fakes: a stopped clock, and errors of the database that a test cannot cause."""

from datetime import UTC, datetime

from tests.support.sql import Sql

ALWAYS = 1_000_000
FIXED_TIME = datetime(2035, 6, 7, 8, 9, 10, 123456, tzinfo=UTC)

# SQLSTATE, constraint, and the argument and the code of the resulting error.
MEANINGS = [
    ("23514", "tasks_identifier_check", "identifier", "GWBID"),
    ("23514", "job_queues_queue_name_check", "queue_name", "GWBQN"),
    ("23514", "jobs_key_check", "job_key", "GWBJK"),
    ("23514", "jobs_max_attempts_check", "max_attempts", "GWBMA"),
    ("22003", "", "priority or max_attempts", "22003"),
    ("22008", "", "run_at", "22008"),
    ("22P02", "", "payload", "22P02"),
    ("22P05", "", "payload", "22P05"),
    ("21000", "", "job_key", "21000"),
    ("23502", "", "identifier", "23502"),
    ("54001", "", "payload", "54001"),
    ("GWBKM", "", "job_key_mode", "GWBKM"),
]


class UnprintableError(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class StoppedClock:
    """A clock that always shows `FIXED_TIME`."""

    def now(self) -> datetime:
        return FIXED_TIME


def fail_add_jobs(sql: Sql, code: str, *, times: int = 1, constraint: str = "") -> None:
    """Let the function that adds jobs raise that error, `times` times.

    Later calls reach the real function. A sequence counts, because errors do not roll it back.
    Another use of this function sets another error and counts from 0.
    """
    if sql.value("select to_regnamespace('moved_away') is null"):
        sql.run("create sequence public.calls")
        sql.run("create schema moved_away")
        sql.run(
            "alter function :schema.add_jobs(:schema.job_spec[], boolean) set schema moved_away"
        )
    sql.run("alter sequence public.calls restart")
    sql.run(f"""
      create or replace function :schema.add_jobs(
        specs :schema.job_spec[],
        job_key_preserve_run_at boolean default false
      )
      returns setof :schema._private_jobs language plpgsql as $stand_in$
      begin
        if nextval('public.calls') <= {times} then
          raise exception using
            errcode = '{code}', constraint = '{constraint}', message = 'stand-in';
        end if;
        return query select * from moved_away.add_jobs(specs, job_key_preserve_run_at);
      end
      $stand_in$
    """)


def count_calls(sql: Sql) -> int:
    count: int = sql.value(
        "select case when is_called then last_value else 0 end from public.calls"
    )
    return count

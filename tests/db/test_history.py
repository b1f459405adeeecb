"""Ended jobs: lists, filters and pages, the history of one, and how long outcomes are kept."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker._db.database import SyncDatabase, run_plan_sync
from graphile_worker._db.external_pools import open_sync_database
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.ended_jobs import encode_time
from graphile_worker.errors import ConfigurationError, FilterError
from graphile_worker.ops.filters import Filter, parse_ended_filter, parse_filter
from graphile_worker.ops.history import (
    EndedJob,
    EndedPosition,
    HistoryMissing,
    HistoryStatus,
    JobHistory,
    RecentHistory,
    format_progress,
    plan_get_history_status,
    plan_get_job_history,
    plan_get_recent_history,
    plan_list_outcomes,
    plan_prune,
    plan_set_history,
)
from graphile_worker.ops.states import JobState
from tests.conftest import TestDatabase
from tests.support.shell import Shell
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
WORKER = "pypool-0123456789abcdef01"

INSERT_OUTCOME = """
insert into :ext_schema.outcomes (
  slot, job_id, task_identifier, succeeded, attempts, created_at, run_at, started_at, finished_at,
  expires_at, pool_id, has_result, result, error
)
values (
  $1, $2, $3, $4, $5, now() - interval '10 days', now() - interval '10 days',
  $6::timestamptz - interval '2 seconds', $6, $7, $8, $9::text is not null, $9::text::json, $10
)
"""
INSERT_ATTEMPT = """
insert into :ext_schema.attempts (
  slot, job_id, attempt, started_at, duration, pool_id, error, expires_at
)
values (0, $1, $2, now() - interval '1 hour' + $2 * interval '1 minute', 1.5, $3, $4, $5)
"""


class History:
    """The history of a test's database: it writes rows, and runs plans."""

    def __init__(self, database: SyncDatabase, sql: Sql) -> None:
        self._db = database
        self._sql = sql
        self.schemas = database.schemas
        self.now: datetime = sql.value("select now()")

    def add(
        self,
        job_id: int,
        task: str = "task",
        *,
        succeeded: bool = True,
        age: timedelta = HOUR,
        slot: int = 0,
        expires_in: timedelta | None = None,
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        expires = None if expires_in is None else self.now + expires_in
        times = (self.now - age, expires)
        if not succeeded and error is None:
            error = "ValueError: bad"
        self._sql.run(
            INSERT_OUTCOME, slot, job_id, task, succeeded, 1, *times, WORKER, result, error
        )

    def add_attempt(
        self,
        job_id: int,
        number: int,
        error: str | None = None,
        expires_in: timedelta | None = None,
    ) -> None:
        expires = None if expires_in is None else self.now + expires_in
        self._sql.run(INSERT_ATTEMPT, job_id, number, WORKER, error, expires)

    def list_ids(self, text: str = "", **options: Any) -> list[int]:
        return [job.job_id for job in self.list_jobs(text, **options)]

    def list_jobs(self, text: str = "", **options: Any) -> list[EndedJob]:
        job_filter = parse_ended_filter(text)
        return run_plan_sync(self._db, plan_list_outcomes(job_filter, self.schemas, **options)).jobs

    def list_pages(self, text: str, **options: Any) -> Iterator[list[int]]:
        before: EndedPosition | None = None
        while True:
            plan = plan_list_outcomes(
                parse_ended_filter(text), self.schemas, before=before, **options
            )
            page = run_plan_sync(self._db, plan)
            yield [job.job_id for job in page.jobs]
            if page.next is None:
                return
            before = page.next

    def get(self, job_id: int) -> JobHistory:
        return run_plan_sync(self._db, plan_get_job_history(job_id, self.schemas))

    def get_recent(self, *running_ids: int) -> RecentHistory | None:
        return run_plan_sync(self._db, plan_get_recent_history(self.schemas, running_ids))

    def get_status(self) -> HistoryStatus:
        return run_plan_sync(self._db, plan_get_history_status(self.schemas))

    def run(self, plan: Any) -> Any:
        return run_plan_sync(self._db, plan)


@pytest.fixture
def history(database: TestDatabase, sql: Sql) -> Iterator[History]:
    schemas = Schemas.from_names(database.schema)
    db = open_sync_database(database.dsn, schemas, prepared_statements=True)
    yield History(db, sql)
    db.close()


# Lists


def test_ended_jobs_are_listed_the_last_one_first(history):
    history.add(1, age=3 * HOUR, slot=7)
    history.add(2, succeeded=False, age=HOUR, slot=0, error="KeyError: x\nTraceback")
    history.add(3, age=2 * HOUR, slot=8, result="[1]")

    last, second, first = history.list_jobs()

    assert (last.job_id, last.state, last.error) == (2, "failed", "KeyError: x")
    assert (second.job_id, second.state, second.error) == (3, "succeeded", None)
    assert (second.has_result, second.result_text) == (True, None)
    assert (first.job_id, first.duration) == (1, timedelta(seconds=2))
    assert first.worker == WORKER
    assert first.finished_at == history.now - 3 * HOUR


def test_outcomes_that_their_task_no_longer_keeps_are_hidden(history):
    history.add(1, expires_in=-HOUR)
    history.add(2, expires_in=HOUR)
    history.add_attempt(1, 1, expires_in=-HOUR)

    lists = [history.list_ids(text) for text in ("", "id:1,2", "task:task", "state:succeeded")]

    assert lists == [[2]] * 4
    assert not history.get(1).is_known


def test_filters_select_ended_jobs_by_task_state_id_time_and_error(history):
    history.add(1, "send_email", age=30 * HOUR)
    history.add(2, "send_email", succeeded=False, age=20 * HOUR, error="TimeoutError: mail")
    history.add(3, "render_pdf", age=10 * HOUR)
    history.add(4, "Render_PNG", succeeded=False, age=timedelta(minutes=10))
    start = (history.now - 25 * HOUR).isoformat()

    for text, expected in {
        "": [4, 3, 2, 1],
        "task:send_email": [2, 1],
        "task:send_email,render_pdf": [3, 2, 1],
        "task:*_email state:failed": [2],
        "task:sendXemail": [],
        "-task:send*": [4, 3],
        "-task:send_email -task:render*": [4],
        "task:unknown": [],
        "state:failed": [4, 2],
        "state:permafailed": [4, 2],
        "-state:failed": [3, 1],
        "state:succeeded,failed": [4, 3, 2, 1],
        "state:succeeded -state:succeeded": [],
        "state:succeeded error:timeout": [],
        "id:3": [3],
        "1,2 state:failed": [2],
        "id:2..3": [3, 2],
        "-id:2..3": [4, 1],
        "finished:<1h": [4],
        "finished:>-1h": [4],
        "finished:>1h": [3, 2, 1],
        "finished:15h..25h": [2],
        "finished:<1h,>25h": [4, 1],
        "-finished:<1h": [3, 2, 1],
        "-finished:15h..25h": [4, 3, 1],
        "finished:>1h finished:<15h": [3],
        f"finished:>{start}": [4, 3, 2],
        f"finished:<{start}": [1],
        "finished:>15h task:send_email": [2, 1],
        "finished:>15h state:failed": [2],
        "finished:>15h state:failed task:send_email": [2],
        "finished:2026-01-01": [],
        "finished:<0001-01-01T00:00Z": [],
        "finished:<0001-01-01T12:00Z -task:x": [],
        "error:timeout": [2],
        "error:mail task:send_email": [2],
        "-error:timeout": [4, 3, 1],
        "state:failed -error:timeout": [4],
        "render": [4, 3],
        "mail": [2, 1],
        "bad": [4],
        "-render": [2, 1],
        "ünknown": [],
    }.items():
        assert history.list_ids(text) == expected, text


def test_a_list_of_many_tasks_reads_windows_of_time(history):
    ages = [timedelta(seconds=5), timedelta(minutes=5), HOUR, 20 * HOUR, 100 * HOUR]
    for n, age in enumerate(ages):
        history.add(n, f"task_{n % 3}", age=age)

    assert history.list_ids(max_tasks=1) == [0, 1, 2, 3, 4]
    assert [history.list_ids(limit=limit, max_tasks=1) for limit in (1, 2, 3, 4)] == [
        [0], [0, 1], [0, 1, 2], [0, 1, 2, 3]
    ]  # fmt: skip
    assert history.list_ids("task:task_1*", max_tasks=1) == [1, 4]
    assert history.list_ids("finished:>10m task:task_*", max_tasks=1) == [2, 3, 4]
    assert [*history.list_pages("-task:task_2", limit=1, max_tasks=1)] == [[0], [1], [3], [4]]


def test_pages_have_each_ended_job_once(history):
    chance = random.Random(5)
    for n in range(24):
        # Several have the same time.
        age = timedelta(minutes=chance.randrange(12))
        history.add(n, f"task_{n % 4}", succeeded=n % 3 > 0, age=age, slot=n % 9)

    for text in ("", "state:failed", "task:task_1,task_2", "finished:>3m", "id:5..20", "-task_1"):
        for max_tasks in (0, 200):
            pages = [*history.list_pages(text, limit=5, max_tasks=max_tasks)]
            assert sum(pages, []) == history.list_ids(text, limit=100), text
            assert all(len(page) == 5 for page in pages[:-1])


def test_a_term_without_meaning_for_ended_jobs_raises(history):
    plan = plan_list_outcomes(parse_filter("task:a queue:b"), history.schemas)

    with pytest.raises(FilterError, match=r"column 8: .* finished, error for ended jobs"):
        history.run(plan)


def test_times_are_encoded_to_the_microsecond(sql):
    for time in (
        datetime(2026, 11, 18, 4, 5, 6, 789_012, UTC),
        datetime(1969, 12, 31, 23, 59, 59, 1, UTC),
        datetime(1900, 1, 1, tzinfo=UTC),
    ):
        assert sql.value("select to_timestamp($1::text::float8)", encode_time(time)) == time


# One job


def test_the_history_of_a_job_has_outcomes_attempts_and_the_state_of_its_row(history, table, sql):
    job_id = table.add_job_in_state("failed")
    history.add(job_id, succeeded=False, age=2 * HOUR, error="ValueError: first\nTraceback")
    history.add(job_id, succeeded=False, age=HOUR, result=None, error="ValueError: second")
    for number in (2, 1):
        history.add_attempt(job_id, number, f"error {number}")

    found = history.get(job_id)

    assert found.state is JobState.FAILED
    assert [each.error for each in found.outcomes] == [
        "ValueError: second",
        "ValueError: first\nTraceback",
    ]
    assert [(each.number, each.error) for each in found.attempts] == [
        (1, "error 1"),
        (2, "error 2"),
    ]
    assert found.attempts[0].duration == timedelta(seconds=1.5)
    assert found.attempts[0].worker == WORKER
    assert found.progress is None


def test_the_history_of_a_deleted_job_has_its_result(history):
    history.add(7, "thumbnail", result='{"width": 1, "height": null}')

    found = history.get(7)

    assert (found.state, found.task_identifier) == (None, "thumbnail")
    assert found.outcomes[0].result_text == '{"width": 1, "height": null}'
    assert found.created_at == found.outcomes[0].created_at
    assert not history.get(8).is_known


def test_the_history_of_a_running_job_has_its_progress(history, table, sql):
    job_id = table.add_job_in_state("running")
    sql.run(
        "insert into :ext_schema.progress (job_id, pool_id, fraction, message, updated_at) "
        "select id, locked_by, 0.4, 'page 4 of 10', now() from :schema._private_jobs where id = $1",
        job_id,
    )
    history.add(5)

    progress = history.get(job_id).progress
    recent = history.get_recent(job_id, 5)

    assert progress is not None
    assert progress.fraction == pytest.approx(0.4)
    assert format_progress(progress) == "40 %, page 4 of 10"
    assert recent is not None
    assert recent.progress == {job_id: progress}
    assert [job.job_id for job in recent.ended] == [5]


# How long outcomes are kept


def test_the_status_has_the_settings_and_slots(history, sql):
    for n in range(3):
        history.add(n, f"task_{n}", age=(n + 1) * HOUR)
    sql.run("vacuum analyze :ext_schema.outcomes")

    status = history.get_status()

    assert (status.keep, status.max_rows) == (timedelta(days=7), None)
    assert [slot.number for slot in status.slots] == list(range(9))
    assert [slot.rows for slot in status.slots] == [3] + [0] * 8
    assert [slot.is_current for slot in status.slots] == [True] + [False] * 8
    assert [slot.started_at is None for slot in status.slots] == [False] + [True] * 8
    assert status.rows == 3
    assert status.bytes > 8192
    assert status.oldest_at == history.now - 3 * HOUR
    assert (status.can_rotate, status.is_overdue) == (True, False)


def test_settings_that_are_not_passed_stay(history):
    history.run(plan_set_history(history.schemas, keep=timedelta(days=14), max_rows=1000))
    history.run(plan_set_history(history.schemas, keep=timedelta(days=3)))
    first = history.get_status()
    history.run(plan_set_history(history.schemas, clear_max_rows=True))
    second = history.get_status()

    assert (first.keep, first.max_rows) == (timedelta(days=3), 1000)
    assert (second.keep, second.max_rows) == (timedelta(days=3), None)
    with pytest.raises(ConfigurationError, match="keep must be"):
        history.run(plan_set_history(history.schemas, keep=timedelta(days=9999)))


def test_rotation_is_overdue_if_no_worker_rotates_the_slots(history, sql):
    move = "update :ext_schema.history set started_at[1] = now() - interval '10 days'"
    sql.run(move)
    assert not history.get_status().is_overdue

    history.add(1, age=timedelta(days=9))
    history.add(2)

    assert history.get_status().is_overdue
    history.run(plan_prune(history.schemas))
    assert not history.get_status().is_overdue


def test_prune_empties_old_slots_and_deletes_expired_rows(history, sql):
    # Slot 7 ended 8 days ago and 8 five days ago. Slot 1 is written to.
    sql.run(
        "update :ext_schema.history set slot = 1, started_at = array[now() - interval '5 days', "
        "now() - interval '5 minutes'] || array_fill('-infinity'::timestamptz, array[5]) "
        "|| array[now() - interval '9 days', now() - interval '8 days']"
    )
    history.add(1, age=timedelta(days=8, hours=12), slot=7)
    history.add(2, age=timedelta(days=4), slot=0)
    history.add(3, age=timedelta(days=1), slot=1, expires_in=-HOUR)
    history.add(4, slot=1, expires_in=HOUR)
    history.add_attempt(3, 1, expires_in=-HOUR)

    pruned = history.run(plan_prune(history.schemas))
    again = history.run(plan_prune(history.schemas))

    assert pruned.emptied_slots == (7,)
    assert pruned.deleted_rows == 2
    assert (again.emptied_slots, again.deleted_rows) == ((), 0)
    assert history.list_ids() == [4, 2]


def test_missing_tables_raise_a_sentence_with_the_command(history, sql):
    sql.run("drop table :ext_schema.outcomes")

    for plan in (
        plan_list_outcomes(Filter(), history.schemas),
        plan_get_job_history(1, history.schemas),
        plan_get_history_status(history.schemas),
        plan_set_history(history.schemas, max_rows=1),
        plan_prune(history.schemas),
    ):
        with pytest.raises(
            HistoryMissing, match=r"no tables of outcomes .*graphile-worker migrate"
        ):
            history.run(plan)
    assert history.get_recent() is None


def test_a_role_that_may_only_read_sees_that_it_may_not_rotate(database, sql, role, history):
    history.add(1)
    sql.run(f'grant usage on schema :ext_schema to "{role}"')
    sql.run(f'grant select on all tables in schema :ext_schema to "{role}"')
    schemas = Schemas.from_names(database.schema)
    dsn = make_conninfo(database.dsn, options=f"-c role={role}")
    db = open_sync_database(dsn, schemas, prepared_statements=True)

    status = run_plan_sync(db, plan_get_history_status(schemas))
    page = run_plan_sync(db, plan_list_outcomes(Filter(), schemas))
    db.close()

    assert not status.can_rotate
    assert [job.job_id for job in page.jobs] == [1]


# Commands


@pytest.fixture
def shell(database, tmp_path, monkeypatch, capsys) -> Shell:
    return Shell(database, tmp_path, monkeypatch, capsys)


def test_mistakes_are_one_sentence(shell):
    for arguments, code, words in (
        (("jobs", "history", "4711"), 1, "nothing is known of job 4711: it never existed, or"),
        (("jobs", "show", "4711"), 1, "job 4711 does not exist. It was completed or removed"),
        (("jobs", "list", "--ended", "queue:a"), 2, "expected one of task, state, id, finished"),
        (("jobs", "list", "--ended", "state:ready"), 2, "expected succeeded or failed, got"),
        (("jobs", "list", "--ended", "id:>5"), 2, "expected an id, or a range of at most 10,000"),
        (("jobs", "list", "--ended", "--before", "5"), 2, "expected a time and an id"),
        (("jobs", "list", "--before", "x"), 2, "expected the id of a job, got 'x'"),
        (("jobs", "list", "--ended", "--newest", "5"), 2, "--newest cannot be used with --ended"),
        (("history", "set"), 2, "nothing to change. Pass --keep, --max-rows or --no-max-rows"),
        (("history", "set", "--max-rows", "1", "--no-max-rows"), 2, "not both"),
        (("history", "set", "--keep", "9999d"), 1, "keep must be from"),
    ):
        done = shell(*arguments)
        assert (done.code, done.out) == (code, ""), arguments
        assert words in done.err, arguments
    assert shell("jobs", "list", "--ended").err == "no ended jobs\n"


def test_missing_tables_are_named_with_what_to_run(shell, sql):
    sql.run("drop table :ext_schema.outcomes")
    job_id = sql.value("select id from :schema.add_job('resize')")

    for arguments in (
        ("jobs", "list", "--ended"),
        ("jobs", "history", "1"),
        ("history", "show"),
        ("history", "set", "--keep", "1d"),
        ("history", "prune"),
    ):
        done = shell(*arguments)
        assert done.code == 1
        assert "has no tables of outcomes that this role may read. Run `graphile-worker migr" in (
            done.err
        )
    assert shell("jobs", "show", str(job_id)).code == 0
    assert shell("top", "--once", "--interval", "500ms").code == 0

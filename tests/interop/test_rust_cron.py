"""Crontabs of Python, Node and two releases of Rust: the minutes of each, and one tick for all."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from graphile_worker import App
from tests.conftest import TestDatabase
from tests.support.languages import (
    LANGUAGES,
    NODE_18,
    PYTHON,
    RUST_13,
    RUST_14,
    Language,
    Workers,
    needs_rust,
)
from tests.support.processes import Programs, eventually
from tests.support.sql import Sql

pytestmark = [pytest.mark.nightly, pytest.mark.single_version, needs_rust]

# Nine days contain each day of the week.
DAYS = 9
LINES = {
    "daily": "0 12 * * *",
    "twenty_minutes": "*/20 6 * * *",
    "seven_hours": "0 */7 * * *",
    "two_minutes": "5,10 3 * * *",
    "fifth_days": "0 12 */5 * *",
    "mondays": "0 12 * * 1",
    "saturdays": "0 12 * * 6",
    "sundays": "0 12 * * 0",
    "every_second_weekday": "0 12 * * */2",
    "each_weekday": "0 12 * * */1",
    "each_day": "0 12 */1 * *",
    "each_month": "0 12 * */1 *",
    "days_or_mondays": "0 12 1-31 * 1",
}
CRONTAB = "\n".join(f"{times} {name} ?fill={DAYS}d" for name, times in LINES.items())

# Of a day at noon, whether Rust adds the job. All other lines mean the same in all languages.
RUST_DIFFERS: dict[str, Callable[[datetime], bool]] = {
    # Sunday is 7 there, and its parser accepts 0 to 6.
    "sundays": lambda day: False,
    # It counts from Monday, Node from Sunday.
    "every_second_weekday": lambda day: day.isoweekday() % 2 == 1,
    # It compares a remainder of a division by 1 with 1.
    "each_weekday": lambda day: False,
    "each_day": lambda day: False,
    "each_month": lambda day: False,
    # Both fields must match, in Node either of them.
    "days_or_mondays": lambda day: day.isoweekday() == 1,
}

KNOWN = """
insert into :schema._private_known_crontabs (identifier, known_since, last_execution)
values ($1, now() - interval '30 days', $2)
"""
ADDED = """
select tasks.identifier, jobs.run_at, jobs.payload::text
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
order by jobs.run_at, tasks.identifier
"""

# Looks without a new job, in about two seconds.
SETTLED = 15

Minutes = dict[str, list[datetime]]


@pytest.mark.timeout(300)
@pytest.mark.feature("F249", "F276")
def test_rust_differs_from_node_in_six_kinds_of_crontab_lines(copies, tmp_path):
    found = {each: backfill(copies.copy(each), tmp_path, each) for each in LANGUAGES}

    node = found[NODE_18]
    assert found[PYTHON] == node
    for rust in (RUST_13, RUST_14):
        for name in LINES:
            expected = node[name]
            if name in RUST_DIFFERS:
                expected = [each for each in node["daily"] if RUST_DIFFERS[name](each)]
            assert found[rust][name] == expected, (rust.name, name)


@pytest.mark.timeout(120)
@pytest.mark.feature("F249")
def test_rust_13_reads_times_in_the_time_zone_of_its_machine_and_rust_14_in_utc(copies, tmp_path):
    # Three hours east of Greenwich, in the notation of POSIX.
    found = {
        each: backfill(copies.copy(each), tmp_path, each, "Etc/GMT-3")
        for each in (PYTHON, NODE_18, RUST_13, RUST_14)
    }

    assert {each.hour for each in found[RUST_13]["daily"]} == {9}
    for each in (PYTHON, NODE_18, RUST_14):
        assert {found_at.hour for found_at in found[each]["daily"]} == {12}, each.name


def backfill(
    database: TestDatabase, folder: Path, language: Language, time_zone: str = "UTC"
) -> Minutes:
    """Return the minutes of the last days at which a language would have added each task."""
    since = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(days=DAYS)
    with Programs(folder) as programs, closing(Sql(database.dsn, database.schema)) as sql:
        for name in LINES:
            sql.run(KNOWN, name, since)
        worker = Workers(programs, database, TZ=time_zone)
        # It has none of the tasks, so the jobs stay.
        worker.launch(language, crontab=CRONTAB, tasks=["echo"])

        # One transaction or minute after the other, and there is no sign of the last one.
        counts: list[int] = []

        def is_complete() -> bool:
            counts.append(len(sql.run(ADDED)))
            return counts[-1] > 0 and counts[-SETTLED:] == [counts[-1]] * SETTLED

        eventually(is_complete, "the jobs are added")
        minutes: Minutes = {name: [] for name in LINES}
        for name, at, _ in sql.run(ADDED):
            minutes[name].append(at.astimezone(UTC))
    return minutes


@pytest.mark.feature("F272")
def test_python_runs_what_a_rust_crontab_added_with_the_payload_null(copies, tmp_path):
    database = copies.copy(RUST_14)
    days = len(backfill(database, tmp_path, RUST_14)["daily"])
    app = App(database.dsn, schema=database.schema)
    ran = []

    @app.task
    async def daily() -> None:
        ran.append("daily")

    with closing(Sql(database.dsn, database.schema)) as sql:
        assert {payload for _, _, payload in sql.run(ADDED)} == {"null"}
        asyncio.run(app.worker().run_once())
        left = {name for name, *_ in sql.run(ADDED)}

    assert len(ran) == days
    assert "daily" not in left


@pytest.mark.timeout(300)
@pytest.mark.feature("F274")
def test_one_crontab_in_all_languages_adds_one_job_each_minute(copies, tmp_path, figure):
    database = copies.copy(PYTHON)
    with Programs(tmp_path) as programs, closing(Sql(database.dsn, database.schema)) as sql:
        workers = Workers(programs, database, TZ="UTC")
        started = [
            workers.start(each, crontab="* * * * * tick", tasks=["echo"])
            for each in LANGUAGES
            for _ in range(2)
        ]
        minutes = 3
        eventually(lambda: len(sql.run(ADDED)) >= minutes, "the ticks", within=60 * minutes + 30)
        added = sql.run(ADDED)
        assert all(each.is_running for each in started)

    at = [each[1] for each in added]
    assert at == [at[0] + timedelta(minutes=number) for number in range(minutes)]
    by = ["Rust" if payload == "null" else "Python or Node" for *_, payload in added]
    figure(f"cron: {len(started)} workers of 4 implementations, {minutes} ticks, added by {by}")

"""Dead and live workers of Python, Node and Rust: who releases whose jobs, and when."""

import json
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestDatabase
from tests.support.languages import (
    NODE_18,
    PYTHON,
    RUST_13,
    RUST_14,
    Copies,
    Language,
    Workers,
    needs_rust,
)
from tests.support.processes import Programs, eventually
from tests.support.sql import Sql

pytestmark = [pytest.mark.nightly, pytest.mark.single_version, needs_rust]

Worker = tuple[Language, dict[str, Any]]

# They look several times a second, at the ages that are their defaults.
SWEEPING = {"sweep_ms": 200, "delay_ms": 0}
RESCUERS: dict[str, Worker] = {
    "python": (PYTHON, {"looks_often": True}),
    "node": (NODE_18, {"preset": {"minResetLockedInterval": 200, "maxResetLockedInterval": 200}}),
    "rust 0.13": (RUST_13, {"recovery": SWEEPING}),
    "rust 0.14": (RUST_14, {"recovery": SWEEPING}),
    "rust 0.13 without recovery": (RUST_13, {}),
    "rust 0.14 without recovery": (RUST_14, {}),
}
VICTIMS: dict[str, Worker] = {
    "python": (PYTHON, {}),
    "node": (NODE_18, {}),
    "rust 0.13": (RUST_13, {"recovery": {}}),
    "rust 0.14": (RUST_14, {"recovery": {}}),
    "rust 0.13 without recovery": (RUST_13, {}),
    "rust 0.14 without recovery": (RUST_14, {}),
}

# Rust installs its registry, and Python its companion schema.
ORDERS = (
    (RUST_14, PYTHON),
    (RUST_13, PYTHON),
    (PYTHON, RUST_14),
    (NODE_18, RUST_14, PYTHON),
)

MINUTE, SIX_MINUTES, FOUR_HOURS = "1 minute", "6 minutes", "4 hours 1 minute"
AGES = (MINUTE, SIX_MINUTES, FOUR_HOURS)

# The first of these ages at which a worker releases the jobs of a dead one.
RELEASED_AT: dict[str, dict[str, str | None]] = {
    "python": {**dict.fromkeys(VICTIMS, FOUR_HOURS), "python": MINUTE},
    "node": {**dict.fromkeys(VICTIMS, FOUR_HOURS)},
    "rust 0.13": {**dict.fromkeys(VICTIMS, SIX_MINUTES)},
    "rust 0.14": {**dict.fromkeys(VICTIMS, SIX_MINUTES)},
    "rust 0.13 without recovery": {**dict.fromkeys(VICTIMS)},
    "rust 0.14 without recovery": {**dict.fromkeys(VICTIMS)},
}


def ages_of(victim: str, rescuer: str) -> list[tuple[str, bool]]:
    """The ages up to the one at which the rescuer releases the jobs, and whether it is that one."""
    released_at = RELEASED_AT[rescuer][victim]
    last = AGES.index(released_at) if released_at else len(AGES) - 1
    return [(age, age == released_at) for age in AGES[: last + 1]]


CELLS = [(victim, rescuer, ages_of(victim, rescuer)) for victim in VICTIMS for rescuer in RESCUERS]
CELL_COUNT = sum(len(ages) for *_, ages in CELLS)

# Long enough for some looks of a worker that runs.
LOOKS_SECONDS = 2.0

LOCKED = "select locked_by from :schema._private_jobs where locked_by is not null"
STARTED = "select count(*) from :ext_schema.pools where started_jobs <> '{}'"
REGISTERED = "select id from :schema._private_workers order by id"


def make_older(sql: Sql, age: str) -> None:
    """Move all that a worker wrote into the past, as if it had died then."""
    for statement in (
        "update :schema._private_jobs set locked_at = now() - $1::text::interval "
        "where locked_by is not null",
        "update :schema._private_job_queues set locked_at = now() - $1::text::interval "
        "where locked_by is not null",
        "update :schema._private_workers set last_heartbeat_at = now() - $1::text::interval",
        "update :ext_schema.pools set seen_at = now() - $1::text::interval",
    ):
        sql.run(statement, age)


@pytest.mark.timeout(1800)
@pytest.mark.feature("F217", "F222")
def test_each_language_releases_jobs_of_dead_workers_of_each_at_its_documented_age(
    copies: Copies, tmp_path, figure
):
    for number, (victim, rescuer, ages) in enumerate(CELLS):
        # Each dead worker and each running one meets each order.
        order = ORDERS[sum(divmod(number, len(RESCUERS))) % len(ORDERS)]
        database = copies.copy(*order)
        leave_locked(database, tmp_path, victim)
        for age, is_released in ages:
            check_age(database, tmp_path, rescuer, age, is_released, f"{victim}, {rescuer}")
        copies.drop_copies()
    figure(
        f"matrix: {CELL_COUNT} cells of dead worker, running worker and age of the lock, with "
        f"{len(ORDERS)} orders of installers"
    )


@pytest.mark.timeout(120)
@pytest.mark.feature("F223")
def test_python_returns_the_attempt_of_a_job_that_started_after_the_last_heartbeat(
    copies: Copies, tmp_path
):
    database = copies.copy(RUST_14, PYTHON)
    leave_locked(database, tmp_path, "python")
    with closing(Sql(database.dsn, database.schema)) as sql:
        # As if the worker had died before it sent the heartbeat.
        sql.run("update :ext_schema.pools set started_jobs = '{}'")

    check_age(database, tmp_path, "python", MINUTE, True, "not in a heartbeat", attempt=1)


def leave_locked(database: TestDatabase, folder: Path, name: str) -> None:
    """Kill a worker while it runs a job of a named queue. A heartbeat of Python names the job."""
    language, options = VICTIMS[name]
    with Programs(folder) as programs, closing(Sql(database.dsn, database.schema)) as sql:
        workers = Workers(programs, database)
        payload = {"hang_in": ["victim"]}
        workers.add(PYTHON, [{"task": "work", "payload": payload, "queue_name": "in turn"}])
        victim = workers.start(language, **{**options, "language": "victim"})
        eventually(lambda: sql.run(LOCKED), "it takes the job")
        if language is PYTHON:
            eventually(lambda: sql.value(STARTED), "a heartbeat names the job")
        victim.signal(signal.SIGKILL)
        victim.end()


def check_age(
    database: TestDatabase,
    folder: Path,
    rescuer: str,
    age: str,
    is_released: bool,
    cell: str,
    attempt: int | None = None,
) -> None:
    language, options = RESCUERS[rescuer]
    with Programs(folder) as programs, closing(Sql(database.dsn, database.schema)) as sql:
        make_older(sql, age)
        worker = Workers(programs, database).start(language, **options)
        if is_released:
            eventually(lambda: sql.run("select n from ran"), f"{cell}: it runs at {age}")
            # Rust returns the attempt. The others count it.
            expected = attempt or (1 if language.is_rust else 2)
            assert sql.run("select language, attempt from ran") == [(language.name, expected)], cell
        else:
            time.sleep(LOOKS_SECONDS)
            assert len(sql.run(LOCKED)) == 1, f"{cell}: released at {age}"
        worker.kill()


# Live workers

# Rust workers that count a worker as dead after 15 s without a heartbeat.
STRICT = {"heartbeat_ms": 1000, "sweep_ms": 500, "threshold_ms": 15_000, "delay_ms": 0}


@pytest.mark.timeout(180)
@pytest.mark.feature("F220", "F222")
@pytest.mark.parametrize("rust", [RUST_13, RUST_14], ids=lambda each: each.name)
def test_a_live_sweeper_of_rust_takes_jobs_of_live_node_workers_and_not_of_python_workers(
    copies: Copies, tmp_path, rust
):
    database = copies.copy(rust, PYTHON)
    with (
        Programs.for_database(database, tmp_path) as programs,
        closing(Sql(database.dsn, database.schema)) as sql,
    ):
        workers = Workers(programs, database)
        workers.start(rust, recovery=STRICT)
        for language in (PYTHON, NODE_18):
            # Each of these workers has a task that no other one has.
            job = {"task": f"{language.name}_only", "payload": {"hang_in": [language.name]}}
            workers.add(PYTHON, [job])
            workers.start(language, concurrency=2)
        eventually(lambda: len(sql.run(LOCKED)) == 2, "they take their jobs")
        before = dict(sql.run(HOLDERS))
        doctor = programs.run_to_end("doctor", "--json")
        registered = [id for (id,) in sql.run(REGISTERED)]

        # Node takes its job again, so that it runs twice at once.
        eventually(lambda: dict(sql.run(ERRORS))["node_only"], "the sweeper takes the job of Node")
        time.sleep(LIVES_ON_SECONDS)

        assert dict(sql.run(HOLDERS))["python_only"] == before["python_only"]
        assert dict(sql.run(ERRORS)) == {
            "python_only": None,
            "node_only": "Job recovered after worker interruption",
        }
        assert (before["python_only"] in registered, before["node_only"] in registered) == (
            True,
            False,
        )
    findings = {each["id"] for each in json.loads(doctor.out)["findings"]}
    assert "unregistered-workers" in findings


# Twice the time without a heartbeat that the sweeper allows.
LIVES_ON_SECONDS = 30.0
HOLDERS = """
select tasks.identifier, jobs.locked_by
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
"""
ERRORS = HOLDERS.replace("jobs.locked_by", "jobs.last_error")


@pytest.mark.timeout(120)
@pytest.mark.feature("F220", "F222")
def test_rust_workers_without_recovery_leave_the_jobs_of_live_workers(copies: Copies, tmp_path):
    database = copies.copy(RUST_14, PYTHON)
    with Programs(tmp_path) as programs, closing(Sql(database.dsn, database.schema)) as sql:
        workers = Workers(programs, database)
        workers.add(PYTHON, [{"task": "node_only", "payload": {"hang_in": ["node"]}}])
        workers.start(NODE_18)
        eventually(lambda: len(sql.run(LOCKED)) == 1, "it takes the job")
        before = sql.run(HOLDERS)
        make_older(sql, SIX_MINUTES)
        for rust in (RUST_13, RUST_14):
            workers.start(rust)
        time.sleep(LOOKS_SECONDS)

        assert sql.run(HOLDERS) == before
        assert sql.run(REGISTERED) == []


@pytest.mark.timeout(60)
@pytest.mark.feature("F2")
def test_rust_13_with_recovery_does_not_start_on_a_schema_of_node_or_python(copies, tmp_path):
    for installer in (PYTHON, NODE_18):
        database = copies.copy(installer)
        with Programs(tmp_path) as programs:
            workers = Workers(programs, database)
            worker = workers.launch(RUST_13, recovery={})
            assert worker.end() == 1
            assert "worker_heartbeat" in worker.err
            # The newer release installs its registry, which the older one finds.
            workers.install(RUST_14)
            workers.start(RUST_13, recovery={})

"""Python, Node and two releases of Rust: who installs, adds, runs, fails and retries."""

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestDatabase
from tests.support.catalog import read_ledger
from tests.support.languages import (
    LANGUAGES,
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

PAIRS = [(first, second) for first in LANGUAGES for second in LANGUAGES]

# The last level of the ledger, and whether its level 19 is the breaking one of Node.
LEDGERS = {
    **{(first, second): (20, True) for first in (PYTHON, NODE_18) for second in (PYTHON, NODE_18)},
    **{(first, RUST_13): (20, True) for first in (PYTHON, NODE_18)},
    **{(first, RUST_14): (22, True) for first in (PYTHON, NODE_18)},
    **{(RUST_13, second): (20, False) for second in (PYTHON, NODE_18, RUST_13)},
    (RUST_13, RUST_14): (22, False),
    **{(RUST_14, second): (22, False) for second in LANGUAGES},
}

# In whole seconds, as Node sends milliseconds.
NOW = datetime.now(UTC).replace(microsecond=0)
TOMORROW = NOW + timedelta(days=1)
MODES = ("replace", "preserve_run_at", "unsafe_dedupe")

# Who installs, adds and runs; who installs, adds and adds again; who installs, fails and retries.
RUN_CELLS = list(product(PAIRS, LANGUAGES, LANGUAGES))
KEY_CELLS = list(product(LANGUAGES, repeat=3))
RETRY_CELLS = list(product(LANGUAGES, repeat=3))


def of_key(mode: str, n: int, run_at: datetime) -> dict[str, Any]:
    """A job whose key is replaced before it runs."""
    return {
        "task": "work",
        "payload": {"of": f"{mode} tomorrow", "n": n},
        "job_key": f"{mode} tomorrow",
        "job_key_mode": mode,
        "run_at": run_at.isoformat(),
    }


OBJECT = {"a": [1, 2.5, None], "ü": 'say "no"'}

# Of each kind one or two, with ready jobs of several priorities.
JOBS: list[dict[str, Any]] = [
    {"task": "work", "payload": {"of": "low"}, "priority": 5},
    {"task": "work", "payload": {"of": "high"}, "priority": -5},
    {"task": "work", "payload": {"of": "queue", "n": 1}, "queue_name": "in turn"},
    {"task": "work", "payload": {"of": "queue", "n": 2}, "queue_name": "in turn"},
    {"task": "echo", "payload": OBJECT},
    {"task": "echo", "payload": [1, "two"]},
    {"task": "echo", "payload": "text"},
    {"task": "work", "payload": {"of": "flagged"}, "flags": ["gpu"]},
    {"task": "work", "payload": {"of": "forbidden"}, "flags": ["gpu", "not here"]},
    {"task": "numbers", "payload": [1, 2, 3, 4], "max_attempts": 7},
    {"task": "work", "payload": {"fail_first": True}, "max_attempts": 1},
    *(
        {"task": "work", "payload": {"of": mode, "n": n}, "job_key": mode, "job_key_mode": mode}
        for mode in MODES
        for n in (1, 2)
    ),
    *(of_key(mode, n, at) for mode in MODES for n, at in ((1, TOMORROW), (2, NOW))),
]
RAN_PAYLOADS = [
    {"of": "low"},
    {"of": "high"},
    {"of": "queue", "n": 1},
    {"of": "queue", "n": 2},
    OBJECT,
    [1, "two"],
    "text",
    {"of": "flagged"},
    [1, 2, 3, 4],
    {"of": "replace", "n": 2},
    {"of": "preserve_run_at", "n": 2},
    # The first one stays.
    {"of": "unsafe_dedupe", "n": 1},
    # The others of tomorrow stay there.
    {"of": "replace tomorrow", "n": 2},
]

LEFT = """
select tasks.identifier, jobs.payload::jsonb, jobs.attempts, jobs.max_attempts,
  jobs.last_error is null, jobs.locked_by is null
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
where jobs.key is null
order by jobs.id
"""
ERRORS = "select last_error from :schema._private_jobs where key is null order by id"
LEFT_ROWS = [
    ("work", {"of": "forbidden"}, 0, 25, True, True),
    ("numbers", [1, 3], 1, 7, False, True),
    ("work", {"fail_first": True}, 1, 1, False, True),
]
KEYED = """
select payload::jsonb, run_at from :schema._private_jobs where key is not null order by key
"""
KEYED_ROWS = [
    # It has the new payload at the old time.
    ({"of": "preserve_run_at tomorrow", "n": 2}, TOMORROW),
    ({"of": "replace tomorrow", "n": 2}, NOW),
    ({"of": "unsafe_dedupe tomorrow", "n": 1}, TOMORROW),
]


@pytest.mark.timeout(600)
@pytest.mark.feature("F2", "F5")
def test_each_order_of_installers_leaves_one_of_four_ledgers(copies: Copies):
    for pair in PAIRS:
        database = copies.copy(*pair)
        ledger = dict(read_ledger(database.dsn, database.schema))

        found = (max(ledger), ledger[19])
        assert found == LEDGERS[pair], [each.name for each in pair]


@pytest.mark.timeout(3600)
@pytest.mark.feature("F2", "F5")
def test_jobs_of_each_language_run_in_each_language_on_each_install(copies, tmp_path, figure):
    for pair, adder, runner in RUN_CELLS:
        check_cell(copies.copy(*pair), tmp_path, adder, runner)
        copies.drop_copies()
    figure(
        f"matrix: {len(RUN_CELLS)} cells of installers, adder and runner, {len(JOBS)} jobs added "
        "in each"
    )


def as_text(payload: Any) -> str:
    # Rust writes the keys of an object in another order.
    return json.dumps(payload, sort_keys=True)


def check_cell(database: TestDatabase, folder: Path, adder: Language, runner: Language) -> None:
    with Programs(folder) as programs, closing(Sql(database.dsn, database.schema)) as sql:
        workers = Workers(programs, database)
        workers.add(adder, JOBS)
        workers.run_once(runner, forbidden_flags=["not here"], reject_odd=True)

        cell = f"{database.name}: {adder.name} adds, {runner.name} runs"
        ran = sql.run("select language, attempt, payload from ran order by n")
        assert {each[:2] for each in ran} == {(runner.name, 1)}, cell
        payloads = [each[2] for each in ran]
        assert sorted(map(as_text, payloads)) == sorted(map(as_text, RAN_PAYLOADS)), cell
        assert payloads[0] == {"of": "high"}, cell
        # Python fetches ahead, so the second job of the queue may come after the last priority.
        first, second = (payloads.index({"of": "queue", "n": n}) for n in (1, 2))
        assert first < second, cell
        assert payloads.index({"of": "low"}) >= len(payloads) - 2, cell
        assert sql.run(LEFT) == LEFT_ROWS, cell
        still_keyed = [row for row in KEYED_ROWS if row[0]["of"] != "replace tomorrow"]
        assert sql.run(KEYED) == still_keyed, cell
        _, batch, single = (error for (error,) in sql.run(ERRORS))
        # Each language has its own form of an error.
        assert ("1 is odd" in batch, "not the first time" in single) == (True, True), cell


@pytest.mark.timeout(1800)
@pytest.mark.feature("F2", "F5")
def test_a_job_that_a_language_added_is_replaced_by_its_key_in_each_language(
    copies, tmp_path, figure
):
    for installer, adder, replacer in KEY_CELLS:
        database = copies.copy(installer)
        with Programs(tmp_path) as programs, closing(Sql(database.dsn, database.schema)) as sql:
            workers = Workers(programs, database)
            workers.add(adder, [of_key(mode, 1, TOMORROW) for mode in MODES])
            workers.add(replacer, [of_key(mode, 2, NOW) for mode in MODES])

            cell = f"{installer.name} installs, {adder.name} adds, {replacer.name} replaces"
            assert sql.run(KEYED) == KEYED_ROWS, cell
        copies.drop_copies()
    figure(f"matrix: {len(KEY_CELLS)} cells of installer, adder and who adds to the same keys")


@pytest.mark.timeout(1800)
@pytest.mark.feature("F2", "F5")
def test_each_language_retries_what_failed_in_each_language(copies, tmp_path, figure):
    for installer, failing, retrying in RETRY_CELLS:
        check_retry(copies.copy(installer), tmp_path, failing, retrying)
        copies.drop_copies()
    figure(f"matrix: {len(RETRY_CELLS)} cells of installer, failing and retrying language")


def check_retry(
    database: TestDatabase, folder: Path, failing: Language, retrying: Language
) -> None:
    with Programs(folder) as programs, closing(Sql(database.dsn, database.schema)) as sql:
        workers = Workers(programs, database)
        jobs: list[dict[str, Any]] = [
            {"task": "work", "payload": {"fail_first": True}, "queue_name": "in turn"},
            {"task": "numbers", "payload": [1, 2, 3, 4]},
        ]
        workers.add(failing, jobs)
        workers.run_once(failing, reject_odd=True)

        cell = f"{failing.name} fails, {retrying.name} retries"
        # Both wait for 1 to 3 s, the backoff of a first attempt.
        waiting = sql.run("""
          select attempts, run_at > now(), run_at < now() + interval '3 s', locked_by is null
          from :schema._private_jobs
        """)
        assert waiting == [(1, True, True, True)] * 2, cell
        sql.run("update :schema._private_jobs set run_at = now()")
        sql.run("truncate ran")
        workers.run_once(retrying)

        ran = sql.run("select language, attempt, payload from ran order by payload::text")
        assert ran == [
            (retrying.name, 2, [1, 3]),
            (retrying.name, 2, {"fail_first": True}),
        ], cell
        assert sql.value("select count(*) from :schema._private_jobs") == 0, cell
        locked = "select count(*) from :schema._private_job_queues where locked_by is not null"
        assert sql.value(locked) == 0, cell


# Named queues in a batch

LOCKED_AT_ONCE = """
select count(*) from :schema._private_jobs where locked_by is not null and job_queue_id is not null
"""


@pytest.mark.timeout(120)
@pytest.mark.feature("F92")
@pytest.mark.parametrize(("rust", "at_once"), [(RUST_13, 4), (RUST_14, 1)])
def test_rust_13_with_a_local_queue_claims_several_jobs_of_a_named_queue_and_rust_14_one(
    copies: Copies, tmp_path, rust, at_once
):
    database = copies.copy(RUST_14, PYTHON)
    job = {"task": "work", "payload": {"hang_in": [rust.name]}, "queue_name": "in turn"}
    with (
        Programs.for_database(database, tmp_path) as programs,
        closing(Sql(database.dsn, database.schema)) as sql,
    ):
        workers = Workers(programs, database)
        workers.add(PYTHON, [job] * 4)
        workers.start(rust, local_queue=10, concurrency=4)
        eventually(lambda: sql.value(LOCKED_AT_ONCE) == at_once, "it claims them")
        doctor = programs.run_to_end("doctor", "--json")

        findings = {each["id"] for each in json.loads(doctor.out)["findings"]}
        assert ("queue-parallel" in findings) is (at_once > 1)
        assert sql.value(LOCKED_AT_ONCE) == at_once

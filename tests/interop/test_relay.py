"""Jobs that fail in one language and finish in the other: their rows are the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import JobSpec, sync
from tests.support.node import node_worker
from tests.support.processes import Programs
from tests.support.sql import Sql

# What depends on versions lies deeper, and is tested there on each.
pytestmark = pytest.mark.single_version

FAILS = {
    "python": "def task(payload):\n    raise ValueError('boom')\n",
    "node": "module.exports = async () => { throw new Error('boom'); };\n",
}
WORKS = {
    "python": "def task(payload):\n    pass\n",
    "node": "module.exports = async () => {};\n",
}
FILES = {"python": "relay.py", "node": "relay.js"}

FAILED = """
select jobs.attempts, jobs.max_attempts, jobs.locked_by, jobs.locked_at, jobs.priority,
  jobs.payload::text, jobs.key, jobs.flags::text, jobs.revision, jobs.is_available,
  round(extract(epoch from jobs.run_at - now()) / 10) as tens_of_seconds,
  job_queues.locked_by as queue_holder
from :schema._private_jobs as jobs
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.priority
"""


def run_once_in(language: str, database: Any, folder: Path, source: str) -> None:
    """Let a worker of that language run what is ready, with this as its task."""
    place = folder / language
    (place / "tasks").mkdir(parents=True, exist_ok=True)
    (place / "tasks" / FILES[language]).write_text(source)
    if language == "node":
        node_worker("0.18", database.url, "--once", schema=database.schema, cwd=place)
    else:
        with Programs(place) as programs:
            done = programs.run_to_end("--once", "-c", database.dsn, "-s", database.schema)
        assert done.code == 0, done.err


@pytest.fixture
def behind(either_database) -> Iterator[Sql]:
    sql = Sql(either_database.dsn, either_database.schema)
    yield sql
    sql.close()


@pytest.mark.parametrize(("first", "second"), [("python", "node"), ("node", "python")])
@pytest.mark.feature("F209")
def test_a_job_that_failed_in_one_language_finishes_in_the_other(
    either_database, behind, tmp_path, first, second
):
    database, sql = either_database, behind
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.add_jobs(
            [
                JobSpec("relay", {"n": 1}, queue_name="in turn", job_key="k", priority=3),
                JobSpec("relay", [1, 2], flags=["slow"], max_attempts=2),
            ]
        )

    run_once_in(first, database, tmp_path, FAILS[first])
    failed = sql.run(FAILED)
    sql.run("update :schema._private_jobs set run_at = now()")
    run_once_in(second, database, tmp_path, WORKS[second])

    assert failed == rows_of_a_failure()
    assert sql.value("select count(*) from :schema._private_jobs") == 0


def rows_of_a_failure() -> list[tuple[Any, ...]]:
    """Permanently failed by either language."""
    soon, one, two = 0, '{"n":1}', "[1,2]"
    return [
        (1, 2, None, None, 0, two, None, '{"slow": true}', 0, True, soon, None),
        (1, 25, None, None, 3, one, "k", None, 0, True, soon, None),
    ]

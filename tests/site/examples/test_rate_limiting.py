"""examples/rate-limiting: a limit that two worker processes hold together."""

import runpy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import psycopg
import pytest

from tests.conftest import TestDatabase
from tests.support.processes import READY, eventually

# As they were added: a worker that takes one and finds no token puts it off.
UNTOUCHED = """
select count(*) from graphile_worker.jobs
where task_identifier = 'charge' and attempts = 0 and locked_at is null and run_at = created_at
"""


@pytest.fixture
def count(empty_database: TestDatabase) -> Iterator[Callable[[str], int]]:
    with psycopg.connect(empty_database.dsn, autocommit=True) as connection:

        def count(query: str) -> int:
            row = connection.execute(query.encode()).fetchone()
            assert row is not None
            return int(row[0])

        yield count


@pytest.mark.single_version
@pytest.mark.feature("F238", "F236")
def test_two_workers_keep_a_shared_limit_and_delay_no_other_job(prepared, count):
    for worker in [prepared.start("python worker.py") for _ in range(2)]:
        worker.wait_for_line(READY)

    prepared.type('psql "$DATABASE_URL" -c "update tokens set free_at = \'infinity\'')
    prepared.type("python add.py")
    eventually(lambda: count("select count(*) from receipts") == 20, "all receipts are sent")
    assert count(UNTOUCHED) == 10

    prepared.type('psql "$DATABASE_URL" -c "update tokens set free_at = \'-infinity\'')
    eventually(lambda: count("select count(*) from calls") == 10, "all orders are charged")
    assert " t\n" in prepared.type('psql "$DATABASE_URL" -f check.sql')
    assert count("select count(distinct order_id) from calls") == 10

    prepared.passes_its_own_tests()


@pytest.mark.single_version
def test_concurrent_tasks_never_exceed_the_limit_in_any_window(prepared, empty_database):
    limits = runpy.run_path(str(prepared.folder / "limits.py"))
    window = timedelta(milliseconds=100)
    with psycopg.connect(empty_database.dsn, autocommit=True) as connection:
        connection.execute("update tokens set per = %s", [window])

    def take_five(_: int) -> list[datetime]:
        taken: list[datetime] = []
        with psycopg.connect(empty_database.dsn, autocommit=True) as connection:
            while len(taken) < 5:
                taken += [at for (at,) in connection.execute(limits["TAKE"], ["api:stripe"])]
        return taken

    with ThreadPoolExecutor(4) as takers:
        times = sorted(at for taken in takers.map(take_five, range(4)) for at in taken)

    assert all(times[after + 3] - times[after] >= window for after in range(len(times) - 3))

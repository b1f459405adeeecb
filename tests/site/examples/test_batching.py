"""examples/batching: items are batched under a key, and only failed items are retried."""

import psycopg
import pytest

STORED = "select sensor from readings order by sensor"


@pytest.mark.single_version
@pytest.mark.feature("F61", "F81", "F120")
def test_readings_are_batched_and_only_failed_ones_are_retried(prepared, empty_database):
    assert prepared.type("python add.py").endswith("kitchen: 4 gathered\n")
    assert "5" in prepared.type('psql "$DATABASE_URL" -f add.sql')
    assert prepared.type("graphile-worker jobs list").count("gather ") == 1

    worker = prepared.start("graphile-worker --app tasks:app")
    worker.wait_for_line("stored 4 of 5 readings")
    worker.wait_for_line("no sensor attic")
    prepared.type('psql "$DATABASE_URL" -c "insert into sensors')
    worker.wait_for_line("stored 1 of 1 readings")

    assert worker.stop() == 0
    with psycopg.connect(empty_database.dsn) as connection:
        stored = [sensor for (sensor,) in connection.execute(STORED)]
    assert stored == ["attic", "cellar", "cellar", "kitchen", "kitchen"]

    prepared.passes_its_own_tests()

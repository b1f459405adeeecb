"""examples/sqlalchemy: the commands of its README."""

import sys

import pytest

from graphile_worker import sync
from tests.site.examples.conftest import Example
from tests.support.processes import eventually
from tests.support.sql import Sql

FORTH_AND_BACK = """
from alembic.config import main

main(["upgrade", "head"])
main(["check"])
main(["downgrade", "base"])
"""
SENT = "select email from orders where receipt_sent_at is not null order by id"


@pytest.mark.single_version
@pytest.mark.feature("F1", "F39")
@pytest.mark.timeout(240)
def test_orders_get_receipts_and_what_is_rolled_back_gets_none(example: Example, example_sql: Sql):
    example.type("alembic upgrade head")
    example.type("python -m shop ada")
    example.type("python -m shop --async grace")
    for till in ("python -m shop bob", "python -m shop --async bob"):
        refused = example.start(till)
        assert refused.end() == 1
        assert refused.err == "rejected: bob@example.com has no credit left\n"
    assert example_sql.value("select count(*) from :schema.jobs") == 2

    worker = example.work()

    both = [("ada@example.com",), ("grace@example.com",)]
    eventually(lambda: example_sql.run(SENT) == both, "both receipts are sent")
    assert "2 rows" in example.type("psql")
    assert worker.stop() == 0
    assert "2 items, 7.30 euros" in worker.err
    assert example_sql.value("select count(*) from :schema.jobs") == 0

    example.passes_its_own_tests()


@pytest.mark.single_version
def test_the_revision_keeps_an_existing_queue(example: Example, example_sql: Sql):
    with sync.Client(example_sql.dsn) as client:
        client.migrate()
        client.add_job("of_another_program")

    example.run(sys.executable, "-c", FORTH_AND_BACK)

    assert example_sql.value("select count(*) from :schema.jobs") == 1

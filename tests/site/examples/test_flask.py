"""examples/flask: the commands of its README."""

import sys

import pytest

from graphile_worker import sync
from tests.site.examples.conftest import Example, Site
from tests.support.processes import eventually
from tests.support.sql import Sql

TEA = {"email": "ada@example.com", "product": "tea"}

# As a server does that imports the program once and then makes its processes.
FORKING = """
import os
import sys

from shop.web import web

def serve():
    order = {"email": "ada@example.com", "product": "tea"}
    sys.exit(web.test_client().post("/orders", json=order).status_code != 202)

children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        serve()
    children.append(child)
sys.exit(max(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.fixture
def site(example: Example) -> Site:
    example.type("graphile-worker migrate")
    example.type("psql")
    return example.serve("flask", FLASK_RUN_PORT="0")


def prepare(example: Example, sql: Sql) -> None:
    """The commands of the README, with shorter waits."""
    sql.run((example.folder / "schema.sql").read_text())
    with sync.Client(sql.dsn) as client:
        client.migrate()


def wait_for_receipt(site: Site, order_id: int) -> None:
    path = f"/orders/{order_id}"
    eventually(lambda: site.get(path).json()["receipt_sent_at"], "the receipt is sent")


@pytest.mark.single_version
@pytest.mark.feature("F1", "F39")
@pytest.mark.timeout(240)
def test_orders_get_receipts_and_what_is_rolled_back_gets_none(
    example: Example, site: Site, example_sql: Sql
):
    first, second, third = (site.post("/orders", TEA) for _ in range(3))

    assert [each.status_code for each in (first, second, third)] == [202, 202, 409]
    jobs = example_sql.run("select id from :schema.jobs order by id")
    assert jobs == [(each.json()["job_id"],) for each in (first, second)]

    worker = example.work()
    for answer in (first, second):
        wait_for_receipt(site, answer.json()["order_id"])
    assert worker.stop() == 0
    assert example_sql.value("select count(*) from :schema.jobs") == 0
    assert example_sql.value("select count(*) from orders") == 2

    example.passes_its_own_tests()


@pytest.mark.single_version
def test_processes_that_were_forked_take_orders(example: Example, example_sql: Sql):
    prepare(example, example_sql)

    example.run(sys.executable, "-W", "error", "-c", FORKING)

    assert example_sql.value("select count(*) from orders") == 2
    assert example_sql.value("select count(*) from :schema.jobs") == 2


@pytest.mark.single_version
def test_old_orders_are_deleted_at_night_or_when_asked(example: Example, example_sql: Sql):
    prepare(example, example_sql)
    example_sql.run(
        "insert into orders (email, product, ordered_at) values ('ada', 'tea', '2020-01-01')"
    )

    assert "03:00" in example.type("graphile-worker cron next")
    example.type("graphile-worker cron run")

    worker = example.work()
    eventually(lambda: not example_sql.run("select from orders"), "the old order is deleted")
    assert worker.stop() == 0
